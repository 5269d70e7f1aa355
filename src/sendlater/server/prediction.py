"""How late what is pending will be, if deliveries run at a steady rate."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from sendlater.limits import SPIKES_COUNT_MAX

PARTS = 50
"""Into so many a bucket is divided to find when in it most is due."""
FINE_MS = 200
"""Length of a part that is not divided any more."""
LATE_MS_MIN = 1_000
"""A bucket that is drained sooner than this makes nobody late."""

Counts = Callable[[Sequence[int]], list[int]]
"""How many are due between each two of some instants in ms."""


def predicted_late_ms(
    counts: Sequence[int], edges_ms: Sequence[int], *, waiting: int, drain_per_s: float
) -> list[int]:
    """How late the last schedule of each bucket will be, if each is due evenly over its bucket.

    `waiting`: how many are overdue when the first bucket begins.

    >>> predicted_late_ms([3_000, 0], [0, 1_000, 2_000], waiting=0, drain_per_s=1_000)
    [2000, 1000]
    """
    late = []
    for count, (low, high) in zip(counts, pairwise(edges_ms), strict=True):
        room = drain_per_s * (high - low) / 1_000
        waiting = int(max(0.0, waiting + count - room))
        late.append(round(waiting * 1_000 / drain_per_s))
    return late


def late_within(
    low_ms: int, high_ms: int, *, counts: Counts, waiting: int, drain_per_s: float
) -> int:
    """The same for one bucket, in milliseconds, where much of it is due at once: its fullest part
    is looked into, again and again.

    >>> def at_once(edges):
    ...     return [100_000 if low <= 1_800_000 < high else 0 for low, high in pairwise(edges)]
    >>> late_within(0, 7_200_000, counts=at_once, waiting=0, drain_per_s=50_000)
    2000
    """
    worst_ms = 0
    while True:
        edges = [low_ms + (high_ms - low_ms) * n // PARTS for n in range(PARTS + 1)]
        due = counts(edges)
        late = predicted_late_ms(due, edges, waiting=waiting, drain_per_s=drain_per_s)
        fullest = due.index(max(due))
        if fullest:
            waiting = round(late[fullest - 1] * drain_per_s / 1_000)
        if high_ms - low_ms <= FINE_MS * PARTS:
            at_once_ms = round((waiting + due[fullest]) * 1_000 / drain_per_s)
            return max(worst_ms, *late, at_once_ms)
        worst_ms = max(worst_ms, *late)
        low_ms, high_ms = edges[fullest], edges[fullest + 1]


def spikes_late_ms(
    due: Sequence[int], edges_ms: Sequence[int], *, counts: Counts, waiting: int, drain_per_s: float
) -> list[int]:
    """`predicted_late_ms`, with the largest buckets looked into."""
    late = predicted_late_ms(due, edges_ms, waiting=waiting, drain_per_s=drain_per_s)
    largest = sorted(range(len(due)), key=lambda n: -due[n])[:SPIKES_COUNT_MAX]
    for n in largest:
        before = round(late[n - 1] * drain_per_s / 1_000) if n else waiting
        if (before + due[n]) * 1_000 < LATE_MS_MIN * drain_per_s or edges_ms[n] == edges_ms[n + 1]:
            continue
        low, high = edges_ms[n], edges_ms[n + 1]
        within = late_within(low, high, counts=counts, waiting=before, drain_per_s=drain_per_s)
        late[n] = max(late[n], within)
    return late
