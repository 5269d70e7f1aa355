"""Delivers a failed batch of a lane record by record, so that one bad record stops no others.

Spark's Kafka sink fails its whole query for one record that a broker refuses. Most refusals are
known before (see `refusal`); for the others each record is sent here on its own, with its own
result. What a broker refuses for good is rejected with the broker's own words; what it has not
accepted yet is released later.
"""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TypeVar

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sendlater.brokers.client_options import client_options
from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.dialects.deliver import leaving
from sendlater.errors import BrokerUnavailable
from sendlater.limits import REJECTED_TOPIC_BYTES_MAX, RESCUE_COUNT_MAX
from sendlater.model import Reason, Record, Schedule, Target
from sendlater.spark.delivery.expired import has_expired
from sendlater.spark.delivery.refusal import rejected
from sendlater.spark.delivery.targets import Targets
from sendlater.store import Pending
from sendlater.store.unsettled import Unsettled, settle_some, unsettled

ACK_MS = 5_000
"""Longest wait for the broker to take one record; after that the lane sends it again."""
FLUSH_S = 20.0
"""Longest wait for all records."""
FOR_GOOD = frozenset(
    (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError._UNKNOWN_PARTITION,
    )
)
"""Errors for a record that the broker will never accept."""

UNSURE = frozenset(
    (
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    )
)
"""Errors for a record that may be on its topic all the same."""

_REASONS = {KafkaError._UNKNOWN_PARTITION: Reason.BAD_TARGET}
"""Reasons for some of these errors; for the others it is REFUSED."""

PARTITION_UA = -1
"""In librdkafka: the producer chooses the partition."""

Name = TypeVar("Name", bound=Hashable)
_log = structlog.get_logger()


class RecordByRecord:
    """Delivers what is left of a failed lane's batches, before the lane is started again."""

    def __init__(
        self,
        settings: Settings,
        pending: Pending,
        targets: Targets,
        *,
        owner: int,
        clock: Clock | None = None,
    ) -> None:
        self._settings, self._pending, self._owner = settings, pending, owner
        self._targets = targets
        self._clock = clock or SystemClock()

    def deliver(self, lane: int) -> int:
        """Deliver at most RESCUE_COUNT_MAX rows of a lane's batches; returns how many arrived.

        Rows that had arrived must be settled before. The lane delivers what is left, and finds out
        what has expired, and which occurrence of a recurring schedule is next. Raises
        BrokerUnavailable when the lane must not start yet.
        """
        batches, some = self._some(lane)
        records = {id: self._leaving(schedule) for id, schedule in some.items()}
        told = self._send({id: found[0] for id, found in records.items()})
        arrived = {id for id, error in told.items() if error is None}
        refused = {id: e for id, e in told.items() if e is not None and e.code() in FOR_GOOD}
        # Tombstones and history are sent after their deliveries.
        after = {(id, n): r for id in arrived for n, r in enumerate(records[id][1:])}
        owed = {
            id
            for (id, _), error in self._send(after).items()
            if error is not None and error.code() not in FOR_GOOD
        }
        for topic in {some[id].record.topic for id in told.keys() - arrived}:
            self._targets.doubt(topic)
        for batch in batches:
            self._settle(batch, some, arrived - owed, refused)
        _log.warning(
            "a batch that failed was delivered record by record",
            rows=len(some),
            arrived=len(arrived),
            refused=len(refused),
            causes=sorted({error.str() for error in refused.values()})[:3],
        )
        if owed:
            # Nothing of the lane is released meanwhile. Before its next start the look-up finds
            # what has arrived, and writes what is missing.
            raise BrokerUnavailable(f"{len(owed)} deliveries wait for their tombstones")
        unsure = [id for id, error in told.items() if error is not None and error.code() in UNSURE]
        if unsure:
            raise BrokerUnavailable(f"{len(unsure)} deliveries may have arrived: to be looked up")
        return len(arrived)

    def _some(self, lane: int) -> tuple[list[Unsettled], dict[bytes, Schedule]]:
        """The first rows of a lane that may be delivered now, and the batches that they are in."""
        now_ms, batches = self._clock.now_ms(), list[Unsettled]()
        some: dict[bytes, Schedule] = {}
        for batch in unsettled(self._pending, lane=lane):
            standing = batch.standing()
            found = {
                one.id: one
                for one in standing.schedules()
                if one.due_ms <= now_ms
                and not has_expired(one, now_ms=now_ms)
                and not one.plan
                and isinstance(self._targets.known(one.record.topic), Target)
            }
            if found:
                batches.append(standing)
                some.update(islice(found.items(), RESCUE_COUNT_MAX - len(some)))
            if len(some) == RESCUE_COUNT_MAX:
                break
        return batches, some

    def _leaving(self, schedule: Schedule) -> list[Record]:
        """The records of `leaving`; a tombstone goes to the partition the schedule came from."""
        first, *after = leaving(schedule, self._targets.copies_of(schedule))
        history, origin = self._settings.history_topic, schedule.origin
        if first.topic == self._settings.liveness_topic:
            after = [record for record in after if record.topic != history]
        read_from = origin.partition if origin else None
        return [
            first,
            *(r if r.topic == history else replace(r, partition=read_from) for r in after),
        ]

    def _settle(
        self,
        batch: Unsettled,
        some: Mapping[bytes, Schedule],
        arrived: set[bytes],
        refused: Mapping[bytes, KafkaError],
    ) -> None:
        done = [id for id in batch.ids if id in arrived]
        for id in (id for id in batch.ids if id in refused):
            told = f"topic {some[id].record.topic!r}: the broker says {refused[id].str()}"
            instead = rejected(
                some[id],
                (_REASONS.get(refused[id].code(), Reason.REFUSED), told),
                self._targets.known,
                rejected_topic=self._settings.rejected_topic,
            )
            if instead is not None:
                # Written before the row is settled: a crash in between rejects it again.
                self._pending.put(instead)
                done.append(id)
        settle_some(batch, done, owner=self._owner)

    def _send(self, records: Mapping[Name, Record]) -> dict[Name, KafkaError | None]:
        """Send each record in its own request, so that each gets its own answer."""
        if not records:
            return {}
        slow = KafkaError(KafkaError._TIMED_OUT)
        told: dict[Name, KafkaError | None] = dict.fromkeys(records, slow)
        producer = Producer(
            client_options(self._settings)
            | {
                "partitioner": "murmur2_random",
                # What is sent again because its answer was lost comes once.
                "enable.idempotence": True,
                "batch.num.messages": 1,
                "linger.ms": 0,
                "message.max.bytes": REJECTED_TOPIC_BYTES_MAX,
                "message.timeout.ms": ACK_MS,
                "queue.buffering.max.messages": 3 * RESCUE_COUNT_MAX,
                "queue.buffering.max.kbytes": 1024 * 1024,
            }
        )
        for name, record in records.items():
            try:
                producer.produce(
                    record.topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=PARTITION_UA if record.partition is None else record.partition,
                    on_delivery=partial(_note, told, name),
                )
            except KafkaException as error:
                told[name] = error.args[0]
            except BufferError:
                break
            producer.poll(0)
        producer.flush(FLUSH_S)
        return told


def _note(
    told: dict[Name, KafkaError | None], name: Name, error: KafkaError | None, _: Message
) -> None:
    told[name] = error
