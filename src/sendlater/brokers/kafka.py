"""Kafka with the interface of `Broker`."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from sendlater.brokers.broker import (
    ACK_TIMEOUT_S,
    FOLLOW_COUNT_MAX,
    POLL_S,
    Acknowledged,
    Arrived,
    Failed,
)
from sendlater.brokers.client_options import ASKING, isolation
from sendlater.brokers.lasting_client import LastingClient
from sendlater.brokers.message_headers import headers_of
from sendlater.errors import BadRequest, BrokerUnavailable, SendlaterError
from sendlater.limits import REPORTER
from sendlater.model import Record

QUEUE_RECORDS_MAX = 200_000
"""Records a producer holds before `send` waits; limits its memory."""
QUEUE_KIB_MAX = 256 * 1024
"""The same in KiB of payload."""
FULL_PAUSE_S = 0.01
"""Pause before a record is offered again to a full queue."""
LEADER_S = 15.0
"""How long a partition may have no leader, or change it, before a request fails."""
LEADER_PAUSE_S = 0.2
NEW_TOPIC_S = 2.0
"""How long a broker may not know a topic that was just made."""
NO_LEADER = (
    KafkaError._NOENT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
)
"""Kafka's errors meanwhile; `_NOENT` is librdkafka's error for no leader."""
UNFIT = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD)
"""Kafka's errors about a record itself: it would be refused again, however often it is sent."""

DENIED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
"""Kafka's answers to who may not create topics, whether there is one of that name or not."""


