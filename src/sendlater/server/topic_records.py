"""Reads the last records of a topic, and schedules rejected and dead records again."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from ulid import ULID

from sendlater.brokers.broker import Arrived
from sendlater.brokers.client_options import ASKING, client_options
from sendlater.brokers.kafka import arrived
from sendlater.brokers.lasting_client import LastingClient
from sendlater.brokers.redis import open_topics
from sendlater.client.events import alive_again
from sendlater.config import Settings
from sendlater.dialects import names
from sendlater.errors import BadRequest, BrokerUnavailable
from sendlater.limits import LOOK_COUNT_MAX, TAIL_COUNT_MAX
from sendlater.model import Record, Schedule
from sendlater.operations.read_topics import TOLD
from sendlater.operations.schedules import Operations
from sendlater.server import json_shapes as wire
from sendlater.server.problems import Problem
from sendlater.store import Admin

REDRIVEN = "redriven"
ASK_S = 10.0
"""Longest wait for the broker."""
POLL_S = 0.05
SINCE_MARGIN_MS = 1_000
"""How far a broker's clock may be behind the clock that gave the delivery time."""
Wanted = Callable[[Arrived], bool]
Place = tuple[int, int]
"""Partition and position of a record."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The part of a topic to read: the last `count` records of each partition, or the first `count`
    that were appended at `since_ms` or later."""

    count: int
    since_ms: int | None = None


class KafkaTails:
    """Reads parts of topics on Kafka, without a consumer group."""

    def __init__(self, settings: Settings) -> None:
        self._options = {
            **client_options(settings),
            "group.id": "sendlater-looking",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
        options = client_options(settings)
        self._asking = LastingClient(lambda: AdminClient({**options, **ASKING}))

    def exists(self, topic: str) -> bool:
        """Whether the topic exists. Raises BrokerUnavailable."""
        try:
            return self._asking.topics(topic, timeout_s=ASK_S)[topic].error is None
        except KafkaException as error:
            raise BrokerUnavailable(f"topic {topic!r}: {error}") from error

    def read(self, topic: str, stretch: Stretch) -> Iterator[Arrived]:
        """The records of a stretch, in order within a partition. Raises BrokerUnavailable."""
        with self._consumer(topic) as consumer:
            found = consumer.list_topics(topic, ASK_S).topics[topic]
            if found.error is not None:
                return
            since = [TopicPartition(topic, n, stretch.since_ms or 0) for n in found.partitions]
            begins = (
                {at.partition: at.offset for at in consumer.offsets_for_times(since, ASK_S)}
                if stretch.since_ms is not None
                else {}
            )
            parts = {}
            for number in found.partitions:
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), ASK_S)
                begin = begins.get(number, high - stretch.count)
                # A time after the last record has no offset: the answer is below zero.
                begin = high if number in begins and begin < 0 else max(low, begin)
                parts[number] = (begin, min(high, begin + stretch.count))
            yield from self._read(consumer, topic, parts)

    def at(self, topic: str, places: Sequence[Place]) -> dict[Place, Arrived]:
        """The records at these places, as far as they are there."""
        found = {}
        with self._consumer(topic) as consumer:
            for partition, begin, end in runs(places):
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), ASK_S)
                parts = {partition: (max(low, begin), min(high, end))}
                for record in self._read(consumer, topic, parts):
                    found[record.partition, record.position] = record
        return found

    @contextmanager
    def _consumer(self, topic: str) -> Iterator[Consumer]:
        consumer = Consumer(self._options)
        try:
            yield consumer
        except KafkaException as error:
            raise BrokerUnavailable(f"topic {topic!r}: {error}") from error
        finally:
            consumer.close()

    def _read(
        self, consumer: Consumer, topic: str, parts: dict[int, tuple[int, int]]
    ) -> Iterator[Arrived]:
        """Records of each partition from begin up to end; new records may follow."""
        waiting: dict[int | None, int] = {
            n: end for n, (begin, end) in parts.items() if begin < end
        }
        if not waiting:
            return
        consumer.assign([TopicPartition(topic, n, parts[n][0]) for n in waiting if n is not None])
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
    """Reads parts of topics on Redis."""

    def __init__(self, settings: Settings, *, redis_url: str) -> None:
        self._topics = open_topics(redis_url, settings)

    def exists(self, topic: str) -> bool:
        """Whether there is such a topic."""
        return self._topics.exists(topic)

    def read(self, topic: str, stretch: Stretch) -> Iterator[Arrived]:
        """The records of a stretch; with `since_ms`, only those among the last `count`."""
        if not self._topics.exists(topic):
            return
        for number in range(self._topics.partitions(topic)):
            for record in self._topics.read_last(topic, number, count_max=stretch.count):
                if stretch.since_ms is None or record.timestamp_ms >= stretch.since_ms:
                    yield _of_redis(record)

    def at(self, topic: str, places: Sequence[Place]) -> dict[Place, Arrived]:
        """The records at these places, as far as they are there."""
        found = {}
        known = self._topics.partitions(topic) if self._topics.exists(topic) else 0
        for partition, position in places:
            if partition < known:
                for record in self._topics.read_range(
                    topic, partition, start=position, end=position + 1, count_max=1
                ):
                    found[partition, position] = _of_redis(record)
        return found


