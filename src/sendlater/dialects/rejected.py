"""The record that tells why a schedule was not delivered: on the rejected or dead-letter topic."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sendlater.dialects import names
from sendlater.dialects.encode import encode_tombstone
from sendlater.dialects.progress import left_on_journal
from sendlater.limits import ID_BYTES_MAX, REJECTED_DETAIL_CHARS_MAX, TOPIC_CHARS_MAX
from sendlater.model import Headers, Reason, Schedule

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rejected_schedule(schedule: Schedule, reason: Reason, detail: str, *, topic: str) -> Schedule:
    """The same record for another topic, with the reason; its id is the place it was read from, and
    of an occurrence of a recurring schedule its planned time too.

    If it was never on an inbox, the id consists of its version and its own id. It has no expiry,
    and no tags: what cancels those of a tag leaves the reasons.
    """
    origin, record = schedule.origin, schedule.record
    told: Headers = [(names.REJECTED, reason.value.encode()), (names.REJECTED_DETAIL, _cut(detail))]
    if origin:
        place = f"{origin.topic}/{origin.partition}/{origin.position}"
        rejected_id = place.replace("/", "-").encode() + planned_part(schedule)
        told.append((names.ORIGIN, place.encode()))
        told.append((names.ORIGIN_TIMESTAMP_MS, b"%d" % origin.timestamp_ms))
    else:
        rejected_id = b"rejected-%s-%s" % (schedule.version.encode(), schedule.id[:ID_BYTES_MAX])
    told.append((names.REJECTED_TARGET, record.topic[:TOPIC_CHARS_MAX].encode()))
    told.append((names.REJECTED_ID, schedule.id[:ID_BYTES_MAX]))
    record = replace(record, topic=topic, partition=None, headers=record.headers + told)
    return replace(
        schedule, id=rejected_id, record=record, dialect="rejected", expiry=None, tags=()
    )


def expired_schedule(schedule: Schedule, *, now_ms: int, topic: str) -> Schedule:
    """The same record for the dead-letter topic, because its expiry has passed; it stays due when
    it was."""
    expires_ms = schedule.expires_ms
    assert expires_ms is not None, schedule.id
    record = schedule.record
    # It came with this one, as it were: what follows is the same for every reason.
    headers: Headers = [*record.headers, (names.EXPIRY, b"%d" % expires_ms)]
    detail = (
        f"expected delivery until {_instant(expires_ms)}, got {_instant(now_ms)}; "
        f"due {_instant(schedule.due_ms)}"
    )
    meant = replace(schedule, record=replace(record, headers=headers))
    return rejected_schedule(meant, Reason.EXPIRED, detail, topic=topic)


def dropped_schedule(schedule: Schedule) -> Schedule:
    """The tombstone that takes a schedule from its journal, due when the schedule was; for an
    occurrence of a recurring one, what that leaves there."""
    origin = schedule.origin
    assert origin is not None, schedule.id
    place = f"{origin.topic}/{origin.partition}/{origin.position}"
    tombstone = left_on_journal(schedule, [(names.ORIGIN, place.encode())])
    tombstone = tombstone or encode_tombstone(id=schedule.id, version=place)
    id = place.replace("/", "-").encode() + planned_part(schedule)
    return Schedule(id=id, due_ms=schedule.due_ms, record=tombstone)


def planned_part(schedule: Schedule) -> bytes:
    """What distinguishes an occurrence of a recurring schedule from others read from its place."""
    if all(name != names.SCHEDULE for name, _ in schedule.record.headers):
        return b""
    return b"-" + schedule.id.rpartition(b"@")[2]


def waited_as(schedule_id: bytes, told: bytes, version: str) -> tuple[bytes, ...]:
    """The ids under which something of a schedule may wait that was delivered as `told`: an
    occurrence, or what was rejected. Empty if it is the schedule itself."""
    if told.startswith(schedule_id + b"@"):
        return (told,)
    place = version.replace("/", "-").encode()
    behind = told.removeprefix(place)
    if not told.startswith(place) or (behind and not behind[1:].isdigit()):
        return ()
    # An occurrence was claimed under its own id before it was rejected.
    return (told, schedule_id + b"@" + behind[1:]) if behind else (told,)


def _instant(ms: int) -> str:
    """RFC 3339 in UTC; after the year 9999 milliseconds since 1970."""
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{ms} ms since 1970"


def _cut(detail: str) -> bytes:
    return detail[:REJECTED_DETAIL_CHARS_MAX].encode(errors="replace")
