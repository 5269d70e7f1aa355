"""Real servers for tests: one Redis and one Kafka a session, and a way to wait without sleeping."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil
import pytest

from sendlater.local.kafka_server import KafkaServer
from sendlater.local.process import LOOPBACK
from sendlater.local.redis_server import RedisServer, find_redis

T = TypeVar("T")
POLL_S = 0.01
COMMAND = str(Path(sys.executable).parent / "sendlater")
READY = "is ready"
START_TIMEOUT_S = 240.0
"""A start takes half a minute, and four times that where three services share two slow cores."""
STOP_TIMEOUT_S = 60.0
STARTS_SOON = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions "
    "-XX:-BytecodeVerificationRemote"
)
"""Options of Java. A hundred JVMs live for seconds each: their second compiler, a collector with
threads of its own and the verification of Spark's classes cost more than they give."""
EXECUTORS = {
    "spark.executor.memory": "1g",
    "spark.cores.max": "16",
    "spark.driver.host": LOOPBACK,
}
"""What a service takes of a cluster: two of them fit on one of two workers with 32 slots each."""
SAID_SHOWN_MAX = 4_000
"""Characters of a service's log in the report of a test that failed."""


def wait_until(condition: Callable[[], T], what: str, *, timeout_s: float = 30.0) -> T:
    """The first true value of `condition`; fails, naming `what` was awaited, after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(POLL_S)
    return value


async def until(condition: Callable[[], T], what: str, *, timeout_s: float = 30.0) -> T:
    """The same for a test that runs in an event loop."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(POLL_S)
    return value


def tool(name: str) -> str:
    """The path of a program that is not ours to install: without it a test is skipped at home, and
    fails in CI, where `.ci/run` installs it."""
    path = shutil.which(name)
    if path is None:
        missing = f"{name} is not installed (.ci/run installs it)"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return path


@contextmanager
def redis_first_on_path(program: str, directory: Path) -> Iterator[None]:
    """Every Redis that is started meanwhile, here or by a child, is `program`: Redis or Valkey.

    By a link, because on Debian the server is there without its service as redis-check-rdb, and
    does what it is called.
    """
    link = directory / "redis-server"
    link.symlink_to(Path(program).absolute())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
        # It would be passed over in silence where it cannot be run, or is too old.
        assert find_redis().path == link, f"{program} is no Redis or Valkey that can be used"
        yield


@contextmanager
def own_redis(directory: Path) -> Iterator[RedisServer]:
    """A Redis of its own for a test that stops or kills it."""
    with RedisServer(directory) as server:
        yield server


@contextmanager
def own_kafka(directory: Path, **extra: str) -> Iterator[KafkaServer]:
    """A Kafka on a free port, by default without topics that appear by themselves.

    `extra`: broker properties, with `_` for `.`.
    """
    properties = {"auto.create.topics.enable": "false"}
    properties |= {name.replace("_", "."): value for name, value in extra.items()}
    with KafkaServer(directory, port=0, extra=properties) as server:
        yield server


def on_cluster() -> dict[str, Any]:
    """Settings of every service of the session, if TEST_SPARK_MASTER names a cluster."""
    master = os.environ.get("TEST_SPARK_MASTER")
    return {"spark_master": master, "spark": EXECUTORS} if master else {}


class ServiceProcess:
    """`sendlater serve` as users run it: a process, its settings in the environment."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.log = directory / "service.log"
        self.environment = {k: v for k, v in os.environ.items() if "SENDLATER" not in k}
        self.environment["SENDLATER_DATA_DIR"] = str(directory / "data")
        for name, value in (on_cluster() | settings).items():
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            self.environment[f"SENDLATER_{name.upper()}"] = text
        self.command = [COMMAND, "serve"]
        self.arguments: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._read_from = 0

    def start(self, *, wait: bool = True) -> Self:
        """Start a process; by default wait until it says that it is ready."""
        self._read_from = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.command, *self.arguments], env=self.environment, stdout=log, stderr=log
            )
        if wait:
            try:
                self.wait_until_ready()
            except AssertionError as error:
                self.end(error)  # nobody else does
                raise
        return self

    def wait_until_ready(self) -> None:
        """Fails, with the log, when the process ends instead."""

        def ready() -> bool:
            assert self.running, self.said()
            return READY in self.said()

        wait_until(ready, "the service is ready", timeout_s=START_TIMEOUT_S)

    def said(self) -> str:
        """What the process told since its last start."""
        return self.log.read_bytes()[self._read_from :].decode(errors="replace")

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def family(self) -> list[psutil.Process]:
        """The process and all that it started, itself first."""
        assert self._process is not None
        own = psutil.Process(self._process.pid)
        return [own, *own.children(recursive=True)]

    def child(self, is_wanted: Callable[[psutil.Process], bool]) -> psutil.Process:
        """The first process that it started and that is wanted; others may end meanwhile."""

        def fits(process: psutil.Process) -> bool:
            try:
                return is_wanted(process)
            except psutil.Error:
                return False

        return next(filter(fits, self.family[1:]))

    def kill(self) -> None:
        """Pull the plug; its JVM notices a little later, and is awaited."""
        assert self._process is not None
        children = self.family[1:]
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        _, left = psutil.wait_procs(children, STOP_TIMEOUT_S)
        assert not left, left

    def stop(self) -> int:
        """Ask it to end, as a supervisor does; its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_TIMEOUT_S)

    def wait(self) -> int:
        """Until it ends by itself; its exit code."""
        assert self._process is not None
        return self._process.wait(STOP_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.end(error)

    def end(self, error: BaseException | None = None) -> None:
        """Pull the plug if it runs; `error`, why, is told what it said last."""
        if error is not None:
            error.add_note(f"What the service said last:\n{self.said()[-SAID_SHOWN_MAX:]}")
        if self.running:
            self.kill()


def cli(
    service: ServiceProcess, *arguments: str, stdin: bytes = b""
) -> subprocess.CompletedProcess:
    """Run `sendlater ...` against a service's installation."""
    return subprocess.run(
        [COMMAND, *arguments],
        env=service.environment,
        input=stdin,
        capture_output=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
