"""Finds out before a record is sent why its topic would refuse it, and makes the rejected record.

One record that the broker refuses makes the whole query fail. So all that deliver check here first.
What would be refused becomes a record for the rejected topic, once; if that topic does not take it
in full, without the parts that are too large.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from sendlater.dialects import names
from sendlater.dialects.deliver import leaving, split_rejected
from sendlater.dialects.rejected import rejected_schedule
from sendlater.limits import REJECTED_VALUE_BYTES_MAX, TARGET_TIMESTAMP_MS_MIN
from sendlater.model import Headers, Reason, Record, Schedule, Target

BATCH_BYTES = 61
"""Size of a format 2 record batch without its records (KIP-98)."""

BOUNDED = (
    "expected settings message.timestamp.before.max.ms and message.timestamp.after.max.ms of at "
    f"least {TARGET_TIMESTAMP_MS_MIN}, or message.timestamp.type=LogAppendTime"
)
"""What a topic lacks that is `refused` before anything is sent to it."""
Known = Callable[[str], Target | Reason | None]
"""What a topic takes, why it takes nothing, or None if that is not known."""


def record_bytes(record: Record) -> int:
    """Bytes that a broker compares with `max.message.bytes`: a batch with only this record."""
    # Attributes, timestamp delta and offset delta take a byte each.
    size = 3 + _bytes(record.key) + _bytes(record.value) + _varint(len(record.headers))
    for name, value in record.headers:
        size += _bytes(name.encode()) + _bytes(value)
    return BATCH_BYTES + _varint(size) + size


def refusal(schedule: Schedule, known: Known) -> tuple[Reason, str] | None:
    """Why one of a schedule's records would be refused; None if none would be.

    The target must be known. A copy is checked only if its topic is known.
    """
    target = known(schedule.record.topic)
    if target is Reason.REFUSED:
        return target, f"topic {schedule.record.topic!r}: {BOUNDED}"
    if isinstance(target, Reason):
        return target, f"topic {schedule.record.topic!r}: the broker says {target.value}"
    assert target is not None, schedule.record.topic
    source = known(schedule.origin.topic) if schedule.origin else None
    for record in leaving(schedule, source.copies if isinstance(source, Target) else ()):
        target = known(record.topic)
        refused = _refused(record, target) if isinstance(target, Target) else None
        if refused:
            reason, takes, got = refused
            return reason, f"topic {record.topic!r}: expected {takes}, got {got}"
    return None


def _refused(record: Record, target: Target) -> tuple[Reason, str, str] | None:
    """The reason, what was expected, and what the record has."""
    if record.partition is not None and record.partition >= target.partitions:
        return Reason.BAD_TARGET, f"a partition below {target.partitions}", f"{record.partition}"
    if record.key is None and target.compacted:
        return Reason.NO_KEY, "a key, as it is compacted", "none"
    size = record_bytes(record)
    if size > target.record_bytes_max:
        return (
            Reason.TOO_LARGE,
            f"at most {target.record_bytes_max} bytes",
            f"{size}, headers included",
        )
    return None


def rejected(
    schedule: Schedule, refused: tuple[Reason, str], known: Known, *, rejected_topic: str
) -> Schedule | None:
    """The same for the rejected topic, in the most complete form that the topic takes.

    What is a rejected record already keeps its id and reason. None if the topic takes no form; a
    topic for records of REJECTED_BYTES_MAX always takes one.
    """
    whole = schedule
    if schedule.dialect != "rejected":
        whole = rejected_schedule(schedule, *refused, topic=rejected_topic)
    record = replace(whole.record, topic=rejected_topic, partition=None)
    forms = _forms(replace(whole, record=record))
    return next((form for form in forms if refusal(form, known) is None), None)


def _forms(whole: Schedule) -> Iterator[Schedule]:
    """As it is; with less value and no headers of the user; both again with its id as the key."""
    for schedule in (whole, _without_key(whole)):
        yield schedule
        yield _shortened(schedule)


def _without_key(schedule: Schedule) -> Schedule:
    record = schedule.record
    if record.key == schedule.id:
        return schedule
    key = "no key" if record.key is None else f"a key of {len(record.key)} bytes"
    headers = _told(record.headers, f"in place of {key} is the id")
    return replace(schedule, record=replace(record, key=schedule.id, headers=headers))


def _shortened(schedule: Schedule) -> Schedule:
    record, value = schedule.record, schedule.record.value
    came_with, told = split_rejected(record.headers)
    left_out = []
    if value is not None and len(value) > REJECTED_VALUE_BYTES_MAX:
        left_out.append(f"the value after byte {REJECTED_VALUE_BYTES_MAX} of {len(value)}")
        value = value[:REJECTED_VALUE_BYTES_MAX]
    if came_with:
        size = sum(len(name.encode()) + len(content or b"") for name, content in came_with)
        left_out.append(f"{len(came_with)} headers of {size} bytes")
    if not left_out:
        return schedule
    headers = _told(told, f"left out: {' and '.join(left_out)}")
    return replace(schedule, record=replace(record, value=value, headers=headers))


def _told(headers: Headers, more: str) -> Headers:
    """The same headers with more text in the rejection's detail."""
    came_with, told = split_rejected(headers)
    return came_with + [
        (name, (content or b"") + f"; {more}".encode())
        if name == names.REJECTED_DETAIL
        else (name, content)
        for name, content in told
    ]


def _bytes(content: bytes | None) -> int:
    """Size of a field with its length in front; null is the length -1."""
    return 1 if content is None else _varint(len(content)) + len(content)


def _varint(number: int) -> int:
    """Size of a number of zero or more as a zigzag varint."""
    return max(1, ((number << 1).bit_length() + 6) // 7)
