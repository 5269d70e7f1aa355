"""What is changed through REST is in the audit trail from before the first change, and each can be
undone from before it is made: whenever this stops, what was changed is known."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import structlog
from ulid import ULID

from sendlater.clock import Clock
from sendlater.errors import Unavailable
from sendlater.operations.schedules import Changed
from sendlater.server.topic_records import REDRIVEN
from sendlater.store import Answer
from sendlater.store.audit import AuditTrail, Entry, Undo
from sendlater.store.codec import pack

HOUR_MS = 3_600_000
RESTORED = "restored"
CHANGES = (Answer.CANCELLED.value, Answer.MOVED.value, RESTORED, REDRIVEN)
"""Answers that count as a change in the audit trail."""
LASTING = ("deliver-now", "pause", "resume", "trigger", "redrive", "undo")
"""Actions that cannot be undone."""

_log = structlog.get_logger()


class Audited:
    """Writes the audit trail of one space, and how to undo what is in it."""

    def __init__(self, trail: AuditTrail, *, clock: Clock, undo_hours: int) -> None:
        self._trail, self._clock = trail, clock
        self._undo_ms = undo_hours * HOUR_MS

    def entry(self, who: str, action: str, what: Any, *, id: str = "") -> Entry:
        """A new entry; it can be undone, unless its action is one of those that last."""
        now_ms = self._clock.now_ms()
        until_ms = now_ms + self._undo_ms if self._undo_ms and action not in LASTING else 0
        return Entry(
            id=id or str(ULID()),
            at_ms=now_ms,
            who=who,
            action=action,
            what=what,
            undo_until_ms=until_ms,
        )

    @contextmanager
    def recorded(self, entry: Entry) -> Iterator[Counter[str]]:
        """What happens inside is in the trail from its beginning, and the entry is completed at its
        end with the answers counted here."""
        begun, state, answers = replace(entry, state="begun"), "failed", Counter[str]()
        self._trail.write(begun)
        try:
            yield answers
            state = "done"
        finally:
            try:
                ended = replace(entry, count=changed(answers), state=state)
                self._trail.complete(begun, ended)
            except Unavailable as error:  # what was changed stays changed: answer that
                _log.warning("an audit entry stays open", id=entry.id, cause=str(error))

    def keep(self, entry: Entry, undos: list[Undo], *, instead: bool = False) -> None:
        """Store how to undo some changes of an entry; `instead` of what was stored last."""
        if entry.undo_until_ms and (undos or instead):
            self._trail.keep(entry.id, undos, for_s=self._undo_ms // 1_000, instead=instead)

    def note(self, entry: Entry, ids: Sequence[bytes]) -> None:
        """Note which schedules an entry has changed, so that the life of each can tell."""
        if ids and self._undo_ms:
            self._trail.note(entry.id, list(ids), for_s=self._undo_ms // 1_000)

    def note_one(self, who: str, action: str, changed: Changed) -> None:
        """Add the change of one schedule to the audit trail."""
        before = changed.before
        assert before is not None
        what = {"id": before.id.decode(errors="replace"), "topic": before.record.topic}
        entry = replace(self.entry(who, action, what), count=1)
        moved_to_ms = changed.after.due_ms if changed.after else None
        packed = pack(before) if changed.after is None else None
        self.keep(entry, [Undo(before.id, before.due_ms, moved_to_ms, packed)])
        self._trail.write(entry)

    def can_undo(self, entry_id: str) -> bool:
        """Whether anything is stored to undo an entry."""
        return self._trail.can_undo(entry_id)

    @contextmanager
    def taken(self, entry_id: str, left: dict[bytes, Undo]) -> Iterator[None]:
        """What is still in `left` at the end, as it could not be undone, can be undone later."""
        try:
            yield
        finally:
            if left:
                self._trail.keep(entry_id, [*left.values()], for_s=self._undo_ms // 1_000)

    def take(self, entry_id: str) -> Iterator[list[Undo]]:
        """How to undo an entry, chunk by chunk; each chunk goes to one caller only."""
        return self._trail.take(entry_id)

    def trail(self, *, first: int, count: int, of: bytes | None = None) -> Iterator[dict[str, Any]]:
        """Entries of the audit trail, latest first; of these, only what changed one schedule."""
        for entry, can_undo in self._trail.trail(first=first, count=count, of=of):
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


def changed(answers: Counter[str]) -> int:
    """How many of these answers are changes."""
    return sum(answers[name] for name in CHANGES)


def result(
    matched: int, answers: Counter[str], *, dry_run: bool, audit_id: str | None
) -> dict[str, Any]:
    """The JSON of what a change of many has done."""
    return {
        "matched": matched,
        "changed": changed(answers),
        "answers": dict(answers),
        "dry_run": dry_run,
        "audit_id": audit_id,
    }
