"""After a crash: what had arrived of unsettled batches is settled, the rest is released.

A delivery carries its id, due time and the place it was read from. One Spark job reads the topics
that unsettled rows go to, from the earliest claim on, and tells which rows are there.
"""

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import structlog
from pyspark.sql import DataFrame, SparkSession

from sendlater.config import Settings
from sendlater.dialects import delivered_stages, names, stages
from sendlater.dialects.deliver import VERSION
from sendlater.dialects.sql import header, text, texts
from sendlater.errors import Fenced
from sendlater.limits import RECOVERY_CLOCK_SKEW_MS, RECOVERY_LOOK_BACK_MS
from sendlater.model import Schedule
from sendlater.pending import Pending
from sendlater.pending.packing import unpack
from sendlater.pending.takeover import Unsettled, settle_some, unsettled
from sendlater.pipeline.delivery import producer_options
from sendlater.pipeline.kafka_options import reader_options
from sendlater.pipeline.kafka_topics import KafkaTopics
from sendlater.pipeline.rewriting import write_again
from sendlater.pipeline.rows import to_arrow, unpack_columns

CHECKSUM = "concat('#', crc32(coalesce(value, X'')))"
REJECTED = "(dialect = 'rejected' AND origin_topic <> '')"

_log = structlog.get_logger()
_Row = tuple[bytes, int, str]
"""Id, due_ms and version: what a delivery is known by. The version is the place it was read from,
where deliveries tell it (journals, rejected records); otherwise a checksum of the payload."""


@dataclass(slots=True)
class Found:
    """What became of unsettled rows."""

    arrived: set[_Row] = field(default_factory=set)
    owed: set[_Row] = field(default_factory=set)
    """Arrived, but tombstone or history is missing."""
    torn: set[_Row] = field(default_factory=set)
    """Not arrived, but the tombstone is there: it would cancel them when it is read back."""


def warm_up(spark: SparkSession, settings: Settings, topics: KafkaTopics) -> None:
    """Have the JVM load and compile what a takeover runs, while there is time. Reads nothing."""
    ends = topics.ends(inbox.topic for inbox in settings.taken_in)
    records = (
        spark.read.format("kafka")
        .options(**reader_options(settings))
        .option("assign", json.dumps({topic: sorted(ends[topic]) for topic in ends}))
        .option("startingOffsets", json.dumps(ends))
        .option("endingOffsets", json.dumps(ends))
        .option("includeHeaders", "true")
        .load()
    )
    for stage in stages(settings):
        records = records.selectExpr(*stage)
    for stage in delivered_stages(settings):
        records = records.selectExpr(*stage)
    records.join(records.limit(1), "key").distinct().write.format("noop").mode("overwrite").save()


