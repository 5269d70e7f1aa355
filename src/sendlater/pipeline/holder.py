"""Bucket 0 as a Spark streaming source: its tasks hold each record until its millisecond.

A batch lasts until an instant, as a lane's does, and for all its tasks alike: while one has ended
and another has not, nobody delivers from the partition of the first. A task reads one partition
from where the batch before left it, keeps what it has read in due order, and yields what falls due.
What it read and still holds when the batch ends is read again by the next.

Where a partition stands is three numbers: `resume`, from where to read; `read_end` and `end_ms`:
what lies before the one and was due by the other has been delivered. A task notes them under the
group of what is prepared; when Spark has committed the batch, the planner makes them count.
"""

import heapq
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from sendlater.buckets.progress import Committed, Place, Progress
from sendlater.buckets.record import DRAIN, Waiting, parse
from sendlater.clock import Clock, SystemClock
from sendlater.errors import BrokerUnavailable
from sendlater.limits import (
    ADDED_BYTES_MAX,
    BATCH_COUNT_MAX,
    BUCKET_HELD_BYTES_MAX,
    BUCKET_HELD_COUNT_MAX,
    CLAIM_COUNT_MAX,
)
from sendlater.model import Reason
from sendlater.pending.target import Target
from sendlater.pipeline.answers import answers_of

if TYPE_CHECKING:
    import pyarrow as pa

WAIT_S_MAX = 1.0
"""Longest blocking read, so that a task sees in time that it should end."""
UNDECIDED_MS = 50
"""Pause before a target the broker has not told about yet is looked at again."""


