"""Loads: a steady stream, and many due in one instant. Lateness is the broker's append time minus
the due time, so it includes everything up to the target topic and nothing of the consumer."""

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
"""Between two looks at how long one record takes from inbox to store."""
PROBE_TIMEOUT_S = 30.0
MEMORY_SAMPLE_COUNT = 20_000
"""Schedules written to a scratch space to see what one weighs."""
IDLE_TIMEOUT_S = 60.0
"""With nothing arriving for so long after the last due time, what is missing is lost."""
LEAD_MS = 10_000
"""How far ahead a steady load schedules: more than intake takes, which is told apart."""
WARM_INTAKE_MS = 2_000
"""A steady load is warm once intake takes no longer: code is compiled, no backlog is left."""
WARM_UP_MAX_S = 60.0
"""A load that is not warm by then is measured as it is: more than the machine can do."""

Tell = Callable[[int, int], None]
"""Called with how many were sent and how many have arrived."""


class Run:
    """One load: sends, follows the target topic, and accounts."""

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
        """Schedule the next number; its id."""
        number = len(self.ledger.due_ms)
        self.ledger.due_ms.append(due_ms)
        schedule_id = b"%s-%d" % (self.name[-8:].encode(), number)
        record = Record(topic=self.name, key=b"%d" % number, value=_payload(number))
        self.broker.send(
            encode_headers(record, inbox=self.scheduler.inbox, id=schedule_id, due_ms=due_ms)
        )
        return schedule_id

    def messages(self, count: int, *, due_ms: int) -> Iterator[Message]:
        """The next `count`, for the client to send."""
        at = datetime.fromtimestamp(due_ms / 1_000, UTC)
        for number in range(len(self.ledger.due_ms), len(self.ledger.due_ms) + count):
            self.ledger.due_ms.append(due_ms)
            yield {
                "topic": self.name,
                "value": _payload(number),
                "key": b"%d" % number,
                "id": f"{self.name[-8:]}-{number}",
                "at": at,
            }
            if number % 10_000 == 0:
                self.tell(number, len(self.ledger.numbers))

    def probe(self, schedule_id: bytes) -> None:
        """Measure how long a record just sent takes to be pending."""
        self.broker.flush()
        began = time.monotonic()
        while time.monotonic() - began < PROBE_TIMEOUT_S:
            if self.scheduler.pending.get(schedule_id) is not None:
                self.intake_ms.append((time.monotonic() - began) * 1_000)
                return
            time.sleep(0.002)

    def wait_until_taken_in(self) -> float:
        """Wait until the store has seen all that is on the inbox; seconds it took from here."""
        inbox, began = self.scheduler.inbox, time.monotonic()
        ends = {f"{inbox}/{n}": end for n, end in self.broker.ends(inbox).items() if end}
        while time.monotonic() - began < 600:
            seen = self.scheduler.pending.positions()
            if all(seen.get(source, 0) >= end for source, end in ends.items()):
                break
            time.sleep(0.02)
        return time.monotonic() - began

    def wait_for_all(self) -> None:
        """Until everything has arrived, or nothing does any more."""
        last_due_s = max(self.ledger.due_ms, default=0) / 1_000
        while not self.ledger.complete:
            self.tell(len(self.ledger.due_ms), len(self.ledger.numbers))
            quiet_s = time.monotonic() - self._last_arrival_s
            if time.time() > last_due_s + IDLE_TIMEOUT_S and quiet_s > IDLE_TIMEOUT_S:
                break
            time.sleep(0.1)
        self.tell(len(self.ledger.due_ms), len(self.ledger.numbers))

    def account(self, *, warm_from_ms: int, rate_from_ms: int) -> dict[str, Any]:
        """The result object: the ledger's balance, rates, memory, machine and versions."""
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
    """`rate` a second for `seconds` after a warm-up at the same rate; each due LEAD_MS later.

    The warm-up lasts `warm_up_s`, and until intake keeps pace (WARM_INTAKE_MS); 0 is none at all.
    With `count`, so many are sent in all.
    """
    with Run(scheduler, tell=tell) as run:
        began_s = time.time()
        end = _Ending(run, rate=rate, seconds=seconds, warm_up_s=warm_up_s, count=count)
        prober = _Prober(run)
        for number, at_s in _paced(rate=rate, began_s=began_s):
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
    """When a steady load is warm, and when it is over."""

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
    """`count` due in one instant, after `warm_up` due in an earlier one."""
    with Run(scheduler, tell=tell) as run:
        for _ in range(warm_up):
            run.send(round(time.time() * 1_000))
        run.broker.flush()
        run.wait_for_all()
        began = time.monotonic()
        # Far enough that intake is done before: 10,000 a second is a third of what it does.
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
    """What one schedule like ours weighs in Redis: many are written to a scratch space."""
    client, pending = scheduler.pending.client, scheduler.pending
    scratch = type(pending)(client, space=f"{pending.space}-scratch-{ULID()}", shards=1)
    shard = scratch.shards[0]
    value = b"x" * PAYLOAD_BYTES
    origin = Origin(
        topic=scheduler.inbox, partition=1, position=10**6, timestamp_ms=time.time_ns() // 10**6
    )
    before = int(client.info("memory")["used_memory"])
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
    after = int(client.info("memory")["used_memory"])
    client.unlink(*shard.keys.values())
    return round((after - before) / MEMORY_SAMPLE_COUNT, 1)


def versions(scheduler: Scheduler) -> dict[str, str]:
    """Of everything that has a say in the numbers."""
    redis_version = scheduler.pending.client.info("server")["redis_version"]
    names = ("sendlater", "pyspark", "confluent-kafka", "redis", "pyarrow")
    found = {name: version(name) for name in names}
    return {"python": platform.python_version(), "redis-server": str(redis_version), **found}


def _payload(number: int) -> bytes:
    return b"%-*d" % (NUMBER_BYTES, number) + b"x" * (PAYLOAD_BYTES - NUMBER_BYTES)


def _paced(*, rate: float, began_s: float) -> Iterator[tuple[int, float]]:
    """Numbers and the instant each belongs to, without end, no faster than `rate`."""
    for number in count_up():
        at_s = began_s + number / rate
        ahead_s = at_s - time.time()
        if ahead_s > 0.002:
            time.sleep(ahead_s)
        yield number, at_s


class _Prober:
    """Probes intake beside the load, a few times a second."""

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
    """CPU seconds spent by everything on this machine since it started."""
    times = psutil.cpu_times()
    return float(times.user + times.system)
