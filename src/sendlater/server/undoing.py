"""Takes back what the audit trail says was changed."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from sendlater.clock import Clock
from sendlater.model import Schedule
from sendlater.operations.copies import told_in_plan
from sendlater.operations.schedules import Operations
from sendlater.server.audited import RESTORED, Audited, result
from sendlater.server.problems import Problem
from sendlater.store import Answer, Move
from sendlater.store.audit import Entry, Undo
from sendlater.store.codec import unpack, with_due


class Undoing:
    """Schedules again what was cancelled, and moves back what was moved, unless changed since."""

    def __init__(self, operations: Operations, audited: Audited, *, clock: Clock) -> None:
        self._operations, self._audited, self._clock = operations, audited, clock

    def undo(self, who: str, entry_id: str) -> dict[str, Any]:
        """Undo an entry. A due time that has passed means now. Raises Problem 404 if nothing can be
        undone."""
        look = self._operations.catch_up()
        if not self._audited.can_undo(entry_id):
            raise Problem(
                404, "nothing to undo: it cannot be undone, has expired, or is undone already"
            )
        matched = 0
        entry = self._audited.entry(who, "undo", {"of": entry_id})
        with self._audited.recorded(entry) as answers:
            for chunk in self._audited.take(entry_id):
                matched += len(chunk)
                left = {undo.id: undo for undo in chunk}
                with self._audited.taken(entry_id, left):
                    self._restore(entry, left, answers)
                    self._move_back(entry, left, answers)
            self._operations.intake.require(look)
        return result(matched, answers, dry_run=False, audit_id=entry.id)

    def _restore(self, entry: Entry, left: dict[bytes, Undo], answers: Counter[str]) -> None:
        """Schedule again what was cancelled, unless the id is in use again. Takes what is dealt
        with out of `left`; raises Unavailable if some of it could not be written."""
        now_ms, again, done = self._clock.now_ms(), [], []
        for undo, stands in self._there(u for u in left.values() if u.packed is not None):
            assert undo.packed is not None
            if stands is not None:
                answers["replaced"] += 1
                del left[undo.id]
                continue
            due_ms = max(now_ms, undo.due_ms)
            again.append(unpack(undo.id, with_due(due_ms, undo.packed)))
        failed = None
        for schedule, error in zip(again, self._operations.write(again), strict=True):
            if error is None:
                answers[RESTORED] += 1
                done.append(schedule.id)
                del left[schedule.id]
            failed = failed or error
        self._audited.note(entry, done)
        if failed is not None:
            raise failed

    def _move_back(self, entry: Entry, left: dict[bytes, Undo], answers: Counter[str]) -> None:
        """Move back what was moved and still stands there."""
        now_ms, moves = self._clock.now_ms(), []
        for undo, stands in self._there(u for u in left.values() if u.packed is None):
            if stands is None or stands.due_ms != undo.moved_to_ms:
                answers[Answer.CHANGED.value if stands else Answer.UNKNOWN.value] += 1
            else:
                move = Move(undo.id, max(now_ms, undo.due_ms), stands.version)
                moves.append(told_in_plan(move, stands, self._operations.settings.journals))
        told = [answer for answer, _ in self._operations.move_many(moves)]
        answers.update(answer.value for answer in told)
        left.clear()
        pairs = zip(moves, told, strict=True)
        self._audited.note(entry, [move.id for move, answer in pairs if answer is Answer.MOVED])

    def _there(self, undos: Iterable[Undo]) -> list[tuple[Undo, Schedule | None]]:
        """Each with the schedule that has its id now."""
        given = list(undos)
        stands = self._operations.admin.get_many([undo.id for undo in given])
        return list(zip(given, stands, strict=True))
