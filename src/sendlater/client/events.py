"""Events as schedules: their ids and context, and how a dead event is enqueued again."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sendlater.brokers.broker import Arrived
from sendlater.client.etf1_records import attempts_made, header
from sendlater.dialects import names
from sendlater.dialects.names import (
    EVENT_CUT,
    EVENT_ERROR,
    EVENT_ID,
    EVENT_TYPE,
    RETRY_ATTEMPT,
    RETRY_ORIGINAL_TIMESTAMP,
)
from sendlater.errors import BadRequest
from sendlater.model import Record, Schedule

CONTEXT = "context-"
"""Prefix of the headers that carry the context."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler can read about its event."""

    type: str
    id: str
    attempt: int
    """1 for the first attempt."""
    due_ms: int | None
    """When this attempt was due; None for a record that was not scheduled."""
    original_ms: int
    """When the first attempt failed, in whole seconds; on the first attempt, the record's time."""
    values: dict[str, str]
    """The `context` given to `enqueue`."""
    record: Arrived = field(repr=False)


DIGITS = re.compile(rb"[0-9]{1,18}")
"""A time in a header. Python refuses to convert numbers with very many digits."""


def context_of(type_: str, record: Arrived) -> Context:
    """The context of a record, from its headers.

    A record without an id in its headers is an event too: its id is "topic/partition/position".
    """
    place = f"{record.topic}/{record.partition}/{record.position}"
    schedule_id = header(record.headers, EVENT_ID) or header(record.headers, names.ID)
    due = header(record.headers, names.DUE) or b""
    first = header(record.headers, RETRY_ORIGINAL_TIMESTAMP) or b""
    return Context(
        type=type_,
        id=schedule_id.decode(errors="surrogateescape") if schedule_id else place,
        attempt=attempts_made(record) + 1,
        due_ms=int(due) if DIGITS.fullmatch(due) else None,
        original_ms=int(first) * 1_000 if DIGITS.fullmatch(first) else record.timestamp_ms,
        values={
            name.removeprefix(CONTEXT): (value or b"").decode(errors="replace")
            for name, value in record.headers
            if name.startswith(CONTEXT)
        },
        record=record,
    )


def event_id(type_: str, id: str) -> bytes:
    """The schedule id of an event: type and id together identify it."""
    return f"event:{type_}:{id}".encode(errors="surrogateescape")


def retry_id(type_: str, id: str) -> bytes:
    """The schedule id of its next attempt. It differs from `event_id`, so that a retry does not
    replace an event that was enqueued under the same id meanwhile."""
    return f"retry:{type_}:{id}".encode(errors="surrogateescape")


def as_event(schedule: Schedule, *, type_: str, id: str, context: dict[str, str]) -> Schedule:
    """The schedule with the headers of an event."""
    headers = [(EVENT_ID, id.encode(errors="surrogateescape"))]
    headers += [(CONTEXT + name, value.encode()) for name, value in context.items()]
    record = replace(schedule.record, headers=[*schedule.record.headers, *headers])
    return replace(schedule, id=event_id(type_, id), record=record)


def checked_context(context: Mapping[str, str]) -> None:
    """Raises BadRequest for a name or a value that is no text."""
    for name, value in context.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise BadRequest(f"context: expected text, got {name!r}: {value!r}")


def alive_again(dead: Arrived) -> Record | None:
    """A dead event as it was enqueued, without its attempts, or the record of a schedule that has
    expired; None if it is neither, or was cut."""
    gone = {RETRY_ATTEMPT, RETRY_ORIGINAL_TIMESTAMP, names.RETRY_OF, names.RETRY_ORIGIN}
    targets = {names.REJECTED_TARGET}
    # Without an error, headers of these names are the sender's own.
    if header(dead.headers, EVENT_ERROR) is not None:
        if header(dead.headers, EVENT_CUT) is not None:
            return None
        gone |= {EVENT_TYPE, EVENT_ERROR}
        targets.add(EVENT_TYPE)
    # What was told last, by whoever gave it up.
    topic = next((value for name, value in reversed(dead.headers) if name in targets), None)
    if not topic:
        return None
    headers = [pair for pair in names.foreign(dead.headers) if pair[0] not in gone]
    return Record(
        topic=topic.decode(errors="replace"), value=dead.value, key=dead.key, headers=headers
    )
