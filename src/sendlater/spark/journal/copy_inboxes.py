"""Inboxes that are no journals, copied into one: then they are as safe, and later by a batch.

How far copying is lies in Kafka, as committed offsets of a consumer group, and with them when the
last batch that counts began. What a crash left between a copy and its commit is found on the
journal, by the header each copy carries, and not copied again. Where the offsets are gone, these
headers tell how far copying was.
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
from sendlater.dialects.sql import decimal_text, header, pair, text
from sendlater.limits import METADATA_MS_MAX, OFFSETS_RECOMMIT_MS, RECOVERY_CLOCK_SKEW_MS
from sendlater.spark.kafka_sink import producer_options
from sendlater.spark.topic_reads import records_since

_log = structlog.get_logger()


class Copier:
    """One query that copies, and its place in Kafka."""

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
        """Go on where the last commit was."""
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
        fresh = records.selectExpr("*", f"{_PLACE} AS place").join(
            self._uncommitted(known), "place", "left_anti"
        )
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
        """Tell Kafka what Spark has committed; called now and then, and before the end.

        What stands still is told again in time, as a broker forgets a group after a week.
        """
        progress = query.lastProgress if query is not None else None
        at = self._at
        if progress is not None and progress.sources[0].endOffset:
            ends = json.loads(progress.sources[0].endOffset)
            at = {Place(t, int(n)): end for t, parts in ends.items() for n, end in parts.items()}
        if progress is not None and at != self._at:
            # Whatever the next batch writes, it does so after this one began.
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
        """Find where to go on, and since when copies may be there without a commit; the partitions
        that may have such copies."""
        counts = self._topics.partitions(self._journals)
        places = [Place(topic, n) for topic, count in counts.items() for n in range(count)]
        now_ms = self._clock.now_ms()
        known, ends = self._progress.committed(places), self._progress.ends(places)
        # An offset beyond the end is one of a topic that was deleted since.
        known = {place: at for place, at in known.items() if at.offset <= ends[place]}
        at = {place: found.offset for place, found in known.items()}
        if lost := [place for place in places if place not in at]:
            at |= self._behind_copies(lost, ends)
        # From here on a crash finds a time to look from.
        since_ms = min((int(found.note or now_ms) for found in known.values()), default=now_ms)
        self._commit(at, since_ms=since_ms)
        return known.keys()

    def _behind_copies(
        self, places: Collection[Place], ends: Mapping[Place, int]
    ) -> dict[Place, int]:
        """Where to begin without a commit: behind the last record of which there is a copy."""
        firsts, copies = self._progress.firsts(places), self._last_copies()
        last = {p: copies[p].offset for p in places if p in copies and copies[p].offset < ends[p]}
        kept = {place: offset for place, offset in last.items() if offset >= firsts[place]}
        written_ms = self._progress.timestamps(kept)
        at: dict[Place, int] = {}
        for place in places:
            told = {"inbox": place.topic, "partition": place.partition}
            # A topic made anew may have grown past it: a record younger than its copy is another.
            copied_ms = copies[place].timestamp_ms if place in last else 0
            if place in last and written_ms.get(place, 0) <= copied_ms + RECOVERY_CLOCK_SKEW_MS:
                at[place] = max(firsts[place], last[place] + 1)
                _log.warning(
                    "nothing tells how far copying was but its copies", **told, at=at[place]
                )
            else:
                at[place] = firsts[place]
                _log.info("nothing was copied yet: from the beginning", **told, at=at[place])
        return at

    def _last_copies(self) -> dict[Place, Found]:
        """Per partition the last record of which a journal has a copy, and when that was made."""
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
        """Places in these partitions that may have been copied to a journal without a commit."""
        found = self._copies_since(self._since_ms - RECOVERY_CLOCK_SKEW_MS)
        # Read once: a plan in a stream would read the journals again in each batch.
        places = [row.place for row in found.select("place").distinct().collect()]
        sources = {f"{topic}/{number}" for topic, number in known}
        mine = [(place,) for place in places if place.rpartition("/")[0] in sources]
        return self._spark.createDataFrame(mine, "place string")

    def _copies_since(self, from_ms: int) -> DataFrame:
        """Places that copies on the journals name, and when these were made."""
        journals = set(self._journals.values())
        place = f"CAST({header(text(names.COPIED))} AS STRING)"
        return (
            records_since(self._spark, self._settings, journals, from_ms=from_ms)
            .selectExpr("headers", "headers.key AS names", "timestamp")
            .selectExpr(f"{place} AS place", "timestamp")
            .filter("place IS NOT NULL")
        )

    def _copies(self, records: DataFrame) -> DataFrame:
        """Records for the journals: dialect `headers`, under the id the schedule has anyway."""
        for stage in stages(self._settings):
            records = records.selectExpr(*stage)
        place = "concat_ws('/', origin_topic, origin_partition, origin_position)"
        control = (
            pair(names.DUE_MS, decimal_text("due_ms")),
            pair(names.EPOCH, decimal_text("(due_ms + 999) DIV 1000")),
            pair(names.TARGET_TOPIC, "topic"),
        )
        partition = pair(names.TARGET_PARTITION, decimal_text("partition"))
        none = f"slice(array({control[0]}), 1, 0)"
        journal = F.create_map(*(F.lit(part) for pairs in self._journals.items() for part in pairs))
        return records.selectExpr(
            "*",
            f"""concat(coalesce(headers, {none}), array({pair(names.COPIED, place)}),
            if(due_ms IS NULL, {none}, array({", ".join(control)})),
            if(key IS NULL, {none}, array({pair(names.TARGET_KEY, "key")})),
            if(partition IS NULL, {none}, array({partition}))
            ) AS told""",
        ).select(
            journal[F.col("origin_topic")].alias("topic"),
            F.col("id").alias("key"),
            "value",
            F.col("told").alias("headers"),
        )


_PLACE = "concat_ws('/', topic, partition, offset)"


def _offsets_json(positions: Mapping[Place, int]) -> str:
    topics: dict[str, dict[str, int]] = {}
    for (topic, number), at in positions.items():
        topics.setdefault(topic, {})[str(number)] = at
    return json.dumps(topics)
