"""A task of intake: reads its share of the inboxes, and sees that it arrives in the store."""

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from sendlater.brokers.partition_reader import (
    KafkaPartitions,
    PartitionReader,
    Place,
    Read,
    RedisPartitions,
)
from sendlater.clock import Clock
from sendlater.dialects.plain import PlainRules
from sendlater.errors import BrokerUnavailable, StoreWentBack
from sendlater.limits import METADATA_MS_MAX
from sendlater.spark.intake.bundle import Gathered
from sendlater.spark.intake.share import ALONG, WARM_UP, InboxShare
from sendlater.spark.intake.warm_rows import warm_rows
from sendlater.spark.pipe import pass_on
from sendlater.store import Pending
from sendlater.store.succession import reads_along, take_reading

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_MS = 24 * 3_600_000
"""Length of a batch; half a second is missed between two, so a day's worth is one in 170,000."""
READ_COUNT_MAX = 2_000
"""Most records of one chunk: about 20 ms of work for each of the processes it passes."""
GATHER_MS, SPARSE_GATHER_MS = 15, 30
"""Shortest time between two chunks: each costs about 3 ms of CPU, however few records it has."""
SPARSE = range(2, 7)
"""Records of a chunk after which the longer time holds: they come so fast that each chunk has some,
and so slowly that these do not pay for it. One that comes alone hardly ever has to wait."""
SOON_MS = 1_000
"""What is due within this time is passed on as soon as it is read, with all that has gathered."""
LATER_GATHER_MS = 60
"""Shortest time between two chunks while nothing is due soon: one costs as much as 100 records."""
AHEAD_COUNT_MAX = 6
"""Most chunks on their way to the store. When a chunk takes longer than GATHER_MS, more would wait
in the pipes, each with a record or two; so they are read later, as one."""
WAIT_MS_MAX = 1_000
"""Longest wait for a record before the task looks at the store and at its partitions again."""
AWAIT_MS = 20
"""Shortest time between two looks at whether the space is ours."""
ALONG_MS_MAX, ALONG_WAIT_MS = 5_000, 100
"""Longest time for which records are read along with the last owner, and longest wait for one."""
ALONG_CHUNKS = 20
"""So many of them, if there are, must have passed the sink before this task reads for itself."""
CHECK_MS = 2_000
"""Pause between two looks at how far the store is."""
UNPARKED_MS_MAX = 15_000
"""What was passed on this long ago, and has not arrived in the store, is lost or stuck."""
WARM_UP_CHUNKS, WARM_UP_TIMES = 100, 2
"""What is sent through decoding and sink before the first record: a JVM that has just started is
many times slower."""
NOTHING_PLAIN = PlainRules()


def open_reader(options: Mapping[str, str]) -> PartitionReader:
    """A reader of the inboxes."""
    topics = options["inboxes"].split(",")
    if options["broker.url"]:
        return KafkaPartitions(json.loads(options["broker.url"]), topics)
    return RedisPartitions(options["redis.url"], topics, space=options["space"])


def _gather_ms(count: int) -> int:
    """How long the next chunk waits after one with so many records."""
    if count >= READ_COUNT_MAX // 2:  # more is there already
        return 0
    return SPARSE_GATHER_MS if count in SPARSE else GATHER_MS


