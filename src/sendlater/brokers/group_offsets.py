"""How far each topic has been read: a consumer group's committed offsets, and the records after.

All numbers come from the broker, in one request for all partitions. Nothing is stored elsewhere, so
a service that lost its disk continues where it was.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from sendlater.brokers.client_options import ASKING, isolation
from sendlater.brokers.lasting_client import LastingClient
from sendlater.errors import BrokerUnavailable

T = TypeVar("T")
REQUEST_S = 30.0
"""Longest wait for one answer: in a new cluster, the first request about groups creates a topic."""
SETTLE_S = 10.0
"""Longest that a new partition may be without a leader."""
RETRY_PAUSE_S = 0.05
UNSETTLED = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)
"""Temporary errors, for example after a topic or a group has been created."""


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Found(NamedTuple):
    """The first record at or after an instant."""

    offset: int
    timestamp_ms: int


class Committed(NamedTuple):
    """How far a partition has been read, and the metadata committed with that offset."""

    offset: int
    note: str


class Progress:
    """Reads and writes the offsets of a consumer group. All methods raise BrokerUnavailable."""

    def __init__(self, client_options: Mapping[str, str], *, group: str) -> None:
        self.group = group
        quiet: dict[str, Any] = {"log_level": 0, "error_cb": lambda _error: None}
        self._options = quiet | dict(client_options)
        # Reads committed offsets and never joins the group. The admin client's request for them
        # crashes librdkafka while a group's coordinator loads or moves.
        reading = {**self._options, "group.id": group, "enable.auto.commit": False}
        self._consumer = LastingClient(lambda: Consumer(reading))
        self._admin = LastingClient(lambda: AdminClient(self._options | ASKING))
        self._isolation = isolation(client_options)

    def committed(self, places: Iterable[Place]) -> dict[Place, Committed]:
        """Committed offsets of these partitions; those never committed or expired are left out."""
        asked = [TopicPartition(*place) for place in places]

        def ask(consumer: Consumer) -> dict[Place, Committed]:
            found = consumer.committed(asked, timeout=REQUEST_S)
            for one in found:
                if one.error is not None:
                    raise KafkaException(one.error)
            return {
                Place(one.topic, one.partition): Committed(one.offset, one.metadata or "")
                for one in found
                if one.offset >= 0
            }

        return settled(lambda: self._consumer.ask(ask))

    def commit(self, ends: Mapping[Place, Committed]) -> None:
        """Commit these offsets: everything before them is done."""
        if not ends:
            return
        asked = ConsumerGroupTopicPartitions(
            self.group,
            [TopicPartition(*place, end.offset, end.note) for place, end in ends.items()],
        )

        def ask(admin: AdminClient) -> None:
            done = admin.alter_consumer_group_offsets([asked])[self.group]
            for one in done.result(REQUEST_S).topic_partitions:
                if one.error is not None:
                    raise KafkaException(one.error)

        settled(lambda: self._admin.ask(ask))

    def firsts(self, places: Iterable[Place]) -> dict[Place, int]:
        """Offset of the first record kept, or of the next record if there is none."""
        return {p: f.offset for p, f in self._list(dict.fromkeys(places, _EARLIEST)).items()}

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """Offset after the last readable record; those of an open transaction are not readable."""
        return {p: f.offset for p, f in self._list(dict.fromkeys(places, _LATEST)).items()}

    def since(self, instants_ms: Mapping[Place, int]) -> dict[Place, Found | None]:
        """Per partition the first record at or after an instant; None if all are older."""
        wanted = {p: OffsetSpec.for_timestamp(max(0, at)) for p, at in instants_ms.items()}
        return {p: f if f.offset >= 0 else None for p, f in self._list(wanted).items()}

    def timestamps(self, offsets: Mapping[Place, int]) -> dict[Place, int]:
        """Timestamps of the records at these offsets; deleted records are left out."""
        if not offsets:
            return {}
        consumer = Consumer({**self._options, "group.id": self.group, "enable.auto.commit": False})
        found: dict[Place, int] = {}
        try:
            consumer.assign([TopicPartition(*place, at) for place, at in offsets.items()])
            deadline = time.monotonic() + REQUEST_S
            while found.keys() != offsets.keys() and time.monotonic() < deadline:
                message = consumer.poll(1.0)
                if message is None:
                    break
                topic, partition = message.topic(), message.partition()
                if topic is None or partition is None:
                    continue
                place = Place(topic, partition)
                if message.error() is None and place not in found:
                    found[place] = message.timestamp()[1]
                    consumer.pause([TopicPartition(*place)])
        finally:
            consumer.close()
        return found

    def _list(self, wanted: Mapping[Place, OffsetSpec]) -> dict[Place, Found]:
        if not wanted:
            return {}
        asked = {TopicPartition(*place): spec for place, spec in wanted.items()}

        def ask(admin: AdminClient) -> dict[Place, Found]:
            answers = admin.list_offsets(
                asked, isolation_level=self._isolation, request_timeout=REQUEST_S
            )
            try:
                found = {tp: future.result(REQUEST_S) for tp, future in answers.items()}
            except KafkaException as error:
                if error.args[0].code() == KafkaError._UNKNOWN_PARTITION:
                    # It was added after this client had asked for its topic: else known in minutes.
                    admin.list_topics(timeout=REQUEST_S)
                raise
            return {
                Place(tp.topic, tp.partition): Found(one.offset, one.timestamp)
                for tp, one in found.items()
            }

        return settled(lambda: self._admin.ask(ask))

    def drop(self, before: Mapping[Place, int]) -> None:
        """Have the broker delete the records before these offsets."""
        asked = [TopicPartition(*place, offset) for place, offset in before.items()]

        def delete(admin: AdminClient) -> None:
            for future in admin.delete_records(asked).values():
                future.result(REQUEST_S)

        if asked:
            try:
                self._admin.ask(delete)
            except (KafkaException, TimeoutError) as error:
                raise BrokerUnavailable(f"cannot delete what was read: {error}") from error


_EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def settled(ask: Callable[[], T]) -> T:
    """The answer of `ask`, repeated while errors are temporary. Raises BrokerUnavailable."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in UNSETTLED or time.monotonic() > deadline:
                raise BrokerUnavailable(f"Kafka does not answer: {error}") from error
            time.sleep(RETRY_PAUSE_S)
        except TimeoutError as error:
            raise BrokerUnavailable("Kafka does not answer in time") from error
