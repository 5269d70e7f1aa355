"""Replaces recurring schedules among claimed rows by their occurrences, before any is delivered."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import structlog

from sendlater.dialects import names
from sendlater.dialects.deliver import leaving
from sendlater.dialects.progress import with_progress
from sendlater.dialects.recurrence import occurrence, read_text, step
from sendlater.dialects.rejected import dropped_schedule
from sendlater.errors import BadRequest
from sendlater.model import Record, Schedule
from sendlater.store import Batch, Claim, Shard
from sendlater.store.codec import DIALECT_NUMBER, RECURS, unpack
from sendlater.store.recurring import Recurring, recur

_IS_ONE = names.SCHEDULE.encode()
_NO_ORIGIN = (b"", 0, 0, 0)
_log = structlog.get_logger()


def occurrences(
    shard: Shard,
    batch: Batch,
    got: Claim,
    kinds: Sequence[int],
    *,
    owner: int,
    attempt: str,
    now_ms: int,
    journals: Sequence[str] = (),
) -> tuple[Claim, list[bytes]] | None:
    """The claim with an occurrence in place of each recurring schedule, and the ids of those to
    `renew` when it is delivered; None if it has none. What is not due yet is what an earlier
    attempt has not renewed.

    Raises LaneEnded if another attempt is at work, Fenced, StoreUnavailable.
    """
    if max(kinds, default=0) < RECURS:
        return None
    places = [n for n, kind in enumerate(kinds) if kind & RECURS]
    if not places:
        return None
    schedules = [unpack(got.ids[n], got.packed[n]) for n in places]
    is_due = [one for one in schedules if one.due_ms <= now_ms]
    rows = [advanced(one, now_ms=now_ms, journals=journals) for one in is_due]
    placed = recur(shard, batch, rows, owner=owner, attempt=attempt)
    left_out = set(places)
    kept = [n for n in range(len(got.ids)) if n not in left_out]
    instead = replace(
        got,
        ids=[got.ids[n] for n in kept] + [one for one, _ in placed],
        packed=[got.packed[n] for n in kept] + [packed for _, packed in placed],
    )
    left = [one.id for one in schedules if one.due_ms > now_ms]
    return instead, left + [row.id for row in rows if row.again]


def advanced(schedule: Schedule, *, now_ms: int, journals: Sequence[str] = ()) -> Recurring:
    """What is delivered of a recurring schedule that is due, and how it comes again. Of one that
    was read from one of `journals`, that leaves its progress there."""
    id = schedule.id
    try:
        plan = read_text(schedule.plan)
        delivers, after = step(plan, id, due_ms=schedule.due_ms, now_ms=now_ms)
    except BadRequest as error:
        # Its zone is no longer known here, say. It is delivered this time, and does not come again.
        _log.error("a recurring schedule ends: its plan cannot be read", id=id, cause=str(error))
        return Recurring(id, replace(schedule, plan=""), None)
    again = replace(schedule, due_ms=after.due_ms(id), plan=after.text) if after else None
    one = occurrence(schedule, plan) if delivers else None
    if schedule.origin is not None and schedule.origin.topic in journals:
        if one is not None:
            one = with_progress(one, again)
        elif again is None:
            one = dropped_schedule(schedule)
    return Recurring(id, one, again)


def as_sent(
    ids: Sequence[bytes],
    packed: Sequence[bytes],
    columns: Sequence[Sequence[Any]],
    *,
    journals: Sequence[str],
    history_topic: str,
    owed: bool = False,
) -> tuple[Sequence[bytes], Sequence[Sequence[Any]]]:
    """Ids and columns for Spark, with an occurrence that was read from one of `journals` as all the
    records that leave us. Spark SQL could do the same, if every row paid for it.

    `packed` are the rows of `columns`. `owed` leaves out the first record of each occurrence.
    """
    if not journals or _IS_ONE not in b"".join(packed):
        return ids, columns
    rows: list[tuple[Any, ...]] = []
    for row in zip(ids, packed, *columns, strict=True):
        schedule = unpack(*row[:2])
        origin = schedule.origin
        told = any(name == names.SCHEDULE for name, _ in schedule.record.headers)
        if origin is None or origin.topic not in journals or not told:
            rows.append((row[0], *row[2:]))
            continue
        copies = (origin.topic, history_topic) if history_topic else (origin.topic,)
        rows += [_row(schedule, record) for record in leaving(schedule, copies)[owed:]]
    ids, *columns = zip(*rows, strict=True)
    return ids, columns


def _row(schedule: Schedule, record: Record) -> tuple[Any, ...]:
    """Id and columns of a record that is sent as it is."""
    flat = [part for name, value in record.headers for part in (name.encode(), value)]
    sent = (record.topic.encode(), record.partition, record.key, record.value, flat)
    return (schedule.id, schedule.due_ms, *sent, DIALECT_NUMBER["record"], *_NO_ORIGIN)
