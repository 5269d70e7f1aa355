"""A lane task: claims what is due on its shard, and yields it in Arrow batches."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sendlater.clock import Clock
from sendlater.errors import StoreUnavailable
from sendlater.limits import (
    CLAIM_COUNT_MAX,
    PREFETCH_COUNT_MIN,
    WAIT_MS_MAX,
)
from sendlater.spark.delivery.arrived import LOOK_COUNT_MAX, not_arrived
from sendlater.spark.delivery.executor_clock import require_clock
from sendlater.spark.delivery.expired import expired_rows, take_out
from sendlater.spark.delivery.known_targets import KnownTargets, Needs
from sendlater.spark.delivery.lateness import NO_WAITS, LatenessReport
from sendlater.spark.delivery.prefetched import Chunk, Prefetched
from sendlater.spark.delivery.recurring import as_sent, occurrences
from sendlater.spark.pipe import pass_on
from sendlater.spark.spans import spans_of
from sendlater.store import Ahead, Batch, Claim, Shard
from sendlater.store.codec import EXPIRES, due_of
from sendlater.store.expiring import expire
from sendlater.store.recurring import renew
from sendlater.store.succession import shares
from sendlater.store.waiting import Waiting, rates_of
from sendlater.store.wakeup import Wake, wake_readers

if TYPE_CHECKING:
    import pyarrow as pa

from sendlater.spark.delivery.lane import Lane, ShardSlice, leads_in_ms, pause_ms

SPIN_MS = 0.5
"""Shortest wait: the clock counts whole milliseconds, and the next one may begin at once."""
TRIAL_COUNT, TRIAL_PAUSE_MS = 3, 50
"""What is claimed, and how often, while the last owner still delivers: the first deliveries of a
JVM take long, so they are few."""
HELD_PAUSE_MS = 20
"""Pause before a task tries again to claim what waits for intake."""
PREFETCH_LOOK_MS = 100
"""How often a task that holds nothing looks whether there is something to prefetch."""
TELL_BURST_MS = 100
"""How often a task at most says that a burst leaves."""
TOOK_WEIGHT = 0.25
"""Of the last claim in what a claim takes."""


class ShardTask:
    """One attempt of Spark at one batch on one shard, and its state."""

    def __init__(
        self, lane: Lane, shard: Shard, wake: Wake, part: ShardSlice, clock: Clock
    ) -> None:
        self.lane, self.shard, self.wake, self.clock = lane, shard, wake, clock
        self.end_ms = part.end_ms
        # A clock that goes back must not make the batch longer.
        left_ms = min(part.end_ms - clock.now_ms(), part.length_ms)
        self.ends_at = clock.elapsed_ms() + left_ms
        self.batch = Batch(lane.lane, lane.run, part.end_ms, part.number)
        self.attempt = uuid.uuid4().hex
        self.targets = KnownTargets(shard, clock)
        self.told = LatenessReport(shard, clock)
        self.spans = spans_of("deliver", clock)
        rates = rates_of(lane.limits)
        self.waiting = Waiting(shard, rates, owner=lane.owner, shards=lane.shards)
        self.on_trial = lane.inherits
        self.took_ms = 0.0
        """What a claim has taken of late, with all that follows until Spark has its rows."""
        self.prefetched = Prefetched(bytes_max=lane.prefetch_bytes_max)
        plain = not (lane.journals or lane.limits or self.spans)
        self.looks_ahead = plain and lane.prefetch_ms > 0
        """What is counted, planned or traced as it is claimed is not claimed ahead."""
        self.look_ahead_ms = self.latest_ms = self.tell_burst_ms = 0

    def batches(self) -> "Iterator[pa.RecordBatch]":
        """Ends at the batch's end, when the batch is full, or when the service drains."""
        if skew_ms_max := self.lane.clock_skew_ms_max:
            require_clock(self.shard, self.clock, skew_ms_max=skew_ms_max)
        try:
            is_open, got = self._begun()
            if got.ids:
                self.looks_ahead = False
                yield from self._again(self._not_arrived(got))
            if not is_open:
                return
            yield from self._claims(len(got.ids), sum(map(len, got.packed)))
            if self.prefetched:
                self.shard.recall(self.batch.name)
            self.shard.close(self.batch, owner=self.lane.owner, attempt=self.attempt)
        finally:
            self.told.flush()

    def _begun(self) -> tuple[bool, Claim]:
        """Whether the batch takes more, and what it holds. With Kafka that is looked up."""
        count_max = LOOK_COUNT_MAX if self.lane.broker_url else None
        begun = self.shard.attempt(
            self.batch, owner=self.lane.owner, attempt=self.attempt, count_max=count_max
        )
        is_open = begun is not None
        return is_open, begun or self.shard.claimed(self.batch, count_max=count_max)

    def _not_arrived(self, got: Claim) -> Claim:
        """What is left of it. Without Kafka an earlier attempt has delivered nothing."""
        if not self.lane.broker_url:
            return got
        return not_arrived(self.lane, self.shard, got, end_ms=self.end_ms, clock=self.clock)

    def _again(self, got: Claim) -> "Iterator[pa.RecordBatch]":
        """What an earlier attempt has claimed."""
        for first in range(0, len(got.ids), CLAIM_COUNT_MAX):
            chunk = slice(first, first + CLAIM_COUNT_MAX)
            yield from self._arrow(Claim(got.ids[chunk], got.packed[chunk]))

    def _claims(self, count: int, size: int) -> "Iterator[pa.RecordBatch]":
        count_max, bytes_max = self.lane.batch_max
        while (room := count < count_max and size < bytes_max) or self.prefetched:
            now_ms, began_ms = self.clock.now_ms(), self.clock.elapsed_ms()
            ending = now_ms >= self.end_ms or began_ms >= self.ends_at
            self.on_trial = self.on_trial and shares(self.shard, self.lane.owner)
            most = TRIAL_COUNT if self.on_trial else self.lane.claim_count
            got = self.shard.claim(
                self.batch,
                owner=self.lane.owner,
                now_ms=min(now_ms, self.end_ms),
                count_max=most if room else 0,
                attempt=self.attempt,
                limits=self.waiting.given(),
                ahead=self._ahead(now_ms),
            )
            if got.draining:
                return
            reserved = self.waiting.reserved(got, min(now_ms, self.end_ms))
            next_ms = self.waiting.sooner(got.next_due_ms)
            count += len(got.ids)
            size += sum(map(len, got.packed))
            if got.ripe_ms is not None and (self.prefetched.began or _has_later(got)):
                yield from self._ripe(got)
                next_ms = min(next_ms or self.end_ms, self.prefetched.next_ms or self.end_ms)
            elif got.ids:
                yield from self._arrow(got)
            if got.ids:
                self.took_ms += TOOK_WEIGHT * (self.clock.elapsed_ms() - began_ms - self.took_ms)
                if self.on_trial:
                    time.sleep(TRIAL_PAUSE_MS / 1000)
                elif len(got.ids) < self.lane.claim_count // 4 and not reserved:
                    self._wait(next_ms, self.clock.now_ms(), count=len(got.ids))
            elif reserved:
                continue
            elif ending:
                return
            elif got.heir:
                # The wake that comes with the space must be answered at once, others now and then.
                time.sleep(HELD_PAUSE_MS / 1000)
                self.wake.wait(min(max(self.end_ms - now_ms, SPIN_MS), WAIT_MS_MAX))
            elif got.held or (got.ripe_ms is not None and (next_ms or now_ms + 1) <= now_ms):
                self.wake.wait(HELD_PAUSE_MS)
            else:
                self._wait(next_ms, now_ms)

    def _ahead(self, now_ms: int) -> Ahead:
        """What may be prefetched now. Nothing while a clock that went back has not caught up: what
        has left would look as if it were not due."""
        caught_up, self.latest_ms = now_ms >= self.latest_ms, max(now_ms, self.latest_ms)
        began = self.prefetched.began
        may = self.looks_ahead and caught_up and not (self.on_trial or self.prefetched.is_full)
        if not may or now_ms < self.look_ahead_ms:
            return Ahead(holds=began)
        self.look_ahead_ms = now_ms + PREFETCH_LOOK_MS
        to_ms = min(now_ms + self.lane.prefetch_ms, self.end_ms)
        return Ahead(to_ms, 1 if self.prefetched else PREFETCH_COUNT_MIN, holds=began)

    def _ripe(self, got: Claim) -> "Iterator[pa.RecordBatch]":
        """Keep what a claim has found ahead, and yield all that is due by it."""
        self.prefetched.drop(got.recalled)
        if got.ids:
            self.prefetched.put(self._chunk(got))
        if len(got.ids) == self.lane.claim_count:
            self.look_ahead_ms = 0
        for chunk in self.prefetched.ripe(got.ripe_ms or 0):
            if chunk.sent is not None and self._takes(chunk.needs):
                yield from self._pass(chunk.sent, chunk.ids, chunk.due_ms, chunk.topics)
            elif (again := self.shard.rows(self.batch, chunk.ids)).ids:
                yield from self._arrow(again)

    def _takes(self, needs: Needs) -> bool:
        if self.lane.check_targets:
            return self.targets.take_all(needs)
        return not needs.placed  # a partition that its topic on Redis may not have

    def _chunk(self, got: Claim) -> Chunk:
        from sendlater.spark.arrow_rows import KIND, to_sent, unpack_columns

        columns = unpack_columns(got.packed)
        sent = to_sent(got.ids, columns) if max(columns[KIND]) < EXPIRES else None
        needs = Needs.of(got.ids, got.packed, columns)
        return Chunk(got.ids, _once(columns[0]), _once(columns[1]), needs, sent)

    def _watches_ms(self, now_ms: int) -> int:
        """How long this task only watches: for a pause, or until it leads. 0: it leads."""
        if self.prefetched:
            return 0
        lane, end_ms = self.lane, self.end_ms
        leads_ms = leads_in_ms(now_ms, end_ms=end_ms, lanes=lane.lanes, window_ms=lane.window_ms)
        return min(leads_ms, lane.standby_poll_ms)

    def _wait(self, next_due_ms: int | None, now_ms: int, *, count: int = 0) -> None:
        """Sleep for a pause after a claim of so many rows, and until the next due time, the end, or
        until something earlier is parked. That wakes all lanes: only the one that leads claims it
        before the pause is over.
        """
        next_ms = self.end_ms if next_due_ms is None else next_due_ms
        pauses_ms = self._watches_ms(now_ms)
        if not pauses_ms:
            pauses_ms = pause_ms(self.lane.poll_ms, count=count, took_ms=self.took_ms)
        left_ms = min(self.end_ms, max(next_ms, now_ms + pauses_ms)) - now_ms
        woken = self.wake.wait(min(max(left_ms, SPIN_MS), WAIT_MS_MAX))
        # Whoever led when the wait began may have ended its batch since.
        if woken and (watches_ms := self._watches_ms(self.clock.now_ms())):
            time.sleep(watches_ms / 1000)

    def _arrow(self, got: Claim) -> "Iterator[pa.RecordBatch]":
        from sendlater.spark.arrow_rows import KIND, unpack_columns

        columns = unpack_columns(got.packed)
        if (found := self._recurring(got, columns[KIND])) is None:
            yield from self._rows(got, columns)
            return
        instead, again = found
        if instead.ids:
            yield from self._rows(instead, unpack_columns(instead.packed))
        renew(self.shard, self.batch, again, owner=self.lane.owner, attempt=self.attempt)

    def _rows(self, got: Claim, columns: list[Sequence[Any]]) -> "Iterator[pa.RecordBatch]":
        from sendlater.spark.arrow_rows import KIND

        ids, packed = got.ids, got.packed
        left_out = self._expired(got, columns[KIND])
        if self.lane.check_targets:
            refused = self.targets.refused(got, columns) - left_out
            if refused:
                self.shard.set_aside(self.batch, [ids[i] for i in refused], attempt=self.attempt)
                left_out |= refused
        elif columns[2].count(None) < len(ids):
            left_out |= self._misdirected(got)
        if left_out:
            keep = [i for i in range(len(ids)) if i not in left_out]
            if not keep:
                return
            ids, packed = [ids[i] for i in keep], [packed[i] for i in keep]
            columns = [tuple(column[i] for i in keep) for column in columns]
        if self.spans:
            rows = (row or () for row in columns[5])
            pairs = (zip(row[::2], row[1::2], strict=True) for row in rows)
            self.spans.take(ids, columns[0], columns[1], pairs)
        leaving = self._leaving(ids, packed, columns)
        yield from self._pass(leaving, ids, columns[0], columns[1], got.waited_ms)
        if self.spans:
            self.spans.end()

    def _pass(
        self,
        leaving: "pa.RecordBatch",
        ids: Sequence[bytes],
        due_ms: Sequence[int],
        topics: Sequence[bytes],
        waited_ms: Mapping[bytes, int] = NO_WAITS,
    ) -> "Iterator[pa.RecordBatch]":
        from sendlater.spark.arrow_rows import filler

        if len(ids) >= self.lane.claim_count:
            self._tell_burst()
        yield leaving
        if self.lane.filler_rows:
            yield filler(self.lane.filler_rows, sent=True)
        yield filler(0, sent=not self.lane.journals)
        pass_on()
        # After the yields, so that time spent waiting for a busy JVM counts as lateness.
        self.told.delivered(ids, due_ms, topics, waited_ms)

    def _tell_burst(self) -> None:
        """To the service: see `BurstLinger`. A full store takes no such word, but gives rows."""
        if self.clock.now_ms() >= self.tell_burst_ms:
            self.tell_burst_ms = self.clock.now_ms() + TELL_BURST_MS
            first = self.shard.beside(0)
            with suppress(StoreUnavailable):
                wake_readers(first.client, first.keys["bursts"])

    def _recurring(self, got: Claim, kinds: Sequence[int]) -> tuple[Claim, list[bytes]] | None:
        """The claim with occurrences of what recurs, and its ids; None if nothing does."""
        return occurrences(
            self.shard,
            self.batch,
            got,
            kinds,
            owner=self.lane.owner,
            attempt=self.attempt,
            now_ms=self.clock.now_ms(),
            journals=self.lane.journals.split(","),
        )

    def _leaving(
        self, ids: Sequence[bytes], packed: Sequence[bytes], columns: Sequence[Sequence[Any]]
    ) -> "pa.RecordBatch":
        """The records; of what was read from a journal SQL makes them, see `lane_stages`."""
        from sendlater.spark.arrow_rows import to_arrow, to_sent

        if not self.lane.journals:
            return to_sent(ids, columns)
        journals, history = self.lane.journals.split(","), self.lane.history_topic
        return to_arrow(*as_sent(ids, packed, columns, journals=journals, history_topic=history))

    def _expired(self, got: Claim, kinds: Sequence[int]) -> set[int]:
        """Rows that have expired; something else waits in their place now."""
        expired = expired_rows(got, kinds, self.clock)
        if expired:
            self.told.counts += take_out(
                self.shard,
                self.batch,
                list(expired.values()),
                owner=self.lane.owner,
                attempt=self.attempt,
                now_ms=self.clock.now_ms(),
                dead_topic=self.lane.dead_topic,
                journals=self.lane.journals.split(","),
            )
        return set(expired)

    def _misdirected(self, got: Claim) -> set[int]:
        """Rows for a partition that their topic on Redis does not have; the same."""
        from sendlater.spark.delivery.misdirected import misdirected

        instead = misdirected(self.lane, got)
        owner = self.lane.owner
        expire(self.shard, self.batch, instead.items(), owner=owner, attempt=self.attempt)
        return {n for n, one in enumerate(got.ids) if one in instead}


def _has_later(got: Claim) -> bool:
    """Whether a claim has found rows that are not ripe."""
    return bool(got.packed) and due_of(got.packed[-1]) > (got.ripe_ms or 0)


def _once(column: Sequence[Any]) -> Sequence[Any]:
    """The same with one object in each place where all are equal: a task may hold a million."""
    return [column[0]] * len(column) if len(set(column)) == 1 else column
