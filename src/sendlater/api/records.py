"""Looking back: the last records of the rejected and dead-letter topics, and sending them again."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from ulid import ULID

from sendlater.api import wire
from sendlater.api.problems import Problem
from sendlater.client.brokers import Arrived, arrived, open_topics
from sendlater.client.handling import alive_again
from sendlater.client.office import Office
from sendlater.client.reading import TOLD
from sendlater.config import Settings, client_options
from sendlater.dialects import names
from sendlater.errors import BadRequest, BrokerUnavailable
from sendlater.limits import TAIL_COUNT_MAX
from sendlater.model import Headers, Record, Schedule

ASK_S = 10.0
"""Longest wait for the broker."""
POLL_S = 0.5


class KafkaTails:
    """The end of topics on Kafka, read without a group."""

    def __init__(self, settings: Settings) -> None:
        self._options = {
            **client_options(settings),
            "group.id": "sendlater-looking",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
        self._admin = AdminClient({**client_options(settings)})

    def exists(self, topic: str) -> bool:
        """Whether there is such a topic. Raises BrokerUnavailable."""
        try:
            return self._admin.list_topics(topic, ASK_S).topics[topic].error is None
        except KafkaException as error:
            raise BrokerUnavailable(f"topic {topic!r}: {error}") from error

    def tail(self, topic: str, *, count: int) -> list[Arrived]:
        """Up to `count` last records of each partition. Raises BrokerUnavailable."""
        consumer = Consumer(self._options)
        try:
            found = consumer.list_topics(topic, ASK_S).topics[topic]
            if found.error is not None:
                return []
            starts = []
            for number in found.partitions:
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), ASK_S)
                if high > low:
                    starts.append((TopicPartition(topic, number, max(low, high - count)), high))
            return list(self._read(consumer, starts))
        except KafkaException as error:
            raise BrokerUnavailable(f"topic {topic!r}: {error}") from error
        finally:
            consumer.close()

    def at(self, topic: str, partition: int, position: int) -> Arrived | None:
        """One record; None when it is gone."""
        consumer = Consumer(self._options)
        try:
            place = TopicPartition(topic, partition, position)
            low, high = consumer.get_watermark_offsets(place, ASK_S)
            if not low <= position < high:
                return None
            return next(self._read(consumer, [(place, position + 1)]), None)
        except KafkaException as error:
            raise BrokerUnavailable(f"topic {topic!r}: {error}") from error
        finally:
            consumer.close()

    def _read(
        self, consumer: Consumer, starts: list[tuple[TopicPartition, int]]
    ) -> Iterator[Arrived]:
        """Records up to each partition's end, which others may be moving on."""
        waiting: dict[int | None, int] = {start.partition: end for start, end in starts}
        if not waiting:
            return
        consumer.assign([start for start, _ in starts])
        deadline = time.monotonic() + ASK_S
        while waiting and time.monotonic() < deadline:
            for message in consumer.consume(TAIL_COUNT_MAX, POLL_S):
                number = message.partition()
                if message.error() is not None:  # the end of a partition
                    waiting.pop(number, None)
                elif number in waiting:
                    at = message.offset() or 0
                    if at < waiting[number]:
                        yield arrived(message)
                    if at + 1 >= waiting[number]:
                        del waiting[number]


class RedisTails:
    """The same for topics on Redis."""

    def __init__(self, settings: Settings, *, redis_url: str) -> None:
        self._topics = open_topics(redis_url, settings)

    def exists(self, topic: str) -> bool:
        """Whether there is such a topic."""
        return self._topics.exists(topic)

    def tail(self, topic: str, *, count: int) -> list[Arrived]:
        """Up to `count` last records of each partition."""
        if not self._topics.exists(topic):
            return []
        return [
            _of_redis(record)
            for number in range(self._topics.partitions(topic))
            for record in self._topics.read_last(topic, number, count_max=count)
        ]

    def at(self, topic: str, partition: int, position: int) -> Arrived | None:
        """One record; None when it is gone."""
        if not self._topics.exists(topic) or partition >= self._topics.partitions(topic):
            return None
        got = self._topics.read_range(
            topic, partition, start=position, end=position + 1, count_max=1
        )
        return _of_redis(got[0]) if got else None


