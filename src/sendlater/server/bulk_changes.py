"""Changes of many schedules at once, the audit trail, and undo."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import structlog
from ulid import ULID

from sendlater.clock import Clock
from sendlater.errors import Unavailable
from sendlater.limits import BULK_COUNT_MAX, BULK_IDS_MAX, PARK_COUNT_MAX
from sendlater.model import PAUSED_MS, Schedule, State
from sendlater.operations.handed_over import Copies
from sendlater.operations.schedules import Changed, Operations
from sendlater.server.problems import PartlyDone, Problem
from sendlater.server.topic_records import REDRIVEN
from sendlater.store import Answer, Filter, Move
from sendlater.store.audit import AuditTrail, Entry, Undo
from sendlater.store.codec import pack, unpack, with_due

HOUR_MS = 3_600_000
RESTORED = "restored"
CHANGES = (Answer.CANCELLED.value, Answer.MOVED.value, RESTORED, REDRIVEN)
"""Answers that count as a change in the audit trail."""
LASTING = ("deliver-now", "pause", "resume", "trigger")
"""Actions that cannot be undone."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Plan:
    """A bulk change: `action` is cancel, deliver-now, shift, spread or move."""

    action: str
    by_ms: int = 0
    to_ms: int = 0

    def due_ms(self, schedule: Schedule, rank: int, *, of: int, first_ms: int, now_ms: int) -> int:
        """The new due time of the `rank`-th of `of` schedules, the first of which is due at
        `first_ms`.

        >>> from sendlater.model import Record
        >>> one = Schedule(id=b"a", due_ms=5_000, record=Record(topic="t", value=b""))
        >>> Plan("shift", by_ms=-3_000).due_ms(one, 0, of=1, first_ms=5_000, now_ms=4_000)
        4000
        >>> [Plan("spread", by_ms=900).due_ms(one, n, of=3, first_ms=5_000, now_ms=0)
        ...  for n in range(3)]
        [5000, 5300, 5600]
        """
        if self.action == "deliver-now":
            return now_ms
        if self.action == "spread":
            return max(now_ms, first_ms) + self.by_ms * rank // of
        if self.action == "shift":
            return max(now_ms, schedule.due_ms + self.by_ms)
        return max(now_ms, self.to_ms)


