"""What is kept on paper: who changed what, what undoing it takes, and answers given before.

<space>:audit        list of JSON, latest first, the last AUDIT_COUNT_MAX
<space>:undo:<id>    list of msgpack chunks, gone after the time in which undoing is possible
<space>:answer:<h>   the answer to a request with an Idempotency-Key, gone after a day
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import msgpack
import msgspec

from sendlater.limits import ANSWER_AWAITED_S, ANSWER_KEPT_S, AUDIT_COUNT_MAX
from sendlater.pending.connect import answering
from sendlater.pending.store import Pending


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One change: who did what, when, to how many; `undo_until_ms` 0 where it cannot be undone."""

    id: str
    at_ms: int
    who: str
    action: str
    what: dict[str, Any] = field(default_factory=dict)
    count: int = 0
    undo_until_ms: int = 0


@dataclass(frozen=True, slots=True)
class Undo:
    """One schedule as it was: `packed` when it was cancelled, else only its due times."""

    id: bytes
    due_ms: int
    moved_to_ms: int | None = None
    packed: bytes | None = None


class Papers:
    """Kept for every space, in the store's Redis."""

    def __init__(self, pending: Pending) -> None:
        self._client = pending.client
        self._space = pending.space

    def write(self, entry: Entry) -> None:
        """Add an entry to the audit trail."""
        key = f"{self._space}:audit"
        with answering():
            self._client.lpush(key, msgspec.json.encode(asdict(entry)))
            self._client.ltrim(key, 0, AUDIT_COUNT_MAX - 1)

    def trail(self, *, first: int, count: int) -> list[tuple[Entry, bool]]:
        """Entries, latest first, and whether each can be undone now."""
        with answering():
            packed = self._client.lrange(f"{self._space}:audit", first, first + count - 1)
            entries = [Entry(**msgspec.json.decode(one)) for one in packed]
            # One by one: a cluster keeps these keys on different nodes.
            return [
                (e, bool(e.undo_until_ms and self._client.exists(self._undo(e.id))))
                for e in entries
            ]

    def keep(self, entry_id: str, undos: list[Undo], *, for_s: int) -> None:
        """Remember how to undo some of an entry's changes."""
        key = self._undo(entry_id)
        rows = [(u.id, u.due_ms, u.moved_to_ms, u.packed) for u in undos]
        with answering():
            self._client.rpush(key, msgpack.packb(rows))
            self._client.expire(key, for_s)

    def take(self, entry_id: str) -> Iterator[list[Undo]]:
        """What undoing an entry takes, some at a time; each is given to one caller only."""
        while True:
            with answering():
                packed = self._client.lpop(self._undo(entry_id))
            if packed is None:
                return
            yield [Undo(*row) for row in msgpack.unpackb(packed, use_list=False)]

    def _undo(self, entry_id: str) -> str:
        return f"{self._space}:undo:{entry_id}"

    def begin_answer(self, name: str, request: bytes) -> bytes | None:
        """None: nobody has asked this, the caller must answer. Else what was kept for the name:
        the request's digest, and the answer behind it once there is one."""
        key = f"{self._space}:answer:{name}"
        with answering():
            if self._client.set(key, request, nx=True, ex=ANSWER_AWAITED_S):
                return None
            found: bytes | None = self._client.get(key)
            return found or request

    def keep_answer(self, name: str, request: bytes, answer: bytes) -> None:
        """Remember an answer for those who ask again."""
        with answering():
            self._client.set(f"{self._space}:answer:{name}", request + answer, ex=ANSWER_KEPT_S)

    def drop_answer(self, name: str) -> None:
        """Forget a question that got no answer, so that it can be asked again."""
        with answering():
            self._client.delete(f"{self._space}:answer:{name}")
