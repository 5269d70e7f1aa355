"""Events as schedules: ids, context, what a dead letter needs to be alive again."""

import re
from dataclasses import dataclass, field, replace

from sendlater.brokers.broker import Arrived
from sendlater.client.etf1_records import (
    RETRY_ATTEMPT,
    RETRY_ORIGINAL_TIMESTAMP,
    attempts_made,
    header,
)
from sendlater.dialects import names
from sendlater.dialects.names import EVENT_ERROR, EVENT_ID, EVENT_TYPE
from sendlater.model import Record, Schedule

CONTEXT = "context-"
"""Headers that start so carry the context."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler may want to know besides the event."""

    type: str
    id: str
    attempt: int
    """1 for the first."""
    due_ms: int | None
    """When this attempt was due; None for a record that nobody scheduled."""
    original_ms: int
    """When the first attempt failed, to the second; for the first attempt, its own time."""
    values: dict[str, str]
    """The context it was enqueued with."""
    record: Arrived = field(repr=False)


DIGITS = re.compile(rb"[0-9]{1,18}")
"""A time in a header; of more digits Python makes no number."""


def context_of(type_: str, record: Arrived) -> Context:
    """What the headers tell; a record nobody enqueued is an event too, its place being its id."""
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
    """The schedule id of an event: type and id together are its identity."""
    return f"event:{type_}:{id}".encode(errors="surrogateescape")


def retry_id(type_: str, id: str) -> bytes:
    """The schedule id of its next attempt. Another one, so that an attempt that failed does not
    replace what was enqueued under the same id meanwhile."""
    return f"retry:{type_}:{id}".encode(errors="surrogateescape")


def as_event(schedule: Schedule, *, type_: str, id: str, context: dict[str, str]) -> Schedule:
    """The schedule with the headers of an event."""
    headers = [(EVENT_ID, id.encode(errors="surrogateescape"))]
    headers += [(CONTEXT + name, value.encode()) for name, value in context.items()]
    record = replace(schedule.record, headers=[*schedule.record.headers, *headers])
    return replace(schedule, id=event_id(type_, id), record=record)


def alive_again(dead: Arrived) -> Record | None:
    """A dead event as it was enqueued, its attempts forgotten; None where it is no event."""
    type_ = header(dead.headers, EVENT_TYPE)
    if type_ is None:
        return None
    gone = (EVENT_TYPE, EVENT_ERROR, RETRY_ATTEMPT, RETRY_ORIGINAL_TIMESTAMP)
    headers = [
        (name, value)
        for name, value in dead.headers
        if name not in gone and not name.startswith(names.PREFIXES)
    ]
    return Record(topic=type_.decode(), value=dead.value, key=dead.key, headers=headers)
