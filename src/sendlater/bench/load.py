"""Loads: a steady stream, and many schedules due at one instant. Lateness is the broker's append
time minus the due time: it includes everything up to the target topic, but not the consumer."""

import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count as count_up
from typing import Any

import psutil
from ulid import ULID

from sendlater.bench.ledger import Ledger, percentiles
from sendlater.brokers.broker import Broker
from sendlater.client.scheduler import Scheduler
from sendlater.dialects import encode_headers
from sendlater.model import Origin, Record, Schedule
from sendlater.operations.arguments import Message
from sendlater.store.codec import pack

PAYLOAD_BYTES = 100
NUMBER_BYTES = 16
PARTITIONS = 4
PROBE_PAUSE_S = 0.25
"""Pause between two measurements of the time of a record from inbox to store."""
PROBE_TIMEOUT_S = 30.0
MEMORY_SAMPLE_COUNT = 20_000
"""Schedules written to a temporary space to measure the memory of one."""
IDLE_TIMEOUT_S = 60.0
"""If nothing arrives for this long after the last due time, missing messages count as lost."""
LEAD_MS = 10_000
"""Delay of a steady load: longer than intake takes, which is measured separately."""
WARM_INTAKE_MS = 2_000
"""A steady load is warm once intake takes at most this: code is compiled, no backlog is left."""
WARM_UP_MAX_S = 60.0
"""Longest warm-up; a load that is not warm by then is more than the machine can do."""

Tell = Callable[[int, int], None]
"""Called with the number sent and the number arrived."""


class Run:
    """One load: sends, follows the target topic, and makes the result."""

    def __init__(self, scheduler: Scheduler, *, tell: Tell | None = None) -> None:
        self.scheduler = scheduler
        self.broker: Broker = scheduler.broker
        self.tell = tell or (lambda _sent, _arrived: None)
        self.name = f"bench-{ULID()}".lower()
        self.ledger = Ledger()
        self.intake_ms: list[float] = []
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._last_arrival_s = time.monotonic()
        self._cpu = _cpu_s()

    def __enter__(self) -> "Run":
        self.broker.create(self.name, partitions=PARTITIONS)
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._follower.join()
        self.broker.delete(self.name)

    def _follow(self) -> None:
        for arrivals in self.broker.follow(self.name, stop=self._stop):
            if arrivals:
                self._last_arrival_s = time.monotonic()
                self.ledger.arrived(
                    (int(a.value[:NUMBER_BYTES]), a.timestamp_ms) for a in arrivals if a.value
                )

    def send(self, due_ms: int) -> bytes:
        """Schedule the next number; returns its id."""
        number = len(self.ledger.due_ms)
        self.ledger.due_ms.append(due_ms)
        schedule_id = b"%s-%d" % (self.name[-8:].encode(), number)
        record = Record(topic=self.name, key=b"%d" % number, value=payload_of(number))
        self.broker.send(
            encode_headers(record, inbox=self.scheduler.inbox, id=schedule_id, due_ms=due_ms)
        )
        return schedule_id

    def messages(self, count: int, *, due_ms: int) -> Iterator[Message]:
        """The next `count` messages, for the client to send."""
        at = datetime.fromtimestamp(due_ms / 1_000, UTC)
        for number in range(len(self.ledger.due_ms), len(self.ledger.due_ms) + count):
            self.ledger.due_ms.append(due_ms)
            yield {
                "topic": self.name,
                "value": payload_of(number),
                "key": b"%d" % number,
                "id": f"{self.name[-8:]}-{number}",
                "at": at,
            }
            if number % 10_000 == 0:
                self.tell(number, len(self.ledger.numbers))

    def probe(self, schedule_id: bytes) -> None:
        """Measure how long a record just sent takes to become pending."""
        self.broker.flush()
        began = time.monotonic()
        while time.monotonic() - began < PROBE_TIMEOUT_S:
            if self.scheduler.pending.get(schedule_id) is not None:
                self.intake_ms.append((time.monotonic() - began) * 1_000)
                return
            time.sleep(0.002)

    def wait_until_taken_in(self) -> float:
        """Wait until intake has read the whole inbox; returns the seconds waited."""
        inbox, began = self.scheduler.inbox, time.monotonic()
        ends = {f"{inbox}/{n}": end for n, end in self.broker.ends(inbox).items() if end}
        while time.monotonic() - began < 600:
            seen = self.scheduler.pending.positions()
            if all(seen.get(source, 0) >= end for source, end in ends.items()):
                break
            time.sleep(0.02)
        return time.monotonic() - began

    def wait_for_all(self) -> None:
        """Wait until everything has arrived, or nothing arrives any more."""
        last_due_s = max(self.ledger.due_ms, default=0) / 1_000
        while not self.ledger.complete:
            self.tell(len(self.ledger.due_ms), len(self.ledger.numbers))
            quiet_s = time.monotonic() - self._last_arrival_s
            if time.time() > last_due_s + IDLE_TIMEOUT_S and quiet_s > IDLE_TIMEOUT_S:
                break
            time.sleep(0.1)
        self.tell(len(self.ledger.due_ms), len(self.ledger.numbers))

    def account(self, *, warm_from_ms: int, rate_from_ms: int) -> dict[str, Any]:
        """The result object: the ledger's counts, rates, memory, machine and versions."""
        result = self.ledger.account(warm_from_ms=warm_from_ms)
        appended = [at for at in self.ledger.append_ms if at >= rate_from_ms]
        span_ms = max(appended) - rate_from_ms if appended else 0
        intake = percentiles(self.intake_ms)
        return {
            **result,
            "delivered_per_s": round(1_000 * len(appended) / span_ms) if span_ms > 0 else None,
            "intake_ms": {"p50": intake["p50"], "p99": intake["p99"]},
            "redis_bytes_per_schedule": bytes_per_schedule(self.scheduler),
            "cpu_s": round(_cpu_s() - self._cpu, 1),
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "versions": versions(self.scheduler),
        }


