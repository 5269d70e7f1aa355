"""A JVM is started as Spark's script would, which is asked once for each kind of settings."""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkConf
from servers import wait_until

from sendlater.config import Settings
from sendlater.errors import BadSettings, Unavailable
from sendlater.service.submitted import end_with_jvm
from sendlater.spark import jvm, python_server, session

JAVA = """
import json, os, struct, sys
secret = b"secret"
told = os.environ["_PYSPARK_DRIVER_CONN_INFO_PATH"]
with open(os.environ["ASKED"], "a") as file:
    print(json.dumps([os.getsid(0) == os.getpid(), *sys.argv[1:]]), file=file)
if os.environ.get("FAILS"):
    sys.exit(3)
with open(told + ".new", "wb") as file:
    file.write(struct.pack(">ii", 4711, len(secret)) + secret)
os.rename(told + ".new", told)
sys.stdin.read()
"""
"""Tells where it is reached, and ends with its standard input."""


class Machine:
    """A Spark whose script and Java can be counted, and a PySpark that reaches any JVM."""

    def __init__(self, directory: Path, monkeypatch: Any) -> None:
        self.directory, self.cache = directory, directory / "cache"
        self.cache.mkdir()
        self.asked, self.scripts = directory / "asked", directory / "scripts"
        (directory / "java.py").write_text(JAVA)
        java = f"{sys.executable} {directory / 'java.py'} org.apache.spark.deploy.SparkSubmit"
        script = f'echo >> {self.scripts}\nexec {java} "$@"'
        self.home = self.cache / "spark"
        submit = self.home / "bin" / "spark-submit"
        submit.parent.mkdir(parents=True)
        submit.write_text(f"#!/bin/sh\n{script}\n")
        submit.chmod(0o755)
        monkeypatch.setenv("SPARK_HOME", str(self.home))
        monkeypatch.setenv("ASKED", str(self.asked))
        monkeypatch.setattr(jvm, "launch_gateway", self._reach)
        self.started: list[Any] = []

    def _reach(self) -> Any:
        where = SimpleNamespace(
            port=os.environ["PYSPARK_GATEWAY_PORT"], secret=os.environ["PYSPARK_GATEWAY_SECRET"]
        )
        self.started.append(where)
        return where

    def launch(self, *, server: Path | None = None, **settings: str) -> Any:
        """A JVM with these settings of Spark's driver."""
        conf = SparkConf(loadDefaults=False)
        for name, value in settings.items():
            conf.set(f"spark.driver.{name}", value)
        return jvm.launch(conf, cache_dir=self.cache, server=server, imports="json")

    def times(self) -> tuple[int, int]:
        """How often Spark's script ran, and how often Java."""
        return tuple(len(one.read_text().splitlines()) for one in (self.scripts, self.asked))  # type: ignore[return-value]

    def end(self) -> None:
        """Every JVM, as the end of the service does."""
        for one in self.started:
            one.proc.stdin.close()
            one.proc.wait(30)


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Iterator[Machine]:
    for name in jvm.UNKNOWN:
        monkeypatch.delenv(name, raising=False)
    one = Machine(tmp_path, monkeypatch)
    yield one
    one.end()


def test_pyspark_reaches_the_jvm_where_that_says(machine) -> None:
    reached = machine.launch(memory="1g")
    assert (reached.port, reached.secret) == ("4711", "secret")
    assert jvm.GATEWAY_PORT not in os.environ
    assert machine.asked.read_text() == (
        '[true, "org.apache.spark.deploy.SparkSubmit", "--conf", "spark.driver.memory=1g", '
        '"pyspark-shell"]\n'
    ), "the leader of a session of its own"


def test_the_script_is_asked_once_for_the_same_settings(machine) -> None:
    machine.launch(memory="1g")
    machine.launch(memory="1g")
    assert machine.times() == (1, 2)
    first, second = machine.asked.read_text().splitlines()
    assert first == second
    machine.launch(memory="2g")
    assert machine.times() == (2, 3)


@pytest.mark.parametrize("name", jvm.UNKNOWN)
def test_the_script_is_asked_whenever_there_are_settings_elsewhere(
    machine, name, monkeypatch
) -> None:
    monkeypatch.setenv(name, "pyspark-shell")
    machine.launch()
    machine.launch()
    assert machine.times() == (2, 2)


def test_a_path_of_libraries_is_for_the_script(machine) -> None:
    machine.launch(extraLibraryPath="/lib")
    machine.launch(extraLibraryPath="/lib")
    assert machine.times() == (2, 2)


