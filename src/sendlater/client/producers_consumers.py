"""Producers and consumers with confluent-kafka's interface, on Kafka or on Redis.

`bootstrap.servers` decides: a Redis URL or Kafka brokers. Code developed on Redis runs on Kafka
unchanged. On Redis they have the most used part of the interface: see docs/topics-on-redis.md.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import confluent_kafka

from sendlater.brokers.redis import RedisBroker
from sendlater.client.open_transport import REDIS_SCHEMES
from sendlater.errors import BadSettings
from sendlater.model import Headers, Record
from sendlater.operations.arguments import AnyHeaders, to_bytes, to_headers
from sendlater.topics import Consumer, TopicRecord, Topics

SERVERS = "bootstrap.servers"
OURS = "sendlater."
"""Prefix of options for topics on Redis; removed from the options of Kafka's clients."""
SPACE = "sendlater.space"
"""Option on Redis: the space of the topics."""
LIMITS = {
    "sendlater.partitions": "partitions_default",
    "sendlater.retention.ms": "retention_ms",
    "sendlater.length.max": "length_max",
    "sendlater.write.attempts.max": "write_attempts_max",
}
"""Limits of Topics, by their option names."""
OnDelivery = Callable[[Any, Any], None]


def open_producer(config: Mapping[str, Any]) -> Any:
    """confluent-kafka's Producer, or a TopicsProducer for topics on Redis.

    Kafka's options are ignored on Redis. Raises BadSettings.
    """
    if _is_redis(config):
        return TopicsProducer(config)
    return confluent_kafka.Producer(_kafka(config))


def open_consumer(config: Mapping[str, Any]) -> Any:
    """confluent-kafka's Consumer, or a TopicsConsumer. On Redis a new group starts at the first
    record kept; `auto.offset.reset` is ignored. Raises BadSettings."""
    if _is_redis(config):
        return TopicsConsumer(config)
    return confluent_kafka.Consumer(_kafka(config))


class TopicMessage:
    """A record of a topic on Redis with the interface of confluent-kafka's Message."""

    def __init__(self, record: TopicRecord) -> None:
        self.record = record

    def topic(self) -> str:
        """Its topic."""
        return self.record.topic

    def partition(self) -> int:
        """Its partition."""
        return self.record.partition

    def offset(self) -> int:
        """Its position: increasing, but not consecutive."""
        return self.record.position

    def key(self) -> bytes | None:
        """Its key."""
        return self.record.key

    def value(self) -> bytes | None:
        """Its payload."""
        return self.record.value

    def headers(self) -> Headers | None:
        """Its headers; None when it has none."""
        return list(self.record.headers) or None

    def timestamp(self) -> tuple[int, int]:
        """Type (log append time) and milliseconds."""
        return confluent_kafka.TIMESTAMP_LOG_APPEND_TIME, self.record.timestamp_ms

    def error(self) -> None:
        """Always None: errors are raised."""

    def __len__(self) -> int:
        return len(self.record.value or b"")


