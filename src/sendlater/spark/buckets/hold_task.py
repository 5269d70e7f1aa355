"""A delivering task of the buckets: holds each record until its millisecond."""

import heapq
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from confluent_kafka import Consumer, TopicPartition

from sendlater.brokers.group_offsets import Place
from sendlater.brokers.message_headers import headers_of
from sendlater.clock import Clock
from sendlater.errors import BrokerUnavailable
from sendlater.limits import (
    ADDED_BYTES_MAX,
    BUCKET_HELD_BYTES_MAX,
    BUCKET_HELD_COUNT_MAX,
    CLAIM_COUNT_MAX,
    WHOLE_BATCH_COUNT_MAX,
)
from sendlater.model import Reason, Target
from sendlater.spark.buckets.record import DRAIN, SCHEDULE, Waiting, parse

if TYPE_CHECKING:
    import pyarrow as pa
from sendlater.spark.buckets.holding import HeldSlice, Holding
from sendlater.spark.pipe import pass_on

WAIT_S_MAX = 1.0
"""Longest blocking read, so that a task notices in time that it should end."""
UNDECIDED_MS = 50
"""Pause between two checks of a target that is still being looked up."""
OVERTIME_MS_MAX = 5_000
"""For so long a batch goes on for everybody while targets are looked up. Then it takes up nothing
more until it is over: with new unknown targets all the time it would never end."""

_log = structlog.get_logger()


class Asked(Protocol):
    """What a task needs of `TargetLookups`."""

    def ask(self, topic: bytes) -> None:
        """Look a topic up: it is needed soon."""

    def of(self, topic: bytes) -> Target | Reason | None:
        """What it takes, why it takes nothing, or None: not known yet."""


