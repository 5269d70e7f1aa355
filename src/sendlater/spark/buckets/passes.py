"""Passes: new inbox records go into buckets, and what has waited long enough to a lower bucket.

A pass is one Spark query over ranges of offsets, from Kafka to Kafka, all of it in the JVM. It is
planned here, on the driver, only when there is something to move. Its offsets are committed after
the broker has every row. A crash in between repeats the pass, and the delivering task drops the
second copies.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping

import structlog
from pyspark.sql import DataFrame, SparkSession

from sendlater.brokers.group_offsets import Committed, Place, Progress
from sendlater.brokers.kafka_options import reader_options
from sendlater.brokers.kafka_topics import TopicFacts
from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.dialects import sql, stages
from sendlater.errors import BrokerUnavailable
from sendlater.limits import BUCKET_PASS_ROWS_MAX, OFFSETS_RECOMMIT_MS
from sendlater.model import DUE_MS_MAX
from sendlater.spark.buckets.bucket_rows import bucket_stages
from sendlater.spark.buckets.ladder import SECOND_MS, Ladder
from sendlater.spark.kafka_sink import producer_options

PASS_PAUSE_S = 0.1
"""Pause after a pass, so that the next one has more to move: a pass costs much even for a few
records. The margin is long enough for the pause and a pass."""
DROP_MS = 60_000
"""Pause between two requests to delete what has left the buckets."""
LOOK_MS_MAX = 10_000
"""Longest pause between two checks of buckets that have nothing to move."""
INBOXES_S = 10.0
"""Longest pause between two questions whether inboxes have more partitions or were made anew."""

Range = tuple[int, int]
"""Offsets: the first, and the one after the last."""

_log = structlog.get_logger()


class Moves:
    """Moves what is ripe: what has waited long enough in its bucket."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        ladder: Ladder,
        progress: Progress,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._spark, self._settings, self._ladder = spark, settings, ladder
        self._progress = progress
        self._clock = clock or SystemClock()
        self._holds = {
            place: ladder.hold_ms(bucket)
            for bucket in range(1, ladder.count)
            for place in ladder.places(bucket)
        }
        self._at = positions(progress, self._holds)
        self._dropped_ms = self._kept_ms = self._clock.now_ms()

    def step(self) -> float:
        """One pass, if anything is ripe; returns the pause until the next step in seconds."""
        now_ms = self._clock.now_ms()
        self._keep(now_ms)
        ripe, next_ms = self.look(now_ms)
        if ripe:
            self.move(ripe)
            return PASS_PAUSE_S
        return max(0, min(next_ms - now_ms, LOOK_MS_MAX)) / 1_000

    def look(self, now_ms: int) -> tuple[dict[Place, Range], int]:
        """What is ripe, and when the next record will be (DUE_MS_MAX if there is none)."""
        # Ends first: what is written between the two requests is not ripe.
        ends = self._progress.ends(self._holds)
        found = self._progress.since({p: now_ms - hold + 1 for p, hold in self._holds.items()})
        ripe: dict[Place, Range] = {}
        next_ms = DUE_MS_MAX
        for place, head in found.items():
            end = ends[place] if head is None else head.offset
            if end > self._at[place]:
                ripe[place] = (self._at[place], end)
            if head is not None:
                next_ms = min(next_ms, head.timestamp_ms + self._holds[place])
        return bounded(ripe), next_ms

    def move(self, ripe: Mapping[Place, Range]) -> None:
        """Write every record of these ranges to the bucket of the time it has left."""
        records = waiting(read(self._spark, self._settings, ripe))
        write(records, self._settings, self._ladder, self._clock)
        ends = {place: end for place, (_, end) in ripe.items()}
        self._progress.commit({place: Committed(end, "") for place, end in ends.items()})
        self._at.update(ends)

    def _keep(self, now_ms: int) -> None:
        """Delete what has left the buckets, and commit unchanged offsets again in time."""
        if now_ms - self._dropped_ms >= DROP_MS:
            self._dropped_ms = now_ms
            try:
                delivered = self._progress.committed(self._ladder.places(0))
                done = {place: at.offset for place, at in delivered.items()}
                self._progress.drop({p: at for p, at in (self._at | done).items() if at})
            except BrokerUnavailable as error:
                _log.warning("old records stay in the buckets", cause=str(error))
        if now_ms - self._kept_ms >= OFFSETS_RECOMMIT_MS:
            self._kept_ms = now_ms
            self._progress.commit({p: Committed(at, "") for p, at in self._at.items()})


