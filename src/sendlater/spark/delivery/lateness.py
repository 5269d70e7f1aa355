"""What lane tasks tell about their work: how late schedules left, and for which topics.

Counted per Arrow batch, whose due times come in order: a bisection per bucket, nothing per row.
Late means until the batch was handed to Spark's producer, a few milliseconds before the broker has
it; waiting for a JVM that is behind is counted.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from sendlater.clock import Clock
from sendlater.errors import StoreUnavailable
from sendlater.limits import LATE_BUCKETS_MS, RECENT_TOLD_MAX
from sendlater.store import Shard
from sendlater.store.admin import Delivery, tell

TELL_EVERY_MS = 250
"""Least time between two calls of one task; what a kill loses of the counts."""


class LatenessReport:
    """Counters of one task, added to the shard's tally now and then."""

    def __init__(self, shard: Shard, clock: Clock) -> None:
        self.shard, self.clock = shard, clock
        self.counts: Counter[str] = Counter()
        self.recent: list[Delivery] = []
        self.next_ms = clock.now_ms() + TELL_EVERY_MS

    def delivered(
        self, ids: Sequence[bytes], due_ms: Sequence[int], topics: Sequence[bytes]
    ) -> None:
        """One batch, oldest first, that has just been handed on."""
        now_ms = self.clock.now_ms()
        later = len(due_ms)
        for edge in LATE_BUCKETS_MS:
            if not later:
                break
            # Due at now - edge or after it: at most so late.
            above = bisect_left(due_ms, now_ms - edge, 0, later)
            self.counts[f"late:{edge}"] += later - above
            later = above
        self.counts["late:inf"] += later
        self.counts["late-sum-ms"] += len(due_ms) * now_ms - sum(due_ms)
        for topic, count in Counter(topics).items():
            self.counts[f"delivered:{topic.decode()}"] += count
        for n in range(min(len(ids), RECENT_TOLD_MAX - len(self.recent))):
            self.recent.append(Delivery(ids[n], topics[n].decode(), due_ms[n], now_ms))
        if now_ms >= self.next_ms:
            self.flush()
            self.next_ms = now_ms + TELL_EVERY_MS

    def flush(self) -> None:
        """Add what was counted since the last call; it is kept while the store does not answer,
        as a task must not fail for the sake of a number."""
        counts = {name: count for name, count in self.counts.items() if count}
        try:
            tell(self.shard, counts, self.recent)
        except StoreUnavailable:
            return
        self.counts, self.recent = Counter(), []