class Recovery:
    """Looks up unsettled rows; used at a start, and before a lane is started again."""

    def __init__(
        self, spark: SparkSession, settings: Settings, pending: Pending, topics: KafkaTopics
    ) -> None:
        self._spark, self._settings = spark, settings
        self._pending, self._topics = pending, topics

    def settle(self, *, owner: int, lane: int | None = None) -> int:
        """Settle what is found; how many rows that were. What is left is for `release`.

        Without permission to read, or with a broker that does not answer, nothing is settled: then
        unsettled rows are delivered again, and the log says so.
        """
        batches = list(unsettled(self._pending, lane=lane))
        if not batches:
            return 0
        try:
            found = self._look_up(batches)
            self._repair(batches, found)
            done = found.arrived | found.torn
            for batch in batches:
                ids = [s.id for s in _schedules(batch) if self._row(s) in done]
                settle_some(batch, ids, owner=owner)
        except Fenced:
            raise
        except Exception as error:
            _log.error(
                "unsettled deliveries cannot be looked up; they are delivered again",
                rows=sum(len(batch.ids) for batch in batches),
                cause=str(error)[:500],
            )
            return 0
        total = sum(len(batch.ids) for batch in batches)
        _log.warning(
            "unsettled deliveries looked up",
            rows=total,
            arrived=len(found.arrived),
            again=total - len(found.arrived),
        )
        return len(done)

    def _look_up(self, batches: Sequence[Unsettled]) -> Found:
        schedules = [schedule for batch in batches for schedule in _schedules(batch)]
        readable = readable_topics(self._topics, {s.record.topic for s in schedules})
        rows = self._frame(batches).selectExpr("id", "due_ms", f"{self._version()} AS version")
        after = self._after_delivery(schedules)
        topics = sorted(readable | after)
        if not topics:
            return Found()
        from_ms = min(
            max(min(s.due_ms for s in _schedules(b)), b.end_ms - RECOVERY_LOOK_BACK_MS)
            for b in batches
        )
        there = deliveries(
            self._spark, self._settings, topics, from_ms=from_ms - RECOVERY_CLOCK_SKEW_MS
        )
        hits = rows.join(there, ["id", "due_ms", "version"]).distinct().collect()
        at: dict[_Row, set[tuple[str, bool]]] = {}
        for hit in hits:
            row = (bytes(hit["id"]), hit["due_ms"], hit["version"])
            at.setdefault(row, set()).add((hit["topic"], hit["deleted"]))
        found = Found()
        for schedule in schedules:
            self._judge(schedule, at.get(self._row(schedule), set()), found)
        return found

    def _version(self) -> str:
        """The version of unsettled rows as Spark SQL; the same as `_row` in Python."""
        journals = self._settings.journals
        told = f"{REJECTED} OR origin_topic IN {texts(journals)}" if journals else REJECTED
        return f"IF({told}, {VERSION}, {CHECKSUM})"

    def _row(self, schedule: Schedule) -> _Row:
        origin = schedule.origin
        if origin and (schedule.dialect == "rejected" or origin.topic in self._settings.journals):
            version = f"{origin.topic}/{origin.partition}/{origin.position}"
        else:
            version = f"#{zlib.crc32(schedule.record.value or b'')}"
        return schedule.id, schedule.due_ms, version

    def _judge(self, schedule: Schedule, at: set[tuple[str, bool]], found: Found) -> None:
        origin = schedule.origin
        in_journal = origin is not None and origin.topic in self._settings.journals
        tombstone = in_journal and origin is not None and (origin.topic, True) in at
        if (schedule.record.topic, False) in at:
            found.arrived.add(self._row(schedule))
            history = self._settings.history_topic
            settled = not history or schedule.dialect == "rejected" or (history, False) in at
            if in_journal and not (tombstone and settled):
                found.owed.add(self._row(schedule))
        elif tombstone:
            found.torn.add(self._row(schedule))

    def _after_delivery(self, schedules: Sequence[Schedule]) -> set[str]:
        """Where tombstones and history of these rows are."""
        journals = {s.origin.topic for s in schedules if s.origin} & set(self._settings.journals)
        history = self._settings.history_topic
        return journals | ({history} if journals and history else set())

    def _frame(self, batches: Sequence[Unsettled]) -> DataFrame:
        """Unsettled rows in the columns of DUE_SCHEMA."""
        ids = [i for batch in batches for i in batch.ids]
        packed = [p for batch in batches for p in batch.packed]
        import pyarrow as pa

        table = pa.Table.from_batches([to_arrow(ids, unpack_columns(packed))])
        return self._spark.createDataFrame(table)

    def _repair(self, batches: Sequence[Unsettled], found: Found) -> None:
        """Write what is owed; write torn schedules to their journal again, for intake to read."""
        if found.owed:
            frame = self._frame(batches)
            known = [f"{i.hex()}/{due}/{version}" for i, due, version in sorted(found.owed)]
            owed = self._spark.createDataFrame([(k,) for k in known], "known string")
            name = f"concat_ws('/', lower(hex(id)), due_ms, {self._version()})"
            frame = frame.selectExpr("*", f"{name} AS known").join(owed, "known").drop("known")
            for stage in delivered_stages(self._settings, owed=True):
                frame = frame.selectExpr(*stage)
            frame.write.format("kafka").options(**producer_options(self._settings)).save()
        if found.torn:
            torn = {
                self._row(s): s
                for b in batches
                for s in _schedules(b.standing())
                if self._row(s) in found.torn
            }
            write_again(self._settings, torn.values())


def readable_topics(topics: KafkaTopics, targets: Iterable[str]) -> set[str]:
    """Those that may be looked through; the log says which may not."""
    targets = set(targets)
    readable = {topic for topic in targets if topics.may_read(topic)}
    for topic in sorted(targets - readable):
        _log.warning("no permission to read a target; a crash doubles there", topic=topic)
    return readable


def deliveries(
    spark: SparkSession, settings: Settings, topics: Iterable[str], *, from_ms: int
) -> DataFrame:
    """Our records on these topics since an instant: id, due_ms, version, topic, deleted."""

    def last(name: str) -> str:
        # What we add comes last, and a name may be there before.
        return header(text(name)).replace("headers", "turned")

    records = (
        spark.read.format("kafka")
        .options(**reader_options(settings))
        .option("subscribe", ",".join(sorted(topics)))
        .option("startingTimestamp", str(max(0, from_ms)))
        .option("startingOffsetsByTimestampStrategy", "latest")
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "false")
        .load()
    )
    return (
        records.filter("headers IS NOT NULL")
        .selectExpr("topic", "value", "value IS NULL AS deleted", "reverse(headers) AS turned")
        .selectExpr("*", "turned.key AS names")
        .selectExpr(
            f"{last(names.ID)} AS id",
            f"try_cast(CAST({last(names.DUE)} AS STRING) AS BIGINT) AS due_ms",
            f"coalesce(CAST({last(names.ORIGIN)} AS STRING), {CHECKSUM}) AS version",
            "topic",
            "deleted",
        )
    )


def _schedules(batch: Unsettled) -> list[Schedule]:
    return [unpack(i, packed) for i, packed in zip(batch.ids, batch.packed, strict=True)]
