"""What one task of intake reads, and how its rows tell the sink what they are."""

import zlib
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

WARM_UP, ALONG = -1, -2
"""Partitions of rows that only warm up what they pass; the second tells that it got so far."""
BUNDLE = -3
"""Partition of a row without a timestamp whose value is a bundle."""


@dataclass(frozen=True, slots=True)
class InboxShare(InputPartition):
    """What one task reads: a share of all partitions of the inboxes."""

    task: int
    tasks: int

    def has(self, place: tuple[str, int]) -> bool:
        """Partitions of a topic go to different tasks, and each topic begins with another one."""
        topic, number = place
        return (zlib.crc32(topic.encode()) + number) % self.tasks == self.task
