"""Kafka and topics on Redis behind one small face: send records, follow a topic."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from sendlater.config import Settings, client_options
from sendlater.errors import BrokerUnavailable
from sendlater.model import Headers, Record
from sendlater.topics import Topics

ACK_TIMEOUT_S = 30.0
"""Longest wait for a broker's acknowledgement."""
QUEUE_RECORDS_MAX = 200_000
"""Records a producer holds before `send` waits; bounds its memory."""
FOLLOW_COUNT_MAX = 5_000
"""Most records one read of a followed topic gives."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A record read from a topic; `timestamp_ms` is the broker's where the topic stamps appends."""

    topic: str
    partition: int
    position: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def header(self, name: str) -> bytes | None:
        """The last header of that name: what sendlater adds comes last."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


Acknowledged = Callable[[Exception | None, int, int], None]
"""Called with an error or None, the partition and the position."""


class Broker(Protocol):
    """What carries records."""

    def send(self, record: Record, *, on_done: Acknowledged | None = None) -> None:
        """Hand a record over; `on_done` is called once the broker has it or has refused it."""

    def flush(self) -> None:
        """Wait until every record handed over was acknowledged; raises BrokerUnavailable."""

    def create(self, topic: str, *, partitions: int) -> None:
        """Create a topic whose timestamps are the broker's append times."""

    def delete(self, topic: str) -> None:
        """Remove a topic."""

    def ends(self, topic: str) -> dict[int, int]:
        """Per partition the position after the last record."""

    def follow(self, topic: str, *, stop: threading.Event) -> Iterator[list[Arrived]]:
        """Everything on a topic from its start, in small lists (empty now and then)."""

    def close(self) -> None:
        """Flush and let go."""