class Intake:
    """Takes in what is new on the inboxes."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        ladder: Ladder,
        progress: Progress,
        *,
        inboxes: Callable[[], Mapping[str, TopicFacts]],
        room_bytes: int,
        taken_in: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        """`inboxes` asks the broker about them; `room_bytes` is that of `require_topics`."""
        self._spark, self._settings, self._ladder = spark, settings, ladder
        self._progress, self._room_bytes = progress, room_bytes
        self._clock = clock or SystemClock()
        self._inboxes = inboxes
        self._taken_in = taken_in
        self._at: dict[Place, int] = {}
        self._begin(inboxes())

    def _begin(self, facts: Mapping[str, TopicFacts]) -> None:
        """Go on where the committed offsets say, and have them name the topics as they are now."""
        self._looked_s = self._kept_s = time.monotonic()
        self._facts = facts
        self._ids = {topic: told.id for topic, told in facts.items()}
        places = [Place(topic, n) for topic, told in facts.items() for n in range(told.partitions)]
        self._at = positions(self._progress, places, ids=self._ids)
        self._keep()

    def step(self) -> float:
        """One pass, if anything is new; returns the pause until the next step in seconds."""
        ends = self._progress.ends(self._at)
        moved = any(end != self._at[place] for place, end in ends.items())
        if (moved or time.monotonic() - self._looked_s >= INBOXES_S) and self._changed(ends):
            return 0.0
        if time.monotonic() - self._kept_s >= OFFSETS_RECOMMIT_MS / 1_000:
            self._keep()
        new = bounded({p: (self._at[p], end) for p, end in ends.items() if end > self._at[p]})
        if new:
            self.take_in(new)
            self._taken_in()
            if any(self._at[place] < ends[place] for place in new):
                return 0.0
        return self._settings.intake_trigger_ms / 1_000

    def _changed(self, ends: Mapping[Place, int]) -> bool:
        """Whether an inbox has other partitions, was made anew, or lost what was read: if so, begin
        again. Asked before each pass, as a new topic's records would be skipped."""
        self._looked_s = time.monotonic()
        facts = self._inboxes()
        lost = any(end < self._at[place] for place, end in ends.items())
        if not lost and facts == self._facts:
            return False
        self._begin(facts)
        return True

    def _keep(self) -> None:
        """Commit offsets that have not changed, in time before the broker forgets them."""
        self._kept_s = time.monotonic()
        self._progress.commit({p: self._noted(p, at) for p, at in self._at.items()})

    def _noted(self, place: Place, at: int) -> Committed:
        """With the topic's id, so that the offset counts for no other topic of this name."""
        return Committed(at, self._ids[place.topic])

    def take_in(self, new: Mapping[Place, Range]) -> None:
        """Decode these ranges and write every schedule to the bucket of the time it has left."""
        records = read(self._spark, self._settings, new)
        rows = decoded(records, self._settings, self._clock, room_bytes=self._room_bytes)
        write(rows, self._settings, self._ladder, self._clock)
        self._progress.commit({p: self._noted(p, end) for p, (_, end) in new.items()})
        self._at.update({place: end for place, (_, end) in new.items()})


