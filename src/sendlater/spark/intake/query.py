"""Intake: inbox topics into the pending store."""

import json
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sendlater.brokers.kafka_options import reader_options
from sendlater.config import Settings
from sendlater.dialects import stages
from sendlater.limits import METADATA_MS_MAX

EARLIEST = -2
"""In Spark's offsets JSON: the first record still there."""


def starting_offsets(
    settings: Settings, positions: Mapping[str, int], partitions: Mapping[str, int]
) -> str:
    """Spark's offsets JSON for every inbox partition: earliest where the store has no position.

    `partitions` must be current at each start: Spark refuses to begin if one is missing.
    """
    starts = {
        inbox.topic: {
            str(number): positions.get(f"{inbox.topic}/{number}") or EARLIEST
            for number in range(partitions[inbox.topic])
        }
        for inbox in settings.taken_in
    }
    return json.dumps(starts)


def inbox_records(
    spark: SparkSession, settings: Settings, *, redis_url: str, starts: str
) -> DataFrame:
    """All inboxes as one stream, in the columns of Spark's Kafka source."""
    topics = ",".join(inbox.topic for inbox in settings.taken_in)
    if settings.on_kafka:
        reader = spark.readStream.format("kafka").options(**reader_options(settings))
        # Otherwise single records wait up to 500 ms for the fetch under way.
        reader = reader.option("kafka.fetch.max.wait.ms", "20").option("includeHeaders", "true")
        reader = reader.option("kafka.metadata.max.age.ms", str(METADATA_MS_MAX))
        # Go on if retention has deleted records before we read them; the service has warned.
        reader = reader.option("failOnDataLoss", "false")
    else:
        reader = spark.readStream.format("sendlater-topics")
        reader = reader.option("redis.url", redis_url).option("space", settings.space)
    return (
        reader.option("subscribe", topics)
        .option("startingOffsets", starts)
        .option("maxOffsetsPerTrigger", str(settings.intake_rows))
        .load()
    )


def start_intake(
    records: DataFrame,
    settings: Settings,
    *,
    redis_url: str,
    owner: int,
    run: int,
    checkpoint: Path,
) -> StreamingQuery:
    """Decode every record and park it.

    In as many tasks as it has slots: a task costs more than the records of a partition.
    """
    records = records.coalesce(settings.intake_slots)
    for stage in stages(settings):
        records = records.selectExpr(*stage)
    return (
        records.writeStream.format("sendlater")
        .queryName("intake")
        .options(
            **{
                "redis.url": redis_url,
                "space": settings.space,
                "shards": str(settings.shards),
                "owner": str(owner),
                "run": str(run),
                "journals": ",".join(settings.journals),
                "check_targets": str(settings.on_kafka).lower(),
            }
        )
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=f"{settings.intake_trigger_ms} milliseconds")
        .start()
    )


def intake_progress(run: int, query: object) -> tuple[int, int, dict[str, int]] | None:
    """Intake's run, its last batch, and per `topic/partition` how far Spark has read with it.

    None before the first batch.
    """
    progress = query.lastProgress if isinstance(query, StreamingQuery) else None
    if progress is None:
        return None
    offsets = json.loads(progress.sources[0].endOffset or "{}")
    read = {
        f"{topic}/{number}": end
        for topic, partitions in offsets.items()
        if isinstance(partitions, dict)
        for number, end in partitions.items()
    }
    return run, progress.batchId, read
