"""Two services on one space, a steady load, and what a change of the owner costs.

For figures: `PYTHONPATH=$PWD/src:$PWD/tests python tests/handovers.py --times 10 [--kill]`.
"""

import argparse
import itertools
import json
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from ledger import Ledger, Reader, create_topics
from servers import ServiceProcess, own_kafka, own_redis, wait_until

STANDS_BY = "stands by"
AHEAD_MS = 3_000
"""How long before its due time each is sent: some are pending, others still on the inbox."""
TICK_S = 0.01
ARRIVE_S = 120.0
WAIT_S = 300.0
"""Two services that start under load: on a busy machine that takes minutes."""


class Load:
    """Schedules at a steady rate, until the end of the block."""

    def __init__(self, ledger: Ledger, *, rate: int) -> None:
        self._ledger, self._rate = ledger, rate
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        began_s, sent = time.time(), 0
        while not self._over.wait(TICK_S):
            while sent < (time.time() - began_s) * self._rate:
                self._ledger.send(round(began_s * 1_000 + sent * 1_000 / self._rate) + AHEAD_MS)
                sent += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._ledger.flush()


class Relay:
    """Services that follow one another on a space."""

    def __init__(self, kafka: str, redis_url: str, directory: Path, **settings: Any) -> None:
        name = uuid.uuid4().hex[:8]
        self.inbox, self.target, rejected = (f"{kind}-{name}" for kind in ("in", "out", "bad"))
        create_topics(kafka, self.inbox, self.target, rejected)
        self._directory, self._numbers = directory, itertools.count()
        self._settings = {
            "bootstrap_servers": kafka,
            "redis": redis_url,
            "space": name,
            "inboxes": json.dumps([{"topic": self.inbox}]),
            "rejected_topic": rejected,
            "stand_by": "true",
        } | settings
        self.ledger = Ledger(kafka, inbox=self.inbox, target=self.target)
        self.kafka = kafka
        self.services: list[ServiceProcess] = []

    def another(self, *arguments: str, until: str = STANDS_BY) -> ServiceProcess:
        """One more service, started and awaited until it says something."""
        directory = self._directory / str(next(self._numbers))
        directory.mkdir()
        service = ServiceProcess(directory, **self._settings)
        service.arguments = list(arguments)
        self.services.append(service.start(wait=False))

        def said() -> bool:
            assert service.running, service.said()
            return until in service.said()

        if until:
            wait_until(said, f"the service says {until!r}", timeout_s=WAIT_S)
        return service

    def close(self) -> None:
        """Kill what is left."""
        for service in self.services:
            service.end()


@contextmanager
def relay(*args: Any, **settings: Any) -> Iterator[Relay]:
    """Services that are killed at the end."""
    one = Relay(*args, **settings)
    try:
        yield one
    finally:
        one.close()


def longest_gap_ms(reader: Reader, *, since_ms: int = 0) -> int:
    """The longest time without an arrival, by the broker's append times."""
    times = sorted(m.timestamp()[1] for m in list(reader.messages) if m.timestamp()[1] >= since_ms)
    return max((b - a for a, b in itertools.pairwise(times)), default=0)


def latest_ms(reader: Reader, *, since_ms: int = 0) -> int:
    """The highest lateness of what arrived since."""
    late = [m.timestamp()[1] - int(m.value()) for m in list(reader.messages)]
    stamps = [m.timestamp()[1] for m in list(reader.messages)]
    return max((one for one, at in zip(late, stamps, strict=False) if at >= since_ms), default=0)


def more(reader: Reader, count: int) -> None:
    """Wait until so many more have arrived."""
    wanted = len(reader.messages) + count
    wait_until(lambda: len(reader.messages) >= wanted, f"{count} more", timeout_s=ARRIVE_S)


def change(reader: Reader, act: Callable[[], Any], *, count: int) -> dict[str, int]:
    """Do something to the services under load; what it cost until `count` more have arrived."""
    since_ms = time.time_ns() // 1_000_000
    act()
    more(reader, count)
    return {
        "gap_ms": longest_gap_ms(reader, since_ms=since_ms),
        "late_ms": latest_ms(reader, since_ms=since_ms),
    }


def say(*words: Any) -> None:
    """One line."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Ten changes of the owner under load, and the balance."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--times", type=int, default=10)
    asked.add_argument("--rate", type=int, default=1_000)
    asked.add_argument("--kill", action="store_true", help="kill the active one, do not ask it")
    asked.add_argument("--logs", type=Path, help="an empty folder for the services' logs")
    given = asked.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and end what was started
    with ExitStack() as stack:
        directory = given.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in ("kafka", "redis", "services"):
            (directory / name).mkdir()
        kafka = stack.enter_context(own_kafka(directory / "kafka")).bootstrap_servers
        redis_url = stack.enter_context(own_redis(directory / "redis")).url
        one = stack.enter_context(relay(kafka, redis_url, directory / "services"))
        reader = stack.enter_context(Reader(kafka, one.target))
        active = one.another(until="is ready")
        with Load(one.ledger, rate=given.rate):
            for number in range(given.times):
                standby = one.another()
                count = 5 * given.rate
                more(reader, count)
                quiet = change(reader, lambda: None, count=count)

                def act(active: ServiceProcess = active, standby: ServiceProcess = standby) -> None:
                    active.kill() if given.kill else active.stop()
                    wait_until(lambda: "is ready" in standby.said(), "it has the space")

                told = change(reader, act, count=count)
                doubled, early = len(one.ledger.doubled(reader)), len(one.ledger.early(reader))
                say(number, "before", quiet, "change", told, "doubled", doubled, "early", early)
                active = standby
        try:
            wait_until(lambda: not one.ledger.missing(reader), "all", timeout_s=ARRIVE_S)
        finally:
            ledger = one.ledger
            say("sent", len(ledger.due_ms), "lost", len(ledger.missing(reader)))
            say("doubled", len(ledger.doubled(reader)), "early", len(ledger.early(reader)))


if __name__ == "__main__":
    main()
