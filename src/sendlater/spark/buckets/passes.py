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
from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.dialects import names, sql, stages
from sendlater.errors import BrokerUnavailable
from sendlater.limits import BUCKET_PASS_ROWS_MAX, OFFSETS_RECOMMIT_MS
from sendlater.model import DUE_MS_MAX, Reason
from sendlater.spark.buckets.ladder import SECOND_MS, Ladder
from sendlater.spark.kafka_sink import producer_options

PASS_PAUSE_S = 0.1
"""Pause after a pass, so that the next one has more to move: a pass costs much even for a few
records. The margin is long enough for the pause and a pass."""
DROP_MS = 60_000
"""Pause between two requests to delete what has left the buckets."""
LOOK_MS_MAX = 10_000
"""Longest pause between two checks of buckets that have nothing to move."""

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
        self._at.update(committed(self._progress, ripe))

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
        partitions: Mapping[str, int],
        taken_in: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._spark, self._settings, self._ladder = spark, settings, ladder
        self._progress = progress
        self._clock = clock or SystemClock()
        places = [Place(topic, n) for topic, count in partitions.items() for n in range(count)]
        self._at = positions(progress, places)
        self._kept_s = time.monotonic()
        self._taken_in = taken_in

    def step(self) -> float:
        """One pass, if anything is new; returns the pause until the next step in seconds."""
        ends = self._progress.ends(self._at)
        new = bounded({p: (self._at[p], end) for p, end in ends.items() if end > self._at[p]})
        if new:
            self.take_in(new)
            self._taken_in()
            if any(self._at[place] < ends[place] for place in new):
                return 0.0
        elif time.monotonic() - self._kept_s >= OFFSETS_RECOMMIT_MS / 1_000:
            self._kept_s = time.monotonic()
            self._progress.commit({p: Committed(at, "") for p, at in self._at.items()})
        return self._settings.intake_trigger_ms / 1_000

    def take_in(self, new: Mapping[Place, Range]) -> None:
        """Decode these ranges and write every schedule to the bucket of the time it has left."""
        records = decoded(read(self._spark, self._settings, new), self._settings, self._clock)
        write(records, self._settings, self._ladder, self._clock)
        self._at.update(committed(self._progress, new))


def positions(progress: Progress, places: Iterable[Place]) -> dict[Place, int]:
    """Where to go on reading: the committed offset, or the first record still there."""
    places = list(places)
    firsts, known, ends = progress.firsts(places), progress.committed(places), progress.ends(places)
    at: dict[Place, int] = {}
    for place, first in firsts.items():
        read = known[place].offset if place in known else first
        if not first <= read <= ends[place]:
            told = "records were deleted before they were read, or the topic was recreated"
            _log.error(told, place=place, read=read, first=first, end=ends[place])
            read = first
        at[place] = read
    return at


def committed(progress: Progress, done: Mapping[Place, Range]) -> dict[Place, int]:
    """Commit the ends of ranges; returns them."""
    progress.commit({place: Committed(end, "") for place, (_, end) in done.items()})
    return {place: end for place, (_, end) in done.items()}


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


def decoded(records: DataFrame, settings: Settings, clock: Clock) -> DataFrame:
    """Records of inboxes, converted to records of a bucket, with their due time."""
    for stage in (*stages(settings), *_bucket_stages(settings, clock)):
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


def _bucket_stages(settings: Settings, clock: Clock) -> list[list[str]]:
    """From a decoded schedule to the record that waits in a bucket (see record.py).

    A cancellation becomes a rejected record: nothing in a bucket can be cancelled.
    """
    clear = (
        sql.pair(names.REJECTED, sql.text(Reason.CANNOT_CANCEL)),
        sql.pair(
            names.REJECTED_DETAIL,
            sql.text("expected a schedule, as buckets cannot cancel one, got a null value"),
        ),
        sql.pair(names.ORIGIN, "concat_ws('/', origin_topic, origin_partition, origin_position)"),
        sql.pair(names.ORIGIN_TIMESTAMP_MS, sql.decimal_text("origin_timestamp_ms")),
    )
    # Due now, even if the sender's clock is ahead.
    at_once = f"least(coalesce(due_ms, greatest(origin_timestamp_ms, 0L)), {_now_ms(clock)})"
    place = "CAST(concat_ws('-', origin_topic, origin_partition, origin_position) AS BINARY)"
    by_fate = {
        "id": (place, "id"),
        "due_ms": (at_once, f"if(dialect = 'rejected', {at_once}, due_ms)"),
        "topic": (sql.text(settings.rejected_topic), "topic"),
        "target_key": ("id", "key"),
        "kept": (f"array({', '.join(clear)})", "headers"),
        "dialect": ("'rejected'", "dialect"),
    }
    origin = ("origin_topic", "origin_partition", "origin_position", "origin_timestamp_ms")
    control = f"concat_ws(' ', due_ms, dialect, {', '.join(origin)}, topic, partition)"
    return [
        [
            "value",
            "partition",
            *origin,
            *(
                f"CASE WHEN due_ms IS NULL THEN {cancels} ELSE {asks} END AS {name}"
                for name, (cancels, asks) in by_fate.items()
            ),
        ],
        [
            "id AS key",
            "value",
            "due_ms",
            f"concat(array({sql.pair('schedule', control)}, {sql.pair('key', 'target_key')}), "
            "coalesce(kept, array())) AS headers",
        ],
    ]
