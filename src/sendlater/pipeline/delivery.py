"""Delivery: what falls due, to its target topic."""

from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sendlater.config import Settings
from sendlater.dialects import delivered_headers, delivered_stages
from sendlater.limits import REJECTED_TOPIC_BYTES_MAX
from sendlater.pipeline.kafka_options import spark_options
from sendlater.pipeline.source import Lane

FRAMING_BYTES_MAX = 21
"""By how much Kafka's producer overestimates a record (DefaultRecord.MAX_RECORD_OVERHEAD)."""
OUTBOX_ROWS = 5
"""Rows the JVM gathers for the development outbox, a Python sink, before it hands them on."""


def start_lane(
    spark: SparkSession, settings: Settings, *, lane: Lane, checkpoint: Path
) -> StreamingQuery:
    """One delivery query; its run and owner are in `lane`."""
    if not settings.on_kafka:
        spark = spark.newSession()
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(OUTBOX_ROWS))
        lane = replace(lane, filler_rows=OUTBOX_ROWS)
    due = spark.readStream.format("sendlater").options(**lane.to_options()).load()
    *stages, last = delivered_stages(settings)
    if not settings.on_kafka:
        last.append("topic IS NULL AS filler")
    records = due
    for stage in (*stages, last):
        records = records.selectExpr(*stage)
    writer = records.writeStream.queryName(f"lane-{lane.lane}")
    if settings.on_kafka:
        writer = writer.format("kafka").options(**producer_options(settings))
    else:
        writer = writer.format("sendlater-topics").options(
            **{
                "redis.url": lane.redis_url,
                "space": settings.space,
                "partitions": str(settings.topic_partitions),
                "retention.ms": str(settings.topics_retention_ms),
                "length.max": str(settings.topics_length_max),
            }
        )
    return writer.option("checkpointLocation", str(checkpoint)).start()


def start_held(
    spark: SparkSession, settings: Settings, *, options: dict[str, str], checkpoint: Path
) -> StreamingQuery:
    """The query that delivers from bucket 0."""
    due = spark.readStream.format("sendlater").options(**options).load()
    columns = ["topic", "partition", "key", "value", f"{delivered_headers()} AS headers"]
    return (
        due.selectExpr(*columns)
        .writeStream.queryName("deliver")
        .format("kafka")
        .options(**producer_options(settings))
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


def producer_options(settings: Settings) -> dict[str, str]:
    """Large batches soon: 84,000 messages a second against 59,000 with the sink's defaults."""
    return {
        "kafka.linger.ms": str(settings.linger_ms),
        "kafka.batch.size": "262144",
        "kafka.max.request.size": str(REJECTED_TOPIC_BYTES_MAX),
        # A target that is gone must not hold up a lane for the default minute.
        "kafka.max.block.ms": "10000",
        "kafka.delivery.timeout.ms": "30000",
        "kafka.request.timeout.ms": "15000",
        **spark_options(settings),
    }


def request_bytes_max(settings: Settings) -> int:
    """Largest record that the producer sends, whatever its topic takes."""
    return int(producer_options(settings)["kafka.max.request.size"]) - FRAMING_BYTES_MAX