def runs(places: Sequence[Place]) -> Iterator[tuple[int, int, int]]:
    """(partition, begin, end) of places close together, to read them at once.

    >>> list(runs([(0, 5), (1, 7), (0, 3), (0, 900_000)]))
    [(0, 3, 6), (0, 900000, 900001), (1, 7, 8)]
    """
    run: tuple[int, int, int] | None = None
    for partition, position in sorted(set(places)):
        if run and run[0] == partition and position - run[2] <= TAIL_COUNT_MAX:
            run = (partition, run[1], position + 1)
        else:
            if run:
                yield run
            run = (partition, position, position + 1)
    if run:
        yield run


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
    """Records of a topic, latest first."""

    def __init__(self, settings: Settings, admin: Admin, *, redis_url: str) -> None:
        self._admin = admin
        history = [settings.history_topic] if settings.journals else []
        self._ours = {
            *(inbox.topic for inbox in settings.inboxes),
            *(settings.rejected_topic, settings.dead_topic, *history, *settings.http_topics),
        }
        self._tails: KafkaTails | RedisTails = (
            KafkaTails(settings) if settings.on_kafka else RedisTails(settings, redis_url=redis_url)
        )

    def last(self, topic: str, *, count: int, search: str = "") -> list[Arrived]:
        """The last records, with `search` only those with it in key, headers or value."""
        wanted = search.encode()
        stretch = Stretch(TAIL_COUNT_MAX if search else count)
        return self._some(
            topic, stretch, count, lambda record: not wanted or _contains(record, wanted)
        )

    def is_ours(self, topic: str) -> bool:
        """Whether a topic belongs to this installation, so that every role may read it: our service
        can usually read all topics of the cluster. Raises StoreUnavailable."""
        return topic in self._ours or self._admin.is_target(topic)

    def exists(self, topic: str) -> bool:
        """Whether there is such a topic."""
        return self._tails.exists(topic)

    def versions(self, topic: str, *, key: bytes, count: int) -> list[Arrived]:
        """The last records with a key, among the last LOOK_COUNT_MAX of each partition."""
        return self._some(topic, Stretch(LOOK_COUNT_MAX), count, lambda record: record.key == key)

    def delivered(
        self, topic: str, *, schedule_id: bytes, since_ms: int, count: int
    ) -> list[Arrived]:
        """The deliveries of a schedule: of each partition, LOOK_COUNT_MAX records from `since_ms`
        on are searched."""
        stretch = Stretch(LOOK_COUNT_MAX, since_ms - SINCE_MARGIN_MS)
        return self._some(
            topic, stretch, count, lambda record: record.header(names.ID) == schedule_id
        )

    def rejected(self, topic: str, *, schedule_id: bytes, count: int) -> list[Arrived]:
        """What was rejected of a schedule, among the last TAIL_COUNT_MAX of each partition. What
        never became a schedule has its id as key."""

        def wanted(record: Arrived) -> bool:
            told = record.header(names.REJECTED_ID)
            return schedule_id == (record.key if told is None else told)

        return self._some(topic, Stretch(TAIL_COUNT_MAX), count, wanted)

    def _some(self, topic: str, stretch: Stretch, count: int, wanted: Wanted) -> list[Arrived]:
        found = (record for record in self._tails.read(topic, stretch) if wanted(record))
        return nlargest(count, found, key=lambda record: (record.timestamp_ms, record.position))

    def at(self, topic: str, places: Sequence[str]) -> list[Arrived | None]:
        """The records at these places, `partition/position`; None for those deleted since."""
        wanted = []
        for place in places:
            partition, position = (int(part) for part in place.split("/"))
            wanted.append((partition, position))
        there = [p for p in wanted if p[0] < 2**31 and p[1] < 2**63 - 1]
        found = self._tails.at(topic, there)
        return [found.get(place) for place in wanted]


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
    """A schedule that delivers a rejected or dead record to its intended target. A dead event gets
    all its attempts again.

    Raises BadRequest if the target is not known.
    """
    alive = alive_again(record)
    told = record.header(names.REJECTED_TARGET) or record.header(names.TARGET_TOPIC)
    topic = target or (alive.topic if alive else (told or b"").decode(errors="replace"))
    if not topic:
        raise BadRequest("expected a target: the record does not name one")
    headers = names.foreign((alive or record).headers)
    key = record.header(names.TARGET_KEY) if record.header(names.TARGET_TOPIC) else record.key
    meant = Record(topic=topic, key=key, value=record.value or b"", headers=headers)
    return Schedule(id=str(ULID()).encode(), due_ms=due_ms, record=meant)


def redrive(
    operations: Operations,
    records: Records,
    *,
    topic: str,
    places: list[str],
    target: str | None,
    due_ms: int,
    answers: Counter[str],
) -> dict[str, Any]:
    """Schedule records of a topic again; they stay on the topic. Says which were skipped.

    `answers` counts those that were scheduled, also if Unavailable is raised because others could
    not be.
    """
    good: list[Schedule] = []
    skipped = []
    for place, record in zip(places, records.at(topic, places), strict=True):
        try:
            if record is None:
                raise Problem(404, "no such record, or no longer there")
            schedule = again(record, target=target, due_ms=due_ms)
            operations.checked(schedule)
            good.append(schedule)
        except (BadRequest, Problem) as error:
            skipped.append({"place": place, "detail": str(error)})
    failed = [error for error in operations.write(good) if error is not None]
    answers[REDRIVEN] += len(good) - len(failed)
    if failed:
        raise failed[0]
    return {"redriven": len(good), "skipped": skipped}
