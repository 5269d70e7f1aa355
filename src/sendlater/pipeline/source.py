"""The pending store as a Spark streaming source: its offsets are instants.

A batch lasts until the instant that is its end. Its tasks, one per shard, claim what has fallen due
and yield it at once. Two lanes whose ends are half a window apart hide each other's pauses.
"""

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from sendlater.clock import Clock, SystemClock
from sendlater.limits import (
    ADDED_BYTES_MAX,
    BATCH_BYTES_MAX,
    BATCH_COUNT_MAX,
    CLAIM_COUNT_MAX,
    WAIT_MS_MAX,
)
from sendlater.pending import Batch, Claim, Pending, Shard, Target
from sendlater.pending.connect import connect
from sendlater.pending.wake import Wake
from sendlater.pipeline.told import Told

if TYPE_CHECKING:
    import pyarrow as pa

    from sendlater.config import Settings

LEAD_MS = 200
"""Shortest batch: planning and starting one takes this long."""
SPIN_MS = 0.5
"""Shortest wait: the clock counts whole milliseconds, and the next may be a moment away."""
TARGETS_REFRESH_MS = 2_000
"""How long a task trusts its copy of the known target topics."""
HELD_PAUSE_MS = 20
"""Pause before a task looks again whether what is due may go: intake has to catch up first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What a lane's reader and tasks must know; built from Spark options, which are strings."""

    redis_url: str
    space: str
    shards: int
    owner: int
    lane: int
    lanes: int
    run: int
    window_ms: int
    idle_window_ms: int
    poll_ms: int
    standby_poll_ms: int
    claim_count: int
    check_targets: bool
    filler_rows: int = 0

    @classmethod
    def of(cls, settings: "Settings", *, redis_url: str, owner: int, lane: int, run: int) -> "Lane":
        """A lane of an installation."""
        same = ("space", "shards", "lanes", "window_ms", "idle_window_ms")
        more = ("poll_ms", "standby_poll_ms", "claim_count")
        return cls(
            redis_url=redis_url,
            owner=owner,
            lane=lane,
            run=run,
            check_targets=settings.on_kafka,
            **{name: getattr(settings, name) for name in (*same, *more)},
        )

    @classmethod
    def from_options(cls, options: Any) -> "Lane":
        """Read the options that `to_options` wrote."""
        numbers = ("shards", "owner", "lane", "lanes", "run", "window_ms", "idle_window_ms")
        return cls(
            redis_url=options["redis.url"],
            space=options["space"],
            poll_ms=int(options.get("poll_ms", 2)),
            standby_poll_ms=int(options.get("standby_poll_ms", 2)),
            claim_count=int(options.get("claim_count", CLAIM_COUNT_MAX)),
            check_targets=options.get("check_targets", "false") == "true",
            filler_rows=int(options.get("filler_rows", 0)),
            **{name: int(options[name]) for name in numbers},
        )

    def to_options(self) -> dict[str, str]:
        """Spark options; the URL's name makes Spark redact it in plans."""
        options = {name: str(getattr(self, name)) for name in self.__slots__ if name != "redis_url"}
        return options | {
            "redis.url": self.redis_url,
            "check_targets": str(self.check_targets).lower(),
        }


@dataclass(frozen=True, slots=True)
class ShardSlice(InputPartition):
    """One task: one shard until the end of the batch, which comes in `length_ms` at the latest."""

    shard: int
    end_ms: int
    number: int
    length_ms: int


