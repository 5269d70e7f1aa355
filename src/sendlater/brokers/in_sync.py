"""Whether the partitions of a topic have a leader, and enough replicas in sync, to take records."""

from collections.abc import Mapping

from confluent_kafka.admin import TopicDescription, TopicMetadata

Replicas = Mapping[int, tuple[bool, int]]
"""Per partition whether it has a leader, and how many of its replicas are in sync."""


def listed(topic: TopicMetadata) -> Replicas:
    """As a list of topics tells it."""
    return {n: (one.leader >= 0, len(one.isrs)) for n, one in topic.partitions.items()}


def described(topic: TopicDescription) -> Replicas:
    """As a description of the topic tells it."""
    return {one.id: (one.leader is not None, len(one.isr)) for one in topic.partitions}


def in_sync_min(config: Mapping[str, str]) -> int:
    """How many must be in sync, by a topic's settings; 1 if the broker hides them."""
    return int(config.get("min.insync.replicas", 1))


def lack(replicas: Replicas, *, in_sync_min: int) -> str:
    """Why a producer would wait in vain for a partition; empty if it would not."""
    for number, (led, in_sync) in sorted(replicas.items()):
        if not led:
            return f"partition {number} has no leader"
        if in_sync < in_sync_min:
            return (
                f"partition {number}: min.insync.replicas expects {in_sync_min} in sync, "
                f"got {in_sync}"
            )
    return ""
