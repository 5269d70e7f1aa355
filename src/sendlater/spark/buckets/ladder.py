"""The buckets: 0-1 s, 1-2 s, 2-4 s, 4-8 s ... Each is a topic that holds its records equally long.

A topic can only be read in the order it was written. So every record stays in a bucket for the same
time, a little less than the bucket's lower bound, and then moves to the bucket of the time it has
left. The oldest record is always the next to leave, one that must still wait is never read, and no
record is still there when it is due.
"""

from dataclasses import dataclass
from typing import Self

from sendlater.brokers.group_offsets import Place
from sendlater.config import Settings
from sendlater.limits import BUCKET_MARGIN_MS_MAX

SECOND_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """`count` buckets whose topics are `prefix`-00, `prefix`-01 ...; bucket 0 delivers.

    Bucket 0 has a partition for each delivering task. The others have one, because a pass runs a
    task for each partition, and a task costs more than its records.
    """

    prefix: str
    count: int
    delivering: int

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """An installation's buckets."""
        prefix = settings.bucket_topics or f"{settings.space}-bucket"
        return cls(prefix=prefix, count=settings.bucket_count, delivering=settings.shards)

    def lower_ms(self, bucket: int) -> int:
        """A record that enters has at least so much time left: 0, 1 s, 2 s, 4 s ..."""
        assert 0 <= bucket < self.count, bucket
        return SECOND_MS << bucket - 1 if bucket else 0

    def upper_ms(self, bucket: int) -> int:
        """A record that enters has less time left than this."""
        return SECOND_MS << bucket

    @property
    def reach_ms(self) -> int:
        """What is due later than this fits in no bucket."""
        return self.upper_ms(self.count - 1)

    def hold_ms(self, bucket: int) -> int:
        """How long a record waits before it is moved: the lower bound minus a margin for moving.

        The margin is half the bound, at most BUCKET_MARGIN_MS_MAX. So a record enters a bucket
        twice at most.
        """
        lower_ms = self.lower_ms(bucket)
        return lower_ms - min(lower_ms // 2, BUCKET_MARGIN_MS_MAX)

    def place(self, left_ms: int) -> int:
        """The bucket for a record with this time left; overdue records go to bucket 0."""
        return min((max(left_ms, 0) // SECOND_MS).bit_length(), self.count - 1)

    def topic(self, bucket: int) -> str:
        """The topic of a bucket."""
        assert 0 <= bucket < self.count, bucket
        return f"{self.prefix}-{bucket:02}"

    def places(self, bucket: int) -> list[Place]:
        """The partitions of a bucket."""
        count = 1 if bucket else self.delivering
        return [Place(self.topic(bucket), partition) for partition in range(count)]

    @property
    def topics(self) -> list[str]:
        """All topics, bucket 0 first."""
        return [self.topic(bucket) for bucket in range(self.count)]
