"""What must be written to a journal so that it agrees with the store.

A schedule written while an older version of its id was being delivered is followed by the older
one's tombstone, and compaction would remove the schedule. So it is written again, after the
tombstone, as a copy that names its version. The copy is no new version, in the store either: it
never replaces what was written meanwhile. Intake may read a copy after its schedule has left; the
same is true for the copy of a change (a reschedule made in the store). Such a copy gets its own
tombstone. So does a version that is older than one on another partition, see lua/park.lua.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

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
TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
"""Errors for a record, or for a batch of them, that is larger than its topic takes."""
FLUSH_S = 30.0
"""Longest wait for the broker's acknowledgements."""

_log = structlog.get_logger()


def write_again(settings: Settings, schedules: Iterable[Schedule], *, anew: bool = False) -> None:
    """Write schedules to the journals they were read from, as copies or, `anew`, as new ones.

    Raises BrokerUnavailable if one of them is not there then.
    """
    left = _write(settings, [encode_again(schedule, anew=anew) for schedule in schedules])
    if left:
        raise _waits(next(iter(left.values())))


def _waits(cause: KafkaError | None) -> BrokerUnavailable:
    told = "no answer" if cause is None else str(cause)
    return BrokerUnavailable(f"schedules cannot be written to their journal again: {told}")


def _write(settings: Settings, records: Sequence[Record]) -> dict[int, KafkaError | None]:
    """Numbers of the records that the broker has not acknowledged, and why; None: no answer."""
    left = _send(settings, records)
    alone = [n for n, error in left.items() if error is not None and error.code() in TOO_LARGE]
    if not alone or len(records) == 1:
        return left
    # Their batch was too large, each of them may fit.
    again = _send(settings, [records[n] for n in alone], {"batch.num.messages": "1"})
    there = {n for place, n in enumerate(alone) if place not in again}
    still = {alone[place]: error for place, error in again.items()}
    return {n: error for n, error in (left | still).items() if n not in there}


def _send(
    settings: Settings, records: Sequence[Record], options: Mapping[str, str] | None = None
) -> dict[int, KafkaError | None]:
    left: dict[int, KafkaError | None] = dict.fromkeys(range(len(records)))

    def told(number: int, error: KafkaError | None, _: object = None) -> None:
        if error is None:
            del left[number]
        else:
            left[number] = error

    # librdkafka's default limit is smaller than a journal's.
    most = {"message.max.bytes": str(REJECTED_TOPIC_BYTES_MAX)}
    safe = {"enable.idempotence": True}
    producer = Producer({**most, **client_options(settings), **safe, **(options or {})})
    for n, record in enumerate(records):
        assert record.partition is not None, record
        try:
            producer.produce(
                record.topic,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                partition=record.partition,
                on_delivery=partial(told, n),
            )
        except KafkaException as error:  # larger than this producer takes
            told(n, error.args[0])
    producer.flush(FLUSH_S)
    return left


def _settled(
    settings: Settings, records: Mapping[bytes, Record], waits: list[KafkaError | None]
) -> list[bytes]:
    """Names of the records that are on their journals now, or are too large for them for good; why
    others wait is added to `waits`. Raises BrokerUnavailable if the broker answers nothing."""
    if not records:
        return []
    left, names = _write(settings, list(records.values())), list(records)
    if len(left) == len(names) and any(error is None for error in left.values()):
        raise _waits(None)
    dropped = [n for n, error in left.items() if error is not None and error.code() in TOO_LARGE]
    for n in dropped:
        told = {"topic": records[names[n]].topic, "id": repr(records[names[n]].key)[:200]}
        _log.error("what must be written again is too large for its journal", **told)
    waits += [error for n, error in left.items() if n not in dropped]
    return [name for n, name in enumerate(names) if n not in left or n in dropped]


def bury_surplus(settings: Settings, pending: Pending) -> int:
    """Write tombstones after copies whose schedule has left; returns how many. Raises
    BrokerUnavailable if some are still to be written."""
    count, waits = 0, list[KafkaError | None]()
    for shard in pending.shards:
        key = shard.keys["surplus"]
        found = shard.client.hscan(key, count=RELEASE_COUNT_MAX)[1]
        standing = {i: pending.get(i) for i in found}
        gone = [i for i, now in standing.items() if now is None]
        tombstones = {i: encode_tombstone(id=i, version=_version(i, found[i])) for i in gone}
        done = _settled(settings, tombstones, waits)
        # A claimed schedule is checked again later; a pending one makes its copy no surplus.
        idle = [i for i, now in standing.items() if now and now.state is State.PENDING]
        for i in idle:
            if found[i].startswith(UNMET):
                _take_place(shard, standing[i], version=_version(i, found[i]))
        if done or idle:
            shard.client.hdel(key, *done, *idle)
        count += len(done) + _bury_older(settings, shard, waits)
    if waits:
        raise _waits(waits[0])
    return count


def _bury_older(settings: Settings, shard: Shard, waits: list[KafkaError | None]) -> int:
    """Write tombstones after versions that lost against a newer one on another partition."""
    key = shard.keys["surplus"] + ":elsewhere"
    found = shard.client.hscan(key, count=RELEASE_COUNT_MAX)[1]
    tombstones = {
        version: encode_tombstone(id=schedule_id, version=told)
        for version, schedule_id in found.items()
        if (told := version.decode()).rsplit("/", 2)[0] in settings.journals
    }
    done = _settled(settings, tombstones, waits)
    over = [*done, *(version for version in found if version not in tombstones)]
    if over:
        shard.client.hdel(key, *over)
    return len(done)


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

    Not what is due soon: it is delivered, with its own tombstone, long before compaction. Raises
    BrokerUnavailable if some are still to be written.
    """
    soon_ms = (clock or SystemClock()).now_ms() + REWRITE_AHEAD_MS
    count, waits = 0, list[KafkaError | None]()
    for shard in pending.shards:
        key = shard.keys["overtaken"]
        ids = shard.client.srandmember(key, RELEASE_COUNT_MAX)
        if not ids:
            continue
        found = [pending.get(schedule_id) for schedule_id in ids]
        copies = {
            schedule.id: encode_again(schedule)
            for schedule in found
            if schedule is not None
            and schedule.state is State.PENDING
            and schedule.due_ms > soon_ms
            and schedule.origin is not None
            and schedule.origin.topic in settings.journals
        }
        done = _settled(settings, copies, waits)
        if done:
            _log.info("schedules written to their journal again", count=len(done))
        # Removed last, so that a crash in between repeats it.
        over = [*done, *(i for i in ids if i not in copies)]
        if over:
            shard.client.srem(key, *over)
        count += len(done)
    if waits:
        raise _waits(waits[0])
    return count