class KafkaBroker:
    """Kafka, through confluent-kafka."""

    def __init__(self, client_options: Mapping[str, str]) -> None:
        self._options: dict[str, Any] = dict(client_options)
        self._admin = AdminClient(self._options)
        self._producer = Producer(
            {
                "linger.ms": 5,
                "enable.idempotence": True,
                "queue.buffering.max.messages": QUEUE_RECORDS_MAX,
                # The same partition for a key as Kafka's Java clients choose.
                "partitioner": "murmur2_random",
                **self._options,
            }
        )
        self._errors: list[str] = []

    def send(self, record: Record, *, on_done: Acknowledged | None = None) -> None:
        """See Broker. Waits while QUEUE_RECORDS_MAX records are under way."""

        def done(error: KafkaError | None, message: object) -> None:
            if error is not None:
                self._errors.append(str(error))
            if on_done is not None:
                failure = BrokerUnavailable(str(error)) if error is not None else None
                partition, offset = message.partition(), message.offset()  # type: ignore[attr-defined]
                on_done(failure, partition, offset)

        placed: dict[str, Any] = {} if record.partition is None else {"partition": record.partition}
        deadline = time.monotonic() + ACK_TIMEOUT_S
        while True:
            try:
                self._producer.produce(
                    record.topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    on_delivery=done,
                    **placed,
                )
            except BufferError as error:
                if time.monotonic() > deadline:
                    raise BrokerUnavailable(f"Kafka takes nothing: {error}") from error
                self._producer.poll(0.1)
            except KafkaException as error:
                raise BrokerUnavailable(f"Kafka refused a record: {error}") from error
            else:
                self._producer.poll(0)
                return

    def flush(self) -> None:
        """See Broker."""
        left = self._producer.flush(ACK_TIMEOUT_S)
        errors, self._errors = self._errors, []
        if left or errors:
            told = errors[0] if errors else "no answer"
            raise BrokerUnavailable(f"{left + len(errors)} records not acknowledged: {told}")

    def create(self, topic: str, *, partitions: int) -> None:
        """See Broker."""
        config = {"message.timestamp.type": "LogAppendTime"}
        try:
            new = [NewTopic(topic, partitions, config=config)]
            self._admin.create_topics(new)[topic].result(ACK_TIMEOUT_S)
        except KafkaException as error:
            raise BrokerUnavailable(f"cannot create topic {topic!r}: {error}") from error

    def delete(self, topic: str) -> None:
        """See Broker."""
        self._admin.delete_topics([topic])[topic].result(ACK_TIMEOUT_S)

    def _consumer(self, group: str) -> Consumer:
        return Consumer(
            {
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                **self._options,
                "group.id": group,
                "enable.auto.commit": False,
            }
        )

    def ends(self, topic: str) -> dict[int, int]:
        """See Broker."""
        from confluent_kafka import TopicPartition

        consumer = self._consumer("sendlater-ends")
        try:
            partitions = consumer.list_topics(topic, ACK_TIMEOUT_S).topics[topic].partitions
            return {
                number: consumer.get_watermark_offsets(TopicPartition(topic, number))[1]
                for number in partitions
            }
        finally:
            consumer.close()

    def follow(self, topic: str, *, stop: threading.Event) -> Iterator[list[Arrived]]:
        """See Broker."""
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        consumer = self._consumer(f"sendlater-follow-{topic}")
        try:
            partitions = consumer.list_topics(topic, ACK_TIMEOUT_S).topics[topic].partitions
            consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in partitions])
            while not stop.is_set():
                got = consumer.consume(FOLLOW_COUNT_MAX, 0.1)
                yield [_arrived(message) for message in got if message.error() is None]
        finally:
            consumer.close()

    def close(self) -> None:
        """See Broker."""
        self._producer.flush(ACK_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _arrived(message: Any) -> Arrived:
    return Arrived(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        message.headers() or [],
    )


class RedisBroker:
    """Topics on Redis Streams. Records are gathered and written together by `flush`."""

    GATHER_COUNT_MAX = 500

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._gathered: list[tuple[Record, Acknowledged | None]] = []

    def send(self, record: Record, *, on_done: Acknowledged | None = None) -> None:
        """See Broker."""
        self._gathered.append((record, on_done))
        if len(self._gathered) >= self.GATHER_COUNT_MAX:
            self.flush()

    def flush(self) -> None:
        """See Broker."""
        gathered, self._gathered = self._gathered, []
        positions = self._topics.produce_many([record for record, _ in gathered])
        for (record, on_done), position in zip(gathered, positions, strict=True):
            if on_done is not None:
                on_done(None, record.partition or 0, position)

    def create(self, topic: str, *, partitions: int) -> None:
        """See Broker."""
        self._topics.create(topic, partitions)

    def delete(self, topic: str) -> None:
        """See Broker."""
        self._topics.delete(topic)

    def ends(self, topic: str) -> dict[int, int]:
        """See Broker."""
        return {n: end + 1 if end else 0 for n, end in self._topics.end_positions(topic).items()}

    def follow(self, topic: str, *, stop: threading.Event) -> Iterator[list[Arrived]]:
        """See Broker."""
        after = dict.fromkeys(range(self._topics.partitions(topic)), 0)
        while not stop.is_set():
            self._topics.wait({(topic, n): at for n, at in after.items()}, block_ms=100)
            for number in after:
                got = self._topics.read(
                    topic, number, after_position=after[number], count_max=1_000, block_ms=0
                )
                if got:
                    after[number] = got[-1].position
                yield [
                    Arrived(
                        r.topic, r.partition, r.position, r.timestamp_ms, r.key, r.value, r.headers
                    )
                    for r in got
                ]

    def close(self) -> None:
        """See Broker."""
        self.flush()
        self._topics.close()


def open_topics(redis_url: str, settings: Settings) -> Topics:
    """The development topics of an installation."""
    return Topics(
        redis_url,
        space=settings.space,
        partitions_default=settings.topic_partitions,
        retention_ms=settings.topics_retention_ms,
        length_max=settings.topics_length_max,
    )


def open_broker(settings: Settings, *, redis_url: str) -> Broker:
    """The installation's broker: Kafka, or topics on Redis when none is configured."""
    if settings.on_kafka:
        return KafkaBroker(client_options(settings))
    return RedisBroker(open_topics(redis_url, settings))
