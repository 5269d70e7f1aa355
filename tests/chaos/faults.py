"""An installation of its own, and all that can be done to it."""

import json
import platform
import random
import re
import shutil
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Self

import psutil
import redis
from book import Fault
from ledger import create_topics
from load import now_ms
from servers import READY, ServiceProcess

from sendlater.local.kafka_server import KafkaServer
from sendlater.local.process import LOOPBACK, wait_for
from sendlater.local.redis_server import RedisServer

GAP_S = (12.0, 20.0)
"""From the end of a fault to the beginning of the next."""
WATCH_S = 0.5
"""Pause between two looks at whether the service is there."""
PAUSE_S = (3.0, 8.0)
"""How long a process is stopped."""
AWAY_S = (10.0, 60.0)
"""How long Kafka is away; the longest in the scenario `outage`."""
CUT_S = 1.0
"""How much Redis forgets when its file is cut: what `appendfsync everysec` may lose."""
SAMPLE_S = 0.1
"""Pause between two looks at the size of that file."""
HASTY_SHARE = 0.25
"""Of the starts, not awaited: a kill may then hit a service that is about to start."""
END_TIMEOUT_S = 60.0
"""Longest wait for a process to end by itself where it must."""
STANDBY_TIMEOUT_S = 120.0
STARTS_MAX = 3
"""So often a service is started that does not come up."""
LINES_COUNT = 12
"""How much of its log is told of a service that ended by itself."""

SCENARIOS = {
    "kill": ("kill",),
    "graceful": ("graceful",),
    "redis-kill": ("redis-kill",),
    "flushall": ("flushall",),
    "second-service": ("second-service",),
    "outage": ("kafka-outage",),
}
"""Faults by name of a scenario; `mixed` is all of MIXED."""
MIXED = (
    *("kill", "graceful", "jvm-kill", "worker-kill"),
    *("driver-pause", "jvm-pause", "worker-pause", "redis-pause", "kafka-pause"),
    *("redis-kill", "redis-cut", "flushall", "kafka-kill", "kafka-away"),
    *("checkpoint-loss", "second-service"),
)
NEEDS_JOURNAL = {"flushall"}
LET_GO = "deliveries go on although intake has not read the inboxes"


def choose(kinds: tuple[str, ...], *, seed: str) -> Iterator[tuple[str, random.Random]]:
    """Faults without end: each kind once in any order, then again; and the chances in each."""
    chance = random.Random(f"faults {seed}")
    while True:
        for kind in chance.sample(kinds, len(kinds)):
            yield kind, random.Random(chance.random())