def batch_end_ms(now_ms: int, *, lane: int, lanes: int, window_ms: int, length_ms: int) -> int:
    """The first instant of the lane's grid at least LEAD_MS away, plus whole windows up to length.

    >>> batch_end_ms(10_000, lane=0, lanes=2, window_ms=2_000, length_ms=2_000)
    12000
    >>> batch_end_ms(10_000, lane=1, lanes=2, window_ms=2_000, length_ms=2_000)
    11000
    """
    phase = lane * window_ms // lanes
    end = ((now_ms + LEAD_MS - phase) // window_ms + 1) * window_ms + phase
    return end + max(0, (length_ms - window_ms) // window_ms) * window_ms


def leads(now_ms: int, *, end_ms: int, lanes: int, window_ms: int) -> bool:
    """Whether a lane is in the middle of its batch, where no other is: it claims for all.

    The others, close to a pause or just out of one, only look now and then in case it is not there.
    A batch of several windows, as when nothing is due soon, leads in the middle of each.

    >>> [leads(at, end_ms=4_000, lanes=2, window_ms=2_000) for at in (2_499, 2_500, 3_499, 3_500)]
    [False, True, True, False]
    """
    left_ms = (end_ms - now_ms - 1) % window_ms + 1
    margin_ms = (window_ms - window_ms // lanes) // 2
    return margin_ms < left_ms <= margin_ms + window_ms // lanes


class DueReader(DataSourceStreamReader):
    """Lives on the driver, except `read`, which runs in tasks."""

    def __init__(self, lane: Lane, *, clock: Clock | None = None) -> None:
        self.lane = lane
        self._clock = clock or SystemClock()

    def _pending(self) -> Pending:
        lane = self.lane
        return Pending(connect(lane.redis_url), space=lane.space, shards=lane.shards)

    def initialOffset(self) -> dict[str, int]:
        """Now: what fell due before is claimed by the first batch all the same."""
        return {"batch": 0, "end_ms": self._clock.now_ms()}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002
        """The end of the next batch; `start` again once the service drains.

        Batches are numbered, as the clock may be put back: then an end is before the last one.
        A limit on rows has no meaning here: the end is an instant, and claims are bounded.
        """
        lane, pending, now_ms = self.lane, self._pending(), self._clock.now_ms()
        if pending.draining(owner=lane.owner):
            return start
        head = pending.oldest_due_ms()
        idle = head is None or head > now_ms + lane.idle_window_ms
        end_ms = batch_end_ms(
            now_ms,
            lane=lane.lane,
            lanes=lane.lanes,
            window_ms=lane.window_ms,
            length_ms=lane.idle_window_ms if idle else lane.window_ms,
        )
        return {"batch": start["batch"] + 1, "end_ms": end_ms}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[ShardSlice]:
        """One task per shard."""
        if start == end:
            return []
        lane = self.lane
        length_ms = LEAD_MS + lane.window_ms + max(lane.window_ms, lane.idle_window_ms)
        return [
            ShardSlice(number, end["end_ms"], end["batch"], length_ms)
            for number in range(lane.shards)
        ]

    def commit(self, end: dict[str, int]) -> None:
        """Spark has committed this batch, so the broker has every row: settle it."""
        lane = self.lane
        self._pending().settle(Batch(lane.lane, lane.run, end["end_ms"], end["batch"]))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Claim and yield until the end of the batch, in Arrow batches of at most `claim_count`."""
        assert isinstance(partition, ShardSlice), partition
        client = connect(self.lane.redis_url)
        try:
            shard = Shard(client, space=self.lane.space, number=partition.shard)
            wake = shard.wake()
            try:
                yield from ShardTask(self.lane, shard, wake, partition, self._clock).batches()
            finally:
                wake.close()
        finally:
            client.close()


class ShardTask:
    """One attempt of Spark's at one batch on one shard; state that lives as long as that."""

    def __init__(
        self, lane: Lane, shard: Shard, wake: Wake, part: ShardSlice, clock: Clock
    ) -> None:
        self.lane, self.shard, self.wake, self.clock = lane, shard, wake, clock
        self.end_ms = part.end_ms
        # A clock that is put back must not make the batch longer.
        left_ms = min(part.end_ms - clock.now_ms(), part.length_ms)
        self.ends_at = clock.elapsed_ms() + left_ms
        self.batch = Batch(lane.lane, lane.run, part.end_ms, part.number)
        self.attempt = uuid.uuid4().hex
        self.targets: dict[bytes, Target] = {}
        self.targets_until_ms = 0
        self.told = Told(shard, clock)

    def batches(self) -> "Iterator[pa.RecordBatch]":
        """Ends when the instant is reached, the batch is full, or the service drains."""
        try:
            got = self.shard.attempt(self.batch, owner=self.lane.owner, attempt=self.attempt)
            if got is None:
                yield from self._again(self.shard.claimed(self.batch))
                return
            yield from self._again(got)
            yield from self._claims(len(got.ids), sum(map(len, got.packed)))
            self.shard.close(self.batch, owner=self.lane.owner, attempt=self.attempt)
        finally:
            self.told.flush()

    def _again(self, got: Claim) -> "Iterator[pa.RecordBatch]":
        """What an earlier attempt has claimed."""
        for first in range(0, len(got.ids), CLAIM_COUNT_MAX):
            chunk = slice(first, first + CLAIM_COUNT_MAX)
            yield from self._arrow(Claim(got.ids[chunk], got.packed[chunk]))

    def _claims(self, count: int, size: int) -> "Iterator[pa.RecordBatch]":
        while count < BATCH_COUNT_MAX and size < BATCH_BYTES_MAX:
            now_ms = self.clock.now_ms()
            ending = now_ms >= self.end_ms or self.clock.elapsed_ms() >= self.ends_at
            got = self.shard.claim(
                self.batch,
                owner=self.lane.owner,
                now_ms=min(now_ms, self.end_ms),
                count_max=self.lane.claim_count,
                attempt=self.attempt,
            )
            if got.draining:
                return
            if got.ids:
                count += len(got.ids)
                size += sum(map(len, got.packed))
                yield from self._arrow(got)
                if len(got.ids) < self.lane.claim_count // 4:
                    time.sleep(self._pause_ms(now_ms) / 1000)
            elif ending:
                return
            elif got.held:
                self.wake.wait(HELD_PAUSE_MS)
            else:
                self._wait(got.next_due_ms, now_ms)

    def _pause_ms(self, now_ms: int) -> int:
        lane = self.lane
        if leads(now_ms, end_ms=self.end_ms, lanes=lane.lanes, window_ms=lane.window_ms):
            return lane.poll_ms
        return lane.standby_poll_ms

    def _wait(self, next_due_ms: int | None, now_ms: int) -> None:
        """Sleep until the next due time, the end, or something earlier has been parked."""
        next_ms = self.end_ms if next_due_ms is None else next_due_ms
        left_ms = min(self.end_ms, max(next_ms, now_ms + self._pause_ms(now_ms))) - now_ms
        self.wake.wait(min(max(left_ms, SPIN_MS), WAIT_MS_MAX))

    def _arrow(self, got: Claim) -> "Iterator[pa.RecordBatch]":
        from sendlater.pipeline.rows import filler, to_arrow, unpack_columns

        columns = unpack_columns(got.packed)
        ids = got.ids
        if self.lane.check_targets:
            refused = self._refused(got, columns)
            if refused:
                self.shard.set_aside(self.batch, [ids[i] for i in refused])
                keep = [i for i in range(len(ids)) if i not in refused]
                if not keep:
                    return
                ids = [ids[i] for i in keep]
                columns = [tuple(column[i] for i in keep) for column in columns]
        yield to_arrow(ids, columns)
        if self.lane.filler_rows:
            yield filler(self.lane.filler_rows)
        yield filler(0)
        # After the yields, so that waiting for a busy JVM counts as late.
        self.told.delivered(ids, columns[0], columns[1])

    def _refused(self, got: Claim, columns: list[tuple[Any, ...]]) -> set[int]:
        """Rows whose target topic is not known to take them; a copy of the list may be old.

        A look at the claim as a whole clears nearly all; only a row that stands out is measured.
        """
        ids, packed = got.ids, got.packed
        topics, partitions, keys, sources = columns[1], columns[2], columns[3], set(columns[7])
        now_ms = self.clock.now_ms()
        wanted = set(topics)
        if now_ms >= self.targets_until_ms or not wanted <= self.targets.keys():
            self.targets = self.shard.targets()
            self.targets_until_ms = now_ms + TARGETS_REFRESH_MS
        known = self.targets
        copies = {copy.encode() for topic in sources & known.keys() for copy in known[topic].copies}
        given = [known[topic] for topic in (wanted | copies) & known.keys()]
        # A record leaves with its id in three places at most.
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
        from sendlater.pending.packing import unpack
        from sendlater.pipeline.refusal import refusal

        schedule = unpack(schedule_id, packed)
        return refusal(schedule, lambda topic: self.targets.get(topic.encode())) is not None
