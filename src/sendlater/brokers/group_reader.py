"""Reads one topic for handlers, in a consumer group, on Kafka or on Redis.

Only one thread at a time may use a reader; `done` may be called from any thread.
"""

from collections import deque
from typing import Any, Protocol

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sendlater.brokers.broker import Arrived
from sendlater.brokers.kafka import arrived
from sendlater.errors import BrokerUnavailable
from sendlater.topics import Consumer as TopicConsumer
from sendlater.topics import TopicRecord, Topics

AHEAD_COUNT_MAX = 2_000
"""How far reading may be ahead of a partition's oldest event that is not done: at most this many
are repeated after a crash."""
IDLE_MARGIN_S = 15.0
"""Added to a handler's timeout before another process may take over its event on Redis."""
UNREAD_COUNT_MAX = 1_000
"""Most records counted per partition on Redis, which may have to look at each."""
METADATA_S = 2.0
"""How soon a new topic is noticed."""


class GroupReader(Protocol):
    """Reads records and remembers which are done."""

    def poll(self, count_max: int, *, timeout_s: float) -> list[Arrived]:
        """Up to `count_max` (may be 0) new records; first commits those done."""

    def unread(self) -> int:
        """Number of records on the topic not returned yet, as far as is known."""

    def done(self, record: Arrived) -> None:
        """Mark a record as done; it need not come again."""

    def close(self) -> None:
        """Commit and leave the group."""


class KafkaGroupReader:
    """Commits, per partition, up to the oldest record that is not done."""

    def __init__(self, options: dict[str, str], *, topic: str, group: str) -> None:
        self._consumer = KafkaConsumer(
            {
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                "topic.metadata.refresh.interval.ms": int(METADATA_S * 1_000),
                # A killed worker is noticed after this; the default is 45 s.
                "session.timeout.ms": 10_000,
                "partition.assignment.strategy": "cooperative-sticky",
                **options,
                "group.id": group,
                "enable.auto.commit": False,
            }
        )
        self._topic = topic
        self._done: deque[tuple[int, int]] = deque()
        self._next: dict[int, int] = {}
        """Per partition the offset after the last record returned."""
        self._open: dict[int, dict[int, bool]] = {}
        """Per partition the records returned and not committed, in order; True once done."""
        self._paused = False
        self._failure: Exception | None = None
        """Why something could not be read, until it is raised."""
        self._consumer.subscribe([topic], on_revoke=self._revoked, on_lost=self._revoked)

    def poll(self, count_max: int, *, timeout_s: float) -> list[Arrived]:
        """See GroupReader. It also keeps us in the group: call it regularly, if need be with 0."""
        self._commit()
        self._raise_failure()
        ahead = max((len(some) for some in self._open.values()), default=0)
        if ahead >= AHEAD_COUNT_MAX:
            count_max = 0
        self._pause(count_max == 0)
        found: list[Arrived] = []
        # `consume` waits for the full number: wait for one record, then take what is there.
        first = self._consumer.poll(timeout_s)
        if first is not None:
            self._take([first], found)
        if first is not None and count_max > 1:
            try:
                self._take(self._consumer.consume(count_max - 1, 0), found)
            except Exception as error:
                self._failure = self._failure or error
        if not found:
            self._raise_failure()
        return found

    def _take(self, messages: list[Any], found: list[Arrived]) -> None:
        """Append to `found` what can be read. What cannot is told when all that can is returned:
        once consumed, a record does not come again before a restart."""
        for message in messages:
            try:
                told = message.error()
                if told is None:
                    record = arrived(message)
                    self._open.setdefault(record.partition, {})[record.position] = False
                    self._next[record.partition] = record.position + 1
                    found.append(record)
                elif told.code() != KafkaError.UNKNOWN_TOPIC_OR_PART and not told.retriable():
                    raise BrokerUnavailable(f"topic {self._topic!r}: {told}")
            except Exception as error:
                self._failure = self._failure or error

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def unread(self) -> int:
        """See GroupReader. Counts this member's partitions only, as of the last reads."""
        count = 0
        for place in self._consumer.position(self._consumer.assignment()):
            _, end = self._consumer.get_watermark_offsets(place, cached=True)
            if place.offset >= 0:  # read from, so its end is known
                count += max(0, end - place.offset)
        return count

    def done(self, record: Arrived) -> None:
        """See GroupReader."""
        self._done.append((record.partition, record.position))

    def close(self) -> None:
        """See GroupReader."""
        self._commit(wait=True)
        self._consumer.close()

    def _pause(self, wanted: bool) -> None:
        assignment = self._consumer.assignment()
        if wanted and assignment:
            self._consumer.pause(assignment)
            self._paused = True
        elif not wanted and self._paused:
            self._consumer.resume(assignment)
            self._paused = False

    def _commit(self, *, wait: bool = False) -> None:
        while self._done:
            partition, position = self._done.popleft()
            given = self._open.get(partition, {})
            if position in given:
                given[position] = True
        ends = []
        for partition, given in self._open.items():
            moved = False
            for position in list(given):
                if not given[position]:
                    break
                del given[position]
                moved = True
            if moved:
                end = next(iter(given), self._next[partition])
                ends.append(TopicPartition(self._topic, partition, end))
        if ends:
            try:
                self._consumer.commit(offsets=ends, asynchronous=not wait)  # type: ignore[call-overload]
            except KafkaException:
                # Not fatal: these records come again, to us or to the partition's new owner.
                return

    def _revoked(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        """Commit what is done and forget the rest: these partitions have a new owner, and later
        commits would skip its records."""
        self._commit(wait=True)
        for place in partitions:
            self._open.pop(place.partition, None)


class RedisGroupReader:
    """Acknowledges each record separately."""

    def __init__(self, topics: Topics, *, topic: str, group: str, timeout_s: float) -> None:
        # An event may first wait here until the event before it is handled.
        idle_ms = int((2 * timeout_s + IDLE_MARGIN_S) * 1_000)
        self._consumer = TopicConsumer(topics, group, subscribe=[topic], idle_ms=idle_ms)
        self._done: deque[TopicRecord] = deque()
        self._given: dict[tuple[int, int], TopicRecord] = {}

    def poll(self, count_max: int, *, timeout_s: float) -> list[Arrived]:
        """See GroupReader."""
        self._ack()
        if not count_max:
            return []
        records = self._consumer.poll(count_max, timeout_ms=int(timeout_s * 1_000))
        # After a long wait we can take over our own record, which is still being handled here.
        fresh = [r for r in records if (r.partition, r.position) not in self._given]
        self._given |= {(r.partition, r.position): r for r in fresh}
        return [
            Arrived(r.topic, r.partition, r.position, r.timestamp_ms, r.key, r.value, r.headers)
            for r in fresh
        ]

    def unread(self) -> int:
        """See GroupReader. Counts for the whole group."""
        return self._consumer.unread(count_max=UNREAD_COUNT_MAX)

    def done(self, record: Arrived) -> None:
        """See GroupReader."""
        self._done.append(self._given[record.partition, record.position])

    def close(self) -> None:
        """See GroupReader. Others get the records that are not done at once, without a timeout."""
        self._ack()
        self._consumer.give_back(self._given.values())
        self._consumer.close()

    def _ack(self) -> None:
        some = [self._done.popleft() for _ in range(len(self._done))]
        if not some:
            return
        try:
            self._consumer.ack(some)
        except BaseException:
            self._done.extend(some)  # acknowledged with the next ones: that is safe to repeat
            raise
        for record in some:
            self._given.pop((record.partition, record.position), None)
