"""Replaces recurring schedules among claimed rows by their occurrences, before any is delivered."""

from collections.abc import Sequence
from dataclasses import replace

import structlog

from sendlater.dialects.recurrence import occurrence, read_text, step
from sendlater.errors import BadRequest
from sendlater.model import Schedule
from sendlater.store import Batch, Claim, Shard
from sendlater.store.codec import RECURS, unpack
from sendlater.store.recurring import Recurring, recur

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
) -> Claim | None:
    """The claim with an occurrence in place of each recurring schedule; None if it has none.

    Raises LaneEnded if another attempt is at work, Fenced, StoreUnavailable.
    """
    if max(kinds, default=0) < RECURS:
        return None
    places = [n for n, kind in enumerate(kinds) if kind & RECURS]
    if not places:
        return None
    rows = [advanced(unpack(got.ids[n], got.packed[n]), now_ms=now_ms) for n in places]
    placed = recur(shard, batch, rows, owner=owner, attempt=attempt)
    left_out = set(places)
    kept = [n for n in range(len(got.ids)) if n not in left_out]
    return replace(
        got,
        ids=[got.ids[n] for n in kept] + [one for one, _ in placed],
        packed=[got.packed[n] for n in kept] + [packed for _, packed in placed],
    )


def advanced(schedule: Schedule, *, now_ms: int) -> Recurring:
    """What is delivered of a recurring schedule that is due, and how it comes again."""
    id = schedule.id
    try:
        plan = read_text(schedule.plan)
        delivers, after = step(plan, id, due_ms=schedule.due_ms, now_ms=now_ms)
    except BadRequest as error:
        # Its zone is no longer known here, say. It is delivered this time, and does not come again.
        _log.error("a recurring schedule ends: its plan cannot be read", id=id, cause=str(error))
        return Recurring(id, replace(schedule, plan=""), None)
    again = replace(schedule, due_ms=after.due_ms(id), plan=after.text) if after else None
    return Recurring(id, occurrence(schedule, plan) if delivers else None, again)
