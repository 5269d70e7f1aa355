"""What must hold between figures of one run. Ratios, so that the machine does not matter."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Results = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Of a run: workload, then system, then figures."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """`system`'s figure on `workload` divided by the one of `than`, or that figure itself."""

    workload: str
    figure: str
    """Names on the way to it, with dots between: warm.late_ms.p99."""
    than: str = ""
    """Another system; none: the figure itself is judged."""
    than_workload: str = ""
    """Where the other's figure is from, if not from `workload`."""
    than_figure: str = ""
    """Its name, if it is another."""
    system: str = "sendlater"
    at_least: float = float("-inf")
    at_most: float = float("inf")
    any_scale: bool = False
    """Whether it holds for smaller loads too."""

    def __str__(self) -> str:
        left = f"{self.workload}: {self.figure} of {self.system}"
        if self.than:
            there = " ".join(filter(None, (self.than_workload, self.than_figure)))
            left += f" / {self.than}" + (f" ({there})" if there else "")
        low, high = float("-inf") < self.at_least, self.at_most < float("inf")
        wanted = [f"at least {self.at_least:g}"] * low + [f"at most {self.at_most:g}"] * high
        return f"{left}: {' and '.join(wanted)}"

    def value(self, results: Results) -> float | None:
        """The ratio or the figure in a run; None if something was not measured."""
        ours = _figure(results, self.workload, self.system, self.figure)
        if not self.than or ours is None:
            return ours
        there, figure = self.than_workload or self.workload, self.than_figure or self.figure
        theirs = _figure(results, there, self.than, figure)
        return ours / theirs if theirs else None

    def holds(self, value: float) -> bool:
        """Whether a value is within the bound."""
        return self.at_least <= value <= self.at_most


@dataclass(frozen=True)
class Verdict:
    """A bound against one run."""

    bound: Bound
    value: float | None
    judged: bool

    @property
    def failed(self) -> bool:
        """Whether the run breaks it."""
        return self.judged and self.value is not None and not self.bound.holds(self.value)

    def told(self) -> dict[str, Any]:
        """As it stands in compare.json; `holds` is null where the load was made smaller."""
        holds = not self.failed if self.judged else None
        return {"bound": str(self.bound), "value": self.value, "holds": holds}

    def __str__(self) -> str:
        if self.value is None:
            word = "not measured"
        elif not self.judged:
            word = f"not judged at this scale ({self.value:.3g})"
        else:
            word = f"{'FAILED' if self.failed else 'holds'} ({self.value:.3g})"
        return f"{word}: {self.bound}"


_RATE = "delivered_per_s"
_SERVICE_CPU = "warm.cpu_us_of.service"
"""Of the service with Spark and its workers, without broker and store."""
_STEADY = "steady 2,000/s"
BOUNDS = (
    Bound(workload="burst 300,000", figure=f"warm.{_RATE}", than="NATS", at_least=4),
    Bound(workload="burst 300,000", figure=f"first.{_RATE}", than="NATS", at_least=2.5),
    Bound(workload="burst 300,000", figure=f"warm.{_RATE}", than="BullMQ", at_least=10),
    Bound(
        workload="burst 3,000,000",
        figure=f"warm.{_RATE}",
        than="NATS",
        than_workload="burst 300,000",
        at_least=5,
    ),
    *(
        Bound(workload=_STEADY, figure=f"warm.late_ms.{name}", than=peer, at_most=1)
        for peer in ("NATS", "BullMQ", "Graphile Worker", "asynq", "Celery", "dramatiq")
        for name in ("p50", "p99", "p999")
    ),
    Bound(workload=_STEADY, figure="warm.late_ms.p99", than="NATS", at_most=1 / 8),
    Bound(
        workload="steady 8,000/s",
        figure="warm.late_ms.p99",
        than="NATS",
        than_workload=_STEADY,
        at_most=1,
    ),
    Bound(
        workload="far",
        figure="warm.late_ms.p99",
        than="sendlater",
        than_workload=_STEADY,
        at_most=1.5,
    ),
    Bound(workload="far", figure="bytes_beyond_payload", at_most=220),
    Bound(workload="backlog", figure="taken_in_per_s", than="older sendlater", at_least=2),
    *(
        Bound(workload=workload, figure=_SERVICE_CPU, than="older sendlater", at_most=0.5)
        for workload in (_STEADY, "burst 300,000")
    ),
)
"""Bounds between systems and between workloads."""


def balances(results: Results) -> Iterator[Bound]:
    """For every load of sendlater that was measured: nothing lost, early, doubled or unwanted."""
    for workload, systems in results.items():
        for system in systems:
            if system.startswith("sendlater"):
                for phase in ("first", "warm"):
                    for name in ("lost", "early", "duplicated", "unwanted"):
                        if _figure(results, workload, system, f"{phase}.{name}") is not None:
                            yield Bound(
                                workload=workload,
                                system=system,
                                figure=f"{phase}.{name}",
                                at_most=0,
                                any_scale=True,
                            )


def judge(results: Results, *, scale: float) -> list[Verdict]:
    """Every bound against a run; a load that was made smaller is judged by its balance only."""
    return [
        Verdict(bound, bound.value(results), judged=scale == 1 or bound.any_scale)
        for bound in (*BOUNDS, *balances(results))
    ]


def figure(figures: Mapping[str, Any], name: str) -> float | None:
    """A number of a system's figures by its name, with dots between; None if it is not there."""
    found: Any = figures
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return float(found) if found is not None else None


def _figure(results: Results, workload: str, system: str, name: str) -> float | None:
    return figure(results.get(workload, {}).get(system, {}), name)
