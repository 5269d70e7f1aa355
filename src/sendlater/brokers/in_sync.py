"""Whether the partitions of a topic have a leader, and enough replicas in sync, to take records."""

from collections.abc import Mapping

from confluent_kafka.admin import TopicDescription, TopicMetadata

Replicas = Mapping[int, tuple[bool, int, int]]
"""Per partition whether it has a leader, how many replicas it has in sync, and how many at all."""


def listed(topic: TopicMetadata) -> Replicas:
    """As a list of topics tells it."""
    return {
        n: (one.leader >= 0, len(one.isrs), len(one.replicas))
        for n, one in topic.partitions.items()
    }


def described(topic: TopicDescription) -> Replicas:
    """As a description of the topic tells it."""
    return {
        one.id: (one.leader is not None, len(one.isr), len(one.replicas))
        for one in topic.partitions
    }


def in_sync_min(config: Mapping[str, str]) -> int:
    """How many must be in sync, by a topic's settings; 1 if the broker hides them."""
    return int(config.get("min.insync.replicas", 1))


def lack(replicas: Replicas, *, in_sync_min: int, at_most_all: bool = False) -> str:
    """Why a producer would wait in vain for a partition; empty if it would not.

    `at_most_all`: all replicas are enough, though they are fewer than `in_sync_min`, as for brokers
    from Kafka 3.7 on; others wait for ever.
    """
    for number, (led, in_sync, count) in sorted(replicas.items()):
        needed = min(in_sync_min, count) if at_most_all else in_sync_min
        if not led:
            return f"partition {number} has no leader"
        if in_sync < needed:
            return (
                f"partition {number}: min.insync.replicas expects {needed} in sync, got {in_sync}"
            )
    return ""
