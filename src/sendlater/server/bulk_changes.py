"""Changes of many schedules at once, the audit trail, and undo."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ulid import ULID

from sendlater.clock import Clock
from sendlater.errors import BadRequest
from sendlater.limits import BULK_COUNT_MAX, BULK_IDS_MAX, PARK_COUNT_MAX
from sendlater.model import Schedule, State
from sendlater.operations.schedules import Changed, Operations
from sendlater.server.problems import Problem
from sendlater.store import Answer, Filter, Move
from sendlater.store.audit import AuditTrail, Entry, Undo
from sendlater.store.codec import pack, unpack

HOUR_MS = 3_600_000


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

    def __init__(
        self, operations: Operations, audit: AuditTrail, *, clock: Clock, undo_hours: int
    ) -> None:
        self._operations, self._audit, self._clock = operations, audit, clock
        self._undo_ms = undo_hours * HOUR_MS

    def run(
        self, who: str, plan: Plan, wanted: Filter | Sequence[bytes], *, what: Any, dry_run: bool
    ) -> dict[str, Any]:
        """Count, or change and return the result. Raises Problem 422 for too many schedules."""
        self._operations.catch_up()
        if dry_run and isinstance(wanted, Filter) and wanted.is_range:
            # No limit here: the store counts a range without reading the schedules.
            count = self._operations.admin.count(from_ms=wanted.from_ms, to_ms=wanted.to_ms)
            return _result(count, Counter(), dry_run=True, audit_id=None)
        found, missing = self._find(wanted)
        if dry_run:
            return _result(len(found) + missing, Counter(), dry_run=True, audit_id=None)
        self._check_due(plan, found)
        entry = self._entry(who, plan.action, what)
        answers = self._change(entry, plan, found)
        changed = answers[Answer.CANCELLED] + answers[Answer.MOVED]
        self._audit.write(replace(entry, count=changed))
        if missing:
            answers[Answer.UNKNOWN.value] += missing
        return _result(len(found) + missing, answers, dry_run=False, audit_id=entry.id)

    def _check_due(self, plan: Plan, found: Sequence[Schedule]) -> None:
        """Refuse, with BadTime, due times that are too far away."""
        if plan.action == "move":
            self._operations.check_due(plan.to_ms)
        elif plan.action == "shift" and found:
            self._operations.check_due(found[-1].due_ms + plan.by_ms)
        elif plan.action == "spread" and found:
            self._operations.check_due(found[0].due_ms + plan.by_ms)

    def _change(self, entry: Entry, plan: Plan, found: Sequence[Schedule]) -> Counter[str]:
        """Change schedules in due order, some at a time; the answers, counted."""
        answers: Counter[str] = Counter()
        now_ms = self._clock.now_ms()
        first_ms = found[0].due_ms if found else 0
        ranked = enumerate(found)
        while chunk := list(islice(ranked, PARK_COUNT_MAX)):
            if plan.action == "cancel":
                answers += self._cancel(entry, [one for _, one in chunk])
            else:
                moves = [
                    (
                        one,
                        plan.due_ms(one, n, of=len(found), first_ms=first_ms, now_ms=now_ms),
                    )
                    for n, one in chunk
                ]
                answers += self._move(entry, moves, copied=plan.action != "deliver-now")
        return answers

    def _find(self, wanted: Filter | Sequence[bytes]) -> tuple[list[Schedule], int]:
        """The selected schedules in due order, and how many ids were not found."""
        if not isinstance(wanted, Filter):
            if len(wanted) > BULK_IDS_MAX:
                raise Problem(422, f"ids: expected at most {BULK_IDS_MAX}, got {len(wanted)}")
            got = self._operations.admin.get_many(list(dict.fromkeys(wanted)))
            found = [one for one in got if one is not None and one.state is State.PENDING]
            return sorted(found, key=lambda one: (one.due_ms, one.id)), len(got) - len(found)
        if wanted.is_range:
            self._bounded(self._operations.admin.count(from_ms=wanted.from_ms, to_ms=wanted.to_ms))
        found = list(self._operations.admin.all(wanted, count_max=BULK_COUNT_MAX + 1))
        self._bounded(len(found))
        return found, 0

    def _bounded(self, count: int) -> None:
        if count > BULK_COUNT_MAX:
            raise Problem(
                422,
                f"expected a selection of at most {BULK_COUNT_MAX}, got {count}"
                + (" or more" if count == BULK_COUNT_MAX + 1 else "")
                + ": choose a smaller range",
                matched=count,
            )

    def _cancel(self, entry: Entry, chunk: list[Schedule]) -> Counter[str]:
        answers = self._operations.cancel_many([(one.id, one.version) for one in chunk], chunk)
        undos = [
            Undo(one.id, one.due_ms, packed=pack(one))
            for one, answer in zip(chunk, answers, strict=True)
            if answer is Answer.CANCELLED
        ]
        self._keep(entry, undos)
        return Counter(answer.value for answer in answers)

    def _move(
        self, entry: Entry, moves: list[tuple[Schedule, int]], *, copied: bool
    ) -> Counter[str]:
        got = self._operations.move_many(
            [Move(one.id, due_ms, one.version) for one, due_ms in moves], copied=copied
        )
        undos = [
            Undo(one.id, one.due_ms, moved_to_ms=after.due_ms)
            for (one, _), (_, after) in zip(moves, got, strict=True)
            if after is not None
        ]
        self._keep(entry, undos)
        return Counter(answer.value for answer, _ in got)

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

    def note(self, who: str, action: str, what: Any, *, count: int) -> None:
        """Add an action that cannot be undone to the audit trail."""
        entry = self._entry(who, action, what)
        self._audit.write(replace(entry, count=count, undo_until_ms=0))

    def _entry(self, who: str, action: str, what: Any) -> Entry:
        now_ms = self._clock.now_ms()
        until_ms = now_ms + self._undo_ms if self._undo_ms and action != "deliver-now" else 0
        return Entry(
            id=str(ULID()), at_ms=now_ms, who=who, action=action, what=what, undo_until_ms=until_ms
        )

    def _keep(self, entry: Entry, undos: list[Undo]) -> None:
        if entry.undo_until_ms and undos:
            self._audit.keep(entry.id, undos, for_s=self._undo_ms // 1_000)

    # --- undoing --------------------------------------------------------------------------------

    def undo(self, who: str, entry_id: str) -> dict[str, Any]:
        """Schedule again what was cancelled, and move back what was moved, unless changed since.

        A due time that has passed means now. Raises Problem 404 if nothing can be undone.
        """
        self._operations.catch_up()
        answers: Counter[str] = Counter()
        matched = 0
        for chunk in self._audit.take(entry_id):
            matched += len(chunk)
            answers += self._restore([u for u in chunk if u.packed is not None])
            answers += self._move_back([u for u in chunk if u.packed is None])
        if not matched:
            raise Problem(
                404, "nothing to undo: it cannot be undone, has expired, or is undone already"
            )
        changed = answers["restored"] + answers[Answer.MOVED]
        entry = replace(self._entry(who, "undo", {"of": entry_id}), count=changed, undo_until_ms=0)
        self._audit.write(entry)
        return {
            "matched": matched,
            "changed": changed,
            "answers": dict(answers),
            "dry_run": False,
            "audit_id": entry.id,
        }

    def _restore(self, undos: list[Undo]) -> Counter[str]:
        """Schedule again what was cancelled, unless the id is in use again."""
        now_ms, again, answers = self._clock.now_ms(), [], Counter[str]()
        there = self._operations.admin.get_many([undo.id for undo in undos])
        for undo, stands in zip(undos, there, strict=True):
            assert undo.packed is not None
            if stands is not None:
                answers["replaced"] += 1
                continue
            due_ms = max(now_ms, undo.due_ms)
            again.append(unpack(undo.id, b"\xcf" + due_ms.to_bytes(8, "big") + undo.packed))
        for error in self._operations.write(again):
            answers["restored" if error is None else "failed"] += 1
        return answers

    def _move_back(self, undos: list[Undo]) -> Counter[str]:
        now_ms, moves, answers = self._clock.now_ms(), [], Counter[str]()
        there = self._operations.admin.get_many([undo.id for undo in undos])
        for undo, stands in zip(undos, there, strict=True):
            if stands is None or stands.due_ms != undo.moved_to_ms:
                answers[Answer.CHANGED.value if stands else Answer.UNKNOWN.value] += 1
            else:
                moves.append(Move(undo.id, max(now_ms, undo.due_ms), stands.version))
        return answers + Counter(answer.value for answer, _ in self._operations.move_many(moves))

    def trail(self, *, first: int, count: int) -> Iterator[dict[str, Any]]:
        """Entries of the audit trail, latest first."""
        for entry, can_undo in self._audit.trail(first=first, count=count):
            yield {
                "id": entry.id,
                "at_ms": entry.at_ms,
                "who": entry.who,
                "action": entry.action,
                "what": entry.what,
                "count": entry.count,
                "can_undo": can_undo,
                "undo_until_ms": entry.undo_until_ms,
            }


def _result(
    matched: int, answers: Counter[str], *, dry_run: bool, audit_id: str | None
) -> dict[str, Any]:
    return {
        "matched": matched,
        "changed": answers[Answer.CANCELLED] + answers[Answer.MOVED],
        "answers": dict(answers),
        "dry_run": dry_run,
        "audit_id": audit_id,
    }


def plan_move(given: Any, *, now_ms: int) -> Plan:
    """The plan of a BulkMove. Raises BadRequest, BadTime."""
    from sendlater.server.json_shapes import When, delay_ms, span_ms

    forms = (given.shift, given.spread, given.due_at, given.due_ms, given.delay)
    if sum(one is not None for one in forms) != 1:
        raise BadRequest("expected exactly one of shift, spread, due_at, due_ms and delay")
    if given.shift is not None:
        return Plan("shift", by_ms=span_ms(given.shift))
    if given.spread is not None:
        return Plan("spread", by_ms=delay_ms(given.spread))
    when = When(due_at=given.due_at, due_ms=given.due_ms, delay=given.delay)
    return Plan("move", to_ms=when.resolve(now_ms=now_ms))