def positions(
    progress: Progress, places: Iterable[Place], *, ids: Mapping[str, str] | None = None
) -> dict[Place, int]:
    """Where to go on reading: the committed offset, or the first record still there.

    `ids`: of the topics, where the committed offsets name the id of theirs.
    """
    places = list(places)
    firsts, known, ends = progress.firsts(places), progress.committed(places), progress.ends(places)
    at: dict[Place, int] = {}
    for place, first in firsts.items():
        read, note = known.get(place, Committed(first, ""))
        anew = bool(ids and note and note != ids[place.topic])
        if anew or not first <= read <= ends[place]:
            told = "records were deleted before they were read, or the topic was recreated"
            _log.error(told, place=place, read=read, first=first, end=ends[place], new_topic=anew)
            read = first
        at[place] = read
    return at


def bounded(ranges: Mapping[Place, Range]) -> dict[Place, Range]:
    """The same with BUCKET_PASS_ROWS_MAX records at most, an equal share for each place."""
    share = BUCKET_PASS_ROWS_MAX // max(1, len(ranges))
    assert share, f"{len(ranges)} places in one pass"
    return {place: (start, min(end, start + share)) for place, (start, end) in ranges.items()}


def read(spark: SparkSession, settings: Settings, ranges: Mapping[Place, Range]) -> DataFrame:
    """The records of these ranges, in the columns of Spark's Kafka source."""
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for (topic, partition), (start, end) in ranges.items():
        assigned.setdefault(topic, []).append(partition)
        starts.setdefault(topic, {})[str(partition)] = start
        ends.setdefault(topic, {})[str(partition)] = end
    return (
        spark.read.format("kafka")
        .options(**reader_options(settings))
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("includeHeaders", "true")
        # Otherwise a read waits 500 ms for the fetch that the one before left under way.
        .option("kafka.fetch.max.wait.ms", "20")
        # Spark reuses consumers of the same group; otherwise each pass would create new ones.
        .option("kafka.group.id", f"{settings.space}-passes")
        .option("failOnDataLoss", "false")
        .load()
    )


def waiting(records: DataFrame) -> DataFrame:
    """Records of a bucket, with the due time from their first header."""
    # Null for what somebody else wrote there: it goes to bucket 0, and is passed over there.
    control = "CAST(get(headers, 0).value AS STRING)"
    due_ms = f"try_cast(substring_index({control}, ' ', 1) AS BIGINT)"
    return records.selectExpr("key", "value", "headers", f"{due_ms} AS due_ms")


def decoded(records: DataFrame, settings: Settings, clock: Clock, *, room_bytes: int) -> DataFrame:
    """Records of inboxes, converted to records of a bucket, with their due time."""
    to_bucket = bucket_stages(settings, now_ms=_now_ms(clock), room_bytes=room_bytes)
    for stage in (*stages(settings), *to_bucket):
        records = records.selectExpr(*stage)
    return records


def write(rows: DataFrame, settings: Settings, ladder: Ladder, clock: Clock) -> None:
    """Write rows of key, value, headers, due_ms to their buckets; returns once Kafka has them."""
    left_s = f"greatest(due_ms - {_now_ms(clock)}, 0L) DIV {SECOND_MS}"
    bucket = f"least(if({left_s} = 0, 0, length(bin({left_s}))), {ladder.count - 1})"
    topic = f"concat({sql.text(ladder.prefix + '-')}, lpad(CAST({bucket} AS STRING), 2, '0'))"
    placed = rows.selectExpr("key", "value", "headers", f"{topic} AS topic")
    placed.write.format("kafka").options(**producer_options(settings)).save()


def _now_ms(clock: Clock) -> str:
    """The time when a row is written, as SQL.

    Not now(): a new constant in each pass would make Spark compile the whole query again.
    """
    if isinstance(clock, SystemClock):
        return "CAST(reflect('java.lang.System', 'currentTimeMillis') AS BIGINT)"
    return f"{clock.now_ms()}L"
