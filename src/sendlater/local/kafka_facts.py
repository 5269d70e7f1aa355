"""Reads a broker's clock."""

import time
import uuid
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import NewTopic

from sendlater.errors import BrokerUnavailable
from sendlater.local.kafka_server import admin

ANSWER_TIMEOUT_S = 10.0
CLOCK_SAMPLES_COUNT = 6
"""Number of measurements; the fastest one is the most exact, and the first is slow."""


def broker_clock(bootstrap_servers: str, settings: Mapping[str, str]) -> tuple[float, float]:
    """How far a broker's clock is ahead of ours, and the possible error, in ms.

    Kafka has no request for it: a temporary topic is created whose records get the broker's append
    time. Raises BrokerUnavailable if that fails.
    """
    client = admin(bootstrap_servers, settings)
    topic = f"sendlater-clock-{uuid.uuid4().hex[:12]}"
    new = NewTopic(topic, 1, config={"message.timestamp.type": "LogAppendTime"})
    try:
        client.create_topics([new])[topic].result(ANSWER_TIMEOUT_S)
        try:
            return _sampled(topic, bootstrap_servers, settings)
        finally:
            client.delete_topics([topic])[topic].result(ANSWER_TIMEOUT_S)
    except KafkaException as error:
        raise BrokerUnavailable(f"its clock cannot be read: {error.args[0].str()}") from error


def _sampled(
    topic: str, bootstrap_servers: str, settings: Mapping[str, str]
) -> tuple[float, float]:
    quiet: dict[str, Any] = {"log_level": "0", "linger.ms": 0, "error_cb": lambda _error: None}
    producer = Producer(quiet | {"bootstrap.servers": bootstrap_servers} | dict(settings))
    appended_ms: list[int] = []

    def done(error: KafkaError | None, message: Message) -> None:
        if error is None:
            appended_ms.append(message.timestamp()[1])

    samples = []
    for number in range(CLOCK_SAMPLES_COUNT):
        before_ms = time.time_ns() / 1e6
        producer.produce(topic, b"what time is it?", on_delivery=done)
        producer.flush(ANSWER_TIMEOUT_S)
        after_ms = time.time_ns() / 1e6
        if len(appended_ms) <= number:
            producer.purge()
            raise BrokerUnavailable("its clock cannot be read: a record was not acknowledged")
        # The broker rounds down to whole milliseconds: add half a millisecond, on average.
        ahead_ms = appended_ms[-1] + 0.5 - (before_ms + after_ms) / 2
        samples.append(((after_ms - before_ms) / 2 + 0.5, ahead_ms))
    error_ms, ahead_ms = min(samples)
    return ahead_ms, error_ms
