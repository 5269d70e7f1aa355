"""Inboxes that are no journals, copied into one: then they are as safe, and later by a batch.

How far copying is lies in Kafka, as committed offsets of a consumer group, and the time of each
commit with it. What a crash left between the last copy and its commit is found on the journal, by
the header each copy carries, and not copied again.
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from sendlater.config import Settings, client_options
from sendlater.dialects import names, stages
from sendlater.dialects.sql import decimal_text, header, pair, text
from sendlater.limits import RECOVERY_CLOCK_SKEW_MS
from sendlater.pipeline.delivery import producer_options
from sendlater.pipeline.kafka_options import reader_options

REQUEST_S = 10.0
"""Longest wait for one answer of a broker."""

COORDINATOR_COMING = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)
COORDINATOR_PAUSE_S = 0.2

Place = tuple[str, int]
"""A topic and a partition."""


class Copier:
    """One query that copies, and its place in Kafka."""

    def __init__(
        self, spark: SparkSession, settings: Settings, partitions: Mapping[str, int]
    ) -> None:
        self._spark, self._settings = spark, settings
        self._journals = {i.topic: i.copy_to for i in settings.inboxes if i.copy_to}
        self._places = [(t, n) for t in self._journals for n in range(partitions[t])]
        self._committed: dict[Place, int] = {}
        self._consumer = Consumer(
            {
                **client_options(settings),
                "group.id": f"sendlater-{settings.space}-copy",
                "enable.auto.commit": False,
            }
        )

    def start(self, checkpoint: Path) -> StreamingQuery:
        """Go on where the last commit was."""
        starts, since_ms = self._positions()
        records = (
            self._spark.readStream.format("kafka")
            .options(**reader_options(self._settings))
            .option("kafka.fetch.max.wait.ms", "20")
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "false")
            .option("subscribe", ",".join(self._journals))
            .option("startingOffsets", _offsets_json(starts))
            .option("maxOffsetsPerTrigger", str(self._settings.intake_rows))
            .load()
        )
        copied = self._copied(since_ms)
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
        """Tell Kafka what Spark has committed; called now and then, and before the end."""
        progress = query.lastProgress if query is not None else None
        if progress is None or not progress.sources[0].endOffset:
            return
        ends = json.loads(progress.sources[0].endOffset)
        told = {(t, int(n)): end for t, parts in ends.items() for n, end in parts.items()}
        if told != self._committed:
            self._commit(told)

    def copied(self) -> dict[str, int]:
        """Per `topic/partition` the position up to which Spark has committed copies."""
        return {f"{topic}/{number}": at for (topic, number), at in self._committed.items()}

    def close(self) -> None:
        """Let go of the consumer group."""
        self._consumer.close()

    def _commit(self, positions: dict[Place, int]) -> None:
        now_ms = str(time.time_ns() // 1_000_000)
        offsets = [TopicPartition(t, n, end, now_ms) for (t, n), end in positions.items()]
        _patiently(lambda: self._consumer.commit(offsets=offsets, asynchronous=False))
        self._committed = positions

    def _positions(self) -> tuple[dict[Place, int], int]:
        """Where to go on per partition, and since when copies may be there without a commit."""
        asked = [TopicPartition(t, n) for t, n in self._places]
        starts: dict[Place, int] = {}
        now_ms = time.time_ns() // 1_000_000
        since_ms = now_ms
        for found in _patiently(lambda: self._consumer.committed(asked, timeout=REQUEST_S)):
            place = (found.topic, found.partition)
            if found.offset >= 0:
                starts[place] = found.offset
                since_ms = min(since_ms, int(found.metadata or now_ms))
            else:
                place_of = TopicPartition(*place)
                starts[place] = self._consumer.get_watermark_offsets(place_of, timeout=REQUEST_S)[0]
        # From here on a crash finds a time to look from.
        self._commit(starts)
        return starts, since_ms

    def _copied(self, since_ms: int) -> DataFrame:
        """Places that were copied to a journal since then."""
        found = (
            self._spark.read.format("kafka")
            .options(**reader_options(self._settings))
            .option("subscribe", ",".join(sorted(set(self._journals.values()))))
            .option("startingTimestamp", str(max(0, since_ms - RECOVERY_CLOCK_SKEW_MS)))
            .option("startingOffsetsByTimestampStrategy", "latest")
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "false")
            .load()
            .selectExpr("headers", "headers.key AS names")
            .selectExpr(f"CAST({header(text(names.COPIED))} AS STRING) AS place")
            .filter("place IS NOT NULL")
            .distinct()
        )
        # Read once: a plan in a stream would read the journals again in each batch.
        places = [(row.place,) for row in found.collect()]
        return self._spark.createDataFrame(places, "place string")

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


def _patiently(ask: Callable[[], Any]) -> Any:
    """Ask a group's coordinator again while it is being found or loads: a fresh broker has none."""
    deadline = time.monotonic() + REQUEST_S
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in COORDINATOR_COMING or time.monotonic() > deadline:
                raise
            time.sleep(COORDINATOR_PAUSE_S)


_PLACE = "concat_ws('/', topic, partition, offset)"


def _offsets_json(positions: Mapping[Place, int]) -> str:
    topics: dict[str, dict[str, int]] = {}
    for (topic, number), at in positions.items():
        topics.setdefault(topic, {})[str(number)] = at
    return json.dumps(topics)
