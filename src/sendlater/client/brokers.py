"""Kafka and topics on Redis behind one small face: send records, follow a topic."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from sendlater.config import Settings, client_options, isolation
from sendlater.errors import BrokerUnavailable, SendlaterError
from sendlater.model import Headers, Record
from sendlater.topics import Topics

ACK_TIMEOUT_S = 30.0
"""Longest wait for a broker's acknowledgement."""
QUEUE_RECORDS_MAX = 200_000
"""Records a producer holds before `send` waits; bounds its memory."""
QUEUE_KIB_MAX = 256 * 1024
"""The same in KiB of payload."""
POLL_S = 0.1
FULL_PAUSE_S = 0.01
"""Pause before a record is offered again to a full queue."""
LEADER_S = 15.0
"""How long a partition may be without a leader, or change it, before a question fails."""
LEADER_PAUSE_S = 0.2
NO_LEADER = (
    KafkaError._NOENT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
)
"""What Kafka answers meanwhile; `_NOENT` is librdkafka's word for no leader at all."""
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

    def has_room(self) -> bool:
        """Whether `send` would return without waiting."""

    def flush(self) -> None:
        """Wait until every record handed over was acknowledged; raises BrokerUnavailable."""

    def create(self, topic: str, *, partitions: int) -> None:
        """Create a topic whose timestamps are the broker's append times."""

    def ensure(self, topic: str, *, partitions: int) -> None:
        """Create a topic unless it is there."""

    def delete(self, topic: str) -> None:
        """Remove a topic."""

    def ends(self, topic: str) -> dict[int, int]:
        """Per partition the position after the last record to be read: of a transaction that is
        not committed, nothing is."""

    def follow(
        self, topic: str, *, stop: threading.Event, starts: Mapping[int, int] | None = None
    ) -> Iterator[list[Arrived]]:
        """What is on a topic from its start, or from the positions `starts`, in small lists (empty
        now and then)."""

    def back(self, end: int, *, count: int) -> int:
        """A position at least `count` records before `end`, or the first there is."""

    def close(self) -> None:
        """Flush and let go."""


