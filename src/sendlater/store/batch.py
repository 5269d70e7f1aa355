"""A batch of a lane on one shard, what is claimed into it, and what it may prefetch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sendlater.limits import PREFETCH_DENSE_MS, PREFETCH_NEAR_MS, PREFETCH_PER_MS

OVERTAKEN = 0xD3
"""First byte of a claimed row whose id was written again or cancelled since; 0xCF otherwise."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a lane. `run` fences off tasks of dead queries. `number` orders the batches of a
    run (-1: their ends do), because a clock that goes back may give the same end twice."""

    lane: int
    run: int
    end_ms: int
    number: int = -1

    @property
    def order(self) -> int:
        """Higher than that of every batch before it in the same run."""
        return self.number if self.number >= 0 else self.end_ms

    @property
    def name(self) -> str:
        """Unique within a shard."""
        return f"{self.lane}:{self.run}:{self.order}:{self.end_ms}"

    @classmethod
    def named(cls, name: str) -> "Batch":
        """The batch with this name."""
        lane, run, number, end_ms = (int(part) for part in name.split(":"))
        return cls(lane, run, end_ms, number)


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a claim may prefetch: what is due until `to_ms`, if at least `count_min` of it are due
    within a second. `holds`: whether the batch may hold such rows already."""

    to_ms: int = 0
    count_min: int = 1
    holds: bool = False

    def given(self) -> dict[str, int | str]:
        """Arguments of the script."""
        return {
            "ahead_ms": self.to_ms,
            "ahead_min": self.count_min,
            "dense_ms": PREFETCH_DENSE_MS,
            "near_ms": PREFETCH_NEAR_MS,
            "near_per_ms": PREFETCH_PER_MS,
            "holds_ahead": "1" if self.holds or self.to_ms else "",
        }


NOT_AHEAD = Ahead()


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claim found: rows, and when the next one is due."""

    ids: list[bytes]
    packed: list[bytes]
    next_due_ms: int | None = None
    draining: bool = False
    held: bool = False
    """Something is due, but waits until intake has read what is on the inboxes."""
    heir: bool = False  # the space is still another's
    waited_ms: dict[bytes, int] = field(default_factory=dict)
    """How long rows have waited for the limit of their topic."""
    waiting: list[tuple[bytes, int, int | None]] = field(default_factory=list)
    """Limited topics: how many rows wait, and when the next token counts; None: none is left."""
    ripe_ms: int | None = None
    """What this batch has prefetched and is due until then may be delivered, except `recalled`."""
    recalled: Sequence[bytes] = ()