def test_what_pyspark_leaves_in_the_environment_makes_no_difference(machine, monkeypatch) -> None:
    machine.launch()
    for name in jvm.PYSPARKS:
        monkeypatch.setenv(name, "1")
    machine.launch()
    assert machine.times() == (1, 2)
    monkeypatch.setenv("SPARK_DRIVER_MEMORY", "3g")
    machine.launch()
    assert machine.times() == (2, 3)


def test_another_spark_has_settings_of_its_own(machine, monkeypatch, tmp_path) -> None:
    (machine.home / "conf").mkdir()
    machine.launch()
    machine.launch()
    assert machine.times() == (2, 2)
    (machine.home / "conf").rmdir()
    (tmp_path / "elsewhere").symlink_to(machine.home)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "elsewhere"))
    machine.launch()
    machine.launch()
    assert machine.times() == (4, 4)


@pytest.mark.parametrize("kept", ["", "[1", '["/no/such/java", "org.apache.spark"]'])
def test_where_what_is_kept_is_of_no_use_the_script_is_asked(machine, kept) -> None:
    machine.launch()
    [path] = machine.cache.glob("jvm-*.json")
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(kept)
    machine.launch()
    assert machine.times() == (2, 2)
    machine.launch()
    assert machine.times() == (2, 3)


def test_what_is_kept_for_settings_of_long_ago_is_removed(machine) -> None:
    for age_s in range(jvm.KEPT_MAX):
        old = machine.cache / f"jvm-old{age_s}.json"
        old.write_text("[]")
        os.utime(old, (1_000 - age_s, 1_000 - age_s))
    machine.launch()
    left = {one.name for one in machine.cache.glob("jvm-*.json")}
    assert len(left) == jvm.KEPT_MAX
    assert f"jvm-old{jvm.KEPT_MAX - 1}.json" not in left, "the oldest"
    machine.launch()
    assert machine.times() == (1, 2), "that of now is there"


def test_after_a_jvm_that_ends_the_script_is_asked_again(machine, monkeypatch) -> None:
    machine.launch()
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(Unavailable, match="expected Spark's JVM to run, it ended with 3"):
        machine.launch()
    monkeypatch.delenv("FAILS")
    machine.launch()
    assert machine.times() == (2, 3)


def test_the_jvm_of_spark_submit_is_for_serve_alone(machine, monkeypatch) -> None:
    monkeypatch.setenv(jvm.GATEWAY_PORT, "1")
    monkeypatch.setattr(session.SparkContext, "_gateway", None)
    with pytest.raises(BadSettings, match="only `sendlater serve` takes"):
        session.start_session(Settings(cache_dir=machine.cache), java_home=machine.home, jars=())


@pytest.mark.parametrize(
    ("given", "compilers"),
    [
        ({}, session.FIRST_COMPILER),
        ({"compile_twice": True}, session.PATIENT),
        ({"pending": "buckets", "bootstrap_servers": "here:9092"}, session.PATIENT),
        ({"compile_twice": True, "spark_master": "spark://there:7077"}, ""),
    ],
)
def test_java_compiles_twice_where_that_is_wanted(machine, monkeypatch, given, compilers) -> None:
    """What users give as Java's options stands behind ours, and so wins."""

    class Asked(Exception):
        pass

    def asked(conf: SparkConf, _settings: Settings) -> None:
        raise Asked(conf.get(session.JAVA_OPTIONS))

    monkeypatch.setattr(session.SparkContext, "_gateway", None)
    monkeypatch.setattr(session, "_launch", asked)
    settings = Settings(cache_dir=machine.cache, spark={session.JAVA_OPTIONS: "-Dx=y"}, **given)
    with pytest.raises(Asked) as told:
        session.start_session(settings, java_home=machine.home, jars=())
    options = str(told.value)
    both = (session.FIRST_COMPILER, session.PATIENT)
    assert [one for one in both if one in options] == [compilers] * bool(compilers)
    assert options.endswith(" -Dx=y")


def test_who_was_started_by_spark_submit_ends_with_it() -> None:
    reads, writes = os.pipe()
    stop = threading.Event()
    end_with_jvm(stop, standard_input=reads)
    assert not stop.is_set()
    os.close(writes)
    assert stop.wait(30)
    os.close(reads)


def test_an_input_that_is_no_pipe_says_nothing_of_spark_submit() -> None:
    stop = threading.Event()
    with Path(os.devnull).open() as nothing:
        before = threading.active_count()
        end_with_jvm(stop, standard_input=nothing.fileno())
        assert threading.active_count() == before
    assert not stop.is_set()


def test_the_server_of_forks_begins_with_the_jvm_and_ends_with_it(machine) -> None:
    server = python_server.prepare()
    assert server is not None
    machine.launch(server=server)
    wait_until((server / python_server.SOCKET).exists, "the server listens")
    machine.end()
    wait_until(lambda: not server.exists(), "it has gone, with its directory")