class HoldTask:
    """One task's loop: one batch on one partition."""

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
        self.before, self.batch_ms = held.standing, held.end_ms
        # Ours may be sooner than the last one where the clock was set back: what is due between the
        # two, and was read since, would count as delivered.
        self.end_ms = max(held.end_ms, self.before.end_ms)
        self.place = Place(holding.topic, held.partition)
        self.primer_origin = holding.topic.encode()
        self.arrived = {offset for first, end in held.arrived for offset in range(first, end)}
        self.read_end = self.before.resume
        self.heap: list[tuple[int, int, Waiting]] = []
        self.held_bytes = 0
        self.seen: set[tuple[Any, ...]] = set()
        self.undecided: list[Waiting] = []
        self.drained = self.closed = False
        consumer.assign([TopicPartition(*self.place, self.before.resume)])

    def batches(self) -> "Iterator[pa.RecordBatch]":
        """Ends at the batch's end, when the batch is full, or when the service drains."""
        over_ms: int | None = None
        while True:
            now_ms = self.clock.now_ms()
            while rows := self._due(min(now_ms, self.end_ms)):
                yield from self._arrow(rows)
            if now_ms >= self.end_ms:
                behind = self.read_end < self.before.read_end
                if not self.undecided and not behind:
                    break
                over_ms = now_ms if over_ms is None else over_ms
                self.closed = not behind and now_ms >= over_ms + OVERTIME_MS_MAX
                if not self.closed:
                    self.end_ms = now_ms + UNDECIDED_MS
            self._read(self._wait_s())
        self._prepare()

    def _wait_s(self) -> float:
        """Until the next is due, the batch ends, or a target may be known."""
        if self.closed:
            return UNDECIDED_MS / 1_000
        next_ms = min(self.heap[0][0], self.end_ms) if self.heap else self.end_ms
        left_s = (next_ms - self.clock.now_ms()) / 1_000
        return max(0.0, min(left_s, UNDECIDED_MS / 1_000 if self.undecided else WAIT_S_MAX))

    # --- reading --------------------------------------------------------------------------------

    def _read(self, wait_s: float) -> None:
        """Read what is there, after waiting `wait_s` at most; if full, only wait."""
        held = len(self.heap) + len(self.undecided)
        if held >= BUCKET_HELD_COUNT_MAX or self.held_bytes >= BUCKET_HELD_BYTES_MAX:
            time.sleep(wait_s)
            return
        first = self.consumer.poll(wait_s)
        if first is None:
            return
        more = self.consumer.consume(CLAIM_COUNT_MAX, 0)
        for message in (first, *more):
            if message.error() is None:
                self._take(message)
        if self.read_end - self.before.resume >= WHOLE_BATCH_COUNT_MAX:
            self._end_soon()

    def _end_soon(self) -> None:
        """End now, but not before the end of the last batch."""
        self.end_ms = max(self.before.end_ms, min(self.end_ms, self.clock.now_ms()))

    def _take(self, message: Any) -> None:
        offset = message.offset()
        self.read_end = offset + 1
        headers = headers_of(message, unreadable=[]) or []
        row = parse(offset, message.key(), message.value(), headers)
        if row is None:
            if headers and headers[0] == (DRAIN, self.holding.run.encode()):
                self.drained = True
                self._end_soon()
            elif headers and headers[0][0] == SCHEDULE:
                _tell_unreadable(self.place, offset)
            return
        if row.origin[0] == self.primer_origin:
            return
        if offset < self.before.read_end and row.due_ms <= self.before.end_ms:
            return
        # A pass repeated after a crash wrote it twice; both copies are due in the same
        # millisecond.
        same = (row.due_ms, *row.origin, row.id)
        if same in self.seen:
            return
        self.seen.add(same)
        if offset in self.arrived:
            return
        self.answers.ask(row.topic)
        heapq.heappush(self.heap, (row.due_ms, offset, row))
        self.held_bytes += row.bytes_count

    # --- delivering -----------------------------------------------------------------------------

    def _due(self, until_ms: int) -> list[Waiting]:
        """At most CLAIM_COUNT_MAX that are due and whose target is known, in due order."""
        rows: list[Waiting] = []
        rows += self._decided()
        while self.heap and self.heap[0][0] <= until_ms and len(rows) < CLAIM_COUNT_MAX:
            _, _, row = heapq.heappop(self.heap)
            checked = self._checked(row)
            if checked is None:
                self.undecided.append(row)
            else:
                self.held_bytes -= row.bytes_count
                rows.append(checked)
        return rows

    def _decided(self) -> Iterator[Waiting]:
        """The rows that waited for their target and have a known one now."""
        waiting, self.undecided = self.undecided, []
        for row in waiting:
            checked = self._checked(row)
            if checked is None:
                self.undecided.append(row)
            else:
                self.held_bytes -= row.bytes_count
                yield checked

    def _checked(self, row: Waiting) -> Waiting | None:
        """The row, or the same for the rejected topic, or None while the target is not known."""
        answer = self.answers.of(row.topic)
        if answer is None:
            return None
        if isinstance(answer, Target):
            clear = row.partition is None and (row.key is not None or not answer.compacted)
            if clear and row.bytes_count + ADDED_BYTES_MAX <= answer.record_bytes_max:
                return row
        return self._measured(row, answer)

    def _measured(self, row: Waiting, answer: Target | Reason) -> Waiting | None:
        """The same for an unusual row, or one whose target takes nothing."""
        from sendlater.spark.delivery.refusal import refusal, rejected

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
        from sendlater.spark.arrow_rows import filler, to_sent
        from sendlater.store.codec import DIALECT_NUMBER

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
        yield to_sent([row.id for row in rows], list(columns))
        yield filler(0, sent=True)
        pass_on()

    def _prepare(self) -> None:
        """Commit this partition's state; it counts only when Spark has committed the batch."""
        at = replace(
            self.before,
            resume=min((row.offset for _, _, row in self.heap), default=self.read_end),
            read_end=self.read_end,
            end_ms=self.end_ms,
            run=self.holding.run,
            batch_ms=self.batch_ms,
            # Another partition may be asked only in the batch after this one's.
            drained=self.drained or (self.before.drained and self.before.run == self.holding.run),
        )
        noted = at.noted()
        self.consumer.commit(
            offsets=[TopicPartition(*self.place, noted.offset, noted.note)], asynchronous=False
        )


_told_unreadable: set[Place] = set()
"""Partitions about which it was said: each batch reads such a record again while others wait."""


def _tell_unreadable(place: Place, offset: int) -> None:
    if place not in _told_unreadable:
        _told_unreadable.add(place)
        _log.error(
            "a record of a bucket is no schedule and is passed over; somebody else wrote it",
            place=place,
            offset=offset,
        )
