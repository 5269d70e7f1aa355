"""Runs a workload on a system: gives orders in time, follows arrivals, makes the figures."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import redis

from bench.lines import Drivers
from bench.processes import PAUSE_S, MemoryWatch, cpu_s
from bench.system import System
from bench.workloads import FAR_MS, SCHEDULE, Order, Workload, due_times, plan
from sendlater.bench.ledger import Ledger
from sendlater.bench.load import PAYLOAD_BYTES
from sendlater.errors import Unavailable

QUIET_S = 60.0
"""If nothing arrives for this long after the last due time, what is missing is lost."""
BACKLOG_QUIET_S = 600.0
"""The same behind a backlog: nothing arrives while that is taken in."""
PACE_S = 0.005
"""How often the orders of an instant are given."""
POLL_S = 0.1
"""How often arrivals are read."""
CHUNK_COUNT = 10_000
"""Most orders given at once."""
PENDING_FIRST = 10**9
"""Messages that only lie there have numbers from minus this downwards."""
WARM_FIRST = 10**8
"""First number of the second run: no load is larger."""
MARKS = 1_000
"""Messages behind a backlog, so many that each partition of an inbox ends with some: when the last
one has arrived, all that lay before them is taken in."""
RESTART_DUE_MS = 15_000
"""Delay of the message that a restarted system is to deliver: it is due while nothing runs."""
QUANTILES = (*range(0, 100, 2), 99, 99.5, 99.9, 99.99, 100)
"""Of lateness, for the plots: percentages."""

Tell = Callable[[str], None]


def measure(system: System, workload: Workload, *, tell: Tell) -> dict[str, Any]:
    """The figures of a workload: of a load that runs twice, of a backlog, or of a restart.

    Raises Unavailable if the system does not start, ends, or does not deliver after a restart.
    """
    name = f"bench{time.time_ns()}"
    with tempfile.TemporaryDirectory(prefix="sendlater-compare-") as made:
        directory = Path(made)
        with running(system, directory, name=name) as drivers:
            if workload.backlog:
                return _backlog(drivers, workload.pending, tell=tell)
            empty_bytes = _used_bytes(drivers.servers.redis_url)
            told = _fill(drivers, workload.pending)
            if not workload.restart:
                for phase, first in (("first", 0), ("warm", WARM_FIRST)):
                    told[phase] = _load(drivers, system, workload, first=first)
                    tell(f"{phase}: {_short(told[phase])}")
                if workload.pending and drivers.servers.redis_url:
                    used_bytes = _used_bytes(drivers.servers.redis_url) - empty_bytes
                    told["bytes_beyond_payload"] = used_bytes / workload.pending - PAYLOAD_BYTES
                return told
            began_ms = time.time() * 1_000
            drivers.give([Order(0, SCHEDULE, 0, RESTART_DUE_MS)], began_ms=began_ms)
            drivers.flush()
        time.sleep(max(0.0, (began_ms + RESTART_DUE_MS) / 1_000 - time.time()))
        started_ms = round(time.time() * 1_000)
        with running(system, directory, name=name) as drivers:
            ledger = Ledger(due_ms=[started_ms])
            _follow(drivers, ledger, first=0, quiet_s=QUIET_S)
        if not ledger.complete:
            raise Unavailable(f"nothing was delivered in {QUIET_S:g} s after the restart")
        cold_s = (min(ledger.append_ms) - started_ms) / 1_000
        tell(f"first delivery {cold_s} s after the start of the servers")
        return {**told, "cold_s": cold_s}


def figures(ledger: Ledger, *, used_s: Mapping[str, float], span_s: float) -> dict[str, Any]:
    """What one run of a load has shown. `used_s`: CPU seconds by process, in `span_s` seconds.

    Arrival is the call of the receiver's handler; lateness is its time minus the due time.
    """
    arrived = np.array(ledger.append_ms, dtype=np.int64)
    due = np.array(ledger.due_ms, dtype=np.int64)
    count, cpu_total_s = len(due), sum(used_s.values())
    result = ledger.account()
    result.update(
        cpu_s={label: round(seconds, 2) for label, seconds in used_s.items()},
        cpu_cores=round(cpu_total_s / span_s, 3),
        cpu_us_per_message=round(1e6 * cpu_total_s / count, 1) if count else None,
        cpu_us_of={one: round(1e6 * s / count, 1) for one, s in used_s.items() if count},
        delivered_per_s=None,
        late_ms_at=[],
    )
    if len(arrived):
        late = arrived - due[np.array(ledger.numbers)]
        span_ms = max(1, int(arrived.max() - due.min()))
        result["delivered_per_s"] = round(1_000 * result["delivered"] / span_ms, 1)
        values = np.percentile(late, QUANTILES, method="higher")
        result["late_ms_at"] = [
            [float(share), int(ms)] for share, ms in zip(QUANTILES, values, strict=True)
        ]
    return result


@contextmanager
def running(system: System, directory: Path, *, name: str) -> Iterator[Drivers]:
    """A system's servers, sender and receiver, until they are no longer needed. Raises Unavailable
    if one does not start."""
    with system.servers(directory) as servers:
        drivers = Drivers(system, servers, directory, name=name)
        try:
            drivers.start()
            yield drivers
        finally:
            drivers.stop()


def _fill(drivers: Drivers, count: int) -> dict[str, Any]:
    """Send what only lies there, and tell how fast that was."""
    if not count:
        return {}
    began_s = time.monotonic()
    orders = (Order(0, SCHEDULE, -PENDING_FIRST - n, FAR_MS) for n in range(count))
    while chunk := list(islice(orders, CHUNK_COUNT)):
        drivers.give(chunk, began_ms=time.time() * 1_000)
    drivers.flush()
    seconds = time.monotonic() - began_s
    return {"pending": count, "pending_sent_per_s": round(count / seconds)}


def _backlog(drivers: Drivers, count: int, *, tell: Tell) -> dict[str, Any]:
    """How fast a service that starts takes in what was sent while it was away, its start included.

    Raises Unavailable if it has not done so in time, or delivers of that what is due much later.
    """
    drivers.servers.stop()
    told = _fill(drivers, count)
    marks = [Order(0, SCHEDULE, number, 0) for number in range(MARKS)]
    drivers.give(marks, began_ms=time.time() * 1_000)
    drivers.flush()
    started_ms = round(time.time() * 1_000)
    drivers.servers.start()
    ready_s = time.time() - started_ms / 1_000
    ledger = Ledger(due_ms=[started_ms] * MARKS)
    unwanted = _follow(drivers, ledger, first=0, quiet_s=BACKLOG_QUIET_S)
    if unwanted or not ledger.complete:
        arrived = f"{len(ledger.append_ms)} of the {MARKS} last messages, {unwanted} of the others"
        raise Unavailable(f"after a backlog arrived {arrived}")
    taken_in_s = max(0.001, max(ledger.append_ms) / 1_000 - started_ms / 1_000)
    tell(f"ready after {ready_s:.1f} s, all taken in after {taken_in_s:.1f}")
    per_s = round(count / taken_in_s)
    found = {"ready_s": round(ready_s, 1), "taken_in_s": taken_in_s, "taken_in_per_s": per_s}
    return {**told, **found}


def _used_bytes(redis_url: str) -> int:
    """Memory in use by a Redis, as it counts it; 0 if there is none."""
    if not redis_url:
        return 0
    with redis.Redis.from_url(redis_url) as client:
        return int(client.info("memory")["used_memory"])


def _load(drivers: Drivers, system: System, workload: Workload, *, first: int) -> dict[str, Any]:
    """One run of a load, and its figures."""
    orders = plan(workload, first=first, sends_per_s=system.sends_per_s)
    due = due_times(orders)
    before_s = cpu_s(drivers.processes)
    began_s = time.time()
    pause_s = PAUSE_S if workload.burst else None
    with MemoryWatch(drivers.processes, pause_s=pause_s) as memory:
        _give(drivers, orders, began_s=began_s)
        sent_s = time.time() - began_s
        began_ms = round(began_s * 1_000)
        ledger = Ledger(due_ms=[began_ms + due_ms for due_ms in due])
        unwanted = _follow(drivers, ledger, first=first, quiet_s=QUIET_S)
        if not orders:
            time.sleep(workload.seconds)
    span_s = time.time() - began_s
    used_s = {label: now - before_s[label] for label, now in cpu_s(drivers.processes).items()}
    return {
        **figures(ledger, used_s=used_s, span_s=span_s),
        "unwanted": unwanted,
        "sent_per_s": round(len(orders) / sent_s, 1) if orders else None,
        "sent_before_due": sent_s * 1_000 <= min(due, default=0),
        "memory_mib": memory.highest_mib,
        "memory_total_mib": round(sum(memory.highest_mib.values())),
    }


def _give(drivers: Drivers, orders: list[Order], *, began_s: float) -> None:
    """Give every order at its time, and wait until the last is accepted."""
    given = 0
    while given < len(orders):
        now_ms = (time.time() - began_s) * 1_000
        end = given
        while end < min(len(orders), given + CHUNK_COUNT) and orders[end].at_ms <= now_ms:
            end += 1
        if end == given:
            time.sleep(PACE_S)
        else:
            drivers.give(orders[given:end], began_ms=began_s * 1_000)
        given = end
    if orders:
        drivers.flush()


def _follow(drivers: Drivers, ledger: Ledger, *, first: int, quiet_s: float) -> int:
    """Follow until all has arrived, or nothing arrives any more for `quiet_s`; how many arrived
    that should not: cancelled, far away, or a second time after the load before."""
    unwanted, seen, last_s = 0, 0, time.time()
    last_due_s = max(ledger.due_ms, default=0) / 1_000
    while not ledger.complete and time.time() < max(last_s, last_due_s) + quiet_s:
        time.sleep(POLL_S)
        waiting = drivers.waiting()
        if waiting > seen and waiting < len(ledger.due_ms) - len(ledger.numbers):
            seen, last_s = waiting, time.time()  # read later: reading takes CPU from the system
            continue
        arrivals, seen = drivers.take(), 0
        wanted = [(number - first, at_ms) for number, at_ms in arrivals if number >= first]
        ledger.arrived(wanted)
        unwanted += len(arrivals) - len(wanted)
        if arrivals:
            last_s = time.time()
    return unwanted


def _short(told: Mapping[str, Any]) -> str:
    late = told["late_ms"]
    wrong = {n: told[n] for n in ("lost", "early", "duplicated", "unwanted") if told[n]}
    return (
        f"{told['delivered']} of {told['scheduled']}, late ms p50 {late['p50']} p99 {late['p99']}, "
        f"{told['delivered_per_s']}/s, {told['cpu_us_per_message']} us of CPU each {wrong or ''}"
    )
