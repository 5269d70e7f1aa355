"""Pauses, resumes and triggers recurring schedules.

A pause and a resume are changes like a reschedule: the plan changes with the due time in one step
of the store, for the version that was read, and a copy follows on the inbox. Claims never see what
is paused, because of its due time.
"""

import time
from dataclasses import replace

from sendlater.dialects.recurrence import Plan, extra_occurrence, plan_of
from sendlater.errors import StoreUnavailable
from sendlater.model import Schedule, State
from sendlater.operations.copies import comes_again
from sendlater.operations.intake import CATCH_UP_PAUSE_S
from sendlater.operations.schedules import Changed, Operations, decided
from sendlater.store import Answer, Move
from sendlater.store.codec import pack
from sendlater.store.connection import answering

CLAIMED_S = 1.0
"""Longest wait for a schedule that is being delivered: a task puts it back at once, or has died."""


def pause(operations: Operations, schedule_id: bytes, *, version: str = "") -> Changed:
    """Deliver nothing of a recurring schedule until it is resumed: any version, or only `version`
    if given. Raises BadRequest for one that comes once, Unavailable."""
    return _replan(operations, schedule_id, paused=True, version=version)


def resume(operations: Operations, schedule_id: bytes, *, version: str = "") -> Changed:
    """Go on with the first planned time after now; without any, it is cancelled. As `pause`."""
    return _replan(operations, schedule_id, paused=False, version=version)


def trigger(
    operations: Operations, schedule_id: bytes, *, now_ms: int | None = None
) -> Schedule | None:
    """Write an occurrence beside the plan, due now; None if there is no such schedule. The same
    `now_ms` makes the same occurrence.

    Raises BadRequest for one that comes once, Unavailable.
    """
    operations.catch_up()
    with answering():
        found = operations.pending.get(schedule_id)
    if found is None:
        return None
    now_ms = operations.clock.now_ms() if now_ms is None else now_ms
    extra = extra_occurrence(found, now_ms=now_ms)
    if operations.settings.on_kafka:  # on the schedule's inbox: another one may not take plans
        record = replace(operations.checked(extra), topic=operations.home(found)[0])
        operations.deliver([record])
        return extra
    (error,) = operations.write([extra])
    if error is not None:
        raise error
    return extra


def _replan(operations: Operations, schedule_id: bytes, *, paused: bool, version: str) -> Changed:
    def replan() -> Changed:
        return _replan_now(operations, schedule_id, paused=paused, version=version)

    return operations.intake.unreserved(replan)


def _replan_now(
    operations: Operations, schedule_id: bytes, *, paused: bool, version: str
) -> Changed:
    deadline = time.monotonic() + CLAIMED_S
    while True:
        with answering():
            before = operations.pending.get(schedule_id)
        if before is None:
            return Changed(Answer.UNKNOWN)
        plan = plan_of(before)
        if version not in ("", before.version):
            return Changed(Answer.CHANGED, before)
        if plan.paused == paused:
            return Changed(Answer.UNCHANGED, before)
        changed = Changed(Answer.DELIVERING, before)
        if before.state is State.PENDING:
            then = plan.pause() if paused else plan.resume(operations.clock.now_ms())
            changed = _change(operations, before, then)
        again = changed.answer in (Answer.CHANGED, Answer.DELIVERING)
        if not again or time.monotonic() >= deadline:
            return changed
        time.sleep(CATCH_UP_PAUSE_S)


def _change(operations: Operations, before: Schedule, then: Plan | None) -> Changed:
    """Give this version of a schedule another plan, or end it."""
    if then is None:
        ended = operations.cancel(before.id, version=before.version)
        return replace(ended, answer=Answer.ENDED) if ended.answer is Answer.CANCELLED else ended
    after = replace(before, due_ms=then.due_ms(before.id), plan=then.text)
    again = comes_again(before, operations.settings.journals)
    move = Move(before.id, after.due_ms, before.version, instead=pack(after), again=again)
    ((answer, moved),) = operations.move_many([move])
    if decided(answer) is Answer.BUSY:
        raise StoreUnavailable("intake is far behind with the copies of changes: try again")
    if answer is Answer.MOVED:
        answer = Answer.PAUSED if then.paused else Answer.RESUMED
    return Changed(answer, before, moved)