def _of_redis(record: Any) -> Arrived:
    return Arrived(
        record.topic,
        record.partition,
        record.position,
        record.timestamp_ms,
        record.key,
        record.value,
        record.headers,
    )


class Records:
    """Records that were delivered to a topic, latest first."""

    def __init__(self, settings: Settings, *, redis_url: str) -> None:
        self._tails: KafkaTails | RedisTails = (
            KafkaTails(settings) if settings.on_kafka else RedisTails(settings, redis_url=redis_url)
        )

    def last(self, topic: str, *, count: int, search: str = "") -> list[Arrived]:
        """The last records that contain `search` in key, headers or value, bounded."""
        wanted = search.encode()
        found = [
            record
            for record in self._tails.tail(topic, count=TAIL_COUNT_MAX if search else count)
            if not wanted or _contains(record, wanted)
        ]
        return sorted(found, key=lambda r: (-r.timestamp_ms, -r.position))[:count]

    def exists(self, topic: str) -> bool:
        """Whether there is such a topic."""
        return self._tails.exists(topic)

    def at(self, topic: str, place: str) -> Arrived | None:
        """The record at `partition/position`."""
        partition, position = (int(part) for part in place.split("/"))
        if not (partition < 2**31 and position < 2**63):
            return None
        return self._tails.at(topic, partition, position)


def _contains(record: Arrived, wanted: bytes) -> bool:
    parts = [record.key, record.value, *(value for _, value in record.headers)]
    return any(wanted in part for part in parts if part)


def show_record(record: Arrived, *, payload: bool) -> dict[str, Any]:
    """A record as JSON values."""
    shown: dict[str, Any] = {
        "place": f"{record.partition}/{record.position}",
        "topic": record.topic,
        "at_ms": record.timestamp_ms,
        "at": wire.to_time(record.timestamp_ms),
        "value_bytes": len(record.value or b""),
    }
    for name, header in TOLD.items():
        value = record.header(header)
        if value is not None:
            shown[name] = value.decode(errors="replace")
    if payload:
        shown |= wire.text_or_base64("key", record.key)
        shown |= wire.text_or_base64("value", record.value)
        shown["headers"] = [wire.show_header(name, value) for name, value in record.headers]
    return shown


def again(record: Arrived, *, target: str | None, due_ms: int) -> Schedule:
    """A schedule that delivers a rejected record, or a dead event, to where it was meant.

    Raises BadRequest when nothing says where that is.
    """
    event = alive_again(record)
    if event is not None and not target:
        meant = replace(event, value=event.value or b"")
        return Schedule(id=str(ULID()).encode(), due_ms=due_ms, record=meant)
    told = record.header(names.REJECTED_TARGET) or record.header(names.TARGET_TOPIC)
    topic = target or (told or b"").decode(errors="replace")
    if not topic:
        raise BadRequest("expected a target: the record does not say where it was meant to go")
    headers: Headers = [
        (name, value) for name, value in record.headers if not name.startswith(names.PREFIXES)
    ]
    key = record.header(names.TARGET_KEY) if record.header(names.TARGET_TOPIC) else record.key
    meant = Record(topic=topic, key=key, value=record.value or b"", headers=headers)
    return Schedule(id=str(ULID()).encode(), due_ms=due_ms, record=meant)


def redrive(
    office: Office,
    records: Records,
    *,
    topic: str,
    places: list[str],
    target: str | None,
    due_ms: int,
) -> dict[str, Any]:
    """Schedule records of a topic anew; they stay where they are. Says which could not be."""
    good: list[Schedule] = []
    skipped = []
    for place in places:
        try:
            record = records.at(topic, place)
            if record is None:
                raise Problem(404, "no such record (any more)")
            schedule = again(record, target=target, due_ms=due_ms)
            office.checked(schedule)
            good.append(schedule)
        except (BadRequest, Problem) as error:
            skipped.append({"place": place, "detail": str(error)})
    failed = [error for error in office.write(good) if error is not None]
    if failed:
        raise failed[0]
    return {"redriven": len(good), "skipped": skipped}
