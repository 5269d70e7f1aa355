"""A steady load for an hour, and the memory of every process meanwhile: does any of them grow?"""

import shutil
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import plotly.graph_objects as go
from playwright.sync_api import sync_playwright

from bench.lines import Drivers
from bench.measure import QUIET_S, running
from bench.processes import cpu_s, memory_by_role
from bench.system import System
from bench.workloads import LEAD_MS, SCHEDULE, Order
from sendlater.bench.ledger import percentiles

SAMPLE_S = 10.0
"""How often memory is looked at."""
PACE_S = 0.01
"""How often the orders of an instant are given."""
SETTLED_S = 600.0
"""From here on, memory is to stay where it is."""
SHARE_MAX = 0.05
"""How far it may go from its median of the minutes after SETTLED_S."""
MEDIAN_S = 300.0
"""So many seconds of samples make that median."""
WIDTH, HEIGHT = 960, 420
"""Of the plot, in pixels."""


class Arrivals:
    """Counts each number, and keeps the lateness of each minute in milliseconds."""

    def __init__(self, count: int, began_ms: int, rate: float) -> None:
        self.seen = np.zeros(count, dtype=np.uint8)
        self.late_ms: dict[int, list[int]] = defaultdict(list)
        self.early = 0
        self._began_ms, self._rate = began_ms, rate

    def note(self, arrivals: list[tuple[int, int]]) -> None:
        """Of what has just been read: (number, arrived_ms)."""
        for number, arrived_ms in arrivals:
            self.seen[number] += 1
            at_ms = due_ms(number, self._rate)
            late = arrived_ms - self._began_ms - at_ms
            self.early += late < 0
            self.late_ms[at_ms // 60_000].append(late)

    def account(self) -> dict[str, Any]:
        """The balance, and p50, p99 and maximum of every minute."""
        by_minute = [percentiles(self.late_ms[minute]) for minute in sorted(self.late_ms)]
        return {
            "scheduled": len(self.seen),
            "lost": int((self.seen == 0).sum()),
            "duplicated": int((self.seen > 1).sum()),
            "early": self.early,
            "late_ms": percentiles([late for minute in self.late_ms.values() for late in minute]),
            "late_ms_by_minute": [{n: m[n] for n in ("p50", "p99", "max")} for m in by_minute],
        }


def due_ms(number: int, rate: float) -> int:
    """When a message is due after the start of the load: messages are sent evenly, each LEAD_MS
    before."""
    return round(1_000 * number / rate) + LEAD_MS


def soak(system: System, *, rate: float, minutes: float) -> dict[str, Any]:
    """Run it; the balance, lateness by minute, and memory of every process every SAMPLE_S.

    Raises Unavailable if the system does not start or ends.
    """
    with (
        TemporaryDirectory(prefix="sendlater-soak-") as made,
        running(system, Path(made), name=f"soak{time.time_ns()}") as drivers,
    ):
        return _run(drivers, rate=rate, count=round(minutes * 60 * rate))


def _run(drivers: Drivers, *, rate: float, count: int) -> dict[str, Any]:
    began_ms, began_s = round(time.time() * 1_000), time.monotonic()
    arrivals, given, samples = Arrivals(count, began_ms, rate), 0, []
    before_s = cpu_s(drivers.processes)

    def look() -> bool:
        """Take a sample; whether anything has arrived since the last."""
        passed_s = round(time.monotonic() - began_s, 1)
        samples.append({"at_s": passed_s, **memory_by_role(drivers.processes)})
        drivers.waiting()
        arrived = drivers.take()
        arrivals.note(arrived)
        return bool(arrived)

    while given < count:
        passed_s = time.monotonic() - began_s
        numbers = range(given, min(count, int(passed_s * rate)))
        drivers.give([Order(0, SCHEDULE, n, due_ms(n, rate)) for n in numbers], began_ms=began_ms)
        given += len(numbers)
        if passed_s >= len(samples) * SAMPLE_S:
            look()
        time.sleep(PACE_S)
    drivers.flush()
    quiet_s = 0.0
    while quiet_s < QUIET_S and not arrivals.seen.all():
        time.sleep(SAMPLE_S)
        quiet_s = 0.0 if look() else quiet_s + SAMPLE_S
    span_s = time.monotonic() - began_s
    used_s = cpu_s(drivers.processes)
    cores = {name: round((s - before_s[name]) / span_s, 3) for name, s in used_s.items()}
    return {"rate": rate, "cores": cores, **arrivals.account(), "memory_mib": samples}


def drift(samples: list[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Of every process: its median in the MEDIAN_S after SETTLED_S, in MiB, and how far below and
    above it was from then on, as shares of it. Empty if the run was shorter."""
    settled = [sample for sample in samples if sample["at_s"] >= SETTLED_S]
    if not settled:
        return {}
    found = {}
    for name in settled[0]:
        if name != "at_s":
            mib = np.array([sample.get(name, 0.0) for sample in settled])
            middle = float(np.median(mib[: round(MEDIAN_S / SAMPLE_S)]))
            lowest, highest = float(mib.min()) / middle - 1, float(mib.max()) / middle - 1
            found[name] = {
                "mib": round(middle, 1),
                "lowest": round(lowest, 4),
                "highest": round(highest, 4),
            }
    return found


def plot(result: Mapping[str, Any]) -> go.Figure:
    """Memory of every process over the time of the run."""
    samples = result["memory_mib"]
    minutes = [sample["at_s"] / 60 for sample in samples]
    lines = [
        go.Scatter(name=name, x=minutes, y=[sample.get(name) for sample in samples], mode="lines")
        for name in samples[-1]
        if name != "at_s"
    ]
    return go.Figure(
        data=lines,
        layout={
            "title": f"Memory at {result['rate']:,.0f} messages a second",
            "xaxis": {"title": "minutes"},
            "yaxis": {"title": "MiB", "rangemode": "tozero"},
            "height": HEIGHT,
            "width": WIDTH,
        },
    )


def picture(page: Path, to: Path) -> None:
    """The plot as an image, by Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        window = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        window.goto(page.resolve().as_uri())
        window.screenshot(path=to)
        browser.close()