class KafkaBroker:
    """Kafka, through confluent-kafka."""

    def __init__(self, client_options: Mapping[str, str]) -> None:
        self._options: dict[str, Any] = dict(client_options)
        self._asking = LastingClient(lambda: AdminClient(self._options | ASKING))
        self._isolation = isolation(client_options)
        self._errors: list[str] = []
        limits = self._producer_options()
        self._room_records = int(limits["queue.buffering.max.messages"]) // 2
        self._room_bytes = int(limits["queue.buffering.max.kbytes"]) * 1_024 // 2
        self._open_bytes = 0
        """Payload of records whose `on_done` is still to be called."""
        self._lock = threading.Lock()
        self._told = Producer(self._producer_options())
        # A callback per record costs more than sending it: this producer only reports failures.
        self._silent = Producer(
            self._producer_options()
            | {"delivery.report.only.error": True, "on_delivery": self._failed}
        )
        self._closed = threading.Event()
        # Callbacks run in `poll`, so one thread calls it all the time.
        self._poller = threading.Thread(target=self._poll, name=REPORTER, daemon=True)
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
        return len(self._told) < self._room_records and self._open_bytes < self._room_bytes

    def send(
        self, record: Record, *, on_done: Acknowledged | None = None, on_error: Failed | None = None
    ) -> None:
        """See Broker. Waits while the producer's queue is full."""
        if on_done is None:
            told = {} if on_error is None else {"on_delivery": _error_teller(on_error)}
            self._produce(self._silent, record, told)
            return
        size = _size(record)
        self._count(size)
        try:
            self._produce(self._told, record, {"on_delivery": self._teller(on_done, size)})
        except BaseException:
            self._count(-size)
            raise

    def _count(self, size: int) -> None:
        with self._lock:
            self._open_bytes += size

    def _produce(self, producer: Producer, record: Record, more: dict[str, Any]) -> None:
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
                    raise BrokerUnavailable(f"Kafka accepts no records: {error}") from error
                self._silent.poll(FULL_PAUSE_S)
            except KafkaException as error:
                raise _why(error.args[0]) from error
            else:
                return

    def _teller(self, on_done: Acknowledged, size: int) -> Callable[[KafkaError | None, Any], None]:
        def done(error: KafkaError | None, message: Any) -> None:
            self._count(-size)
            failure = None if error is None else _why(error)
            try:
                on_done(failure, message.partition(), message.offset())
            except Exception:  # it would end the thread that all reports need
                import structlog  # not at the top: a client that sends needs none

                structlog.get_logger().exception(
                    "a delivery report was not taken", topic=message.topic()
                )

        return done

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
            self._asking.client.create_topics(new)[topic].result(ACK_TIMEOUT_S)
        except KafkaException as error:
            raise BrokerUnavailable(f"cannot create topic {topic!r}: {error}") from error

    def ensure(self, topic: str, *, partitions: int) -> None:
        """See Broker."""
        try:
            new = [NewTopic(topic, partitions)]
            self._asking.client.create_topics(new)[topic].result(ACK_TIMEOUT_S)
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_ALREADY_EXISTS or (code in DENIED and self._has(topic)):
                return
            raise BrokerUnavailable(f"cannot create topic {topic!r}: {error}") from error

    def _has(self, topic: str) -> bool:
        try:
            return self._asking.topics(topic, timeout_s=ACK_TIMEOUT_S)[topic].error is None
        except KafkaException:
            return False

    def delete(self, topic: str) -> None:
        """See Broker."""
        self._asking.client.delete_topics([topic])[topic].result(ACK_TIMEOUT_S)

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
        """See Broker. Retries while a partition changes its leader, up to LEADER_S."""
        deadline = time.monotonic() + LEADER_S
        while True:
            try:
                return self._ends(topic)
            except KafkaException as error:
                if error.args[0].code() not in NO_LEADER or time.monotonic() > deadline:
                    raise BrokerUnavailable(f"ends of topic {topic!r}: {error}") from error
            time.sleep(LEADER_PAUSE_S)

    def _ends(self, topic: str) -> dict[int, int]:
        found = self._asking.topics(topic, timeout_s=ACK_TIMEOUT_S)[topic]
        if found.error is not None:
            raise BrokerUnavailable(f"topic {topic!r}: {found.error}")
        latest = {TopicPartition(topic, n): OffsetSpec.latest() for n in found.partitions}  # type: ignore[no-untyped-call]
        asked = self._asking.client.list_offsets(
            latest, isolation_level=self._isolation, request_timeout=ACK_TIMEOUT_S
        )
        return {place.partition: answer.result().offset for place, answer in asked.items()}

    def follow(
        self, topic: str, *, stop: threading.Event, starts: Mapping[int, int] | None = None
    ) -> Iterator[list[Arrived]]:
        """See Broker."""
        consumer = self._consumer(f"sendlater-follow-{topic}")
        try:
            partitions = _partitions(consumer, topic)
            places = {n: (starts or {}).get(n, OFFSET_BEGINNING) for n in partitions}
            consumer.assign([TopicPartition(topic, n, at) for n, at in places.items()])
            while not stop.is_set():
                # Not `consume` alone: it waits for so many, or for the whole time.
                first = consumer.poll(0.1)
                got = [first, *consumer.consume(FOLLOW_COUNT_MAX - 1, 0)] if first else []
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


def _size(record: Record) -> int:
    parts = [record.key, record.value, *(value for _, value in record.headers)]
    return sum(len(part) for part in parts if part)


def _error_teller(on_error: Failed) -> Callable[[KafkaError | None, Any], None]:
    def done(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            on_error(_why(error))

    return done


def _why(error: KafkaError) -> SendlaterError:
    kind = BadRequest if error.code() in UNFIT else BrokerUnavailable
    return kind(f"Kafka refused a record: {error}")


def arrived(message: Any) -> Arrived:
    """The Arrived of confluent-kafka's Message; without headers if those cannot be read."""
    return Arrived(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        headers_of(message, unreadable=[]) or [],
    )


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    """Raises BrokerUnavailable for a topic that is not there."""
    deadline = time.monotonic() + NEW_TOPIC_S
    while True:
        found = consumer.list_topics(topic, ACK_TIMEOUT_S).topics[topic]
        if found.partitions:
            return list(found.partitions)
        if time.monotonic() > deadline:
            raise BrokerUnavailable(f"topic {topic!r}: {found.error}")
        time.sleep(LEADER_PAUSE_S)
