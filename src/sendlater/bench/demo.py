"""The demo: a complete installation in one process, some messages, and how late they arrive."""

import math
import threading
import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from sendlater.bench.ledger import percentiles
from sendlater.bench.load import Run
from sendlater.client.scheduler import Scheduler
from sendlater.config import Settings
from sendlater.local.installation import Installation
from sendlater.service.service import Service

DELAY_MS = 5_000
"""Delay of the demo's messages."""
SHOWN_COUNT = 10
"""Number of latest arrivals shown."""
REFRESH_S = 0.25
WARM_UP_S = 2
"""Length of a warm-up round; its messages do not count."""
WARM_DELAY_MS = 3_000
"""Delay of the warm-up's messages."""
WARM_LATE_MS = 100.0
"""The warm-up ends after a round with a p99 of at most this: Spark's code is compiled."""
WARM_UP_ROUNDS_MAX = 10
"""Most warm-up rounds, even if the last one was slow."""


def run(
    settings: Settings,
    *,
    count: int | None,
    rate: float,
    exit_when_done: bool,
    stop: threading.Event,
    console: Console,
) -> dict[str, Any]:
    """Start everything, send `count` messages (None: until stopped), show them, and return the
    result."""
    console.print("starting Redis and Spark ...")
    installation = Installation.prepare(settings)
    service: Service | None = None
    halted = threading.Event()
    try:
        service = Service(settings, installation)
        service.start()
        watcher = threading.Thread(target=service.watch, args=[halted], daemon=True)
        watcher.start()
        with Scheduler(settings, redis_url=installation.redis_url) as scheduler:
            console.print("warming up ...")
            _warm_up(scheduler, rate)
            result = _messages(scheduler, count, rate, stop, exit_when_done, console)
        halted.set()
        watcher.join()
        service.stop()
    except BaseException:
        halted.set()
        if service is not None:
            service.close()
        raise
    finally:
        installation.close()
    return result


def _warm_up(scheduler: Scheduler, rate: float) -> None:
    for _ in range(WARM_UP_ROUNDS_MAX):
        with Run(scheduler) as first:
            began_ms = time.time() * 1_000 + WARM_DELAY_MS
            for number in range(math.ceil(WARM_UP_S * rate)):
                first.send(round(began_ms + 1_000 * number / rate))
            first.broker.flush()
            first.wait_for_all()
        late_ms = first.ledger.account()["late_ms"]["p99"]
        if late_ms is not None and late_ms <= WARM_LATE_MS:
            return


def _messages(
    scheduler: Scheduler,
    count: int | None,
    rate: float,
    stop: threading.Event,
    exit_when_done: bool,
    console: Console,
) -> dict[str, Any]:
    with Run(scheduler) as load, Live(console=console, transient=False) as live:
        console.print(f"sending {rate:g} a second to topic {load.name}, each due in {DELAY_MS} ms")
        began_s, number, drawn_s = time.time(), 0, 0.0
        while not stop.is_set():
            if count is None or number < count:
                at_s = began_s + number / rate
                load.send(round(at_s * 1_000) + DELAY_MS)
                load.broker.flush()
                number += 1
                stop.wait(max(0.0, began_s + number / rate - time.time()))
            elif exit_when_done and load.ledger.complete:
                break
            else:
                stop.wait(REFRESH_S)
            if time.time() - drawn_s > REFRESH_S:
                live.update(_table(load))
                drawn_s = time.time()
        if not stop.is_set():
            load.wait_for_all()
        live.update(_table(load))
        result = load.ledger.account()
        result.pop("measured")
        return result


def _table(load: Run) -> Table:
    """The latest arrivals and the percentiles so far."""
    ledger = load.ledger
    arrived = len(ledger.append_ms)
    numbers, appended = ledger.numbers[:arrived], ledger.append_ms[:arrived]
    late = [at - ledger.due_ms[n] for n, at in zip(numbers, appended, strict=True)]
    shown = {k: v for k, v in percentiles(late).items() if v is not None}
    title = f"{len(ledger.due_ms)} scheduled, {arrived} delivered"
    caption = "late ms: " + "  ".join(f"{k} {v:g}" for k, v in shown.items())
    table = Table("message", "late ms", title=title, caption=caption)
    for n, ms in list(zip(numbers, late, strict=True))[-SHOWN_COUNT:]:
        table.add_row(str(n), str(ms))
    return table
