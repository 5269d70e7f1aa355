"""A lane task: claims what is due on its shard, and yields it in Arrow batches."""

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sendlater.clock import Clock
from sendlater.limits import (
    ADDED_BYTES_MAX,
    BATCH_BYTES_MAX,
    BATCH_COUNT_MAX,
    CLAIM_COUNT_MAX,
    WAIT_MS_MAX,
)
from sendlater.model import Target
from sendlater.spark.delivery.arrived import not_arrived
from sendlater.spark.delivery.executor_clock import require_clock
from sendlater.spark.delivery.expired import expired_rows, take_out
from sendlater.spark.delivery.lateness import LatenessReport
from sendlater.spark.delivery.recurring import as_sent, occurrences
from sendlater.spark.pipe import pass_on
from sendlater.spark.spans import spans_of
from sendlater.store import Batch, Claim, Shard
from sendlater.store.codec import unpack
from sendlater.store.expiring import expire
from sendlater.store.recurring import renew
from sendlater.store.succession import shares
from sendlater.store.waiting import Waiting, rates_of
from sendlater.store.wakeup import Wake

if TYPE_CHECKING:
    import pyarrow as pa

from sendlater.spark.delivery.lane import Lane, ShardSlice, leads, pause_ms

SPIN_MS = 0.5
"""Shortest wait: the clock counts whole milliseconds, and the next one may begin at once."""
TARGETS_REFRESH_MS = 200
"""How long a task uses its copy of the known target topics."""
TRIAL_COUNT, TRIAL_PAUSE_MS = 3, 50
"""What is claimed, and how often, while the last owner still delivers: the first deliveries of a
JVM take long, so they are few."""
HELD_PAUSE_MS = 20
"""Pause before a task tries again to claim what waits for intake."""
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
        self.targets: dict[bytes, Target] = {}
        self.targets_until_ms = 0
        self.told = LatenessReport(shard, clock)
        self.spans = spans_of("deliver", clock)
        rates = rates_of(lane.limits)
        self.waiting = Waiting(shard, rates, owner=lane.owner, shards=lane.shards)
        self.on_trial = lane.inherits
        self.took_ms = 0.0
        """What a claim has taken of late, with all that follows until Spark has its rows."""

    def batches(self) -> "Iterator[pa.RecordBatch]":
        """Ends at the batch's end, when the batch is full, or when the service drains."""
        if skew_ms_max := self.lane.clock_skew_ms_max:
            require_clock(self.shard, self.clock, skew_ms_max=skew_ms_max)
        try:
            open_with = self.shard.attempt(self.batch, owner=self.lane.owner, attempt=self.attempt)
            got = self.shard.claimed(self.batch) if open_with is None else open_with
            if got.ids:
                yield from self._again(self._not_arrived(got))
            if open_with is None:
                return
            yield from self._claims(len(got.ids), sum(map(len, got.packed)))
            self.shard.close(self.batch, owner=self.lane.owner, attempt=self.attempt)
        finally:
            self.told.flush()

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
        while count < BATCH_COUNT_MAX and size < BATCH_BYTES_MAX:
            now_ms, began_ms = self.clock.now_ms(), self.clock.elapsed_ms()
            ending = now_ms >= self.end_ms or began_ms >= self.ends_at
            self.on_trial = self.on_trial and shares(self.shard, self.lane.owner)
            got = self.shard.claim(
                self.batch,
                owner=self.lane.owner,
                now_ms=min(now_ms, self.end_ms),
                count_max=TRIAL_COUNT if self.on_trial else self.lane.claim_count,
                attempt=self.attempt,
                limits=self.waiting.given(),
            )
            if got.draining:
                return
            reserved = self.waiting.reserved(got, min(now_ms, self.end_ms))
            next_ms = self.waiting.sooner(got.next_due_ms)
            if got.ids:
                count += len(got.ids)
                size += sum(map(len, got.packed))
                yield from self._arrow(got)
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
            elif got.held:
                self.wake.wait(HELD_PAUSE_MS)
            else:
                self._wait(next_ms, now_ms)

    def _leads(self, now_ms: int) -> bool:
        lane = self.lane
        return leads(now_ms, end_ms=self.end_ms, lanes=lane.lanes, window_ms=lane.window_ms)

    def _wait(self, next_due_ms: int | None, now_ms: int, *, count: int = 0) -> None:
        """Sleep for a pause after a claim of so many rows, and until the next due time, the end, or
        until something earlier is parked. That wakes all lanes: only the one that leads claims it
        before the pause is over.
        """
        next_ms = self.end_ms if next_due_ms is None else next_due_ms
        pauses_ms = self.lane.standby_poll_ms
        if self._leads(now_ms):
            pauses_ms = pause_ms(self.lane.poll_ms, count=count, took_ms=self.took_ms)
        left_ms = min(self.end_ms, max(next_ms, now_ms + pauses_ms)) - now_ms
        woken = self.wake.wait(min(max(left_ms, SPIN_MS), WAIT_MS_MAX))
        # Whoever led when the wait began may have ended its batch since.
        if woken and not self._leads(self.clock.now_ms()):
            time.sleep(self.lane.standby_poll_ms / 1000)

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
        from sendlater.spark.arrow_rows import KIND, filler

        ids, packed = got.ids, got.packed
        left_out = self._expired(got, columns[KIND])
        if self.lane.check_targets:
            refused = self._refused(got, columns) - left_out
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
        yield self._leaving(ids, packed, columns)
        if self.lane.filler_rows:
            yield filler(self.lane.filler_rows, sent=True)
        yield filler(0, sent=not self.lane.journals)
        pass_on()
        # After the yields, so that time spent waiting for a busy JVM counts as lateness.
        self.told.delivered(ids, columns[0], columns[1], got.waited_ms)
        if self.spans:
            self.spans.end()

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

    def _refused(self, got: Claim, columns: list[Sequence[Any]]) -> set[int]:
        """Rows of which it is not known that their target takes them; an old list is read again.

        Nearly always one check of the whole claim is enough; only unusual rows are measured.
        """
        ids, packed = got.ids, got.packed
        topics, partitions, keys, sources = columns[1], columns[2], columns[3], set(columns[7])
        now_ms = self.clock.now_ms()
        wanted = set(topics)
        if now_ms >= self.targets_until_ms or not wanted <= self.targets.keys():
            # An emptied store knows none. What was claimed before is delivered: a later occurrence
            # of its schedule may have told the journal already where the plan stands.
            self.targets = self.shard.targets() or self.targets
            self.targets_until_ms = now_ms + TARGETS_REFRESH_MS
        known = self.targets
        copies = {copy.encode() for topic in sources & known.keys() for copy in known[topic].copies}
        given = [known[topic] for topic in (wanted | copies) & known.keys()]
        # A delivered record has its id in three places at most.
        bytes_max = min((target.record_bytes_max for target in given), default=0) - ADDED_BYTES_MAX
        keyless = None in keys and any(target.compacted for target in given)
        longest = max(map(len, packed)) + 3 * max(map(len, ids))
        clear = longest <= bytes_max and not keyless and partitions.count(None) == len(ids)
        if clear and wanted <= known.keys():
            return set()

        def stands_out(i: int) -> bool:
            return (
                len(packed[i]) + 3 * len(ids[i]) > bytes_max
                or (keyless and keys[i] is None)
                or (partitions[i] or 0) >= known[topics[i]].partitions
            )

        return {
            i
            for i, topic in enumerate(topics)
            if topic not in known or (stands_out(i) and self._is_refused(ids[i], packed[i]))
        }

    def _is_refused(self, schedule_id: bytes, packed: bytes) -> bool:
        from sendlater.spark.delivery.refusal import refusal

        schedule = unpack(schedule_id, packed)
        return refusal(schedule, lambda topic: self.targets.get(topic.encode())) is not None
