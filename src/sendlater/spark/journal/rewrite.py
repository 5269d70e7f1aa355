"""What a journal must be told so that it says the same as the store.

A schedule written while the one before it was leaving is followed by that one's tombstone, and
compaction would remove it: it is written again, behind the tombstone, as a copy that names its
version. That version stays what it is, in the store too, so that a copy never overrules what
somebody wrote meanwhile. A copy may be read when its schedule has left, and so may that of a change
(a reschedule made in the store): it gets a tombstone of its own.
"""

from collections.abc import Iterable

import structlog
from confluent_kafka import Producer

from sendlater.brokers.client_options import client_options
from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.dialects import encode_again, encode_tombstone
from sendlater.errors import BrokerUnavailable
from sendlater.limits import REJECTED_TOPIC_BYTES_MAX, RELEASE_COUNT_MAX, REWRITE_AHEAD_MS
from sendlater.model import Record, Schedule, State
from sendlater.store import Pending
from sendlater.store.codec import FIELDS, unpack

UNDATED = b"\xcf" + bytes(8)
"""The due time that is not stored with a record."""
PACKED = bytes([0x90 + FIELDS])
"""How a packed record begins, and no topic's name."""
FLUSH_S = 30.0
"""Longest wait for the broker to take what is written again."""

_log = structlog.get_logger()


def write_again(settings: Settings, schedules: Iterable[Schedule], *, anew: bool = False) -> None:
    """Write schedules to the journals they were read from, as copies or, `anew`, as new ones.

    Raises BrokerUnavailable.
    """
    _write(settings, [encode_again(schedule, anew=anew) for schedule in schedules])


def _write(settings: Settings, records: Iterable[Record]) -> None:
    refused: list[str] = []
    # By default librdkafka sends less than a journal takes by default.
    most = {"message.max.bytes": str(REJECTED_TOPIC_BYTES_MAX)}
    producer = Producer({**most, **client_options(settings), "enable.idempotence": True})
    for record in records:
        assert record.partition is not None, record
        producer.produce(
            record.topic,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            partition=record.partition,
            on_delivery=lambda error, _: refused.append(str(error)) if error else None,
        )
    if producer.flush(FLUSH_S) or refused:
        told = refused[0] if refused else "no answer"
        raise BrokerUnavailable(f"schedules cannot be written to their journal again: {told}")


def bury_surplus(settings: Settings, pending: Pending) -> int:
    """Write tombstones behind copies whose schedule has left; how many that were."""
    count = 0
    for shard in pending.shards:
        key = shard.keys["surplus"]
        found = shard.client.hscan(key, count=RELEASE_COUNT_MAX)[1]
        standing = {i: pending.get(i) for i in found}
        gone = [i for i, now in standing.items() if now is None]
        if gone:
            _write(settings, [encode_tombstone(id=i, version=_version(i, found[i])) for i in gone])
        # One that is on its way is looked at again; under one that is pending nothing is left over.
        idle = [i for i, now in standing.items() if now and now.state is State.PENDING]
        if gone or idle:
            shard.client.hdel(key, *gone, *idle)
        count += len(gone)
    return count


def _version(schedule_id: bytes, kept: bytes) -> str:
    """The version a surplus copy is: told as such, or the place that the copy of a change has."""
    if kept[:1] != PACKED:
        return kept.decode()
    origin = unpack(schedule_id, UNDATED + kept).origin
    assert origin is not None, "copies are read from journals"
    return f"{origin.topic}/{origin.partition}/{origin.position}"


def rescue_overtaken(settings: Settings, pending: Pending, *, clock: Clock | None = None) -> int:
    """Write again what stands before the tombstone of an older version; how many that were.

    What is due soon is left alone: it leaves, with a tombstone of its own, long before compaction.
    """
    soon_ms = (clock or SystemClock()).now_ms() + REWRITE_AHEAD_MS
    count = 0
    for shard in pending.shards:
        key = shard.keys["overtaken"]
        ids = shard.client.srandmember(key, RELEASE_COUNT_MAX)
        if not ids:
            continue
        found = [pending.get(schedule_id) for schedule_id in ids]
        standing = [
            schedule
            for schedule in found
            if schedule is not None
            and schedule.state is State.PENDING
            and schedule.due_ms > soon_ms
            and schedule.origin is not None
            and schedule.origin.topic in settings.journals
        ]
        if standing:
            write_again(settings, standing)
            _log.info("schedules written to their journal again", count=len(standing))
        # Afterwards, so that a crash in between repeats it.
        shard.client.srem(key, *ids)
        count += len(standing)
    return count