def steady(
    scheduler: Scheduler,
    *,
    rate: float,
    seconds: float,
    warm_up_s: float,
    tell: Tell | None = None,
    count: int | None = None,
) -> dict[str, Any]:
    """Send `rate` a second for `seconds`, after a warm-up at the same rate; each due LEAD_MS later.

    The warm-up lasts at least `warm_up_s`, and until intake is fast enough (WARM_INTAKE_MS); 0
    means no warm-up. With `count`, that many are sent in total.
    """
    with Run(scheduler, tell=tell) as run:
        began_s = time.time()
        end = _Ending(run, rate=rate, seconds=seconds, warm_up_s=warm_up_s, count=count)
        prober = Prober(run)
        for number, at_s in paced(rate=rate, began_s=began_s):
            if end.reached(number):
                break
            schedule_id = run.send(round(at_s * 1_000) + LEAD_MS)
            prober.offer(schedule_id)
            if number % max(1, round(rate / 20)) == 0:
                run.tell(number, len(run.ledger.numbers))
        prober.stop()
        run.broker.flush()
        run.wait_for_all()
        warmed_s = end.warm_count / rate
        warm_ms = round((began_s + warmed_s) * 1_000) + LEAD_MS
        return {
            "load": "steady",
            "rate": rate,
            "warm_up_s": round(warmed_s, 1),
            **run.account(warm_from_ms=warm_ms, rate_from_ms=warm_ms),
        }


class _Ending:
    """Decides when a steady load is warm, and when it ends."""

    def __init__(
        self, run: Run, *, rate: float, seconds: float, warm_up_s: float, count: int | None
    ) -> None:
        self._run = run
        self._measured_count = round(rate * seconds)
        self._warm_max_count = round(rate * max(warm_up_s, WARM_UP_MAX_S)) if warm_up_s else 0
        self._count = count
        self.warm_count = round(rate * warm_up_s)

    def reached(self, number: int) -> bool:
        """Whether `number` is past the last one."""
        if self._count is not None:
            return number >= self._count
        probes = self._run.intake_ms
        if number == self.warm_count and number < self._warm_max_count:
            if not probes or probes[-1] > WARM_INTAKE_MS:
                self.warm_count += 1
            else:
                probes.clear()
        return number >= self.warm_count + self._measured_count


