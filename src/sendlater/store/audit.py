"""The audit trail: who changed what, and how to undo it.

<space>:audit        list of JSON, latest first, the last AUDIT_COUNT_MAX
<space>:changed:<id> set of the ids that a change of many has changed; expires as the next one
<space>:undo:<id>    list of msgpack chunks; expires when undoing is no longer possible
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from sendlater.limits import AUDIT_COUNT_MAX
from sendlater.store.connection import answering
from sendlater.store.pending import Pending


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One change: who did what, when, to how many; `undo_until_ms` 0 if it cannot be undone.

    `state`: begun (also if its process died in the middle), done, or failed after `count`.
    """

    id: str
    at_ms: int
    who: str
    action: str
    what: dict[str, Any] = field(default_factory=dict)
    count: int = 0
    undo_until_ms: int = 0
    state: str = "done"


@dataclass(frozen=True, slots=True)
class Undo:
    """One schedule as it was: `packed` if it was cancelled, otherwise only its due times."""

    id: bytes
    due_ms: int
    moved_to_ms: int | None = None
    packed: bytes | None = None


class AuditTrail:
    """The audit trail of one space, in the store's Redis."""

    def __init__(self, pending: Pending) -> None:
        self._client = pending.client
        self._space = pending.space

    def write(self, entry: Entry) -> None:
        """Add an entry to the audit trail."""
        key = f"{self._space}:audit"
        with answering():
            self._client.lpush(key, _packed(entry))
            self._client.ltrim(key, 0, AUDIT_COUNT_MAX - 1)

    def complete(self, begun: Entry, ended: Entry) -> None:
        """Replace an entry, unless newer ones have pushed it out."""
        key, before = f"{self._space}:audit", _packed(begun)
        with answering():
            pipe = self._client.pipeline(transaction=True)
            pipe.linsert(key, "BEFORE", before, _packed(ended))
            pipe.lrem(key, 1, before)
            pipe.execute()

    def note(self, entry_id: str, ids: list[bytes], *, for_s: int) -> None:
        """Store which schedules a change of many has changed."""
        key = f"{self._space}:changed:{entry_id}"
        with answering():
            pipe = self._client.pipeline(transaction=True)
            pipe.sadd(key, *ids)
            pipe.expire(key, for_s)
            pipe.execute()

    def _concerns(self, entry: Entry, schedule_id: bytes) -> bool:
        """Whether an entry is about a schedule, or one occurrence of it that was triggered."""
        text, its = schedule_id.decode(errors="replace"), entry.what.get("id")
        if its is not None:
            return bool(its == text or (entry.action == "trigger" and its.startswith(f"{text}@")))
        return bool(self._client.sismember(f"{self._space}:changed:{entry.id}", schedule_id))

    def trail(self, *, first: int, count: int, of: bytes | None = None) -> list[tuple[Entry, bool]]:
        """Entries, latest first, and whether each can be undone now; of these, only what changed
        one schedule."""
        with answering():
            packed = self._client.lrange(f"{self._space}:audit", first, first + count - 1)
            entries = [Entry(**msgspec.json.decode(one)) for one in packed]
            # One by one: a cluster keeps these keys on different nodes.
            return [
                (e, bool(e.undo_until_ms and self._client.exists(self._undo(e.id))))
                for e in entries
                if of is None or self._concerns(e, of)
            ]

    def keep(self, entry_id: str, undos: list[Undo], *, for_s: int, instead: bool = False) -> None:
        """Store how to undo some of an entry's changes; `instead` of what was stored last."""
        key = self._undo(entry_id)
        rows = [(u.id, u.due_ms, u.moved_to_ms, u.packed) for u in undos]
        with answering():
            pipe = self._client.pipeline(transaction=True)
            if instead:
                pipe.rpop(key)
            if rows:
                pipe.rpush(key, msgspec.msgpack.encode(rows))
            pipe.expire(key, for_s)
            pipe.execute()

    def can_undo(self, entry_id: str) -> bool:
        """Whether anything is stored to undo an entry."""
        with answering():
            return bool(self._client.exists(self._undo(entry_id)))

    def take(self, entry_id: str) -> Iterator[list[Undo]]:
        """How to undo an entry, chunk by chunk; each chunk goes to one caller only."""
        while True:
            with answering():
                packed = self._client.lpop(self._undo(entry_id))
            if packed is None:
                return
            yield [Undo(*row) for row in msgspec.msgpack.decode(packed)]

    def _undo(self, entry_id: str) -> str:
        return f"{self._space}:undo:{entry_id}"


def _packed(entry: Entry) -> bytes:
    return msgspec.json.encode(asdict(entry))