class Bulk:
    """Makes bulk changes in chunks, so that each blocks the store only briefly.

    The audit trail has each of them from before its first change, and each chunk can be undone from
    before it is changed: whenever this stops, what was changed is known.
    """

    def __init__(
        self, operations: Operations, audit: AuditTrail, *, clock: Clock, undo_hours: int
    ) -> None:
        self._operations, self._audit, self._clock = operations, audit, clock
        self._undo_ms = undo_hours * HOUR_MS

    def run(
        self,
        who: str,
        plan: Plan,
        wanted: Filter | Sequence[bytes],
        *,
        what: Any,
        dry_run: bool,
        audit_id: str,
    ) -> dict[str, Any]:
        """Count, or change and return the result. Raises Problem 422 for too many schedules, and
        PartlyDone if it stops in the middle, or if an earlier attempt with this audit_id did."""
        look = self._operations.catch_up()
        if dry_run and isinstance(wanted, Filter) and wanted.is_range:
            # No limit here: the store counts a range without reading the schedules.
            count = self._count(wanted)
            return self._result(count, Counter(), dry_run=True, audit_id=None)
        found, missing = self._find(wanted)
        if dry_run:
            return self._result(len(found) + missing, Counter(), dry_run=True, audit_id=None)
        self._check_due(plan, found)
        if self._audit.can_undo(audit_id):
            raise PartlyDone("an earlier attempt has made some or all changes", audit_id=audit_id)
        entry = replace(self._entry(who, plan.action, what), id=audit_id)
        with self._recorded(entry) as answers:
            try:
                self._change(entry, plan, found, answers)
                self._operations.intake.require(look)
            except Unavailable as error:
                told = f"stopped after {_changed(answers)} of {len(found)}: {error}"
                raise PartlyDone(told, audit_id=audit_id) from error
        if missing:
            answers[Answer.UNKNOWN.value] += missing
        return self._result(len(found) + missing, answers, dry_run=False, audit_id=entry.id)

    def _result(self, *counted: Any, **more: Any) -> dict[str, Any]:
        """The answer, and how many no filter sees, if there are any."""
        later = self._operations.admin.later()
        return _result(*counted, **more) | ({"later": later} if later else {})

    def _check_due(self, plan: Plan, found: Sequence[Schedule]) -> None:
        """Refuse, with BadTime, due times that are too far away."""
        if plan.action == "move":
            self._operations.check_due(plan.to_ms)
        elif plan.action == "shift":
            # What is paused answers so, and stays.
            latest_ms = max((one.due_ms for one in found if one.due_ms != PAUSED_MS), default=0)
            self._operations.check_due(latest_ms + plan.by_ms)
        elif plan.action == "spread" and found:
            self._operations.check_due(found[0].due_ms + plan.by_ms)

    def _change(
        self, entry: Entry, plan: Plan, found: Sequence[Schedule], answers: Counter[str]
    ) -> None:
        """Change schedules in due order, some at a time, and count the answers."""
        now_ms = self._clock.now_ms()
        first_ms = found[0].due_ms if found else 0
        ranked = enumerate(found)
        with self._operations.copies() as copies:
            while chunk := list(islice(ranked, PARK_COUNT_MAX)):
                if plan.action == "cancel":
                    answers.update(self._cancel(entry, [one for _, one in chunk], copies))
                    continue
                moves = [
                    (one, plan.due_ms(one, n, of=len(found), first_ms=first_ms, now_ms=now_ms))
                    for n, one in chunk
                ]
                copied = plan.action != "deliver-now"
                answers.update(self._move(entry, moves, copied=copied, copies=copies))

    def _find(self, wanted: Filter | Sequence[bytes]) -> tuple[list[Schedule], int]:
        """The selected schedules in due order, and how many ids were not found."""
        if not isinstance(wanted, Filter):
            if len(wanted) > BULK_IDS_MAX:
                raise Problem(422, f"ids: expected at most {BULK_IDS_MAX}, got {len(wanted)}")
            got = self._operations.admin.get_many(list(dict.fromkeys(wanted)))
            found = [one for one in got if one is not None and one.state is State.PENDING]
            return sorted(found, key=lambda one: (one.due_ms, one.id)), len(got) - len(found)
        if wanted.is_range:
            self._bounded(self._count(wanted))
        found = list(self._operations.admin.all(wanted, count_max=BULK_COUNT_MAX + 1))
        self._bounded(len(found))
        return found, 0

    def _count(self, wanted: Filter) -> int:
        """How many a filter that is a range selects."""
        at = self._operations.admin
        return at.count(from_ms=wanted.from_ms, to_ms=wanted.to_ms, tag=wanted.tag)

    def _bounded(self, count: int) -> None:
        if count > BULK_COUNT_MAX:
            raise Problem(
                422,
                f"expected a selection of at most {BULK_COUNT_MAX}, got {count}"
                + (" or more" if count == BULK_COUNT_MAX + 1 else "")
                + ": choose a smaller range",
                matched=count,
            )

    def _cancel(self, entry: Entry, chunk: list[Schedule], copies: Copies) -> Counter[str]:
        undos = [Undo(one.id, one.due_ms, packed=pack(one)) for one in chunk]
        self._keep(entry, undos)
        wanted = [(one.id, one.version) for one in chunk]
        answers = self._operations.cancel_many(wanted, chunk, copies=copies)
        if any(answer is not Answer.CANCELLED for answer in answers):
            # What was being delivered must not be scheduled again by an undo.
            pairs = zip(undos, answers, strict=True)
            made = [undo for undo, answer in pairs if answer is Answer.CANCELLED]
            self._keep(entry, made, instead=True)
        self._note(entry, chunk, answers, Answer.CANCELLED)
        return Counter(answer.value for answer in answers)

    def _move(
        self, entry: Entry, moves: list[tuple[Schedule, int]], *, copied: bool, copies: Copies
    ) -> Counter[str]:
        # An undo moves only what stands where the change put it, so it can be kept for all.
        self._keep(entry, [Undo(one.id, one.due_ms, moved_to_ms=to_ms) for one, to_ms in moves])
        got = self._operations.move_many(
            [Move(one.id, due_ms, one.version, at_once=not copied) for one, due_ms in moves],
            copied=copied,
            copies=copies,
        )
        self._note(entry, [one for one, _ in moves], [answer for answer, _ in got], Answer.MOVED)
        return Counter(answer.value for answer, _ in got)

    def _note(
        self, entry: Entry, chunk: list[Schedule], answers: Sequence[Answer], changed: Answer
    ) -> None:
        """Note which schedules were changed, so that the life of each can tell."""
        pairs = zip(chunk, answers, strict=True)
        if ids := [one.id for one, answer in pairs if answer is changed and self._undo_ms]:
            self._audit.note(entry.id, ids, for_s=self._undo_ms // 1_000)

    def note_one(self, who: str, action: str, changed: Changed) -> None:
        """Add the change of one schedule to the audit trail."""
        before = changed.before
        assert before is not None
        what = {"id": before.id.decode(errors="replace"), "topic": before.record.topic}
        entry = replace(self._entry(who, action, what), count=1)
        moved_to_ms = changed.after.due_ms if changed.after else None
        packed = pack(before) if changed.after is None else None
        self._keep(entry, [Undo(before.id, before.due_ms, moved_to_ms, packed)])
        self._audit.write(entry)

    @contextmanager
    def lasting(self, who: str, action: str, what: Any) -> Iterator[Counter[str]]:
        """An action that cannot be undone: what happens inside is in the audit trail from its
        beginning, and is completed at its end with the answers counted here."""
        with self._recorded(replace(self._entry(who, action, what), undo_until_ms=0)) as answers:
            yield answers

    @contextmanager
    def _recorded(self, entry: Entry) -> Iterator[Counter[str]]:
        begun, state, answers = replace(entry, state="begun"), "failed", Counter[str]()
        self._audit.write(begun)
        try:
            yield answers
            state = "done"
        finally:
            try:
                ended = replace(entry, count=_changed(answers), state=state)
                self._audit.complete(begun, ended)
            except Unavailable as error:  # what was changed stays changed: answer that
                _log.warning("an audit entry stays open", id=entry.id, cause=str(error))

    def _entry(self, who: str, action: str, what: Any) -> Entry:
        now_ms = self._clock.now_ms()
        until_ms = now_ms + self._undo_ms if self._undo_ms and action not in LASTING else 0
        return Entry(
            id=str(ULID()), at_ms=now_ms, who=who, action=action, what=what, undo_until_ms=until_ms
        )

    def _keep(self, entry: Entry, undos: list[Undo], *, instead: bool = False) -> None:
        if entry.undo_until_ms and (undos or instead):
            self._audit.keep(entry.id, undos, for_s=self._undo_ms // 1_000, instead=instead)

    # --- undoing --------------------------------------------------------------------------------

    def undo(self, who: str, entry_id: str) -> dict[str, Any]:
        """Schedule again what was cancelled, and move back what was moved, unless changed since.

        A due time that has passed means now. Raises Problem 404 if nothing can be undone.
        """
        look = self._operations.catch_up()
        if not self._audit.can_undo(entry_id):
            raise Problem(
                404, "nothing to undo: it cannot be undone, has expired, or is undone already"
            )
        matched = 0
        entry = replace(self._entry(who, "undo", {"of": entry_id}), undo_until_ms=0)
        with self._recorded(entry) as answers:
            for chunk in self._audit.take(entry_id):
                matched += len(chunk)
                left = {undo.id: undo for undo in chunk}
                try:
                    self._restore(left, answers)
                    self._move_back(left, answers)
                finally:
                    if left:
                        self._audit.keep(entry_id, [*left.values()], for_s=self._undo_ms // 1_000)
            self._operations.intake.require(look)
        return _result(matched, answers, dry_run=False, audit_id=entry.id)

    def _restore(self, left: dict[bytes, Undo], answers: Counter[str]) -> None:
        """Schedule again what was cancelled, unless the id is in use again. Takes what is dealt
        with out of `left`; raises Unavailable if some of it could not be written."""
        now_ms, again = self._clock.now_ms(), []
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
                del left[schedule.id]
            failed = failed or error
        if failed is not None:
            raise failed

    def _move_back(self, left: dict[bytes, Undo], answers: Counter[str]) -> None:
        """Move back what was moved and still stands there."""
        now_ms, moves = self._clock.now_ms(), []
        for undo, stands in self._there(u for u in left.values() if u.packed is None):
            if stands is None or stands.due_ms != undo.moved_to_ms:
                answers[Answer.CHANGED.value if stands else Answer.UNKNOWN.value] += 1
            else:
                moves.append(Move(undo.id, max(now_ms, undo.due_ms), stands.version))
        answers.update(answer.value for answer, _ in self._operations.move_many(moves))
        left.clear()

    def _there(self, undos: Iterable[Undo]) -> list[tuple[Undo, Schedule | None]]:
        """Each with the schedule that has its id now."""
        given = list(undos)
        stands = self._operations.admin.get_many([undo.id for undo in given])
        return list(zip(given, stands, strict=True))

    def trail(self, *, first: int, count: int, of: bytes | None = None) -> Iterator[dict[str, Any]]:
        """Entries of the audit trail, latest first; of these, only what changed one schedule."""
        for entry, can_undo in self._audit.trail(first=first, count=count, of=of):
            yield {
                "id": entry.id,
                "at_ms": entry.at_ms,
                "who": entry.who,
                "action": entry.action,
                "what": entry.what,
                "count": entry.count,
                "can_undo": can_undo,
                "undo_until_ms": entry.undo_until_ms,
                "state": entry.state,
            }


def _changed(answers: Counter[str]) -> int:
    return sum(answers[name] for name in CHANGES)


def _result(
    matched: int, answers: Counter[str], *, dry_run: bool, audit_id: str | None
) -> dict[str, Any]:
    return {
        "matched": matched,
        "changed": _changed(answers),
        "answers": dict(answers),
        "dry_run": dry_run,
        "audit_id": audit_id,
    }
