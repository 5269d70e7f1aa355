"""Short delays: how late schedules are that are due at once, or within a second.

Each way in is measured by itself. The delays alternate, so that they share one load. Lateness is
the broker's append time minus the due time, and includes the time that intake takes.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

from sendlater.bench.ledger import percentiles
from sendlater.bench.load import Prober, Run, Tell, paced, payload_of
from sendlater.brokers.redis import RedisBroker
from sendlater.client.scheduler import Scheduler

PROBED_MS = 500
"""Shortest delay whose way from inbox to store is measured: a shorter one is gone too soon."""

Send = Callable[[Run, int], bytes | None]
"""Schedules the next number, due then (milliseconds since 1970); its id, if it is on an inbox."""


def short(
    scheduler: Scheduler,
    *,
    delays_ms: Sequence[int],
    rate: float,
    seconds: float,
    warm_up_s: float,
    rest: Scheduler | None = None,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Send `rate` a second with these delays in turn: to the inbox, by the client, and by REST.

    `rest` is a client of the installation's REST interface; without it that way is left out.
    """
    ways: dict[str, Send] = {"inbox": Run.send, "client": _by(scheduler)}
    if rest is not None:
        ways["rest"] = _by(rest)
    told: dict[str, Any] = {}
    totals = dict.fromkeys(("scheduled", "delivered", "lost", "early", "duplicated"), 0)
    with ExitStack() as runs:  # no topic is deleted while others are measured
        for way, send in ways.items():
            run = runs.enter_context(Run(scheduler, tell=tell))
            warm_count = _load(run, send, delays_ms, rate, seconds, warm_up_s)
            result = run.account(warm_from_ms=0, rate_from_ms=0)
            told[way] = {
                "late_ms": _late(run, delays_ms, warm_count),
                "intake_ms": result["intake_ms"],
                "cpu_s": result["cpu_s"],
            }
            for name in totals:
                totals[name] += result[name]
            about = {name: result[name] for name in ("cores", "machine", "versions")}
    return {"load": "short", "rate": rate, **totals, "ways": told, **about}


def _by(client: Scheduler) -> Send:
    """Send with a client, in the background as far as it can."""

    def send(run: Run, due_ms: int) -> None:
        number = len(run.ledger.due_ms)
        run.ledger.due_ms.append(due_ms)
        at = datetime.fromtimestamp(due_ms / 1_000, UTC)
        client.send_later(
            run.name, payload_of(number), at=at, id=f"{run.name}-{number}", wait=False
        )

    return send


def _load(
    run: Run, send: Send, delays_ms: Sequence[int], rate: float, seconds: float, warm_up_s: float
) -> int:
    """Send and wait for all; how many of them were the warm-up."""
    warm_count = round(rate * warm_up_s)
    prober = Prober(run)
    for number, _ in paced(rate=rate, began_s=time.time()):
        if number == warm_count:
            run.intake_ms.clear()
        if number >= warm_count + round(rate * seconds):
            break
        delay_ms = delays_ms[number % len(delays_ms)]
        schedule_id = send(run, round(time.time() * 1_000) + delay_ms)
        if isinstance(run.broker, RedisBroker):  # it collects records until it is told to write
            run.broker.flush()
        if schedule_id is not None and delay_ms >= PROBED_MS:
            prober.offer(schedule_id)
        run.tell(number, len(run.ledger.numbers))
    prober.stop()
    run.broker.flush()
    run.wait_for_all()
    return warm_count


def _late(run: Run, delays_ms: Sequence[int], warm_count: int) -> dict[str, Any]:
    """Percentiles of lateness by delay, of first arrivals after the warm-up."""
    first: dict[int, int] = {}
    for number, append_ms in zip(run.ledger.numbers, run.ledger.append_ms, strict=True):
        first.setdefault(number, append_ms)
    late: dict[int, list[float]] = {delay_ms: [] for delay_ms in delays_ms}
    for number, append_ms in first.items():
        if number >= warm_count:
            delay_ms = delays_ms[number % len(delays_ms)]
            late[delay_ms].append(append_ms - run.ledger.due_ms[number])
    return {str(delay_ms): percentiles(values) for delay_ms, values in late.items()}
