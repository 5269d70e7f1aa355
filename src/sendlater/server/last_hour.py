"""The numbers of the last hour, a point every few seconds, for the small charts of the page."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sendlater.limits import LATE_BUCKETS_MS

HOUR_MS = 3_600_000
POINT_MS = 15_000
"""Pause between two points: 240 in an hour."""
LATE = "late:"
DELIVERED = "delivered:"


@dataclass(frozen=True, slots=True)
class Point:
    """The counters at one instant."""

    at_ms: int
    late: Counter[str]
    delivered: int
    pending: int
    overdue: int


class LastHour:
    """Points of the last hour; not kept over a restart."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=HOUR_MS // POINT_MS + 1)

    def due(self, now_ms: int) -> bool:
        """Whether it is time for another point."""
        return not self._points or now_ms - self._points[-1].at_ms >= POINT_MS

    def add(self, at_ms: int, tally: Mapping[str, int], *, pending: int, overdue: int) -> None:
        """Keep a point."""
        late = Counter({n.removeprefix(LATE): c for n, c in tally.items() if n.startswith(LATE)})
        delivered = sum(count for name, count in tally.items() if name.startswith(DELIVERED))
        self._points.append(Point(at_ms, late, delivered, pending, overdue))

    def forget(self) -> None:
        """Begin anew."""
        self._points.clear()

    def late_ms(self, tally: Mapping[str, int], *, now_ms: int) -> dict[str, Any]:
        """p50 and p99 from the first point until now, and how long and how many that is."""
        if not self._points:
            return {"p50": None, "p99": None, "window_s": 0, "count": 0}
        first = self._points[0]
        now = Counter({n.removeprefix(LATE): c for n, c in tally.items() if n.startswith(LATE)})
        late = now - first.late
        return {
            "p50": quantile_ms(late, 0.5),
            "p99": quantile_ms(late, 0.99),
            "window_s": round((now_ms - first.at_ms) / 1_000),
            "count": late.total(),
        }

    def trend(self) -> dict[str, list[Any]]:
        """A list for each number, the oldest first: rates and lateness since the point before."""
        points = list(self._points)
        pairs = list(pairwise(points))
        return {
            "at_ms": [now.at_ms for _, now in pairs],
            "late_p99_ms": [quantile_ms(now.late - before.late, 0.99) for before, now in pairs],
            "delivered_per_s": [
                round(
                    max(0, now.delivered - before.delivered)
                    * 1_000
                    / max(1, now.at_ms - before.at_ms),
                    1,
                )
                for before, now in pairs
            ],
            "pending": [now.pending for _, now in pairs],
            "overdue": [now.overdue for _, now in pairs],
        }


def quantile_ms(late: Mapping[str, int], share: float) -> float | None:
    """The lateness that `share` of the deliveries do not exceed, interpolated within a bucket.

    >>> quantile_ms({"1": 50, "2": 50}, 0.5), quantile_ms({"1": 50, "2": 50}, 0.75)
    (1.0, 1.5)
    """
    total = sum(late.values())
    if not total:
        return None
    wanted, below, low = share * total, 0, 0
    for edge in LATE_BUCKETS_MS:
        count = late.get(str(edge), 0)
        if count and below + count >= wanted:
            return low + (edge - low) * (wanted - below) / count
        below, low = below + count, edge
    return float(LATE_BUCKETS_MS[-1])
