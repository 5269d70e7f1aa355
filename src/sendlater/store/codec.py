"""The format of a schedule in Redis: a msgpack uint64 due time, followed by a msgpack array.

The array is [topic, partition, key, value, headers, kind, origin topic, origin partition,
position, timestamp_ms]; headers are null or flat [name, value, name, value, ...]; the kind is the
dialect's number, in higher bits with the expiry if there is one; of what recurs, the first header
is the plan. What has tags has one more field before all others: the tags as bytes, with commas
between them. So the first byte says whether there are tags, and scripts find them without reading
the payload. Topics and names of headers are text if intake wrote them, bytes if a client did. Such
pairs of values make a stream, so that one call unpacks any number of schedules.
"""

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from sendlater.model import DUE_MS_MAX, Expiry, Headers, Origin, Record, Schedule, State

DIALECTS = (b"", b"headers", b"envelope", b"rejected", b"record", b"few")
"""Stored as their index. Append only: existing stores contain the old numbers. `record` is of rows
that are sent as they are, and never stored; `few` is `headers` from an inbox that adds few."""
DIALECT_NUMBER = {name.decode(): number for number, name in enumerate(DIALECTS)}
EXPIRES, AFTER_DUE, RECURS, MS_SHIFT = 1 << 4, 1 << 5, 1 << 6, 7
"""Bits of a kind: there is an expiry; it counts from the due time; the first header is a plan, so
that it comes again; where the expiry's milliseconds begin. A kind below EXPIRES is a dialect's
number, so that schedules with neither cost nothing more."""
PLAN = b"sendlater-plan"
"""Name of the header that is a plan."""
FIELDS = 10
"""Of a schedule without tags; with tags there is one more."""
BETWEEN_TAGS = ","
LIMITED_MS = DUE_MS_MAX + 1
"""Added to the score of what is due and waits for the limit of its topic: out of reach of claims,
and of counts of what is due, but under its id like everything that is pending."""

VERSION_CHARS = 16
"""Length of a schedule's version, the start of a digest in hexadecimal."""

pack_fields: Callable[[Sequence[Any]], bytes] = msgspec.msgpack.Encoder().encode
"""One record's ten fields to bytes."""


def kind_of(dialect: str, expiry: Expiry | None, *, recurs: bool = False) -> int:
    """Dialect, expiry and whether there is a plan as one number."""
    number = DIALECT_NUMBER[dialect] | (RECURS if recurs else 0)
    if expiry is None:
        return number
    return number | EXPIRES | (AFTER_DUE if expiry.after_due else 0) | expiry.ms << MS_SHIFT


def expiry_of(kind: int) -> Expiry | None:
    """The expiry in a kind, if there is one."""
    return Expiry(kind >> MS_SHIFT, bool(kind & AFTER_DUE)) if kind & EXPIRES else None


def dialect_of(kind: int) -> bytes:
    """The dialect in a kind."""
    return DIALECTS[kind & EXPIRES - 1]


def as_text(name: str | bytes) -> str:
    """A packed topic or header name, which is text or bytes."""
    return name if isinstance(name, str) else name.decode(errors="replace")


def as_bytes(names: Sequence[str | bytes]) -> list[bytes]:
    """Packed topics, each of which is text or bytes."""
    return [name.encode() if isinstance(name, str) else name for name in names]


def with_due(due_ms: int, packed: bytes) -> bytes:
    """A packed record as the scripts return it, with its due time in front."""
    return b"\xcf" + due_ms.to_bytes(8, "big") + packed


def due_of(packed: bytes) -> int:
    """The due time in front of such a row."""
    return int.from_bytes(packed[1:9], "big")


def unpack_many(packed: Sequence[bytes]) -> list[Any]:
    """[due_ms, fields, due_ms, fields, ...] of rows as the scripts return them."""
    header = b"\xdd" + struct.pack(">I", 2 * len(packed))
    rows: list[Any] = msgspec.msgpack.decode(header + b"".join(packed))
    return rows


def topics_of(packed: Sequence[bytes]) -> Iterator[tuple[str, str]]:
    """Where each of these rows goes, and the topic that it was read from (empty: none)."""
    for fields in unpack_many(packed)[1::2]:
        yield as_text(fields[-FIELDS]), as_text(fields[-FIELDS + 6])


