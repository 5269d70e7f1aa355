"""Bucket 0 as a Spark streaming source: its tasks hold each record until its millisecond.

A batch lasts until an instant, as a lane's does. It is the same for all tasks, because nobody
delivers from the partition of a task that has ended earlier than the others. A task reads one
partition from where the batch before ended, keeps what it has read in due order, and yields what
falls due. What it still holds when the batch ends, the next batch reads again.

The state of a partition is three numbers: `resume`, where to read from; `read_end` and `end_ms`:
all before `read_end` that was due by `end_ms` has been delivered. A task commits them to the
`prepared` group. When Spark has committed the batch, the driver commits them to the group that
counts.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from sendlater.brokers.group_offsets import Place, Progress
from sendlater.clock import Clock, SystemClock
from sendlater.spark.buckets.target_lookups import lookups_of

if TYPE_CHECKING:
    import pyarrow as pa
from sendlater.spark.buckets.hold_task import HoldTask
from sendlater.spark.buckets.holding import HeldSlice, Holding, Standing, open_consumer


class HeldReader(DataSourceStreamReader):
    """Lives on the driver, except `read`, which runs in tasks."""

    def __init__(self, holding: Holding, *, clock: Clock | None = None) -> None:
        self.holding = holding
        self._clock = clock or SystemClock()
        self._places = [Place(holding.topic, n) for n in range(holding.shards)]
        self._at: dict[Place, Standing] = {}
        self._groups: tuple[Progress, Progress] | None = None

    def initialOffset(self) -> dict[str, int]:
        """Now; the positions to read from are in Kafka."""
        return {"end_ms": self._clock.now_ms()}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002
        """The end of the next batch; `start` again once the service drains.

        Spark calls this when it has committed the batch that ended at `start`: now that counts. The
        first batch is over at once: it only makes Spark load what a batch needs (seconds).
        """
        holding = self.holding
        length_ms = holding.window_ms if self._at else 1
        self._advance(start["end_ms"])
        standings = self._at.values()
        if standings and all(at.drained and at.run == holding.run for at in standings):
            return start
        return {"end_ms": max(self._clock.now_ms() + length_ms, start["end_ms"] + 1)}

    def _advance(self, batch_ms: int) -> None:
        if self._groups is None:
            holding = self.holding
            self._groups = (
                Progress(holding.client, group=holding.group),
                Progress(holding.client, group=holding.prepared),
            )
        done, prepared = self._groups
        if not self._at:
            firsts, known = done.firsts(self._places), done.committed(self._places)
            self._at = {
                place: Standing.of(known[place])
                if place in known and known[place].offset >= first
                else Standing(resume=first)
                for place, first in firsts.items()
            }
            # From now on something may be delivered: a run killed before its first batch counts
            # must not look like one that was stopped.
            self._at = {place: replace(at, drained=False) for place, at in self._at.items()}
            done.commit({place: at.noted() for place, at in self._at.items()})
        noted = {p: Standing.of(k) for p, k in prepared.committed(self._places).items()}
        new = {
            place: at
            for place, at in noted.items()
            if at.run == self.holding.run and at.batch_ms == batch_ms
        }
        done.commit({place: at.noted() for place, at in new.items()})
        self._at |= new

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[HeldSlice]:
        """One task per partition."""
        if start == end:
            return []
        return [
            HeldSlice(
                place.partition,
                at,
                end["end_ms"],
                tuple(
                    (first, last)
                    for first, last in self.holding.arrived.get(str(place.partition), ())
                    if last > at.resume
                ),
            )
            for place, at in self._at.items()
        ]

    def commit(self, end: dict[str, int]) -> None:
        """Nothing: `latestOffset` makes a batch count."""

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield what falls due until the end of the batch."""
        assert isinstance(partition, HeldSlice), partition
        holding = self.holding
        answers = lookups_of(
            holding.run,
            client=holding.client,
            rejected_topic=holding.rejected_topic,
            record_bytes_max=holding.record_bytes_max,
        )
        consumer = open_consumer(holding)
        try:
            task = HoldTask(
                holding, partition, clock=self._clock, answers=answers, consumer=consumer
            )
            yield from task.batches()
        finally:
            consumer.close()
