"""Creates and checks the bucket topics: one that deletes records by itself loses messages."""

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from sendlater.brokers.group_offsets import settled
from sendlater.errors import BadSettings, BrokerUnavailable
from sendlater.limits import BUCKET_RETENTION_MARGIN_MS, REJECTED_TOPIC_BYTES_MAX
from sendlater.spark.buckets.ladder import Ladder

REQUEST_S = 30.0
"""Longest wait for an answer: thirty topics at once take a broker a while."""
CONFIG = {
    "cleanup.policy": "delete",
    # Forever: the service itself deletes what has left a bucket.
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(REJECTED_TOPIC_BYTES_MAX),
}


def require_topics(client_options: Mapping[str, str], ladder: Ladder, *, create: bool) -> None:
    """Create missing buckets, if allowed; check every one.

    Raises BadSettings if a bucket is missing, has another number of partitions, or may delete what
    waits in it; BrokerUnavailable.
    """
    admin = AdminClient(dict(client_options))
    try:
        there = admin.list_topics(timeout=REQUEST_S).topics
        missing = [topic for topic in ladder.topics if topic not in there]
        if missing and not create:
            raise BadSettings(f"create_topics is off, and these buckets are missing: {missing}")
        partitions = {ladder.topic(n): len(ladder.places(n)) for n in range(ladder.count)}
        _create(admin, {topic: partitions[topic] for topic in missing})
        for topic, expected in partitions.items():
            if topic in there and len(there[topic].partitions) != expected:
                raise BadSettings(
                    f"bucket {topic!r} has {len(there[topic].partitions)} partitions, expected "
                    f"{expected}: shards is fixed for the life of a space"
                )
        wrong = settled(lambda: forgetful(admin, ladder))
    except KafkaException as error:
        raise BrokerUnavailable(f"Kafka does not answer: {error}") from error
    if wrong:
        raise BadSettings("; ".join(wrong))


def forgetful(admin: AdminClient, ladder: Ladder) -> list[str]:
    """Sentences about wrong settings of the bucket topics. Raises KafkaException."""
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in ladder.topics]
    answers = admin.describe_configs(resources, request_timeout=REQUEST_S)
    configs = {resource.name: future.result(REQUEST_S) for resource, future in answers.items()}
    told: list[str] = []
    for bucket, topic in enumerate(ladder.topics):
        config = {name: entry.value for name, entry in configs[topic].items()}
        told += _wrong(topic, config, keeps_ms=_keeps_ms(ladder, bucket))
    return told


def _keeps_ms(ladder: Ladder, bucket: int) -> int:
    return ladder.upper_ms(bucket) + BUCKET_RETENTION_MARGIN_MS


def _wrong(topic: str, config: Mapping[str, Any], *, keeps_ms: int) -> Iterable[str]:
    """Sentences about one topic."""
    if config["cleanup.policy"] != "delete":
        yield f"{topic}: expected cleanup.policy delete, got {config['cleanup.policy']}"
    retention_ms = int(config["retention.ms"])
    if 0 <= retention_ms < keeps_ms:
        yield (
            f"{topic}: messages wait in it, expected retention.ms -1 or at least {keeps_ms}, "
            f"got {retention_ms}"
        )
    if int(config["retention.bytes"]) >= 0:
        yield f"{topic}: expected retention.bytes -1, got {config['retention.bytes']}"


def _create(admin: AdminClient, partitions: Mapping[str, int]) -> None:
    if not partitions:
        return
    new = [NewTopic(topic, count, config=CONFIG) for topic, count in partitions.items()]
    for future in admin.create_topics(new, operation_timeout=REQUEST_S).values():
        try:
            future.result(REQUEST_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
