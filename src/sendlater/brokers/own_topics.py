"""The topics of a service: inboxes, the rejected topic, and those that journals need."""

import time
from collections.abc import Sequence

import structlog

from sendlater.brokers.kafka_topics import KafkaTopics, TopicFacts
from sendlater.brokers.redis import RedisBroker
from sendlater.config import Settings
from sendlater.errors import BrokerUnavailable, MissingInbox, SendlaterError
from sendlater.limits import COMPACTION_LAG_MS, REJECTED_TOPIC_BYTES_MAX
from sendlater.topics import Topics

LOOK_PAUSE_S = 0.1
LIVENESS_RETENTION_MS = "3600000"
"""An hour: each probe is read once."""
JOURNAL = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(COMPACTION_LAG_MS)}
"""Of a journal that we create. A record with a condition is decided by the one before it."""

_log = structlog.get_logger()


def own_redis_topics(topics: Topics, settings: Settings) -> dict[str, int]:
    """Partition counts of the inboxes; creates missing topics."""
    inboxes = [inbox.topic for inbox in settings.inboxes]
    for topic in dict.fromkeys((*inboxes, settings.rejected_topic, settings.dead_topic)):
        if not topics.exists(topic):
            topics.create(topic)
    return {topic: topics.partitions(topic) for topic in inboxes}


def inbox_facts(kafka: KafkaTopics, settings: Settings) -> dict[str, TopicFacts]:
    """The current Kafka id and number of partitions of each inbox, in one request.

    Call it before each start of intake, which must name every partition, and regularly: an inbox
    with another id was deleted and created again (see sendlater.store.inbox_ids). Spark finds added
    partitions by itself.

    Raises BrokerUnavailable, also while an inbox does not exist.
    """
    return kafka.facts(inbox.topic for inbox in settings.inboxes)


def own_kafka_topics(
    kafka: KafkaTopics, settings: Settings, *, liveness: bool = False
) -> dict[str, int]:
    """Partition counts of the inboxes; creates missing topics if the settings allow it.

    Raises SendlaterError for a missing topic, BadSettings for a journal that is not compacted.
    """
    inboxes = [inbox.topic for inbox in settings.inboxes]
    # Topics that we write to must accept every record of an inbox.
    large = {"max.message.bytes": str(REJECTED_TOPIC_BYTES_MAX)}
    wanted: dict[str, dict[str, str]] = {topic: {} for topic in inboxes}
    wanted |= {topic: dict(JOURNAL) for topic in settings.journals}
    for inbox in settings.inboxes:
        if inbox.copy_to:
            wanted[inbox.copy_to] |= large
    wanted[settings.rejected_topic] = large
    if settings.journals and settings.history_topic:
        wanted[settings.history_topic] = large
    if liveness:
        wanted[settings.liveness_topic] = {"retention.ms": LIVENESS_RETENTION_MS}
    if settings.create_topics and settings.dead_topic not in wanted:
        _create_dead_topic(kafka, settings, config=large)
    missing = set(wanted) - kafka.partitions(wanted).keys()
    for topic in sorted(missing):
        if not settings.create_topics:
            raise SendlaterError(f"topic {topic!r} does not exist, and create_topics is off")
        kafka.create(topic, partitions=settings.topic_partitions, config=wanted[topic])
        _log.info("topic created", topic=topic)
    for topic in set(settings.journals) - missing:
        kafka.require_compacted(topic)
    deadline = time.monotonic() + settings.stop_timeout_ms / 1000
    while set(inboxes) - (found := kafka.partitions(inboxes)).keys():
        if time.monotonic() > deadline:
            raise SendlaterError(f"inboxes {inboxes} do not all exist, only {sorted(found)}")
        time.sleep(LOOK_PAUSE_S)
    for topic in inboxes:
        kafka.bound_timestamps(topic, alter=settings.create_topics)
    return found


def _create_dead_topic(kafka: KafkaTopics, settings: Settings, *, config: dict[str, str]) -> None:
    """Create it if it is missing. Without permission the log says so: not everybody needs it, and
    what should go there is rejected then."""
    topic = settings.dead_topic
    if topic in kafka.partitions([topic]):
        return
    try:
        kafka.create(topic, partitions=settings.topic_partitions, config=config)
        _log.info("topic created", topic=topic)
    except BrokerUnavailable as error:
        _log.warning("the dead-letter topic is missing", topic=topic, cause=str(error))


def inbox_ends(
    kafka: KafkaTopics | None, redis: RedisBroker | None, topics: Sequence[str]
) -> dict[str, int]:
    """Per `topic/partition` the position after the last record, if there is one.

    Records after an open transaction count: they are acknowledged, although not readable yet.

    Raises Unavailable, or MissingInbox if the broker does not know all topics.
    """
    if kafka is not None:
        ends = kafka.ends(topics, open_too=True) if topics else {}
        if missing := set(topics) - ends.keys():
            raise MissingInbox(f"Kafka does not know inboxes {sorted(missing)}")
    else:
        assert redis is not None, "one of the two carries the inboxes"
        ends = {topic: redis.ends(topic) for topic in topics}
    return {f"{t}/{n}": end for t, parts in ends.items() for n, end in parts.items() if end}
