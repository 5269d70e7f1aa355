"""What must be written to a journal so that it agrees with the store.

A schedule written while an older version of its id was being delivered is followed by the older
one's tombstone, and compaction would remove the schedule. So it is written again, after the
tombstone, as a copy that names its version. The copy is no new version, in the store either: it
never replaces what was written meanwhile. Intake may read a copy after its schedule has left; the
same is true for the copy of a change (a reschedule made in the store). Such a copy gets its own
tombstone. So does a version that is older than one on another partition, see lua/park.lua.
"""

from collections.abc import Iterable
from dataclasses import replace

import structlog
from confluent_kafka import Producer

from sendlater.brokers.client_options import client_options
from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.dialects import encode_again, encode_tombstone
from sendlater.errors import BrokerUnavailable
from sendlater.limits import REJECTED_TOPIC_BYTES_MAX, RELEASE_COUNT_MAX, REWRITE_AHEAD_MS
from sendlater.model import Origin, Record, Schedule, State
from sendlater.store import Pending
from sendlater.store.codec import FIELDS, pack, unpack, with_due
from sendlater.store.shard import Shard

PACKED = range(0x90 + FIELDS, 0x90 + FIELDS + 2)
"""First byte of a packed record, without and with tags; no topic name begins so."""
UNMET = b"if "
"""Beginning of the version of a record whose condition did not hold, and which nothing replaced."""
FLUSH_S = 30.0
"""Longest wait for the broker's acknowledgements."""

_log = structlog.get_logger()


def write_again(settings: Settings, schedules: Iterable[Schedule], *, anew: bool = False) -> None:
    """Write schedules to the journals they were read from, as copies or, `anew`, as new ones.

    Raises BrokerUnavailable.
    """
    _write(settings, [encode_again(schedule, anew=anew) for schedule in schedules])


def _write(settings: Settings, records: Iterable[Record]) -> None:
    refused: list[str] = []
    # librdkafka's default limit is smaller than a journal's.
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
    """Write tombstones after copies whose schedule has left; returns how many."""
    count = 0
    for shard in pending.shards:
        key = shard.keys["surplus"]
        found = shard.client.hscan(key, count=RELEASE_COUNT_MAX)[1]
        standing = {i: pending.get(i) for i in found}
        gone = [i for i, now in standing.items() if now is None]
        if gone:
            _write(settings, [encode_tombstone(id=i, version=_version(i, found[i])) for i in gone])
        # A claimed schedule is checked again later; a pending one makes its copy no surplus.
        idle = [i for i, now in standing.items() if now and now.state is State.PENDING]
        for i in idle:
            if found[i].startswith(UNMET):
                _take_place(shard, standing[i], version=_version(i, found[i]))
        if gone or idle:
            shard.client.hdel(key, *gone, *idle)
        count += len(gone) + _bury_older(settings, shard)
    return count


def _bury_older(settings: Settings, shard: Shard) -> int:
    """Write tombstones after versions that lost against a newer one on another partition."""
    key = shard.keys["surplus"] + ":elsewhere"
    found = shard.client.hscan(key, count=RELEASE_COUNT_MAX)[1]
    versions = {version.decode(): schedule_id for version, schedule_id in found.items()}
    mine = [v for v in versions if v.rsplit("/", 2)[0] in settings.journals]
    if mine:
        _write(settings, [encode_tombstone(id=versions[v], version=v) for v in mine])
    if found:
        shard.client.hdel(key, *found)
    return len(mine)


def _take_place(shard: Shard, standing: Schedule | None, *, version: str) -> None:
    """What was being delivered when a condition did not hold, and was put back: it stands where
    that record is, as if it had been pending then."""
    assert standing is not None, "it is pending"
    topic, partition, position = version.rsplit("/", 2)
    place = Origin(
        topic=topic,
        partition=int(partition),
        position=int(position),
        timestamp_ms=standing.origin.timestamp_ms if standing.origin else 0,
    )
    row = pack(replace(standing, origin=place))
    # No schedule has this version.
    shard.park([standing.id, f"if version=-|{standing.due_ms}", row], journal=True)


def _version(schedule_id: bytes, kept: bytes) -> str:
    """The version of a surplus copy: stored as text, or the origin of a change's stored copy."""
    kept = kept.removeprefix(UNMET)
    if kept[0] not in PACKED:
        return kept.decode()
    origin = unpack(schedule_id, with_due(0, kept)).origin
    assert origin is not None, "copies are read from journals"
    return f"{origin.topic}/{origin.partition}/{origin.position}"


def rescue_overtaken(settings: Settings, pending: Pending, *, clock: Clock | None = None) -> int:
    """Write again the schedules that an older version's tombstone follows; returns how many.

    Not what is due soon: it is delivered, with its own tombstone, long before compaction.
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
        # Removed last, so that a crash in between repeats it.
        shard.client.srem(key, *ids)
        count += len(standing)
    return count