class Installation:
    """A Kafka, a Redis and services in a folder. `strike` does something to them."""

    def __init__(self, directory: Path, *, journal: bool, tell: Callable[[str], None]) -> None:
        self.journal = journal
        self.faults: list[Fault] = []
        self.incidents: list[str] = []
        """What no fault explains."""
        self.inbox, self.target, self.rejected = "schedules", "target", "rejected"
        self._tell = tell
        self._directory = directory
        properties = {"auto.create.topics.enable": "false"}
        self.kafka = KafkaServer(directory, port=lasting_port(), extra=properties)
        self.redis = RedisServer(directory, port=lasting_port())
        self._services: list[ServiceProcess] = []
        self._sizes: deque[tuple[float, int]] = deque(maxlen=round(10 / SAMPLE_S))
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self.kafka.start()
        self.redis.start()
        where = self.kafka.bootstrap_servers
        policy = {"cleanup_policy": "compact"} if self.journal else {}
        create_topics(where, self.inbox, partitions=4, **policy)
        create_topics(where, self.target, self.rejected, "history")
        for name in ("one", "two"):
            (self._directory / name).mkdir()
            self._services.append(
                ServiceProcess(
                    self._directory / name,
                    bootstrap_servers=where,
                    redis=self.redis.url,
                    space="chaos",
                    inboxes=json.dumps([{"topic": self.inbox, "journal": self.journal}]),
                    rejected_topic=self.rejected,
                    history_topic="history",
                )
            )
        self._sampler.start()
        self.service.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for service in self._services:
            if service.running:
                service.kill()
        self.redis.stop()
        self.kafka.stop()

    @property
    def service(self) -> ServiceProcess:
        """The one that is active; the other one may stand by, or not be there."""
        return self._services[0]

    def let_go_ms(self) -> list[int]:
        """When deliveries were told to wait for intake no longer."""
        logs = [one.log for one in self._services if one.log.exists()]  # two may never have run
        lines = [line for log in logs for line in log.read_text().splitlines()]
        told = [json.loads(line) for line in lines if line.startswith("{") and LET_GO in line]
        times = [datetime.fromisoformat(one["timestamp"]) for one in told]
        return [round(at.timestamp() * 1_000) for at in times]

    # --- strikes --------------------------------------------------------------------------------

    def strike(self, kind: str, chance: random.Random) -> None:
        """Do one thing, and wait until everything is there again; one line tells it."""
        # A kill alone may hit a service that is about to start.
        if kind != "kill" or not self.service.running:
            self.require_running()
        fault = Fault(kind=kind, began_ms=now_ms(), ended_ms=now_ms())
        self.faults.append(fault)
        self._tell(f"fault {kind}")
        fault.told = getattr(self, "_" + kind.replace("-", "_"))(chance) or ""
        fault.ended_ms = now_ms()
        self._tell(f"      {kind} over {fault.told}".rstrip())

    def pace(self, seconds: float) -> None:
        """Let it run so long."""
        until_s = time.monotonic() + seconds
        while not self._over.wait(min(WATCH_S, max(0.0, until_s - time.monotonic()))):
            if not self.service.running:
                self.require_running()
            if time.monotonic() >= until_s:
                return

    def require_running(self) -> None:
        """The active service is there and ready; started again, as a supervisor does, when not."""
        if not self.service.running:
            self._incident(f"the service ended by itself{self._last_words(self.service)}")
            self._start()
        elif READY not in self.service.said():
            self._await_ready(self.service)

    def stop(self) -> None:
        """Gracefully; a failure to end so is an incident."""
        self._end(self.service)

    def _kill(self, chance: random.Random) -> None:
        self.service.kill()
        self._start(hasty=chance.random() < HASTY_SHARE)

    def _graceful(self, chance: random.Random) -> None:
        self._end(self.service)
        self._start(hasty=chance.random() < HASTY_SHARE)

    def _jvm_kill(self, chance: random.Random) -> str:
        self._jvm().kill()
        return self._start_if_ended()

    def _worker_kill(self, chance: random.Random) -> str:
        worker = self._worker(chance)
        worker.kill()
        return f"{worker.pid}"

    def _driver_pause(self, chance: random.Random) -> str:
        return self._pause(self.service.family[0], chance.uniform(*PAUSE_S))

    def _jvm_pause(self, chance: random.Random) -> str:
        return self._pause(self._jvm(), chance.uniform(*PAUSE_S))

    def _worker_pause(self, chance: random.Random) -> str:
        return self._pause(self._worker(chance), chance.uniform(*PAUSE_S))

    def _redis_pause(self, chance: random.Random) -> str:
        return self._pause(psutil.Process(self.redis.pid), chance.uniform(*PAUSE_S))

    def _kafka_pause(self, chance: random.Random) -> str:
        return self._pause(psutil.Process(self.kafka.pid), chance.uniform(*PAUSE_S))

    def _kafka_away(self, chance: random.Random) -> str:
        return self._pause(psutil.Process(self.kafka.pid), chance.uniform(*AWAY_S))

    def _kafka_outage(self, chance: random.Random) -> str:
        return self._pause(psutil.Process(self.kafka.pid), AWAY_S[1])

    def _redis_kill(self, chance: random.Random) -> None:
        _kill(self.redis.pid)
        self.redis.start()

    def _redis_cut(self, chance: random.Random) -> str:
        """Redis comes back with the file as it was a second ago: a power cut."""
        until_s = time.monotonic() - CUT_S
        _kill(self.redis.pid)
        file = self._appended()
        size = file.stat().st_size
        kept = next((s for at_s, s in reversed(list(self._sizes)) if at_s <= until_s), size)
        kept = min(kept, size)  # it may have been written anew, and be smaller
        with file.open("r+b") as opened:
            opened.truncate(kept)
        self.redis.start()
        return f"{size - kept} of {size} bytes lost"

    def _flushall(self, chance: random.Random) -> str:
        """Redis is emptied in the moment in which the service dies, just before or just after."""
        client = redis.Redis.from_url(self.redis.url)
        before = chance.random() < 0.5
        if before:
            client.flushall()
        self.service.kill()
        if not before:
            client.flushall()
        self._start(hasty=chance.random() < HASTY_SHARE)
        return "before" if before else "after"

    def _kafka_kill(self, chance: random.Random) -> None:
        _kill(self.kafka.pid)
        self.kafka.start()

    def _checkpoint_loss(self, chance: random.Random) -> None:
        shutil.rmtree(self._directory / "one" / "data" / "checkpoints", ignore_errors=True)
        shutil.rmtree(self._directory / "two" / "data" / "checkpoints", ignore_errors=True)
        self.service.kill()
        self._start()

    def _second_service(self, chance: random.Random) -> str:
        """With a journal it stands by, and one of the two ends; otherwise it takes over."""
        first, second = self._services
        second.start(wait=False)
        if not self.journal:
            self._await_ready(second)
            self._services.reverse()
            if not wait_for(lambda: not first.running, timeout_s=END_TIMEOUT_S):
                self._incident("the older service did not end")
                first.kill()
            elif first.wait() != 1:
                self._incident(f"the older service ended with {first.wait()}, expected 1")
            return "took over"
        said = ("stands by", READY)
        there = wait_for(
            lambda: not second.running or any(word in second.said() for word in said),
            timeout_s=STANDBY_TIMEOUT_S,
        )
        if not there or not second.running:
            self._incident(f"the second does not stand by{self._last_words(second)}")
            second.kill()
            return "did not come up"
        if READY in second.said():
            # It may, when the active one lost its lease; that one must then end.
            self._services.reverse()
            wait_for(lambda: not first.running, timeout_s=END_TIMEOUT_S)
            return "took over from one that was silent"
        ending = chance.choice(("active killed", "active stopped", "other stopped"))
        if ending == "other stopped":
            self._end(second)
            return ending
        first.kill() if ending == "active killed" else self._end(first)
        self._services.reverse()
        self._await_ready(second)
        return ending

    # --- helpers --------------------------------------------------------------------------------

    def _start(self, *, hasty: bool = False) -> None:
        for _ in range(STARTS_MAX):
            self.service.start(wait=False)
            if hasty or self._await_ready(self.service, start_again=False):
                return
        raise RuntimeError(f"the service does not start: {self.service.said()[-2_000:]}")

    def _await_ready(self, service: ServiceProcess, *, start_again: bool = True) -> bool:
        try:
            service.wait_until_ready()
        except AssertionError:
            self._incident(f"the service did not get ready{self._last_words(service)}")
            if service.running:
                service.kill()
            if start_again and service is self.service:
                self._start()
            return False
        return True

    def _start_if_ended(self) -> str:
        """After a loss that may end the service or not; if so it is started again."""
        began_s = time.monotonic()
        if not wait_for(lambda: not self.service.running, timeout_s=END_TIMEOUT_S):
            return "and the service stayed"
        ended_s = time.monotonic() - began_s
        self._start()
        return f"and the service ended after {ended_s:.1f} s, and was started again"

    def _end(self, service: ServiceProcess) -> None:
        try:
            code = service.stop()
        except subprocess.TimeoutExpired:
            self._incident("a graceful stop took too long")
            service.kill()
            return
        if code != 0:
            self._incident(f"a graceful stop ended with {code}{self._last_words(service)}")

    def _pause(self, process: psutil.Process, seconds: float) -> str:
        process.suspend()
        try:
            self._over.wait(seconds)
        finally:
            process.resume()
        return f"{seconds:.1f} s"

    def _jvm(self) -> psutil.Process:
        return self.service.child(lambda process: process.name() == "java")

    def _worker(self, chance: random.Random) -> psutil.Process:
        """Python's daemon in the service's JVM, or one of the workers that it has forked."""

        def workers() -> list[psutil.Process]:
            return [p for p in self._jvm().children(recursive=True) if "python" in p.name()]

        wait_for(lambda: bool(workers()), timeout_s=END_TIMEOUT_S)
        return chance.choice(sorted(workers(), key=lambda p: p.pid))

    def _appended(self) -> Path:
        """The file that Redis appends to at this moment."""
        folder = self._directory / "redis"
        parts = folder.glob("appendonlydir/*.incr.aof")  # Redis 7; before, it is one file
        return max(parts, key=lambda p: p.stat().st_mtime, default=folder / "appendonly.aof")

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            if (file := self._appended()).exists():
                self._sizes.append((time.monotonic(), file.stat().st_size))

    def _incident(self, told: str) -> None:
        self.incidents.append(told.splitlines()[0])
        self._tell(f"INCIDENT {told}")

    def _last_words(self, service: ServiceProcess) -> str:
        lines = service.said().splitlines()[-LINES_COUNT:]
        return "; the end of its log:\n" + "\n".join(line[:500] for line in lines)

    def versions(self) -> dict[str, str]:
        """What it ran on."""
        java, *arguments = psutil.Process(self.kafka.pid).cmdline()
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
        jar = re.search(r"/kafka-server-([0-9.]+)\.jar", " ".join(arguments))
        info = redis.Redis.from_url(self.redis.url).info()
        return {
            "kafka": jar[1] if jar else "unknown",
            "redis": str(info["redis_version"]),
            "java": told.stderr.splitlines()[-3].split('"')[1],
            "spark": version("pyspark"),
            "python": platform.python_version(),
        }


def lasting_port() -> int:
    """A free loopback port below those that the kernel lends to clients: a server that is away
    for a moment would find one of theirs taken."""
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with socket.socket() as probe:
            if probe.connect_ex((LOOPBACK, port)) != 0:
                return port
    raise RuntimeError("no free port")


def _kill(pid: int | None) -> None:
    """SIGKILL, and wait until the process is gone."""
    process = psutil.Process(pid)
    process.kill()
    process.wait(END_TIMEOUT_S)
