"""Changes of many schedules at once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from sendlater.clock import Clock
from sendlater.errors import Unavailable
from sendlater.limits import BULK_COUNT_MAX, PARK_COUNT_MAX
from sendlater.model import DUE_MS_MAX, PAUSED_MS, Schedule, State
from sendlater.operations.copies import told_in_plan
from sendlater.operations.handed_over import Copies
from sendlater.operations.schedules import Operations
from sendlater.server.audited import Audited, changed, result
from sendlater.server.problems import PartlyDone, Problem
from sendlater.store import Answer, Filter, Move
from sendlater.store.audit import Entry, Undo
from sendlater.store.codec import pack

RELATIVE = ("shift", "spread")
"""Actions whose new due times depend on those of the schedules."""


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
    """Makes bulk changes in chunks, so that each blocks the store only briefly."""

    def __init__(self, operations: Operations, audited: Audited, *, clock: Clock) -> None:
        self._operations, self._audited, self._clock = operations, audited, clock

    def run(
        self,
        who: str,
        plan: Plan,
        wanted: Filter | Mapping[bytes, str],
        *,
        what: Any,
        dry_run: bool,
        audit_id: str,
    ) -> dict[str, Any]:
        """Count, or change and return the result. `wanted` is a filter, or the version that each id
        must have (empty: any). Raises BadTime, Problem 422 for too many schedules, and PartlyDone
        if it stops in the middle, or if an earlier attempt with this audit_id did."""
        look = self._operations.catch_up()
        if dry_run and isinstance(wanted, Filter) and wanted.is_range:
            # No limit here: the store counts a range without reading the schedules.
            self._check_due(plan, self._ends(wanted) if plan.action in RELATIVE else [])
            to_ms = PAUSED_MS if wanted.to_ms is None else min(wanted.to_ms, PAUSED_MS)
            paused = replace(wanted, from_ms=max(wanted.from_ms, PAUSED_MS), to_ms=to_ms)
            return self._counted(plan, self._count(wanted), self._count(paused))
        found, others = self._find(wanted)
        matched = len(found) + others.total()
        self._check_due(plan, found)
        if dry_run:
            return self._counted(plan, matched, sum(one.due_ms == PAUSED_MS for one in found))
        if self._audited.can_undo(audit_id):
            raise PartlyDone("an earlier attempt has made some or all changes", audit_id=audit_id)
        entry = self._audited.entry(who, plan.action, what, id=audit_id)
        with self._audited.recorded(entry) as answers:
            try:
                self._change(entry, plan, found, answers)
                self._operations.intake.require(look)
            except Unavailable as error:
                told = f"stopped after {changed(answers)} of {len(found)}: {error}"
                raise PartlyDone(told, audit_id=audit_id) from error
        return self._result(matched, answers + others, dry_run=False, audit_id=entry.id)

    def _counted(self, plan: Plan, matched: int, paused: int) -> dict[str, Any]:
        """The answer of a dry run; what is paused would only be cancelled."""
        answers = Counter({Answer.PAUSED.value: 0 if plan.action == "cancel" else paused})
        return self._result(matched, +answers, dry_run=True, audit_id=None)

    def _result(self, *counted: Any, **more: Any) -> dict[str, Any]:
        """The answer, and how many no filter sees, if there are any."""
        later = self._operations.admin.later()
        return result(*counted, **more) | ({"later": later} if later else {})

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

    def _find(self, wanted: Filter | Mapping[bytes, str]) -> tuple[list[Schedule], Counter[str]]:
        """The selected schedules in due order, and the answers of those that are not there."""
        if not isinstance(wanted, Filter):
            return self._named(wanted)
        if wanted.is_range:
            self._bounded(self._count(wanted))
        found = list(self._operations.admin.all(wanted, count_max=BULK_COUNT_MAX + 1))
        self._bounded(len(found))
        return found, Counter()

    def _named(self, versions: Mapping[bytes, str]) -> tuple[list[Schedule], Counter[str]]:
        got = self._operations.admin.get_many(list(versions))
        there = [one for one in got if one is not None and one.state is State.PENDING]
        found = [one for one in there if versions[one.id] in ("", one.version)]
        gone, changed = len(got) - len(there), len(there) - len(found)
        others = Counter({Answer.UNKNOWN.value: gone, Answer.CHANGED.value: changed})
        return sorted(found, key=lambda one: (one.due_ms, one.id)), +others

    def _count(self, wanted: Filter) -> int:
        """How many a filter that is a range selects, also of those that wait for a limit."""
        at, until_ms = self._operations.admin, wanted.to_ms
        count = at.count(from_ms=wanted.from_ms, to_ms=until_ms, tag=wanted.tag, limited=True)
        return count + at.count_ahead(wanted)

    def _ends(self, wanted: Filter) -> list[Schedule]:
        """The first schedule that a filter selects, and the last that is not paused."""
        last_ms = min(wanted.to_ms or DUE_MS_MAX, PAUSED_MS - 1)
        page = self._operations.admin.page
        first = page(wanted, count_max=1)
        last = page(replace(wanted, to_ms=last_ms), count_max=1, backwards=True)
        return first.schedules + last.schedules

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
        self._audited.keep(entry, undos)
        wanted = [(one.id, one.version) for one in chunk]
        answers = self._operations.cancel_many(wanted, chunk, copies=copies)
        if any(answer is not Answer.CANCELLED for answer in answers):
            # What was being delivered must not be scheduled again by an undo.
            pairs = zip(undos, answers, strict=True)
            made = [undo for undo, answer in pairs if answer is Answer.CANCELLED]
            self._audited.keep(entry, made, instead=True)
        self._note(entry, chunk, answers, Answer.CANCELLED)
        return Counter(answer.value for answer in answers)

    def _move(
        self, entry: Entry, moves: list[tuple[Schedule, int]], *, copied: bool, copies: Copies
    ) -> Counter[str]:
        # An undo moves only what stands where the change put it, so it can be kept for all.
        self._audited.keep(
            entry, [Undo(one.id, one.due_ms, moved_to_ms=to_ms) for one, to_ms in moves]
        )
        journals = self._operations.settings.journals
        got = self._operations.move_many(
            [
                told_in_plan(Move(one.id, due_ms, one.version, at_once=not copied), one, journals)
                for one, due_ms in moves
            ],
            copied=copied,
            copies=copies,
        )
        self._note(entry, [one for one, _ in moves], [answer for answer, _ in got], Answer.MOVED)
        return Counter(answer.value for answer, _ in got)

    def _note(
        self, entry: Entry, chunk: list[Schedule], answers: Sequence[Answer], changed: Answer
    ) -> None:
        pairs = zip(chunk, answers, strict=True)
        self._audited.note(entry, [one.id for one, answer in pairs if answer is changed])