def pack(schedule: Schedule) -> bytes:
    """A schedule's record, without id and due time: those are in the sorted set."""
    record, origin = schedule.record, schedule.origin
    flat = [part for name, value in record.headers for part in (name.encode(), value)]
    if schedule.plan:
        flat = [PLAN, schedule.plan.encode(), *flat]
    tags = (BETWEEN_TAGS.join(schedule.tags).encode(),) if schedule.tags else ()
    return pack_fields(
        (
            *tags,
            record.topic.encode(),
            record.partition,
            record.key,
            record.value,
            flat or None,
            kind_of(schedule.dialect, schedule.expiry, recurs=bool(schedule.plan)),
            origin.topic.encode() if origin else b"",
            origin.partition if origin else 0,
            origin.position if origin else 0,
            origin.timestamp_ms if origin else 0,
        )
    )


def pack_columns(row: Sequence[Any], plan: str = "") -> bytes:
    """The same for a decoded row: topic, partition, key, value, headers as structs (or null),
    dialect, expires_ms, expires_after_ms, tags (or null), and the four columns of its origin."""
    topic, partition, key, value, headers, dialect, at_ms, after_ms, tags = row[:9]
    flat = [part for h in headers for part in (h["key"], h["value"])] if headers else None
    if plan:
        flat = [PLAN, plan.encode(), *(flat or ())]
    expiry = None
    if at_ms is not None:
        expiry = Expiry(at_ms)
    elif after_ms is not None:
        expiry = Expiry(after_ms, after_due=True)
    kind = DIALECT_NUMBER[dialect]
    if expiry is not None or plan:
        kind = kind_of(dialect, expiry, recurs=bool(plan))
    fields = (topic, partition, key, value, flat, kind, *row[9:])
    return pack_fields((tags.encode(), *fields) if tags else fields)


def place_of(packed: bytes) -> tuple[int, int]:
    """The partition and the position of the record that a packed one was read from."""
    *_, partition, position, _ = msgspec.msgpack.decode(packed)
    return partition, position


def written_topics(topic: str) -> tuple[bytes, bytes]:
    """The two ways a topic can be written in a packed record: as text, or as bytes."""
    return msgspec.msgpack.encode(topic), msgspec.msgpack.encode(topic.encode())


def version_of(schedule: Schedule) -> str:
    """The version of a schedule, as the store will tell it."""
    return _version(with_due(schedule.due_ms, pack(schedule)))


def _version(packed: bytes) -> str:
    return hashlib.sha1(packed, usedforsecurity=False).hexdigest()[:VERSION_CHARS]


def unpack(
    schedule_id: bytes,
    packed: bytes,
    *,
    state: State = State.PENDING,
    held_since: bytes | None = None,
) -> Schedule:
    """The schedule of one row as the scripts return it; `held_since` is when it began to wait for
    a limit."""
    due_ms, fields = unpack_many([packed])
    tags = tuple(fields.pop(0).decode().split(BETWEEN_TAGS)) if len(fields) > FIELDS else ()
    topic, partition, key, value, flat, kind, from_topic, from_partition, position, at = fields
    plan = ""
    if kind & RECURS:
        plan, flat = flat[1].decode(), flat[2:]
    headers: Headers = [
        (as_text(name), value)
        for name, value in zip((flat or ())[::2], (flat or ())[1::2], strict=True)
    ]
    return Schedule(
        id=schedule_id,
        due_ms=due_ms,
        record=Record(
            topic=as_text(topic), key=key, value=value, headers=headers, partition=partition
        ),
        dialect=dialect_of(kind).decode(),
        expiry=expiry_of(kind),
        plan=plan,
        tags=tags,
        origin=Origin(
            topic=as_text(from_topic),
            partition=from_partition,
            position=position,
            timestamp_ms=at,
        )
        if from_topic
        else None,
        state=state,
        version=_version(packed),
        held_since_ms=None if held_since is None else max(due_ms, int(held_since)),
    )


def unpack_found(schedule_id: bytes, found: Sequence[bytes] | None) -> Schedule | None:
    """The schedule in an answer of lua/find.lua."""
    if not found:
        return None
    state, packed, *since = found
    held_since = since[0] if since else None
    return unpack(schedule_id, packed, state=State(state.decode()), held_since=held_since)
