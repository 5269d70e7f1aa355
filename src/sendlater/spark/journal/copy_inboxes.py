"""Copies inboxes that are not journals into a journal: as safe as a journal, one batch later.

Progress is in Kafka: a consumer group's committed offsets, with the time when the last committed
batch began. Copies that a crash left without a commit are found on the journal, by the header that
each copy has, and are not made again. If the offsets are lost, these headers replace them.
"""

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from sendlater.brokers.client_options import client_options
from sendlater.brokers.group_offsets import Committed, Found, Place, Progress
from sendlater.brokers.kafka_options import reader_options
from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.dialects import names, stages
from sendlater.dialects.sql import decimal_text, header, pair, text, texts
from sendlater.limits import METADATA_MS_MAX, OFFSETS_RECOMMIT_MS, RECOVERY_CLOCK_SKEW_MS
from sendlater.spark.kafka_sink import producer_options
from sendlater.spark.plans import RECURS
from sendlater.spark.topic_reads import records_since

_log = structlog.get_logger()


class Copier:
    """One copying query, and its progress in Kafka."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        topics: KafkaTopics,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._spark, self._settings, self._topics = spark, settings, topics
        self._clock = clock or SystemClock()
        self._journals = {i.topic: i.copy_to for i in settings.inboxes if i.copy_to}
        self._progress = Progress(
            client_options(settings), group=f"sendlater-{settings.space}-copy"
        )
        self._at: dict[Place, int] = {}
        self._since_ms = self._committed_ms = 0

    def start(self, checkpoint: Path) -> StreamingQuery:
        """Go on after the last commit."""
        known = self._find_positions()
        records = (
            self._spark.readStream.format("kafka")
            .options(**reader_options(self._settings))
            .option("kafka.fetch.max.wait.ms", "20")
            .option("kafka.metadata.max.age.ms", str(METADATA_MS_MAX))
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "false")
            .option("subscribe", ",".join(self._journals))
            .option("startingOffsets", _offsets_json(self._at))
            .option("maxOffsetsPerTrigger", str(self._settings.intake_rows))
            .load()
        )
        # Broadcast: a shuffle would change the order of the versions of an id.
        copied = F.broadcast(self._uncommitted(known))
        fresh = records.selectExpr("*", f"{_PLACE} AS place").join(copied, "place", "left_anti")
        return (
            self._copies(fresh.drop("place"))
            .writeStream.queryName("copying")
            .format("kafka")
            .options(**producer_options(self._settings))
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime=f"{self._settings.intake_trigger_ms} milliseconds")
            .start()
        )

    def commit(self, query: StreamingQuery | None) -> None:
        """Commit to Kafka what Spark has committed; called now and then, and before the end.

        Unchanged offsets are committed again in time: a broker forgets a group after a week.
        """
        progress = query.lastProgress if query is not None else None
        at = self._at
        if progress is not None and progress.sources[0].endOffset:
            ends = json.loads(progress.sources[0].endOffset)
            at = {Place(t, int(n)): end for t, parts in ends.items() for n, end in parts.items()}
        if progress is not None and at != self._at:
            # All that the next batch writes, it writes after this one began.
            began = datetime.fromisoformat(progress.timestamp)
            self._commit(at, since_ms=int(began.timestamp() * 1_000))
        elif at and self._clock.now_ms() - self._committed_ms >= OFFSETS_RECOMMIT_MS:
            self._commit(at, since_ms=self._since_ms)

    def copied(self) -> dict[str, int]:
        """Per `topic/partition` the position up to which Spark has committed copies."""
        return {f"{place.topic}/{place.partition}": at for place, at in self._at.items()}

    def _commit(self, at: dict[Place, int], *, since_ms: int) -> None:
        self._progress.commit({p: Committed(end, str(since_ms)) for p, end in at.items()})
        self._at, self._since_ms, self._committed_ms = at, since_ms, self._clock.now_ms()

    def _find_positions(self) -> Collection[Place]:
        """Find where to go on, and since when there may be copies without a commit; returns the
        partitions that may have such copies."""
        counts = self._topics.partitions(self._journals)
        places = [Place(topic, n) for topic, count in counts.items() for n in range(count)]
        now_ms = self._clock.now_ms()
        known, ends = self._progress.committed(places), self._progress.ends(places)
        # An offset beyond the end belongs to a topic that was deleted since.
        known = {place: at for place, at in known.items() if at.offset <= ends[place]}
        at = {place: found.offset for place, found in known.items()}
        if lost := [place for place in places if place not in at]:
            at |= self._behind_copies(lost, ends)
        # Commit at once: after a crash the next start needs this time for its look-up.
        since_ms = min((int(found.note or now_ms) for found in known.values()), default=now_ms)
        self._commit(at, since_ms=since_ms)
        return known.keys()

    def _behind_copies(
        self, places: Collection[Place], ends: Mapping[Place, int]
    ) -> dict[Place, int]:
        """Where to begin without a commit: after the last record that has a copy."""
        firsts, copies = self._progress.firsts(places), self._last_copies()
        last = {p: copies[p].offset for p in places if p in copies and copies[p].offset < ends[p]}
        kept = {place: offset for place, offset in last.items() if offset >= firsts[place]}
        written_ms = self._progress.timestamps(kept)
        at: dict[Place, int] = {}
        for place in places:
            told = {"inbox": place.topic, "partition": place.partition}
            # A recreated topic may have reached this offset: if the record there is younger than
            # the copy, it is another one.
            copied_ms = copies[place].timestamp_ms if place in last else 0
            if place in last and written_ms.get(place, 0) <= copied_ms + RECOVERY_CLOCK_SKEW_MS:
                at[place] = max(firsts[place], last[place] + 1)
                _log.warning(
                    "offsets are lost: copying goes on after the last copy", **told, at=at[place]
                )
            else:
                at[place] = firsts[place]
                _log.info("copying begins with the first record", **told, at=at[place])
        return at

    def _last_copies(self) -> dict[Place, Found]:
        """Per partition the last record that has a copy on a journal, and when that was made."""
        parts = self._copies_since(0).selectExpr("split(place, '/') AS parts", "timestamp")
        rows = (
            parts.filter("size(parts) = 3")
            .selectExpr(
                "parts[0] AS topic",
                "try_cast(parts[1] AS INT) AS number",
                "try_cast(parts[2] AS BIGINT) AS position",
                "unix_millis(timestamp) AS at_ms",
            )
            .groupBy("topic", "number")
            .agg(F.max("position").alias("last"), F.max_by("at_ms", "position").alias("at_ms"))
            .filter("number IS NOT NULL AND last IS NOT NULL")
        )
        return {
            Place(r["topic"], r["number"]): Found(r["last"], r["at_ms"]) for r in rows.collect()
        }

    def _uncommitted(self, known: Collection[Place]) -> DataFrame:
        """Places in these partitions whose records may be copied already, without a commit."""
        found = self._copies_since(self._since_ms - RECOVERY_CLOCK_SKEW_MS)
        # Collected now: as part of the stream's plan, it would read the journals in each batch.
        places = [row.place for row in found.select("place").distinct().collect()]
        sources = {f"{topic}/{number}" for topic, number in known}
        mine = [(place,) for place in places if place.rpartition("/")[0] in sources]
        return self._spark.createDataFrame(mine, "place string")

    def _copies_since(self, from_ms: int) -> DataFrame:
        """Places of the copied records, from the copies on the journals, and the copies' times."""
        journals = set(self._journals.values())
        place = f"CAST({header(text(names.COPIED))} AS STRING)"
        return (
            records_since(self._spark, self._settings, journals, from_ms=from_ms)
            .selectExpr("headers", "headers.key AS names", "timestamp")
            .selectExpr(f"{place} AS place", "timestamp")
            .filter("place IS NOT NULL")
        )

    def _copies(self, records: DataFrame) -> DataFrame:
        """Records for the journals: dialect `headers`, keyed by the schedule's own id."""
        for stage in stages(self._settings):
            records = records.selectExpr(*stage)
        place = "concat_ws('/', origin_topic, origin_partition, origin_position)"
        control = (
            pair(names.DUE_MS, decimal_text("due_ms")),
            pair(names.EPOCH, decimal_text("(due_ms + 999) DIV 1000")),
            pair(names.TARGET_TOPIC, "topic"),
        )
        partition = pair(names.TARGET_PARTITION, decimal_text("partition"))
        expires = pair(names.EXPIRES, decimal_text("greatest(expires_ms, 0L)"))
        seconds = "CAST(expires_after_ms / 1000BD AS DECIMAL(38, 3))"
        expires_after = pair(names.EXPIRES_AFTER, decimal_text(seconds))
        tags = pair(names.TAGS, "tags")
        condition = pair(names.IF, "substring(change, 4)")
        # A plan is read by who takes it in, who needs the time from which its intervals count.
        stamp = pair(names.ORIGIN_TIMESTAMP_MS, decimal_text("origin_timestamp_ms"))
        stale = [name for name in names.STALE if name != names.SCHEDULE]
        ours = texts((*stale, names.COPIED, names.ORIGIN_TIMESTAMP_MS))
        planned = f"array({pair(names.COPIED, place)}, {stamp})"
        # Decided here: on the journal nothing in the record's own headers counts again.
        own = f"filter(headers, h -> NOT h.key IN {texts((*names.STALE, names.COPIED, names.OWN))})"
        none = f"slice(array({control[0]}), 1, 0)"
        journal = F.create_map(*(F.lit(part) for pairs in self._journals.items() for part in pairs))
        return records.selectExpr(
            "*",
            f"""CASE WHEN startswith(change, '{RECURS}')
            THEN concat({planned}, filter(headers, h -> NOT h.key IN {ours}))
            ELSE concat(array({pair(names.COPIED, place)}),
            if(due_ms IS NULL, {none}, array({", ".join(control)})),
            if(key IS NULL, {none}, array({pair(names.TARGET_KEY, "key")})),
            if(partition IS NULL, {none}, array({partition})),
            if(expires_ms IS NULL, {none}, array({expires})),
            if(expires_after_ms IS NULL, {none}, array({expires_after})),
            if(tags IS NULL, {none}, array({tags})),
            if(startswith(change, 'if '), array({condition}), {none}),
            array({pair(names.OWN, "NULL")}), coalesce({own}, {none})
            ) END AS told""",
        ).select(
            journal[F.col("origin_topic")].alias("topic"),
            F.col("id").alias("key"),
            # What was rejected without a value would cancel itself.
            F.expr("if(due_ms IS NULL, value, coalesce(value, X''))").alias("value"),
            F.col("told").alias("headers"),
        )


_PLACE = "concat_ws('/', topic, partition, offset)"


def _offsets_json(positions: Mapping[Place, int]) -> str:
    topics: dict[str, dict[str, int]] = {}
    for (topic, number), at in positions.items():
        topics.setdefault(topic, {})[str(number)] = at
    return json.dumps(topics)
