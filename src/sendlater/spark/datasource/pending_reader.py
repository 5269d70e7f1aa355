"""What is pending, as rows: `spark.read.format("sendlater")`.

Not a snapshot: pages are read one after another while schedules change.
"""

import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from sendlater.limits import PAGE_COUNT_MAX
from sendlater.model import DUE_MS_MAX, Schedule
from sendlater.spark.datasource.options import installation, store
from sendlater.store import Admin, Pending
from sendlater.store import Filter as Selection

if TYPE_CHECKING:
    import pyarrow as pa

PENDING_SCHEMA = (
    "id string, due timestamp, topic string, partition int, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>, due_ms bigint"
)
"""What `read` and, as they fall due, `readStream` yield. An id that is no UTF-8 shows `\ufffd`."""
IDS_MAX = 1_000
"""Up to so many ids of a filter are looked up one by one."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Part(InputPartition):
    """What one task reads: one shard, or some ids of it."""

    shard: int
    ids: tuple[str, ...] | None = None


class _PushFilters:
    """The reader's `pushFilters`. Where pushing down is off, Spark refuses a reader that has one of
    its own, and off is Spark's default: so this looks like the one that every reader has."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: "PendingReader") -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.narrow(filters)


class PendingReader(DataSourceReader):
    """Lives on the driver, except `read`, which runs in tasks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.settings = installation(options, known=())
        self.from_ms, self.to_ms = 0, DUE_MS_MAX
        self.prefix = ""
        self.topics: frozenset[str] | None = None
        self.ids: frozenset[str] | None = None

    @property
    def pushFilters(self) -> _PushFilters:
        """Takes filters; see `narrow`."""
        return _PushFilters(self)

    def narrow(self, filters: list[Filter]) -> list[Filter]:
        """Read less where possible. Spark filters each row again, so reading too much is safe."""
        for one in filters:
            self._narrow(one)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """One per shard that may have matching schedules."""
        pending = store(self.settings)
        shards = len(pending.shards)
        pending.close()
        if self.ids is None:
            return [Part(number) for number in range(shards)]
        found: dict[int, list[str]] = {}
        for name in sorted(self.ids):
            found.setdefault(zlib.crc32(name.encode()) % shards, []).append(name)
        return [Part(number, tuple(names)) for number, names in sorted(found.items())]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Arrow batches of at most PAGE_COUNT_MAX rows, in due order."""
        assert isinstance(partition, Part), partition
        pending = store(self.settings)
        try:
            pages = (
                self._pages(pending, partition.shard)
                if partition.ids is None
                else iter([self._named(pending, partition.ids)])
            )
            for page in pages:
                yield _to_arrow([one for one in page if self._passes(one)])
        finally:
            pending.close()

    def _pages(self, pending: Pending, number: int) -> Iterator[list[Schedule]]:
        pending.shards = [pending.shards[number]]
        within = Selection(from_ms=self.from_ms, to_ms=self.to_ms)
        rows = Admin(pending).all(within, count_max=sys.maxsize)
        while True:
            page = list(islice(rows, PAGE_COUNT_MAX))
            yield page
            if len(page) < PAGE_COUNT_MAX:
                return

    def _named(self, pending: Pending, names: tuple[str, ...]) -> list[Schedule]:
        found = (pending.get(name.encode()) for name in names)
        return [one for one in found if one is not None and one.state == "pending"]

    def _passes(self, schedule: Schedule) -> bool:
        return (
            self.from_ms <= schedule.due_ms <= self.to_ms
            and schedule.id.startswith(self.prefix.encode())
            and (self.topics is None or schedule.record.topic in self.topics)
        )

    def _narrow(self, one: Filter) -> None:
        column = getattr(one, "attribute", ())
        value: Any = getattr(one, "value", None)
        if column == ("due",) and isinstance(value, datetime):
            value = _ms(value)
            self._narrow_due(one, low=value[0], high=value[1])
        elif column == ("due_ms",) and isinstance(value, int):
            self._narrow_due(one, low=value, high=value)
        elif column == ("topic",) and isinstance(one, EqualTo | In):
            self.topics = _both(self.topics, _values(one))
        elif column == ("id",) and isinstance(one, EqualTo | In):
            names = _values(one)
            # U+FFFD may stand for bytes that are not text: such an id cannot be looked up by name.
            if len(names) <= IDS_MAX and not any("\ufffd" in name for name in names):
                self.ids = _both(self.ids, names)
        elif column == ("id",) and isinstance(one, StringStartsWith) and "\ufffd" not in value:
            self.prefix = max(self.prefix, value, key=len)

    def _narrow_due(self, one: Filter, *, low: int, high: int) -> None:
        """`low` and `high` are the milliseconds below and above the instant."""
        if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
            self.from_ms = max(self.from_ms, low)
        if isinstance(one, EqualTo | LessThan | LessThanOrEqual):
            self.to_ms = min(self.to_ms, high)


def _values(one: Filter) -> frozenset[str]:
    given = one.value if isinstance(one, In) else (one.value,)  # type: ignore[attr-defined]
    return frozenset(value for value in given if isinstance(value, str))


def _both(standing: frozenset[str] | None, more: frozenset[str]) -> frozenset[str]:
    return more if standing is None else standing & more


def _ms(instant: datetime) -> tuple[int, int]:
    """The milliseconds below and above. Spark gives UTC, with or without a time zone."""
    aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    since = aware - _EPOCH
    low = since // timedelta(milliseconds=1)
    return max(0, low), max(0, -(-since // timedelta(milliseconds=1)))


def _to_arrow(schedules: Sequence[Schedule]) -> "pa.RecordBatch":
    from sendlater.spark.arrow_rows import pending_arrow

    return pending_arrow(
        [one.id for one in schedules],
        [one.due_ms for one in schedules],
        [one.record.topic for one in schedules],
        [one.record.partition for one in schedules],
        [one.record.key for one in schedules],
        [one.record.value for one in schedules],
        [
            [part for name, value in one.record.headers for part in (name.encode(), value)]
            for one in schedules
        ],
    )
