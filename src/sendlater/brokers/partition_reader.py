"""Reads given partitions from given positions, without a group: what intake's tasks use."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sendlater.brokers.client_options import ASKING
from sendlater.brokers.message_headers import UNREADABLE_HEADERS, headers_of
from sendlater.errors import BrokerUnavailable

REQUEST_S = 10.0
"""Longest wait for an answer about partitions."""
FETCH_BYTES_MAX = 4 * 1024 * 1024
"""Most of a partition that a fetch brings: some ten chunks of small records, so that a backlog
hardly waits for the next one."""
READ_COUNT_MAX = 10_000
"""Records of one piece when a topic is read through."""

Place = tuple[str, int]
"""Topic and partition."""
Row = tuple[Any, bytes | None, str, int, int, Any, Any]
"""Key, value, topic, partition, position, timestamp_ms, headers; see the columns of Read."""


@dataclass(slots=True)
class Read:
    """Records as columns, in order within each partition, and how far each partition is read."""

    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    timestamps_ms: list[int | None] = field(default_factory=list)
    """None: it is no record, but what intake made of some."""
    headers: list[list[tuple[str, bytes | None]] | None] = field(default_factory=list)
    ends: dict[Place, int] = field(default_factory=dict)
    """The next position to read; a partition may be read on without a record (Kafka's transaction
    markers, compaction)."""

    def _columns(self) -> tuple[list[Any], ...]:
        given = (self.keys, self.values, self.topics, self.partitions, self.positions)
        return *given, self.timestamps_ms, self.headers

    def rows(self) -> Iterator[Row]:
        """One after the other."""
        return zip(*self._columns(), strict=True)

    def add(self, row: Row) -> None:
        """Put a row behind the others."""
        for column, value in zip(self._columns(), row, strict=True):
            column.append(value)


class PartitionReader(Protocol):
    """Only one thread may use a reader."""

    def places(self) -> list[Place]:
        """All partitions that the topics have now. Raises BrokerUnavailable."""

    def begin(self, starts: Mapping[Place, int]) -> None:
        """Read these partitions from these positions, besides those that are being read."""

    def read(self, *, count_max: int, timeout_s: float) -> Read | None:
        """What has arrived, as soon as there is something; None after the time.

        Raises BrokerUnavailable without permission to read.
        """

    def end(self) -> None:
        """Read nothing any more, until it begins again."""

    def close(self) -> None:
        """Disconnect."""


class KafkaPartitions:
    """Partitions of Kafka topics. Goes on by itself when the broker was away."""

    def __init__(self, options: Mapping[str, str], topics: Iterable[str]) -> None:
        """`options`: those of every client, in librdkafka's names."""
        from confluent_kafka import Consumer
        from confluent_kafka.admin import AdminClient

        # The watermark's thread asks the same brokers, and its warnings say what is wrong.
        quiet: dict[str, Any] = {"log_level": 0, "error_cb": lambda _error: None}
        # Of its own: on the consumer's connection a question waits for the fetch under way.
        self._admin = AdminClient({**options, **quiet, **ASKING})
        self._topics = sorted(topics)
        self._assigned = False
        self._consumer = Consumer(
            {
                "auto.offset.reset": "earliest",
                # What arrives ends a fetch at once. While some of it waits to be read, nothing more
                # is fetched: a producer's client sends a request for each partition, and each fetch
                # would bring the few records of one.
                "fetch.wait.max.ms": 500,
                "fetch.queue.backoff.ms": 10,
                "queued.min.messages": 1,
                "fetch.message.max.bytes": FETCH_BYTES_MAX,
                "queued.max.messages.kbytes": 32 * 1024,
                "reconnect.backoff.max.ms": 1_000,
                **options,
                **quiet,
                "group.id": "sendlater-intake",  # required, although no group is joined
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )

    def places(self) -> list[Place]:
        """See PartitionReader."""
        from confluent_kafka import KafkaException

        found: list[Place] = []
        for topic in self._topics:
            try:
                told = self._admin.list_topics(topic, timeout=REQUEST_S).topics[topic]
            except KafkaException as error:
                raise BrokerUnavailable(f"Kafka does not answer: {error}") from error
            found += [(topic, number) for number in sorted(told.partitions)]
        return found

    def begin(self, starts: Mapping[Place, int]) -> None:
        """See PartitionReader."""
        from confluent_kafka import TopicPartition

        places = [TopicPartition(topic, number, at) for (topic, number), at in starts.items()]
        if self._assigned:
            self._consumer.incremental_assign(places)
        else:
            self._consumer.assign(places)
        self._assigned = True

    def since(self, from_ms: int) -> dict[Place, tuple[int, int]]:
        """Of each partition with records since an instant: the first of them, and the end.

        Raises BrokerUnavailable, also if a topic is missing or forbidden.
        """
        from confluent_kafka import KafkaException, TopicPartition

        places = self.places()
        if missing := set(self._topics) - {topic for topic, _ in places}:
            raise BrokerUnavailable(f"no such topics: {sorted(missing)}")
        asked = [TopicPartition(topic, number, max(0, from_ms)) for topic, number in places]
        found: dict[Place, tuple[int, int]] = {}
        try:
            for first in self._consumer.offsets_for_times(asked, timeout=REQUEST_S):
                if first.error is not None:
                    raise BrokerUnavailable(f"{first.topic!r} does not tell its positions")
                if first.offset >= 0:
                    place = TopicPartition(first.topic, first.partition)
                    _, end = self._consumer.get_watermark_offsets(place, timeout=REQUEST_S)
                    found[first.topic, first.partition] = first.offset, end
        except KafkaException as error:
            raise BrokerUnavailable(f"Kafka does not tell positions: {error}") from error
        return found

    def read(self, *, count_max: int, timeout_s: float) -> Read | None:
        """See PartitionReader."""
        first = self._consumer.poll(timeout_s)
        if first is None:
            return None
        return _read([first, *self._consumer.consume(count_max - 1, 0)])

    def read_through(self, bounds: Mapping[Place, tuple[int, int]]) -> Iterator[Read]:
        """All records between these positions, as `since` tells them; then it has ended, and others
        can be read. Raises BrokerUnavailable."""
        left = {place: (first, end) for place, (first, end) in bounds.items() if first < end}
        self.begin({place: first for place, (first, _) in left.items()})
        while left:
            read = self.read(count_max=READ_COUNT_MAX, timeout_s=REQUEST_S)
            if read is None:
                raise BrokerUnavailable(f"Kafka sends nothing of {sorted(left)}")
            yield read
            left = {
                place: ends for place, ends in left.items() if read.ends.get(place, 0) < ends[1]
            }
        self.end()

    def end(self) -> None:
        """See PartitionReader."""
        self._consumer.unassign()
        self._assigned = False

    def close(self) -> None:
        """See PartitionReader."""
        self._consumer.close()


def _read(messages: list[Any]) -> Read | None:
    from confluent_kafka import KafkaError

    read = Read()
    got = []
    for message in messages:
        error = message.error()
        if error is None:
            got.append(message)
            read.ends[message.topic(), message.partition()] = message.offset() + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            read.ends[message.topic(), message.partition()] = message.offset()
        elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise BrokerUnavailable(f"topic {message.topic()!r} cannot be read: {error.str()}")
        # The client retries all others by itself; recreated and deleted inboxes are watched.
    read.keys = [m.key() for m in got]
    read.values = [m.value() for m in got]
    read.topics = [m.topic() for m in got]
    read.partitions = [m.partition() for m in got]
    read.positions = [m.offset() for m in got]
    read.timestamps_ms = [m.timestamp()[1] for m in got]
    read.headers = [headers_of(m, unreadable=UNREADABLE_HEADERS) for m in got]
    return read if read.ends else None


class RedisPartitions:
    """Partitions of topics on Redis."""

    def __init__(self, redis_url: str, topics: Iterable[str], *, space: str) -> None:
        from sendlater.topics import Topics

        self._names = sorted(topics)
        self._topics = Topics(redis_url, space=space)
        self._after: dict[Place, int] = {}

    def places(self) -> list[Place]:
        """See PartitionReader."""
        return [
            (topic, number)
            for topic in self._names
            for number in range(self._topics.partitions(topic))
        ]

    def begin(self, starts: Mapping[Place, int]) -> None:
        """See PartitionReader."""
        # A start is the first position to read; Redis needs the position before it.
        self._after |= {place: max(0, at - 1) for place, at in starts.items()}

    def read(self, *, count_max: int, timeout_s: float) -> Read | None:
        """See PartitionReader."""
        if not self._after:
            time.sleep(timeout_s)
            return None
        records = self._topics.read_each(
            self._after,
            count_max=max(1, count_max // len(self._after)),
            block_ms=int(timeout_s * 1_000),
        )
        if not records:
            return None
        self._after |= {(r.topic, r.partition): r.position for r in records}
        return Read(
            keys=[r.key for r in records],
            values=[r.value for r in records],
            topics=[r.topic for r in records],
            partitions=[r.partition for r in records],
            positions=[r.position for r in records],
            timestamps_ms=[r.timestamp_ms for r in records],
            headers=[r.headers or None for r in records],
            ends={(r.topic, r.partition): r.position + 1 for r in records},
        )

    def end(self) -> None:
        """See PartitionReader."""
        self._after.clear()

    def close(self) -> None:
        """See PartitionReader."""
        self._topics.close()
