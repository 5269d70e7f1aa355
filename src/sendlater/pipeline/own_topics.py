"""The topics that are ours: inboxes and the rejected topic."""

import time

import structlog

from sendlater.config import Settings, client_options
from sendlater.errors import SendlaterError
from sendlater.limits import REJECTED_TOPIC_BYTES_MAX
from sendlater.pipeline.kafka_topics import KafkaTopics

PAUSE_S = 0.1
"""Pause between two looks at whether a topic just created is there."""

_log = structlog.get_logger()


def own_topics(settings: Settings) -> dict[str, int]:
    """Partition counts of the inboxes; they and the rejected topic are created where allowed.

    Raises SendlaterError where one is missing, BrokerUnavailable.
    """
    kafka = KafkaTopics(client_options(settings))
    inboxes = [inbox.topic for inbox in settings.inboxes]
    wanted = [*inboxes, settings.rejected_topic]
    missing = set(wanted) - kafka.partitions(wanted).keys()
    for topic in sorted(missing):
        if not settings.create_topics:
            raise SendlaterError(f"topic {topic!r} does not exist, and create_topics is off")
        large = {"max.message.bytes": str(REJECTED_TOPIC_BYTES_MAX)}
        config = large if topic == settings.rejected_topic else {}
        kafka.create(topic, partitions=settings.topic_partitions, config=config)
        _log.info("topic created", topic=topic)
    deadline = time.monotonic() + settings.stop_timeout_ms / 1000
    while set(inboxes) - (found := kafka.partitions(inboxes)).keys():
        if time.monotonic() > deadline:
            raise SendlaterError(f"inboxes {inboxes} do not all exist, only {sorted(found)}")
        time.sleep(PAUSE_S)
    return found