class InboxTask:
    """One attempt of Spark at one task, and its state."""

    def __init__(
        self,
        reader: PartitionReader,
        pending: Pending,
        share: InboxShare,
        clock: Clock,
        plain: PlainRules = NOTHING_PLAIN,
    ) -> None:
        self._reader, self._pending, self._share, self._clock = reader, pending, share, clock
        self._gathered = Gathered(plain, shards=len(pending.shards))
        self._starts: dict[Place, int] = {}
        """Where the reader has begun."""
        self._sent: dict[Place, int] = {}
        self._parked: dict[Place, int] = {}
        self._ahead: deque[dict[Place, int]] = deque()
        """Chunks that may not have arrived in the store: the new positions of each."""
        self._reads_ms = clock.elapsed_ms() + GATHER_MS
        """When more is read."""
        self._moved_ms = self._checked_ms = self._looked_ms = self._sent_ms = clock.elapsed_ms()

    def chunks(self) -> "Iterator[pa.RecordBatch]":
        """Ends at the batch's end. Raises StoreWentBack, Unavailable."""
        ends_at = self._clock.elapsed_ms() + BATCH_MS
        yield from self._begin()
        while (now_ms := self._clock.elapsed_ms()) < ends_at:
            if now_ms - self._looked_ms >= METADATA_MS_MAX:
                # The reader outlasts an outage by itself: new partitions can wait.
                with suppress(BrokerUnavailable):
                    yield from self._begin()
            if now_ms - self._checked_ms >= CHECK_MS:
                self._check()
            time.sleep(max(0, self._reads_ms - now_ms) / 1_000)
            if self._is_ahead():
                time.sleep(GATHER_MS / 1_000)
                continue
            self._gather()
            if self._is_enough():
                yield from self._pass_on()

    def start(self) -> None:
        """Have the client fetch from partitions that are new: its first answers take half a second,
        as a fetch under way is not about partitions that join it."""
        if starts := self._stands(place for place in self._places() if place not in self._starts):
            self._reader.begin(starts)
            self._starts |= starts

    def warm_up(self) -> "Iterator[pa.RecordBatch]":
        """Records of every topic and dialect, which the sink throws away."""
        topics = sorted({topic for topic, _ in self._reader.places()})
        for topic in topics * (WARM_UP_CHUNKS // max(1, len(topics))):
            rows = warm_rows(topic, times=WARM_UP_TIMES, now_ms=self._clock.now_ms())
            yield from self._rows(rows, {})

    def await_space(self, owner: int) -> "Iterator[pa.RecordBatch]":
        """Wait until this owner owns every shard; the sink learns that the task is warm."""
        yield from self._rows(Read(), {})
        # It is woken with the space, and whenever something earlier is parked.
        wake = self._pending.shards[-1].wake()
        try:
            while any(one < owner for one in self._pending.owners()):
                time.sleep(AWAIT_MS / 1_000)
                wake.wait(WAIT_MS_MAX)
        finally:
            wake.close()

    def read_along(self, run: int) -> "Iterator[pa.RecordBatch]":
        """While the last owner still parks, read the same records, which the sink throws away: the
        first ones take long. Then take the reading over."""
        until_ms, chunks = self._clock.elapsed_ms() + ALONG_MS_MAX, 0
        tasks = [self._share.task]
        places = self._places()
        self._reader.begin(self._stands(places))
        while reads_along(self._pending) and self._clock.elapsed_ms() < until_ms:
            read = self._reader.read(count_max=READ_COUNT_MAX, timeout_s=ALONG_WAIT_MS / 1_000)
            if places and chunks == ALONG_CHUNKS:
                along = warm_rows(places[0][0], ALONG, now_ms=self._clock.now_ms())
                yield from self._rows(along, {})
            elif read is not None and read.positions:
                read.partitions = [WARM_UP] * len(read.positions)
                yield from self._rows(read, {})
            chunks += 1
            if not places or self._pending.noted("along", run, tasks=tasks):
                break
        self._reader.end()
        take_reading(self._pending)

    def _begin(self) -> "Iterator[pa.RecordBatch]":
        """Begin with partitions that are new; the sink learns where reading begins."""
        self._looked_ms = self._clock.elapsed_ms()
        self.start()
        starts = {place: at for place, at in self._starts.items() if place not in self._sent}
        if not starts and self._sent:
            return
        self._sent |= starts
        self._parked |= starts
        yield from self._rows(Read(), starts)

    def _gather(self) -> None:
        """Read what has come. If nothing waits to be passed on, wait for it."""
        left_ms = self._sent_ms + LATER_GATHER_MS - self._clock.elapsed_ms()
        wait_ms = max(0, left_ms) if self._gathered.ends else WAIT_MS_MAX
        left = READ_COUNT_MAX - self._gathered.count
        read = self._reader.read(count_max=left, timeout_s=wait_ms / 1_000)
        if read is None:
            return
        # A partition that was cut off before its position is read from its beginning.
        read.ends = {place: max(end, self._stand(place)) for place, end in read.ends.items()}
        if read.positions or any(end > self._stand(place) for place, end in read.ends.items()):
            self._gathered.add(read)
            self._reads_ms = self._clock.elapsed_ms() + GATHER_MS

    def _stand(self, place: Place) -> int:
        return self._gathered.ends.get(place, self._sent[place])

    def _is_enough(self) -> bool:
        """Whether it is time to pass on what has been gathered."""
        gathered, waits_ms = self._gathered, self._clock.elapsed_ms() - self._sent_ms
        if not gathered.ends:
            return False
        soon = gathered.soonest_ms <= self._clock.now_ms() + SOON_MS
        return soon or gathered.count >= READ_COUNT_MAX // 2 or waits_ms >= LATER_GATHER_MS

    def _pass_on(self) -> "Iterator[pa.RecordBatch]":
        count, ends = self._gathered.count, self._gathered.ends
        yield from self._rows(self._gathered.take(), ends)
        self._reads_ms = self._sent_ms + _gather_ms(count)
        self._sent |= ends
        self._ahead.append(ends)

    def _is_ahead(self) -> bool:
        """Whether too many chunks are on their way. The store is asked only if it may be so."""
        if len(self._ahead) >= AHEAD_COUNT_MAX:
            stands = self._stands(self._sent)
            while self._ahead and all(stands[at] >= end for at, end in self._ahead[0].items()):
                self._ahead.popleft()
        return len(self._ahead) >= AHEAD_COUNT_MAX

    def _rows(self, read: Read, ends: dict[Place, int]) -> "Iterator[pa.RecordBatch]":
        from sendlater.spark.intake.inbox_rows import NOTHING, chunk

        self._sent_ms = self._clock.elapsed_ms()
        yield chunk(read, ends)
        yield NOTHING
        pass_on()

    def _places(self) -> list[Place]:
        """Partitions of this task's share."""
        return [place for place in self._reader.places() if self._share.has(place)]

    def _stands(self, places: Iterable[Place]) -> dict[Place, int]:
        """How far the store is."""
        positions = self._pending.positions()
        return {(t, n): positions.get(f"{t}/{n}", 0) for t, n in places}

    def _check(self) -> None:
        """Raises StoreWentBack if the store has lost what it had, or has not got what was sent."""
        now_ms = self._checked_ms = self._clock.elapsed_ms()
        stands = self._stands(self._sent)
        lost = {place: at for place, at in stands.items() if at < self._parked[place]}
        if lost:
            raise StoreWentBack(f"it stands at {lost}, and stood at {self._parked}")
        missing = any(at < self._sent[place] for place, at in stands.items())
        if not missing or stands != self._parked:
            self._moved_ms = now_ms
        elif now_ms - self._moved_ms > UNPARKED_MS_MAX:
            raise StoreWentBack(f"it stands at {stands}, expected {self._sent}")
        self._parked = stands
