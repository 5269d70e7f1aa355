"""What a schedule costs in each step: CPU by process and thread, bytes and calls of the store.

Every process of an installation is on this machine, so its threads tell in /proc what they used. A
burst is taken in and delivered one after the other; a steady load does both at once.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import redis

from bench.lines import Drivers
from bench.measure import running
from bench.processes import ROLES, family, role
from bench.system import System
from bench.workloads import LEAD_MS, SCHEDULE, Order
from sendlater.bench.all import number, table
from sendlater.client.scheduler import Scheduler
from sendlater.errors import Unavailable
from sendlater.local.process import wait_for
from sendlater.spark.delivery.practice import SUFFIX

STEADY, TAKEN_IN, DELIVERED = "at 2,000/s", "a burst, taken in", "a burst, delivered"
RATE, WARM_S, STEADY_S = 2_000, 40.0, 40.0
BURST, WARM_BURST = 300_000, 100_000
GATHER_S = 40.0
"""From the start of sending a burst until it is due."""
PACE_S = 0.01
"""How often the orders of an instant are given."""
TIMEOUT_S = 120.0
"""Longest wait until what was sent is pending, or what is due has arrived."""

JAVA, WORKER = ROLES["org.apache.spark"], ROLES["pyspark"]

STEPS: dict[str, tuple[tuple[str, str], ...]] = {
    "the client encodes and sends": (("sender", ""),),
    "Kafka takes and gives": (("broker", ""),),
    "intake reads and packs": ((WORKER, "sl-intake"),),
    "intake writes to the store": ((WORKER, "sl-park"),),
    "the store keeps, finds and forgets": (("store", ""),),
    "lanes claim": ((WORKER, "sl-lane"),),
    "Spark moves rows": ((JAVA, "Executor task"),),
    "Spark's Kafka producers send": ((JAVA, "kafka-producer-"),),
    "Spark plans batches": (
        (JAVA, "stream executio"),
        (JAVA, "dag-scheduler-e"),
        (JAVA, "task-result-get"),
        (JAVA, "dispatcher-even"),
        (JAVA, "spark-listener-"),
        (WORKER, ""),
    ),
    "Java compiles": ((JAVA, "C1 Compiler"), (JAVA, "C2 Compiler")),
    "Java collects garbage": ((JAVA, "G1 "), (JAVA, "GC Thread")),
    "all else in Java": ((JAVA, ""),),
    "the service watches": (("service", ""),),
    "a receiver reads": (("receiver", ""),),
}
"""Process and beginning of a thread's name, by what it does; the first that fits counts."""

STORE = {
    "total_net_input_bytes": "bytes to the store",
    "total_net_output_bytes": "bytes from the store",
    "total_commands_processed": "commands of the store, those within scripts too",
}
"""Counters of Redis, and what they are in the table."""

Thread = tuple[int, int]
"""Process id, thread id."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What everything has used so far."""

    at_s: float
    threads_s: Mapping[Thread, float]
    names: Mapping[Thread, tuple[str, str]]
    """Kind of process, and what a thread is called now: Spark names those of its pool by task."""
    processes_s: Mapping[tuple[int, str], float]
    """Per process id and kind: all of a process, also of its threads that have ended."""
    store: Mapping[str, float]


class Meter:
    """Reads an installation's counters."""

    def __init__(self, drivers: Drivers, store: redis.Redis) -> None:
        self._drivers, self._store = drivers, store

    def read(self) -> Reading:
        """All of them now."""
        threads: dict[Thread, float] = {}
        names: dict[Thread, tuple[str, str]] = {}
        processes: Counter[tuple[int, str]] = Counter()
        for label, pid in self._drivers.processes.items():
            for one in family(pid):
                with suppress(psutil.NoSuchProcess):
                    kind = role(one, label)
                    times = one.cpu_times()
                    for thread, name, used_s in _threads(one, kind):
                        threads[thread], names[thread] = used_s, (kind, name)
                    processes[one.pid, kind] += times.user + times.system
                    # Spark's Java starts a Python process for each step of planning.
                    of_children = WORKER if kind == JAVA else kind
                    processes[one.pid, of_children] += times.children_user + times.children_system
        info: dict[str, Any] = self._store.info()
        counted = {name: float(info[name]) for name in STORE}
        return Reading(time.time(), threads, names, processes, counted)


def cost(system: System, *, tell: Callable[[str], None]) -> dict[str, Any]:
    """By load, what a message costs: microseconds of CPU by step, and bytes and calls of the store.

    Raises Unavailable if the system does not start, or ends.
    """
    found: dict[str, Any] = {}
    with (
        TemporaryDirectory(prefix="sendlater-cost-") as made,
        running(system, Path(made), name=f"cost{time.time_ns()}") as drivers,
        Scheduler(
            bootstrap_servers=drivers.servers.environment["SENDLATER_BOOTSTRAP_SERVERS"],
            redis=drivers.servers.environment["SENDLATER_REDIS"],
        ) as scheduler,
    ):
        meter = Meter(drivers, scheduler.pending.client)
        load = _Load(drivers, scheduler)
        load.steady(WARM_S)
        before = meter.read()
        load.steady(STEADY_S)
        found[STEADY] = _between(before, meter.read(), round(RATE * STEADY_S))
        tell(f"{STEADY}: {found[STEADY]['cpu_us']}")
        load.arrive()
        for count in (WARM_BURST, BURST):
            due_ms = time.time() * 1_000 + GATHER_S * 1_000
            before = meter.read()
            load.burst(count, due_ms=round(due_ms))
            found[TAKEN_IN] = _between(before, meter.read(), count)
            time.sleep(max(0.0, due_ms / 1_000 - time.time()))
            before = meter.read()
            load.arrive()
            found[DELIVERED] = _between(before, meter.read(), count)
        for name in (TAKEN_IN, DELIVERED):
            tell(f"{name}: {found[name]['cpu_us']}")
        found["log_bytes"] = _log_bytes(Path(made), load.sent)
    return found


