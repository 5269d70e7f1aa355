"""Counts how late schedules left lane tasks, and for which topics.

Due times of an Arrow batch are in order, so counting takes a bisection per bucket of lateness and
nothing per row. Lateness ends when the batch is given to Spark's producer, a few milliseconds
before the broker has it. It includes waiting for a slow JVM.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

from sendlater.clock import Clock
from sendlater.errors import StoreUnavailable
from sendlater.limits import LATE_BUCKETS_MS, RECENT_TOLD_MAX
from sendlater.store import Shard
from sendlater.store.recent import Delivery, tell

BUCKETS = [(edge, f"late:{edge}") for edge in LATE_BUCKETS_MS]
"""Upper edges in ms, and the counter of each."""
NO_WAITS: Mapping[bytes, int] = {}
TELL_EVERY_MS = 250
"""Shortest time between two calls of one task; a kill loses the counts of that time."""


class LatenessReport:
    """Counters of one task; now and then they are added to the shard's tally."""

    def __init__(self, shard: Shard, clock: Clock) -> None:
        self.shard, self.clock = shard, clock
        self.counts: Counter[str] = Counter()
        self.recent: list[Delivery] = []
        self.next_ms = clock.now_ms() + TELL_EVERY_MS

    def delivered(
        self,
        ids: Sequence[bytes],
        due_ms: Sequence[int],
        topics: Sequence[bytes],
        waited_ms: Mapping[bytes, int] = NO_WAITS,
    ) -> None:
        """Count one batch, oldest first, that has just been yielded.

        `waited_ms`: how long rows have waited for the limit of their topic; that is not lateness,
        and counted for itself.
        """
        now_ms = self.clock.now_ms()
        for n in range(min(len(ids), RECENT_TOLD_MAX - len(self.recent))):
            held_ms = waited_ms.get(ids[n], 0)
            self.recent.append(Delivery(ids[n], topics[n].decode(), due_ms[n], now_ms, held_ms))
        if waited_ms:
            due_ms = self._without_waits(ids, due_ms, topics, waited_ms)
        later = len(due_ms)
        for edge, name in BUCKETS:
            # Due at now - edge or later: at most `edge` late.
            above = bisect_left(due_ms, now_ms - edge, 0, later)
            if above < later:
                self.counts[name] += later - above
                later = above
                if not later:
                    break
        if later:
            self.counts["late:inf"] += later
        self.counts["late-sum-ms"] += len(due_ms) * now_ms - sum(due_ms)
        for topic, count in Counter(topics).items():
            self.counts[f"delivered:{topic.decode()}"] += count
        if now_ms >= self.next_ms:
            self.flush()
            self.next_ms = now_ms + TELL_EVERY_MS

    def _without_waits(
        self,
        ids: Sequence[bytes],
        due_ms: Sequence[int],
        topics: Sequence[bytes],
        waited_ms: Mapping[bytes, int],
    ) -> list[int]:
        """Due times as they were without limits, in order; counts how long rows waited."""
        waited = [waited_ms.get(one, 0) for one in ids]
        for topic, ms in zip(topics, waited, strict=True):
            self.counts[f"limited-ms:{topic.decode()}"] += ms
        return sorted(due + ms for due, ms in zip(due_ms, waited, strict=True))

    def flush(self) -> None:
        """Add what was counted since the last call. If the store does not answer, the counts are
        kept, because a task must not fail for counts."""
        counts = {name: count for name, count in self.counts.items() if count}
        try:
            tell(self.shard, counts, self.recent)
        except StoreUnavailable:
            return
        self.counts, self.recent = Counter(), []