class KafkaBroker:
    """Kafka, through confluent-kafka."""

    def __init__(self, client_options: Mapping[str, str]) -> None:
        self._options: dict[str, Any] = dict(client_options)
        self._admin = AdminClient(self._options)
        self._isolation = isolation(client_options)
        self._errors: list[str] = []
        self._told = Producer(self._producer_options())
        # Telling of every record costs more than sending it: this one tells of failures alone.
        self._silent = Producer(
            self._producer_options()
            | {"delivery.report.only.error": True, "on_delivery": self._failed}
        )
        self._closed = threading.Event()
        # Acknowledgements are told by poll: somebody must always be at it, so one thread is.
        self._poller = threading.Thread(target=self._poll, name="kafka-poll", daemon=True)
        self._poller.start()

    def _producer_options(self) -> dict[str, Any]:
        return {
            "linger.ms": 5,
            "enable.idempotence": True,
            "queue.buffering.max.messages": QUEUE_RECORDS_MAX,
            "queue.buffering.max.kbytes": QUEUE_KIB_MAX,
            # The same partition for a key as Kafka's Java clients choose.
            "partitioner": "murmur2_random",
            **self._options,
        }

    def _poll(self) -> None:
        while not self._closed.is_set():
            self._told.poll(POLL_S)

    def _failed(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._errors.append(str(error))

    def has_room(self) -> bool:
        """See Broker."""
        return len(self._told) < QUEUE_RECORDS_MAX // 2

    def send(self, record: Record, *, on_done: Acknowledged | None = None) -> None:
        """See Broker. Waits while QUEUE_RECORDS_MAX records are under way."""
        producer = self._silent
        more: dict[str, Any] = {}
        if on_done is not None:
            producer = self._told
            more["on_delivery"] = _teller(on_done)
        if record.partition is not None:
            more["partition"] = record.partition
        deadline = 0.0
        while True:
            try:
                producer.produce(
                    record.topic,
                    value=record.value,
                    key=record.key,
                    headers=record.headers,  # type: ignore[arg-type]
                    **more,
                )
            except BufferError as error:
                now_s = time.monotonic()
                deadline = deadline or now_s + ACK_TIMEOUT_S
                if now_s > deadline:
                    raise BrokerUnavailable(f"Kafka takes nothing: {error}") from error
                self._silent.poll(FULL_PAUSE_S)
            except KafkaException as error:
                raise BrokerUnavailable(f"Kafka refused a record: {error}") from error
            else:
                return

    def flush(self) -> None:
        """See Broker."""
        left = self._told.flush(ACK_TIMEOUT_S) + self._silent.flush(ACK_TIMEOUT_S)
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

    def ensure(self, topic: str, *, partitions: int) -> None:
        """See Broker."""
        try:
            new = [NewTopic(topic, partitions)]
            self._admin.create_topics(new)[topic].result(ACK_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
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
        """See Broker. Asks again while a partition changes its leader, up to LEADER_S."""
        deadline = time.monotonic() + LEADER_S
        while True:
            try:
                return self._ends(topic)
            except KafkaException as error:
                if error.args[0].code() not in NO_LEADER or time.monotonic() > deadline:
                    raise BrokerUnavailable(f"ends of topic {topic!r}: {error}") from error
            time.sleep(LEADER_PAUSE_S)

    def _ends(self, topic: str) -> dict[int, int]:
        found = self._admin.list_topics(topic, ACK_TIMEOUT_S).topics[topic]
        if found.error is not None:
            raise BrokerUnavailable(f"topic {topic!r}: {found.error}")
        latest = {TopicPartition(topic, n): OffsetSpec.latest() for n in found.partitions}  # type: ignore[no-untyped-call]
        asked = self._admin.list_offsets(
            latest, isolation_level=self._isolation, request_timeout=ACK_TIMEOUT_S
        )
        return {place.partition: answer.result().offset for place, answer in asked.items()}

    def follow(
        self, topic: str, *, stop: threading.Event, starts: Mapping[int, int] | None = None
    ) -> Iterator[list[Arrived]]:
        """See Broker."""
        consumer = self._consumer(f"sendlater-follow-{topic}")
        try:
            partitions = consumer.list_topics(topic, ACK_TIMEOUT_S).topics[topic].partitions
            places = {n: (starts or {}).get(n, OFFSET_BEGINNING) for n in partitions}
            consumer.assign([TopicPartition(topic, n, at) for n, at in places.items()])
            while not stop.is_set():
                got = consumer.consume(FOLLOW_COUNT_MAX, 0.1)
                yield [arrived(message) for message in got if message.error() is None]
        finally:
            consumer.close()

    def back(self, end: int, *, count: int) -> int:
        """See Broker."""
        return max(0, end - count)

    def close(self) -> None:
        """See Broker."""
        self._told.flush(ACK_TIMEOUT_S)
        self._silent.flush(ACK_TIMEOUT_S)
        self._closed.set()
        self._poller.join()
        self._told.close()
        self._silent.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _teller(on_done: Acknowledged) -> Callable[[KafkaError | None, Any], None]:
    def done(error: KafkaError | None, message: Any) -> None:
        failure = None if error is None else BrokerUnavailable(str(error))
        on_done(failure, message.partition(), message.offset())

    return done


def arrived(message: Any) -> Arrived:
    """What confluent-kafka calls a Message."""
    return Arrived(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        headers_of(message),
    )


def headers_of(message: Any) -> Headers:
    """The headers of what confluent-kafka calls a Message; none where a name is no UTF-8, which
    that client cannot tell: one such record must not end who reads the topic."""
    try:
        return message.headers() or []
    except (SystemError, UnicodeDecodeError):
        return []


class RedisBroker:
    """Topics on Redis Streams. Records are gathered and written together by `flush`."""

    GATHER_COUNT_MAX = 500

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._gathered: list[tuple[Record, int, Acknowledged | None]] = []
        self._lock = threading.Lock()

    def send(self, record: Record, *, on_done: Acknowledged | None = None) -> None:
        """See Broker. The partition is chosen here: a record that has none is refused by itself."""
        partition = self._topics.partition_of(record)
        record = replace(record, partition=partition)
        with self._lock:
            self._gathered.append((record, partition, on_done))
            full = len(self._gathered) >= self.GATHER_COUNT_MAX
        if full:
            self.flush()

    @property
    def waiting(self) -> int:
        """How many records are gathered and not written."""
        return len(self._gathered)

    def has_room(self) -> bool:
        """See Broker. A full list is written by whoever fills it."""
        return self.waiting < self.GATHER_COUNT_MAX - 1

    def flush(self) -> None:
        """See Broker."""
        with self._lock:
            gathered, self._gathered = self._gathered, []
        try:
            positions = self._topics.produce_many(record for record, _, _ in gathered)
        except SendlaterError as error:
            for _, partition, on_done in gathered:
                if on_done is not None:
                    on_done(error, partition, 0)
            raise
        for (_, partition, on_done), position in zip(gathered, positions, strict=True):
            if on_done is not None:
                on_done(None, partition, position)

    def create(self, topic: str, *, partitions: int) -> None:
        """See Broker."""
        self._topics.create(topic, partitions)

    def ensure(self, topic: str, *, partitions: int) -> None:
        """See Broker."""
        self._topics.create(topic, partitions)

    def delete(self, topic: str) -> None:
        """See Broker."""
        self._topics.delete(topic)

    def ends(self, topic: str) -> dict[int, int]:
        """See Broker."""
        return {n: end + 1 if end else 0 for n, end in self._topics.end_positions(topic).items()}

    def back(self, end: int, *, count: int) -> int:  # noqa: ARG002
        """See Broker. Positions are no counts here, and retention keeps topics short."""
        return 0

    def follow(
        self, topic: str, *, stop: threading.Event, starts: Mapping[int, int] | None = None
    ) -> Iterator[list[Arrived]]:
        """See Broker."""
        places = {n: (starts or {}).get(n, 0) for n in range(self._topics.partitions(topic))}
        # A start is the first position to read; Redis reads behind one.
        after = {n: max(0, at - 1) for n, at in places.items()}
        while not stop.is_set():
            if not after:  # the topic is yet to come
                stop.wait(POLL_S)
                yield []
                after = dict.fromkeys(range(self._topics.partitions(topic)), 0)
                continue
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