class _Load:
    """Sends messages by number, and waits for them."""

    def __init__(self, drivers: Drivers, scheduler: Scheduler) -> None:
        self._drivers, self._pending = drivers, scheduler.pending
        self.sent = self._arrived = 0

    def steady(self, seconds: float) -> None:
        """So long at RATE, each due LEAD_MS later."""
        began_s, first = time.time(), self.sent
        while self.sent < first + RATE * seconds:
            count = min(RATE * seconds, (time.time() - began_s) * RATE) - (self.sent - first)
            self._give(int(count), due_ms=round(time.time() * 1_000) + LEAD_MS)
            time.sleep(PACE_S)
            self._take()

    def burst(self, count: int, *, due_ms: int) -> None:
        """So many, due at one instant; returns when all are pending."""
        before = self._pending.counts()["parked"]
        self._give(count, due_ms=due_ms)
        self._drivers.flush()
        _wait(lambda: self._pending.counts()["parked"] - before >= count)

    def arrive(self) -> None:
        """Wait until all has arrived."""
        _wait(lambda: self._take() >= self.sent)

    def _give(self, count: int, *, due_ms: int) -> None:
        numbers = range(self.sent, self.sent + count)
        self._drivers.give([Order(0, SCHEDULE, n, due_ms) for n in numbers], began_ms=0)
        self.sent += count

    def _take(self) -> int:
        self._drivers.waiting()
        self._arrived += len(self._drivers.take())
        return self._arrived


def _wait(is_so: Callable[[], bool]) -> None:
    if not wait_for(is_so, timeout_s=TIMEOUT_S):
        raise Unavailable(f"what was sent is not there after {TIMEOUT_S:g} s")


def _between(before: Reading, after: Reading, count: int) -> dict[str, Any]:
    """What was used from one reading to another, for each of `count` messages."""
    used_s: dict[str, float] = dict.fromkeys(STEPS, 0.0)
    left_s = {one: s - before.processes_s.get(one, 0.0) for one, s in after.processes_s.items()}
    for thread, cpu_s in after.threads_s.items():
        kind, name = after.names[thread]
        used = cpu_s - before.threads_s.get(thread, 0.0)
        used_s[_step(kind, name)] += used
        left_s[thread[0], kind] -= used
    for (_, kind), used in left_s.items():
        used_s[_step(kind, "")] += used
    span_s = after.at_s - before.at_s
    return {
        "messages": count,
        "seconds": round(span_s, 1),
        "cores": round(sum(used_s.values()) / span_s, 2),
        "cpu_us": {step: round(1e6 * used_s[step] / count, 1) for step in STEPS},
        "store": {n: round((after.store[n] - before.store[n]) / count, 2) for n in after.store},
    }


def _step(kind: str, name: str) -> str:
    for step, places in STEPS.items():
        if any(kind == one and name.startswith(beginning) for one, beginning in places):
            return step
    raise AssertionError(f"no step has {kind}: {name}")


def _threads(process: psutil.Process, kind: str) -> Iterator[tuple[Thread, str, float]]:
    """Name and seconds of every thread, where they are told apart; of a worker all under its own
    name."""
    here = Path(f"/proc/{process.pid}")
    for one in process.threads() if kind in (JAVA, WORKER) else ():
        named = here / f"task/{one.id}/comm" if kind == JAVA else here / "comm"
        with suppress(OSError):  # it has just ended
            name = named.read_text().strip()
            yield (process.pid, one.id), name, one.user_time + one.system_time


def _log_bytes(directory: Path, count: int) -> dict[str, float]:
    """Bytes a message in Kafka's logs, by topic, but for what was practised with."""
    sizes: Counter[str] = Counter()
    for segment in directory.rglob("*.log"):
        topic, _, partition = segment.parent.name.rpartition("-")
        if partition.isdigit() and not topic.startswith("__") and not topic.endswith(SUFFIX):
            sizes[topic] += segment.stat().st_size
    return {topic: round(size / count, 1) for topic, size in sizes.items() if size > count}


def cost_tables(result: Mapping[str, Any]) -> str:
    """The tables in Markdown."""
    loads = {name: result[name] for name in (STEADY, TAKEN_IN, DELIVERED)}
    rows = [[step, *(number(f["cpu_us"][step]) for f in loads.values())] for step in STEPS]
    sums = [number(round(sum(f["cpu_us"].values()), 1)) for f in loads.values()]
    more = [[head, *(number(f["store"][n]) for f in loads.values())] for n, head in STORE.items()]
    rates = [["messages/s", *(number(round(f["messages"] / f["seconds"])) for f in loads.values())]]
    cores = [["cores", *(number(f["cores"]) for f in loads.values())]]
    return "\n\n".join(
        (
            result["machine"],
            table(("microseconds of CPU a message", *loads), [*rows, ["**all**", *sums]]),
            table(("a message", *loads), [*more, *rates, *cores]),
            *_logs(result["log_bytes"]),
        )
    )


def _logs(sizes: Mapping[str, float]) -> Iterator[str]:
    inbox = sum(size for topic, size in sizes.items() if not topic.startswith("cost"))
    target = sum(size for topic, size in sizes.items() if topic.startswith("cost"))
    told = f"takes {inbox:,.0f} bytes on the inbox, {target:,.0f} on its target"
    yield f"In Kafka's logs a message {told}."
