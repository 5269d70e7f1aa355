"""Rows for a partition that their topic on Redis does not have: the rejected topic gets them. On
Kafka they are set aside before: see refusal.py."""

from collections.abc import Sequence
from typing import Any

from sendlater.dialects.rejected import rejected_schedule
from sendlater.model import Reason, Schedule
from sendlater.spark.delivery.lane import Lane
from sendlater.store import Claim
from sendlater.store.codec import unpack
from sendlater.topics import Topics


class Misdirected:
    """Knows the topics of a lane's space; connects when a row names a partition."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._topics: Topics | None = None

    def among(self, got: Claim, columns: Sequence[Sequence[Any]]) -> dict[int, Schedule]:
        """What is delivered instead of such rows of a claim, by their places in it. Raises what
        Redis does."""
        topics, partitions = columns[1], columns[2]
        found = {}
        for n, partition in enumerate(partitions):
            if partition is None:
                continue
            count = self._count(topics[n].decode())
            if partition >= count:
                takes = f"expected a partition below {count}, got {partition}"
                found[n] = rejected_schedule(
                    unpack(got.ids[n], got.packed[n]),
                    Reason.BAD_TARGET,
                    f"topic {topics[n].decode()!r}: {takes}",
                    topic=self._lane.rejected_topic,
                )
        return found

    def _count(self, topic: str) -> int:
        if self._topics is None:
            self._topics = Topics(self._lane.redis_url, space=self._lane.space)
        return self._topics.partitions(topic) or self._lane.partitions
