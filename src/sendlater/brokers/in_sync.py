"""Whether the partitions of a topic have a leader, and enough replicas in sync, to take records."""

from collections.abc import Mapping

from confluent_kafka.admin import TopicMetadata


def in_sync_min(config: Mapping[str, str]) -> int:
    """How many must be in sync, by a topic's settings; 1 if the broker hides them."""
    return int(config.get("min.insync.replicas", 1))


def lack(topic: TopicMetadata, *, in_sync_min: int, at_most_all: bool = False) -> str:
    """Why a producer would wait in vain for a partition; empty if it would not.

    `at_most_all`: all replicas are enough, though they are fewer than `in_sync_min`, as for brokers
    from Kafka 3.7 on; others wait for ever.
    """
    for number, partition in sorted(topic.partitions.items()):
        needed = min(in_sync_min, len(partition.replicas)) if at_most_all else in_sync_min
        if partition.leader < 0:
            return f"partition {number} has no leader"
        if (in_sync := len(partition.isrs)) < needed:
            return (
                f"partition {number}: min.insync.replicas expects {needed} in sync, got {in_sync}"
            )
    return ""