Offsets = dict[str, list[list[int]]]
"""Ranges of offsets, [first, end), per partition; in JSON's types, as options are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What the delivering query must know; built from Spark options, which are strings."""

    client: dict[str, str]
    topic: str
    shards: int
    group: str
    prepared: str
    run: str
    window_ms: int
    rejected_topic: str
    arrived: Offsets = field(default_factory=dict)
    """What a dead run had delivered, though no batch of it counts."""

    @classmethod
    def from_options(cls, options: Any) -> "Holding":
        """Read the option that `to_options` wrote."""
        return cls(**json.loads(options["secret.holding"]))

    def to_options(self) -> dict[str, str]:
        """Spark options; the name makes Spark redact passwords in plans."""
        return {
            "pending": "buckets",
            "secret.holding": json.dumps({n: getattr(self, n) for n in self.__slots__}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a partition stands, and of which batch that is the end."""

    resume: int
    read_end: int = 0
    end_ms: int = 0
    run: str = "-"
    batch_ms: int = 0
    drained: bool = False

    @classmethod
    def of(cls, known: Committed) -> "Standing":
        """As it was noted; by somebody else, as a tool that resets offsets, without a note."""
        if not known.note:
            return cls(resume=known.offset)
        read_end, end_ms, run, batch_ms, drained = known.note.split(" ")
        return cls(
            resume=known.offset,
            read_end=int(read_end),
            end_ms=int(end_ms),
            run=run,
            batch_ms=int(batch_ms),
            drained=drained == "drained",
        )

    def noted(self) -> Committed:
        """As it is kept with a group's offsets."""
        drained = "drained" if self.drained else "-"
        note = f"{self.read_end} {self.end_ms} {self.run} {self.batch_ms} {drained}"
        return Committed(self.resume, note)


@dataclass(frozen=True, slots=True)
class HeldSlice(InputPartition):
    """One task: one partition until the end of the batch."""

    partition: int
    standing: Standing
    end_ms: int
    arrived: tuple[tuple[int, int], ...] = ()


class HeldReader(DataSourceStreamReader):
    """Lives on the driver, except `read`, which runs in tasks."""

    def __init__(self, holding: Holding, *, clock: Clock | None = None) -> None:
        self.holding = holding
        self._clock = clock or SystemClock()
        self._places = [Place(holding.topic, n) for n in range(holding.shards)]
        self._at: dict[Place, Standing] = {}
        self._groups: tuple[Progress, Progress] | None = None

    def initialOffset(self) -> dict[str, int]:
        """Now; where to read from is known to Kafka."""
        return {"end_ms": self._clock.now_ms()}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002
        """The end of the next batch; `start` again once the service drains.

        Spark asks when it has committed the batch that ended at `start`: now it counts. The first
        is over at once: all it does is to have Spark load what a batch needs, which takes seconds.
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
        """Nothing: it counts since the batch after was asked for."""

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield what falls due until the end of the batch."""
        assert isinstance(partition, HeldSlice), partition
        holding = self.holding
        answers = answers_of(
            holding.run, client=holding.client, rejected_topic=holding.rejected_topic
        )
        consumer = _consumer(holding)
        try:
            task = HoldTask(
                holding, partition, clock=self._clock, answers=answers, consumer=consumer
            )
            yield from task.batches()
        finally:
            consumer.close()


def _consumer(holding: Holding) -> Consumer:
    """Of one partition, to be assigned; what it reads ahead is bounded."""
    return Consumer(
        {
            **holding.client,
            "group.id": holding.prepared,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 500,
            "queued.max.messages.kbytes": 16 * 1024,
            "log_level": 0,
        }
    )


class Asked(Protocol):
    """Who knows the targets."""

    def ask(self, topic: bytes) -> None:
        """It will be needed soon."""

    def of(self, topic: bytes) -> Target | Reason | None:
        """What it takes, why it takes nothing, or None: not known yet."""


class HoldTask:
    """One task's loop; what it holds lives as long as one batch on one partition."""

    def __init__(
        self,
        holding: Holding,
        held: HeldSlice,
        *,
        clock: Clock,
        answers: Asked,
        consumer: Consumer,
    ) -> None:
        self.holding, self.clock, self.answers = holding, clock, answers
        self.consumer = consumer
        self.before, self.batch_ms, self.end_ms = held.standing, held.end_ms, held.end_ms
        self.place = Place(holding.topic, held.partition)
        self.primer_origin = holding.topic.encode()
        self.arrived = {offset for first, end in held.arrived for offset in range(first, end)}
        self.read_end = self.before.resume
        self.heap: list[tuple[int, int, Waiting]] = []
        self.heap_bytes = 0
        self.seen: set[tuple[Any, ...]] = set()
        self.undecided: list[Waiting] = []
        self.drained = False
        consumer.assign([TopicPartition(*self.place, self.before.resume)])

    def batches(self) -> "Iterator[pa.RecordBatch]":
        """Ends when the instant is reached, the batch is full, or the service drains."""
        while True:
            now_ms = self.clock.now_ms()
            while rows := self._due(min(now_ms, self.end_ms)):
                yield from self._arrow(rows)
            if now_ms >= self.end_ms:
                if not self.undecided and self.read_end >= self.before.read_end:
                    break
                self.end_ms = now_ms + UNDECIDED_MS
            self._read(self._wait_s())
        self._prepare()

    def _wait_s(self) -> float:
        """Until the next is due, the batch ends, or an answer about a target may be there."""
        next_ms = min(self.heap[0][0], self.end_ms) if self.heap else self.end_ms
        left_s = (next_ms - self.clock.now_ms()) / 1_000
        return max(0.0, min(left_s, UNDECIDED_MS / 1_000 if self.undecided else WAIT_S_MAX))

    # --- reading --------------------------------------------------------------------------------

    def _read(self, wait_s: float) -> None:
        """Take what is there, waiting for the first for so long; or only wait when full."""
        held = len(self.heap) + len(self.undecided)
        if held >= BUCKET_HELD_COUNT_MAX or self.heap_bytes >= BUCKET_HELD_BYTES_MAX:
            time.sleep(wait_s)
            return
        first = self.consumer.poll(wait_s)
        if first is None:
            return
        more = self.consumer.consume(CLAIM_COUNT_MAX, 0)
        for message in (first, *more):
            if message.error() is None:
                self._take(message)
        if self.read_end - self.before.resume >= BATCH_COUNT_MAX:
            self.end_ms = min(self.end_ms, self.clock.now_ms())

    def _take(self, message: Any) -> None:
        offset = message.offset()
        self.read_end = offset + 1
        headers = message.headers() or []
        row = parse(offset, message.key(), message.value(), headers)
        if row is None:
            if headers and headers[0] == (DRAIN, self.holding.run.encode()):
                self.drained = True
                self.end_ms = min(self.end_ms, self.clock.now_ms())
            return
        if row.origin[0] == self.primer_origin:
            return
        if offset < self.before.read_end and row.due_ms <= self.before.end_ms:
            return
        # A pass repeated after a crash wrote it twice; both are due in the same millisecond.
        same = (*row.origin, row.id)
        if same in self.seen:
            return
        self.seen.add(same)
        if offset in self.arrived:
            return
        self.answers.ask(row.topic)
        heapq.heappush(self.heap, (row.due_ms, offset, row))
        self.heap_bytes += row.bytes_count

    # --- delivering -----------------------------------------------------------------------------

    def _due(self, until_ms: int) -> list[Waiting]:
        """At most CLAIM_COUNT_MAX that are due and may go, in due order."""
        rows: list[Waiting] = []
        rows += self._decided()
        while self.heap and self.heap[0][0] <= until_ms and len(rows) < CLAIM_COUNT_MAX:
            _, _, row = heapq.heappop(self.heap)
            self.heap_bytes -= row.bytes_count
            checked = self._checked(row)
            if checked is None:
                self.undecided.append(row)
            else:
                rows.append(checked)
        return rows

    def _decided(self) -> Iterator[Waiting]:
        """Of those whose target was not known, the ones whose target is known now."""
        waiting, self.undecided = self.undecided, []
        for row in waiting:
            checked = self._checked(row)
            if checked is None:
                self.undecided.append(row)
            else:
                yield checked

    def _checked(self, row: Waiting) -> Waiting | None:
        """The row, the same for the rejected topic, or None while the broker is undecided."""
        answer = self.answers.of(row.topic)
        if answer is None:
            return None
        if isinstance(answer, Target):
            clear = row.partition is None and (row.key is not None or not answer.compacted)
            if clear and row.bytes_count + ADDED_BYTES_MAX <= answer.record_bytes_max:
                return row
        return self._measured(row, answer)

    def _measured(self, row: Waiting, answer: Target | Reason) -> Waiting | None:
        """The same for a row that stands out, or whose target takes nothing."""
        from sendlater.pipeline.refusal import refusal, rejected

        schedule, topic = row.as_schedule(), self.holding.rejected_topic
        known = {schedule.record.topic: answer}
        refused = refusal(schedule, known.get)
        if refused is None:
            return row
        takes = self.answers.of(topic.encode())
        if takes is None:
            return None
        told = rejected(schedule, refused, {topic: takes}.get, rejected_topic=topic)
        if told is None:
            raise BrokerUnavailable(f"the rejected topic {topic!r} takes no rejected record")
        return row._replace(
            id=told.id,
            topic=told.record.topic.encode(),
            partition=None,
            key=told.record.key,
            value=told.record.value,
            headers=told.record.headers,
            dialect=told.dialect,
        )

    def _arrow(self, rows: list[Waiting]) -> "Iterator[pa.RecordBatch]":
        from sendlater.pending.packing import DIALECT_NUMBER
        from sendlater.pipeline.rows import filler, to_arrow

        columns = zip(
            *(
                (
                    row.due_ms,
                    row.topic,
                    row.partition,
                    row.key,
                    row.value,
                    [part for name, value in row.headers for part in (name.encode(), value)],
                    DIALECT_NUMBER[row.dialect],
                    *row.origin,
                    row.origin_timestamp_ms,
                )
                for row in rows
            ),
            strict=True,
        )
        yield to_arrow([row.id for row in rows], list(columns))
        yield filler(0)

    def _prepare(self) -> None:
        """Note where this partition stands, for the case that Spark commits the batch."""
        at = replace(
            self.before,
            resume=min((row.offset for _, _, row in self.heap), default=self.read_end),
            read_end=self.read_end,
            end_ms=max(self.end_ms, self.before.end_ms),
            run=self.holding.run,
            batch_ms=self.batch_ms,
            drained=self.drained,
        )
        noted = at.noted()
        self.consumer.commit(
            offsets=[TopicPartition(*self.place, noted.offset, noted.note)], asynchronous=False
        )
