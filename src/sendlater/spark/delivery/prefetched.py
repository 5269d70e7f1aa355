"""What a task holds of the rows that its batch has prefetched: records ready to leave.

Where many fall due at once, claiming them costs twice as much as sending them. So a task claims
them before (see lua/claim.lua), and when they are due it only passes them on. They are rows of its
batch, so that a crash puts them back; until they are ripe they also go back when somebody changes
or cancels them, and the task hears of that with the claim that tells what is ripe.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sendlater.spark.delivery.known_targets import Needs

if TYPE_CHECKING:
    import pyarrow as pa

ROW_BYTES = 150
"""What Python takes for a row besides its record: an id, a due time, and their places."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one claim, in due order. Without `sent` they are read again when they are due: what
    recurs, or may have expired by then, is decided then."""

    ids: Sequence[bytes]
    due_ms: Sequence[int]
    topics: Sequence[bytes]
    needs: Needs
    sent: "pa.RecordBatch | None"

    def part(self, first: int, end: int) -> "Chunk":
        """Some of its rows."""
        rows = slice(first, end)
        sent = self.sent.slice(first, end - first) if self.sent is not None else None
        return Chunk(self.ids[rows], self.due_ms[rows], self.topics[rows], self.needs, sent)

    def without(self, gone: Collection[bytes]) -> "Chunk":
        """All rows but these."""
        import pyarrow as pa

        keep = [n for n, one in enumerate(self.ids) if one not in gone]
        sent = self.sent.take(pa.array(keep, pa.int32())) if self.sent is not None else None
        return Chunk(
            [self.ids[n] for n in keep],
            [self.due_ms[n] for n in keep],
            [self.topics[n] for n in keep],
            self.needs,
            sent,
        )


class Prefetched:
    """Chunks in the order they were claimed, which is due order but for what was parked since."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._chunks: deque[tuple[int, Chunk]] = deque()
        """Each with its number."""
        self._bytes = self._count = 0
        self._gone: dict[bytes, int] = {}
        """Ids that went back to pending, and how many chunks there were by then: what is in a later
        one was claimed again."""

    def __bool__(self) -> bool:
        return bool(self._chunks)

    @property
    def began(self) -> bool:
        """Whether anything was ever put here."""
        return self._count > 0

    @property
    def is_full(self) -> bool:
        """Whether it takes no more."""
        return self._bytes >= self._bytes_max

    @property
    def next_ms(self) -> int | None:
        """When the first row is due; None without rows."""
        return min((chunk.due_ms[0] for _, chunk in self._chunks), default=None)

    def put(self, chunk: Chunk) -> None:
        """Keep these rows."""
        self._count += 1
        self._chunks.append((self._count, chunk))
        self._bytes += _size(chunk)

    def drop(self, recalled: Sequence[bytes]) -> None:
        """Forget rows that went back to pending."""
        self._gone |= dict.fromkeys(recalled, self._count)

    def ripe(self, ripe_ms: int) -> Iterator[Chunk]:
        """Take out what is due until then."""
        if not self._chunks or ripe_ms < (self.next_ms or 0):
            return
        later: deque[tuple[int, Chunk]] = deque()
        while self._chunks:
            number, chunk = self._chunks.popleft()
            due, count = bisect_right(chunk.due_ms, ripe_ms), len(chunk.ids)
            if due < count:
                later.append((number, chunk.part(due, count)))
            if due and (left := self._left(number, chunk.part(0, due))).ids:
                yield left
        self._chunks = later
        self._bytes = sum(_size(chunk) for _, chunk in later)

    def _left(self, number: int, chunk: Chunk) -> Chunk:
        if not self._gone:
            return chunk
        gone = {one for one in chunk.ids if self._gone.get(one, 0) >= number}
        return chunk.without(gone) if gone else chunk


def _size(chunk: Chunk) -> int:
    """Bytes, as far as they are known."""
    held = chunk.sent.nbytes if chunk.sent is not None else 0
    return held + ROW_BYTES * len(chunk.ids)