class TopicsProducer:
    """`confluent_kafka.Producer` on topics on Redis. `flush`, `poll` and every 500th `produce`
    write the records produced so far. On an error confluent-kafka only calls `on_delivery`; this
    also raises BrokerUnavailable."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._broker = RedisBroker(_topics(config))

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        callback: OnDelivery | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,  # noqa: ARG002
        headers: AnyHeaders | None = None,
    ) -> None:
        """Produce a record. `timestamp` is ignored: Redis sets it. Raises BadRequest,
        BrokerUnavailable."""
        record = Record(
            topic=topic,
            value=to_bytes(value, what="value"),
            key=to_bytes(key, what="key"),
            headers=to_headers(headers or ()),
            partition=None if partition < 0 else partition,
        )
        told = on_delivery or callback

        def done(error: Exception | None, number: int, position: int) -> None:
            if told is not None:
                placed = TopicRecord(
                    topic=topic,
                    partition=number,
                    position=position,
                    timestamp_ms=position >> 20,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                )
                told(error, TopicMessage(placed))

        self._broker.send(record, on_done=done)

    def poll(self, timeout: float = 0) -> int:  # noqa: ARG002
        """Write the waiting records; returns how many there were."""
        before = len(self)
        self._broker.flush()
        return before

    def flush(self, timeout: float = -1) -> int:
        """Write the waiting records; returns how many are left: 0."""
        self.poll(timeout)
        return len(self)

    def close(self) -> None:
        """Flush and disconnect."""
        self._broker.close()

    def __len__(self) -> int:
        return self._broker.waiting

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TopicsConsumer:
    """`confluent_kafka.Consumer` on topics on Redis: a member of a group.

    With `enable.auto.commit`, the default, each `poll` or `consume` commits the records that
    earlier calls returned; otherwise call `commit`. Records never committed go to another member.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        group = config.get("group.id")
        if not group:
            raise BadSettings("group.id: expected the name of a group, got none")
        self._group = str(group)
        self._auto = str(config.get("enable.auto.commit", "true")).lower() == "true"
        self._topics = _topics(config)
        self._consumer: Consumer | None = None
        self._given: dict[tuple[str, int], list[TopicRecord]] = defaultdict(list)

    def subscribe(self, topics: Sequence[str]) -> None:
        """Join the group and read these topics."""
        self.unsubscribe()
        self._consumer = Consumer(self._topics, self._group, subscribe=list(topics))

    def unsubscribe(self) -> None:
        """Leave the group."""
        if self._consumer is not None:
            self._leave()

    def poll(self, timeout: float | None = None) -> TopicMessage | None:
        """The next record, or None after `timeout` seconds."""
        found = self.consume(1, timeout)
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float | None = None) -> list[TopicMessage]:
        """Up to `num_messages` records, as soon as there are any."""
        if self._consumer is None:
            raise BadSettings("expected subscribe before poll")
        if self._auto:
            self.commit()
        deadline = None if timeout is None or timeout < 0 else time.monotonic() + timeout
        while True:
            left_s = 1.0 if deadline is None else max(0.0, deadline - time.monotonic())
            records = self._consumer.poll(num_messages, timeout_ms=int(min(left_s, 1.0) * 1_000))
            for record in records:
                self._given[record.topic, record.partition].append(record)
            if records or left_s == 0:
                return [TopicMessage(record) for record in records]

    def commit(self, message: TopicMessage | None = None, *, asynchronous: bool = True) -> None:  # noqa: ARG002
        """Commit all returned records, or those of a message's partition up to that message."""
        assert self._consumer is not None, "subscribe comes first"
        if message is None:
            self._consumer.ack(record for some in self._given.values() for record in some)
            self._given.clear()
            return
        place, end = (message.topic(), message.partition()), message.offset()
        # Not in order: what another member left comes after what is newer.
        self._consumer.ack(record for record in self._given[place] if record.position <= end)
        self._given[place] = [record for record in self._given[place] if record.position > end]

    def seek_to_start(self) -> None:
        """Move the whole group back to the first record still kept."""
        assert self._consumer is not None, "subscribe comes first"
        self._given.clear()
        self._consumer.seek_to_start()

    def seek_to_time(self, timestamp_ms: int) -> None:
        """Move the whole group to the first record at or after `timestamp_ms`."""
        assert self._consumer is not None, "subscribe comes first"
        self._given.clear()
        self._consumer.seek(timestamp_ms)

    def close(self) -> None:
        """Commit if that is automatic, give back the other records, and leave the group."""
        if self._consumer is not None:
            self._leave()
        self._topics.close()

    def _leave(self) -> None:
        assert self._consumer is not None
        if self._auto:
            self.commit()
        self._consumer.give_back([record for some in self._given.values() for record in some])
        self._given.clear()
        self._consumer.close()
        self._consumer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_redis(config: Mapping[str, Any]) -> bool:
    return str(config.get(SERVERS, "")).startswith(REDIS_SCHEMES)


def _kafka(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if not name.startswith(OURS)}


def _topics(config: Mapping[str, Any]) -> Topics:
    limits = {}
    for name, value in config.items():
        if not name.startswith(OURS) or name == SPACE:
            continue
        if name not in LIMITS:
            raise BadSettings(f"{name}: expected {SPACE}, {', '.join(LIMITS)}")
        if not str(value).isdigit() or int(value) < 1:
            raise BadSettings(f"{name}: expected a number from 1 on, got {value!r}")
        limits[LIMITS[name]] = int(value)
    return Topics(str(config[SERVERS]), space=str(config.get(SPACE, "sendlater")), **limits)
