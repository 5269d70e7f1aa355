"""Rows that nobody has settled, in columns: what is looked up after a crash."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sendlater.clock import SystemClock
from sendlater.config import Settings
from sendlater.model import Schedule
from sendlater.spark.delivery.arrived import earliest_ms
from sendlater.spark.delivery.recurring import advanced, as_sent
from sendlater.store.codec import RECURS, as_text, pack, unpack, with_due
from sendlater.store.recurring import Recurring
from sendlater.store.unsettled import Unsettled

if TYPE_CHECKING:
    import pyarrow as pa

# Arrow is imported where it is used: a start that has nothing to look up needs none.


class UnsettledRows:
    """Rows by their numbers, in the order of their batches."""

    def __init__(self, ids: Sequence[bytes], packed: Sequence[bytes]) -> None:
        """`packed`: as the scripts return them."""
        from sendlater.spark.arrow_rows import unpack_columns

        self.ids, self.packed = ids, packed
        self.columns: list[Sequence[Any]] = unpack_columns(packed) if packed else []
        """As `unpack_columns`: due_ms first."""
        self.steps: dict[int, Recurring] = {}
        """Of recurring schedules, whose occurrences these are: how they go on if that arrived."""
        targets, origins = (self.columns[1], self.columns[7]) if packed else ((), ())
        self.topics = list(zip(map(as_text, targets), map(as_text, origins), strict=True))
        """Where each goes, and the topic that it was read from (empty: none)."""

    @classmethod
    def of(cls, batches: Iterable[Unsettled], settings: Settings) -> "UnsettledRows":
        """All of these batches. Of a recurring schedule it is the occurrence, where a store that
        went back has forgotten that."""
        ids = [one for batch in batches for one in batch.ids]
        packed = [one for batch in batches for one in batch.packed]
        rows = cls(ids, packed)
        now_ms = SystemClock().now_ms()
        for n in rows._recurring():
            step = advanced(rows.schedule(n), now_ms=now_ms, journals=settings.journals)
            if one := step.occurrence:
                rows.steps[n] = step
                ids[n] = one.id
                packed[n] = packed[n][:1] + with_due(one.due_ms, pack(one))[1:]
        if not rows.steps:
            return rows
        found = cls(ids, packed)
        found.steps = rows.steps
        return found

    def _recurring(self) -> list[int]:
        from sendlater.spark.arrow_rows import KIND

        return [n for n, kind in enumerate(self.columns[KIND]) if kind & RECURS]

    def __len__(self) -> int:
        """How many there are."""
        return len(self.ids)

    def schedule(self, number: int) -> Schedule:
        """One of them, unpacked."""
        return unpack(self.ids[number], self.packed[number])

    def some(self, numbers: Iterable[int]) -> "UnsettledRows":
        """These of them, with numbers of their own."""
        chosen = list(numbers)
        return UnsettledRows([self.ids[n] for n in chosen], [self.packed[n] for n in chosen])

    def since_ms(self, batches: Iterable[Unsettled]) -> int:
        """Nothing of them, which are of these batches, was delivered before this time, by the clock
        of any broker."""
        first, found, due_ms = 0, list[int](), self.columns[0]
        for batch in batches:
            end = first + len(batch.ids)
            found.append(earliest_ms(due_ms[first:end], batch.end_ms))
            first = end
        return min(found)

    def numbered(self) -> "pa.Table":
        """Them in the columns of DUE_SCHEMA, and their numbers."""
        from sendlater.spark.arrow_rows import to_table

        table = to_table(self.ids, self.columns)
        return table.append_column("number", [range(len(self))])

    def sent(self, settings: Settings, *, owed: bool) -> "pa.Table":
        """Them as a lane gives them to Spark, in the columns of DUE_SCHEMA."""
        from sendlater.spark.arrow_rows import to_table

        journals, history = settings.journals, settings.history_topic
        rows = as_sent(
            *(self.ids, self.packed, self.columns),
            journals=journals,
            history_topic=history,
            owed=owed,
        )
        return to_table(*rows)