def burst(
    scheduler: Scheduler, *, count: int, warm_up: int, tell: Tell | None = None
) -> dict[str, Any]:
    """Send `count` schedules due at one instant, after `warm_up` others."""
    with Run(scheduler, tell=tell) as run:
        for _ in range(warm_up):
            run.send(round(time.time() * 1_000))
        run.broker.flush()
        run.wait_for_all()
        began = time.monotonic()
        # Late enough for intake to finish first: 10,000 a second is a third of its rate.
        due_ms = round(time.time() * 1_000) + 5_000 + count // 10
        scheduler.send_many(run.messages(count, due_ms=due_ms))
        sent_s = time.monotonic() - began
        run.wait_until_taken_in()
        taken_s = time.monotonic() - began
        ready = time.time() * 1_000 < due_ms
        run.wait_for_all()
        return {
            "load": "burst",
            "warm_up": warm_up,
            "sent_per_s": round(count / sent_s),
            "intake_per_s": round(count / taken_s),
            "parked_before_due": ready,
            **run.account(warm_from_ms=due_ms, rate_from_ms=due_ms),
        }


def bytes_per_schedule(scheduler: Scheduler) -> float:
    """The memory of one such schedule in Redis, measured with many in a temporary space."""
    client, pending = scheduler.pending.client, scheduler.pending
    scratch = type(pending)((client,), space=f"{pending.space}-scratch-{ULID()}", shards=1)
    shard = scratch.shards[0]
    value = b"x" * PAYLOAD_BYTES
    origin = Origin(
        topic=scheduler.inbox, partition=1, position=10**6, timestamp_ms=time.time_ns() // 10**6
    )
    far_ms = 2**42
    for first in range(0, MEMORY_SAMPLE_COUNT, 500):
        rows: list[Any] = []
        for number in range(first, first + 500):
            name = b"%s-%d" % (str(ULID())[-8:].encode(), number)
            record = Record(topic=f"bench-{ULID()}", key=b"%d" % number, value=value)
            schedule = Schedule(
                id=name, due_ms=far_ms, record=record, dialect="headers", origin=origin
            )
            rows += (name, far_ms, pack(schedule))
        shard.park(rows)
    # Of these keys alone: others come and go meanwhile, as of the load just measured.
    used = sum(client.memory_usage(key, samples=0) or 0 for key in shard.keys.values())
    client.unlink(*shard.keys.values())
    return round(used / MEMORY_SAMPLE_COUNT, 1)


def versions(scheduler: Scheduler) -> dict[str, str]:
    """The versions of all software that influences the result."""
    redis_version = scheduler.pending.client.info("server")["redis_version"]
    names = ("sendlater", "pyspark", "confluent-kafka", "redis", "pyarrow")
    found = {name: version(name) for name in names}
    return {"python": platform.python_version(), "redis-server": str(redis_version), **found}


def payload_of(number: int) -> bytes:
    """PAYLOAD_BYTES bytes that begin with the number."""
    return b"%-*d" % (NUMBER_BYTES, number) + b"x" * (PAYLOAD_BYTES - NUMBER_BYTES)


def paced(*, rate: float, began_s: float) -> Iterator[tuple[int, float]]:
    """Numbers and their planned times, without end, no faster than `rate`."""
    for number in count_up():
        at_s = began_s + number / rate
        ahead_s = at_s - time.time()
        if ahead_s > 0.002:
            time.sleep(ahead_s)
        yield number, at_s


class Prober:
    """Measures intake during the load, a few times a second."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._offered: bytes | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._probe, daemon=True)
        self._thread.start()

    def offer(self, schedule_id: bytes) -> None:
        self._offered = schedule_id

    def _probe(self) -> None:
        while not self._stop.wait(PROBE_PAUSE_S):
            offered, self._offered = self._offered, None
            if offered is not None:
                self._run.probe(offered)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def _cpu_s() -> float:
    """CPU seconds used by the whole machine since it started."""
    times = psutil.cpu_times()
    return float(times.user + times.system)
