"""The copies of changes that follow on the inbox."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from sendlater.dialects import encode_again, encode_schedule
from sendlater.dialects.recurrence import plan_of
from sendlater.model import Record, Schedule
from sendlater.store import Move
from sendlater.store.codec import pack


def comes_again(schedule: Schedule, journals: Sequence[str]) -> bool:
    """Whether copies of a schedule are copies of its version: it recurs, and is on a journal."""
    origin = schedule.origin
    return bool(schedule.plan) and origin is not None and origin.topic in journals


def told_in_plan(move: Move, before: Schedule, journals: Sequence[str]) -> Move:
    """The same; of what recurs on a journal with a plan that tells of the change, so that a store
    that went back sees that the copy is newer. What is paused does not move, nor does another
    version than `move` asks for."""
    if move.at_once or move.version not in ("", before.version):
        return move
    if not comes_again(before, journals) or (plan := plan_of(before)).paused:
        return move
    changed = msgspec.structs.replace(plan, changes=plan.changes + 1)
    packed = pack(replace(before, plan=changed.text))
    return replace(move, version=before.version, instead=packed, again=True)


def copy_of_move(
    after: Schedule, *, change: str, home: tuple[str, int | None], journals: Sequence[str]
) -> Record:
    """The copy for an inbox of a schedule that was moved. Raises BadRequest if the dialect
    `headers` does not allow it.

    Of a recurring schedule on a journal it is no new version: the copies that its occurrences leave
    there must go on from it.
    """
    inbox, partition = home
    if comes_again(after, journals):
        return encode_again(after)
    return replace(encode_schedule(after, inbox=inbox, change=change), partition=partition)
