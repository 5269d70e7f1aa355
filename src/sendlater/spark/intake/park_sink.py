"""The pending store as a Spark sink: rows become schedules, with the place they were read from."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from sendlater.clock import SystemClock
from sendlater.dialects.names import REJECTED
from sendlater.errors import StoreWentBack
from sendlater.limits import PARK_BYTES_MAX, PARK_COUNT_MAX
from sendlater.store import Pending, Shard
from sendlater.store.admin import tell
from sendlater.store.codec import pack_columns
from sendlater.store.connection import connect

if TYPE_CHECKING:
    import pyarrow as pa

WAITED = "waited "
"""Beginning of the `change` of a rejected record's tombstone; the id it waited under follows."""
BATCH_ID_PROPERTY = "streaming.sql.batchId"
"""Spark's name for the batch of a task (MicroBatchExecution.BATCH_ID_KEY)."""


@dataclass(slots=True)
class Parked(WriterCommitMessage):
    """What one task parked: per source its end, and the position of each shard."""

    ends: dict[str, int] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=dict)


class ParkWriter(DataSourceStreamArrowWriter):
    """`write` runs in tasks, `commit` on the driver."""

    def __init__(self, options: Any) -> None:
        self.url = options["redis.url"]
        self.space = options["space"]
        self.shards, self.owner, self.run = (int(options[n]) for n in ("shards", "owner", "run"))
        self.check_targets = options.get("check_targets", "false") == "true"
        self.journals = frozenset(filter(None, options.get("journals", "").split(",")))

    def _pending(self) -> Pending:
        return Pending(connect(self.url), space=self.space, shards=self.shards)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Parked:
        """Park Arrow batches in the columns of `sendlater.dialects`, in the order they come."""
        context = TaskContext.get()
        assert context is not None, "write runs in a task"
        pending = self._pending()
        try:
            task = ParkTask(pending, self.owner, self.check_targets, self.journals)
            task.require(self.run, int(context.getLocalProperty(BATCH_ID_PROPERTY) or 0))
            for batch in iterator:
                task.park(batch)
            return task.finish()
        finally:
            pending.client.close()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Record that every shard has seen what the batch read."""
        pending = self._pending()
        parked = [message for message in messages if isinstance(message, Parked)]
        for number, shard in enumerate(pending.shards):
            ends: list[str] = []
            for message in parked:
                for source, end in message.ends.items():
                    stands = message.seen[source][number]
                    # Also for a shard that is at the end: it may have lost what a task wrote there.
                    ends += [source, stands, str(max(end, int(stands or 0)))]
            shard.advance(owner=self.owner, run=self.run, batch=batchId, ends=ends)
        pending.client.close()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to undo: rows and their position are written together."""


class ParkTask:
    """One task's rows, gathered per shard and source into calls of limited size."""

    def __init__(
        self, pending: Pending, owner: int, check_targets: bool, journals: frozenset[str]
    ) -> None:
        self.owner, self.journals = owner, journals
        self.clock = SystemClock()
        self.shards: list[Shard] = pending.shards
        found = [shard.seen() for shard in self.shards]
        self.found = [{k: str(v) for k, v in one.items()} for one in found]
        self.message = Parked()
        self.waiting: dict[tuple[int, str], list[Any]] = {}
        self.sizes: Counter[tuple[int, str]] = Counter()
        self.rejected: Counter[tuple[int, str]] = Counter()
        self.reasons: Counter[str] = Counter()
        known = self.shards[0].targets() if check_targets else None
        self.known = None if known is None else {topic.decode() for topic in known}

    def require(self, run: int, batch: int) -> None:
        """Raises StoreWentBack if the batch before this one is not in the store."""
        allowed = {f"{run}/{batch - 1}", f"{run}/{batch}"}
        for shard in self.shards:
            stands = shard.state().get("intake", "")
            if stands not in allowed:
                raise StoreWentBack(f"intake stands at {stands!r}, expected one of {allowed}")

    def park(self, batch: "pa.RecordBatch") -> None:
        """Gather one Arrow batch, and write calls that are full."""
        columns = [batch.column(i).to_pylist() for i in range(batch.num_columns)]
        ids, due, *fields, shards, changes = columns
        now_ms = self.clock.now_ms()
        if self.known is not None and (new := set(fields[0]) - self.known - {None}):
            self.shards[0].want(sorted(topic.encode() for topic in new))
            self.known |= new
        for schedule_id, due_ms, shard, change, row in zip(
            ids, due, shards, changes, zip(*fields, strict=True), strict=True
        ):
            _, _, _, value, headers, dialect, origin, from_partition, at, _ = row
            source = f"{origin}/{from_partition}"
            seen = self.message.seen.get(source)
            if seen is None:
                seen = [one.get(source, "") for one in self.found]
                self.message.seen[source] = seen
            self.message.ends[source] = at + 1
            # A cancellation of only one version has that version as its value.
            packed = (value or "") if due_ms is None else pack_columns(row)
            if due_ms is None and change is not None and change.startswith(WAITED):
                waited, change = change.removeprefix(WAITED).encode(), None
                self._gather(crc32(waited) % len(self.shards), source, at, (waited, "", packed))
            when: Any = "" if due_ms is None else due_ms
            if dialect == "rejected":
                when = min(due_ms, now_ms)
            if change is not None:
                when = f"{change}|{when}"
            taken = self._gather(shard, source, at, (schedule_id, when, packed))
            if taken and dialect == "rejected":
                self.rejected[shard, source] += 1
                self.reasons[f"rejected:{_reason(headers)}"] += 1

    def _gather(self, shard: int, source: str, at: int, row: tuple[Any, ...]) -> bool:
        """Add a row, unless its shard has seen the record before; write a full call first."""
        if at < int(self.message.seen[source][shard] or 0):
            return False
        place = (shard, source)
        rows = self.waiting.setdefault(place, [])
        if len(rows) >= 3 * PARK_COUNT_MAX or self.sizes[place] >= PARK_BYTES_MAX:
            self._write(place, at)
            rows = self.waiting.setdefault(place, [])
        rows += row
        self.sizes[place] += len(row[-1])
        return True

    def _write(self, place: tuple[int, str], after: int) -> None:
        number, source = place
        seen = self.message.seen[source]
        del self.sizes[place]
        self.shards[number].park(
            self.waiting.pop(place),
            owner=str(self.owner),
            source=source,
            seen_before=seen[number],
            seen_after=str(after),
            journal=source.rpartition("/")[0] in self.journals,
            rejected_count=self.rejected.pop(place, 0),
        )
        seen[number] = str(after)

    def finish(self) -> Parked:
        """Write the rest; returns what the driver needs to commit."""
        for place in list(self.waiting):
            self._write(place, self.message.ends[place[1]])
        tell(self.shards[0], self.reasons)
        return self.message


def _reason(headers: Any) -> str:
    """The reason: decoding appended it to the headers, so it is the last of that name."""
    told = [header["value"] for header in headers if header["key"] == REJECTED]
    return str(told[-1].decode())
