"""The pending store as a Spark streaming source: its offsets are instants.

A batch lasts until its offset. Its tasks, one per shard, claim what has fallen due and yield it at
once. Two lanes, whose batches end half a window apart, deliver during each other's pauses.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from sendlater.clock import Clock, SystemClock
from sendlater.limits import LANES_MAX, PREFETCH_COUNT_MIN, PREFETCH_DENSE_MS
from sendlater.spark.delivery.lane import (
    LEAD_MS,
    PAUSES_A_BATCH,
    PAUSES_A_LEAD,
    RISK_COUNT,
    WARM_UP_BATCHES,
    WARM_UP_WINDOW_MS,
    Lane,
    ShardSlice,
    batch_end_ms,
)
from sendlater.spark.work_name import name_work

if TYPE_CHECKING:
    import pyarrow as pa

    from sendlater.store import Batch, Pending

# What only tasks, or only the store needs is imported there: Spark starts a process for each step
# of planning.


class DueReader(DataSourceStreamReader):
    """Lives on the driver, except `read`, which runs in tasks."""

    def __init__(self, lane: Lane, *, clock: Clock | None = None) -> None:
        self.lane = lane
        self._clock = clock or SystemClock()

    def _pending(self) -> "Pending":
        from sendlater.store import Pending
        from sendlater.store.connection import connect

        lane = self.lane
        return Pending(connect(lane.redis_url), space=lane.space, shards=lane.shards)

    def initialOffset(self) -> dict[str, int]:
        """Now. The first batch also claims what fell due before."""
        now_ms = self._clock.now_ms()
        return {"batch": 0, "from_ms": now_ms, "end_ms": now_ms}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002
        """The end of the next batch; `start` again once the service drains.

        Batches are numbered, because after a clock goes back an end may be before the last one.
        A limit on rows is ignored: the end is an instant, and claims are limited.
        """
        lane, pending, now_ms = self.lane, self._pending(), self._clock.now_ms()
        if pending.draining(owner=lane.owner):
            return start
        number, window_ms = start["batch"] + 1, lane.window_ms
        pause_ms = max(0, now_ms - start["end_ms"])
        due, held = pending.at_risk(now_ms + lane.idle_window_ms, self._batch(start))
        held_per_ms = held / max(1, start["end_ms"] - start["from_ms"])
        length_ms = max(PAUSES_A_BATCH * pause_ms, self._safe_ms(due, held_per_ms))
        length_ms = max(window_ms, min(length_ms, lane.idle_window_ms))
        lead_ms = min(LEAD_MS + PAUSES_A_LEAD * pause_ms, length_ms)
        if number <= WARM_UP_BATCHES:
            window_ms = length_ms = WARM_UP_WINDOW_MS
            lead_ms = LEAD_MS
        end_ms = batch_end_ms(
            now_ms,
            lane=lane.lane % LANES_MAX,
            lanes=lane.lanes,
            window_ms=window_ms,
            length_ms=length_ms,
            lead_ms=lead_ms,
        )
        if number > WARM_UP_BATCHES and lane.prefetch_ms:
            if due >= PREFETCH_COUNT_MIN:
                end_ms = self._later_ms(pending, self._batch(start), now_ms, end_ms, held_per_ms)
            end_ms = self._sooner_ms(pending, end_ms, now_ms + lead_ms, held_per_ms)
        return {"batch": number, "from_ms": now_ms, "end_ms": end_ms}

    def _safe_ms(self, due: int, held_per_ms: float) -> int:
        """How long a batch may be so that it has at most RISK_COUNT rows, as far as can be known:
        from what is due, and from how many the last one had."""
        lane = self.lane
        least = RISK_COUNT / lane.idle_window_ms
        return round(RISK_COUNT / max(due / lane.lanes / lane.idle_window_ms, held_per_ms, least))

    def _later_ms(
        self, pending: "Pending", last: "Batch", now_ms: int, end_ms: int, held_per_ms: float
    ) -> int:
        """The end of a batch that is to end at `end_ms`, while many are due: some windows later, so
        that it has time to prefetch, and has no more than RISK_COUNT rows before its last one."""
        lane = self.lane
        while end_ms + lane.window_ms <= now_ms + lane.idle_window_ms:
            early, _ = pending.at_risk(end_ms, last)
            if max(early / lane.lanes, held_per_ms * (end_ms - now_ms)) > RISK_COUNT:
                break
            end_ms += lane.window_ms
        return end_ms

    def _sooner_ms(self, pending: "Pending", end_ms: int, least_ms: int, held_per_ms: float) -> int:
        """The end of a batch that is to end at `end_ms`, but not before `least_ms`: some windows
        sooner, if many wait for an instant after it, so that the next batch, which may last until
        then, has the time to prefetch them."""
        from sendlater.store.timeline import first_dense_ms

        lane = self.lane
        longest_ms = min(lane.idle_window_ms, RISK_COUNT / max(held_per_ms, 1e-9))
        ahead_ms = min(lane.prefetch_ms, round(longest_ms) - lane.window_ms)
        dense = {"width_ms": PREFETCH_DENSE_MS, "least": PREFETCH_COUNT_MIN}
        many_ms = first_dense_ms(pending, end_ms + 1, end_ms + ahead_ms, **dense)
        while many_ms and end_ms - lane.window_ms >= max(least_ms, many_ms - ahead_ms):
            end_ms -= lane.window_ms
        return end_ms

    def _batch(self, at: dict[str, int]) -> "Batch":
        from sendlater.store import Batch

        return Batch(self.lane.lane, self.lane.run, at["end_ms"], at["batch"])

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[ShardSlice]:
        """One task per shard."""
        if start == end:
            return []
        lane = self.lane
        length_ms = LEAD_MS + lane.window_ms + 2 * max(lane.window_ms, lane.idle_window_ms)
        return [
            ShardSlice(number, end["end_ms"], end["batch"], length_ms)
            for number in range(lane.shards)
        ]

    def commit(self, end: dict[str, int]) -> None:
        """Spark has committed this batch, so the broker has every row: settle it."""
        self._pending().settle(self._batch(end), owner=self.lane.owner)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Claim and yield until the end of the batch, in Arrow batches of at most `claim_count`."""
        from sendlater.spark.delivery.claim_task import ShardTask
        from sendlater.spark.delivery.warm_rows import warm_rows
        from sendlater.store import Shard
        from sendlater.store.connection import connect

        assert isinstance(partition, ShardSlice), partition
        name_work(f"sl-lane-{self.lane.lane}")
        clients = connect(self.lane.redis_url)
        try:
            shard = Shard(clients, space=self.lane.space, number=partition.shard)
            wake = shard.wake()
            try:
                if partition.number <= WARM_UP_BATCHES:
                    sent, fillers = not self.lane.journals, self.lane.filler_rows
                    yield from warm_rows(sent=sent, filler_rows=fillers)
                yield from ShardTask(self.lane, shard, wake, partition, self._clock).batches()
            finally:
                wake.close()
        finally:
            for client in clients:
                client.close()
