"""Schedules as they fall due, for a user's own query: `spark.readStream.format("sendlater")`.

The query replaces the service in its space: nobody else delivers what it claims. An offset is an
instant; a batch has what has fallen due up to it. What a batch has claimed is dropped once Spark
has committed the batch; otherwise it comes again in the next run.
"""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sendlater.clock import SystemClock
from sendlater.errors import BadRequest
from sendlater.limits import CLAIM_COUNT_MAX, WHOLE_BATCH_BYTES_MAX, WHOLE_BATCH_COUNT_MAX
from sendlater.spark.datasource.options import count, installation, store
from sendlater.spark.delivery.expired import expired_rows, take_out
from sendlater.spark.delivery.recurring import occurrences
from sendlater.store import Batch, Claim, Pending, Shard
from sendlater.store.recent import tell
from sendlater.store.recurring import renew

if TYPE_CHECKING:
    import pyarrow as pa

OPTIONS = ("maxrowspertrigger", "takeover")
LANE = 0
IDLE_WAIT_S = 0.2
"""How long the source waits for something to fall due; Spark would otherwise ask every 10 ms."""
WAIT_PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class Part(InputPartition):
    """One task: one shard up to the end of the batch. It carries owner and run, because Spark
    copies the reader to its tasks before the reader is an owner."""

    shard: int
    end_ms: int
    owner: int
    run: int


class DueRowsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver, except `read`, which runs in tasks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.settings = installation(options, known=OPTIONS)
        self.rows_max = count(options, "maxrowspertrigger", 2 * WHOLE_BATCH_COUNT_MAX)
        self.takeover = options.get("takeover", "false").lower() == "true"
        self.clock = SystemClock()
        self.owner = self.run = self.shards = 0
        self.until_ms: int | None = None
        self._pending: Pending | None = None

    def initialOffset(self) -> dict[str, int]:
        """Begin without a checkpoint: what an earlier query has not committed comes again."""
        self._open(None)
        return {"end_ms": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxRowsPerTrigger`."""
        return ReadMaxRows(self.rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what is due now, and no more."""
        self.until_ms = self.clock.now_ms()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The instant up to which the next batch reads; `start` again if nothing is due."""
        pending = self._opened(start)
        deadline = time.monotonic() + (IDLE_WAIT_S if self.until_ms is None else 0)
        while True:
            now_ms = self.clock.now_ms() if self.until_ms is None else self.until_ms
            head = pending.oldest_due_ms()
            if head is not None and head <= now_ms:
                end_ms = self._cut(pending, now_ms, limit)
                # Even if it was parked late and due before `start`, the offset must grow.
                return {"end_ms": max(end_ms, start["end_ms"] + 1)}
            if time.monotonic() >= deadline:
                return start
            time.sleep(WAIT_PAUSE_S)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One per shard. The first call in a run that repeats its last batch."""
        self._opened(start)
        if start == end:
            return []
        return [Part(number, end["end_ms"], self.owner, self.run) for number in range(self.shards)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield what this batch has claimed already, then claim what is due up to its end."""
        assert isinstance(partition, Part), partition
        pending = store(self.settings)
        shard = pending.shards[partition.shard]
        batch = Batch(LANE, partition.run, partition.end_ms)
        owner, attempt = partition.owner, uuid.uuid4().hex
        try:
            begun = shard.attempt(batch, owner=owner, attempt=attempt)
            got = begun or shard.claimed(batch)
            yield from self._rows(shard, batch, got, owner, attempt)
            if begun is None:
                return
            taken, size = len(got.ids), sum(map(len, got.packed))
            while taken < WHOLE_BATCH_COUNT_MAX and size < WHOLE_BATCH_BYTES_MAX:
                got = shard.claim(
                    batch,
                    owner=owner,
                    now_ms=min(self.clock.now_ms(), partition.end_ms),
                    count_max=CLAIM_COUNT_MAX,
                    attempt=attempt,
                )
                if not got.ids:
                    break
                taken += len(got.ids)
                size += sum(map(len, got.packed))
                yield from self._rows(shard, batch, got, owner, attempt)
            shard.close(batch, owner=owner, attempt=attempt)
        finally:
            pending.close()

    def _rows(
        self, shard: Shard, batch: Batch, got: Claim, owner: int, attempt: str
    ) -> "Iterator[pa.RecordBatch]":
        """What was claimed, with occurrences of what recurs."""
        if not got.ids:
            return
        from sendlater.spark.arrow_rows import KIND, unpack_columns

        columns = unpack_columns(got.packed)
        now_ms = self.clock.now_ms()
        found = occurrences(
            shard, batch, got, columns[KIND], owner=owner, attempt=attempt, now_ms=now_ms
        )
        if found is None:
            yield from self._unexpired(shard, batch, got, columns, owner, attempt)
            return
        instead, again = found
        if instead.ids:
            columns = unpack_columns(instead.packed)
            yield from self._unexpired(shard, batch, instead, columns, owner, attempt)
        renew(shard, batch, again, owner=owner, attempt=attempt)

    def _unexpired(
        self,
        shard: Shard,
        batch: Batch,
        got: Claim,
        columns: list[Sequence[Any]],
        owner: int,
        attempt: str,
    ) -> "Iterator[pa.RecordBatch]":
        """What was claimed, without what has expired: that comes later, for the dead-letter topic,
        or is dropped."""
        from sendlater.spark.arrow_rows import KIND

        ids = got.ids
        expired = expired_rows(got, columns[KIND], self.clock)
        if expired:
            counts = take_out(
                shard,
                batch,
                list(expired.values()),
                owner=owner,
                attempt=attempt,
                now_ms=self.clock.now_ms(),
                dead_topic=self.settings.expired_topic,
                journals=self.settings.journals,
            )
            tell(shard, counts)
            keep = [n for n in range(len(ids)) if n not in expired]
            ids, columns = [ids[n] for n in keep], [[one[n] for n in keep] for one in columns]
        if ids:
            yield _to_arrow(ids, columns)

    def commit(self, end: dict[str, int]) -> None:
        """Spark has committed this batch: drop it."""
        if self.owner:
            self._store().settle(Batch(LANE, self.run, end["end_ms"]))

    def stop(self) -> None:
        """Close the connection."""
        if self._pending is not None:
            self._pending.close()

    def _store(self) -> Pending:
        self._pending = self._pending or store(self.settings)
        return self._pending

    def _opened(self, start: dict[str, int]) -> Pending:
        if not self.owner:
            self._open(start["end_ms"])
        return self._store()

    def _open(self, committed_ms: int | None) -> None:
        """Own the space. Settle batches up to `committed_ms`, because Spark does not report the
        commit of a run's last batch; release the others."""
        pending = self._store()
        state = pending.shards[0].state()
        standing = state.get("owner", "0")
        if standing not in ("0", state.get("reader")) and not self.takeover:
            raise BadRequest(
                f"space {self.settings.space!r} belongs to a service, which would be stopped: "
                "read from a space of its own, or set option takeover to true"
            )
        self.owner, self.shards = pending.fence(), len(pending.shards)
        pending.client.hset(pending.shards[0].keys["state"], "reader", str(self.owner))
        for shard in pending.shards:
            for name in shard.batches():
                if committed_ms is not None and Batch.named(name).end_ms <= committed_ms:
                    shard.settle(name)
        pending.release_all(owner=self.owner)
        self.run = pending.open_lane(LANE, owner=self.owner)

    def _cut(self, pending: Pending, now_ms: int, limit: ReadLimit) -> int:
        """The last instant with at most the allowed number of rows before it. Rows of the same
        millisecond stay together."""
        if isinstance(limit, ReadAllAvailable) or not isinstance(limit, ReadMaxRows):
            return now_ms
        share = max(1, limit.max_rows // self.shards)
        ends = [now_ms]
        for shard in pending.shards:
            beyond: Any = shard.client.zrange(shard.keys["due"], share - 1, share, withscores=True)
            if len(beyond) == 2:
                last_ms, next_ms = int(beyond[0][1]), int(beyond[1][1])
                ends.append(max(last_ms, next_ms - 1))
        return min(ends)


def _to_arrow(ids: Sequence[bytes], columns: Sequence[Sequence[Any]]) -> "pa.RecordBatch":
    from sendlater.spark.arrow_rows import pending_arrow

    due, topic, partition, key, value, headers, *_ = columns
    topics = [name.decode() for name in topic]
    return pending_arrow(ids, due, topics, partition, key, value, headers)
