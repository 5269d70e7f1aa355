"""Compares what was scheduled with what arrived: lost, early, duplicated, and how late."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9, "max": 100.0}


@dataclass(slots=True)
class Ledger:
    """Schedules are numbered 0..n-1; arrivals come in any order, as (number, append_ms)."""

    due_ms: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    append_ms: list[int] = field(default_factory=list)

    def arrived(self, arrivals: Iterable[tuple[int, int]]) -> None:
        """Note arrivals."""
        for number, append_ms in arrivals:
            self.numbers.append(number)
            self.append_ms.append(append_ms)

    @property
    def complete(self) -> bool:
        """Whether every schedule has arrived. It is called often during a load, so it only counts
        distinct numbers once there are enough arrivals."""
        due = len(self.due_ms)
        return len(self.numbers) >= due and len(set(self.numbers)) == due

    def account(self, *, warm_from_ms: int = 0) -> dict[str, Any]:
        """The result. Lateness counts first arrivals of schedules due from `warm_from_ms` on."""
        due = np.array(self.due_ms, dtype=np.int64)
        numbers = np.array(self.numbers, dtype=np.int64)
        late = np.array(self.append_ms, dtype=np.int64) - due[numbers]
        _, first = np.unique(numbers, return_index=True)
        warm = first[due[numbers[first]] >= warm_from_ms]
        return {
            "scheduled": len(due),
            "delivered": len(first),
            "early": int((late < 0).sum()),
            "duplicated": len(numbers) - len(first),
            "lost": len(due) - len(first),
            "late_ms": percentiles(late[warm].tolist()),
            "measured": len(warm),
        }


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """The usual percentiles, each an actual value; None if there are no values."""
    if not values:
        return dict.fromkeys(PERCENTILES)
    found = np.percentile(values, list(PERCENTILES.values()), method="higher")
    return {name: round(float(x), 1) for name, x in zip(PERCENTILES, found, strict=True)}
