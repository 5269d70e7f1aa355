"""Creates and checks the bucket topics: one that deletes records by itself loses messages."""

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from sendlater.brokers.client_options import client_options
from sendlater.brokers.group_offsets import settled
from sendlater.config import Settings
from sendlater.errors import BadSettings, BrokerUnavailable
from sendlater.limits import (
    BUCKET_ADDED_BYTES_MAX,
    BUCKET_RETENTION_MARGIN_MS,
    REJECTED_TOPIC_BYTES_MAX,
)
from sendlater.spark.buckets.ladder import Ladder
from sendlater.spark.kafka_sink import request_bytes_max

REQUEST_S = 30.0
"""Longest wait for an answer: thirty topics at once take a broker a while."""
CONFIG = {
    "cleanup.policy": "delete",
    # Forever: the service itself deletes what has left a bucket.
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(REJECTED_TOPIC_BYTES_MAX),
}


def require_topics(settings: Settings, ladder: Ladder) -> int:
    """Create missing buckets, if allowed; check every one. Returns their `room_bytes`.

    Raises BadSettings if a bucket is missing, has another number of partitions, may delete what
    waits in it, or takes no record as large as a schedule may be; BrokerUnavailable.
    """
    admin, create = AdminClient(dict(client_options(settings))), settings.create_topics
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
        configs = settled(lambda: _configs(admin, ladder.topics))
    except KafkaException as error:
        raise BrokerUnavailable(f"Kafka does not answer: {error}") from error
    if wrong := _forgetful(configs, ladder):
        raise BadSettings("; ".join(wrong))
    return room_bytes(configs, settings)


def forgetful(admin: AdminClient, ladder: Ladder) -> list[str]:
    """Sentences about wrong settings of the bucket topics. Raises KafkaException."""
    return _forgetful(_configs(admin, ladder.topics), ladder)


def _forgetful(configs: Mapping[str, Mapping[str, str]], ladder: Ladder) -> list[str]:
    told: list[str] = []
    for bucket, topic in enumerate(ladder.topics):
        told += _wrong(topic, configs[topic], keeps_ms=_keeps_ms(ladder, bucket))
    return told


def _configs(admin: AdminClient, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """The settings of topics, by topic and name. Raises KafkaException."""
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    answers = admin.describe_configs(resources, request_timeout=REQUEST_S)
    return {
        resource.name: {name: entry.value for name, entry in future.result(REQUEST_S).items()}
        for resource, future in answers.items()
    }


def room_bytes(configs: Mapping[str, Mapping[str, str]], settings: Settings) -> int:
    """The largest record of an inbox that every bucket takes whole, with all that we add.

    Raises BadSettings if that is less than what a schedule may have: it would stop all others.
    """
    takes = {topic: int(config["max.message.bytes"]) for topic, config in configs.items()}
    takes["Spark's producer (kafka_java max.request.size)"] = request_bytes_max(settings)
    least = min(takes, key=lambda name: takes[name])
    room = takes[least] - BUCKET_ADDED_BYTES_MAX
    if settings.max_payload_bytes > room:
        raise BadSettings(
            f"max_payload_bytes: expected at most {room}, as {least} takes {takes[least]} bytes "
            f"and we add up to {BUCKET_ADDED_BYTES_MAX}, got {settings.max_payload_bytes}"
        )
    return room


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
