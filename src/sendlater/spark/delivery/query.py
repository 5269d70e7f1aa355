"""The Spark queries of delivery."""

from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sendlater.config import Settings
from sendlater.dialects import lane_stages
from sendlater.spark.delivery.lane import Lane
from sendlater.spark.delivery.lane_producer import open_producer
from sendlater.spark.kafka_sink import producer_options

OUTBOX_ROWS = 5
"""Rows that the JVM gathers before it passes them on to the development outbox, a Python sink."""


def start_lane(
    spark: SparkSession, settings: Settings, *, lane: Lane, checkpoint: Path, producer: str = ""
) -> StreamingQuery:
    """One delivery query; its run and owner are in `lane`. `producer`: the name of one to open now;
    without, Spark opens it when there is something to deliver."""
    if not settings.on_kafka:
        spark = spark.newSession()
        # Makes it the active one of this thread, where Spark looks for a sink's format in Python;
        # lanes are started again by another thread than the one that made the first session.
        spark.createDataFrame([], "none INT")
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(OUTBOX_ROWS))
        lane = replace(lane, filler_rows=OUTBOX_ROWS)
    records = spark.readStream.format("sendlater").options(**lane.to_options()).load()
    for stage in lane_stages(settings):
        records = records.selectExpr(*stage)
    # Rows without a topic only warm up what they pass, and the development outbox drops them.
    if settings.on_kafka:
        records = records.where("topic IS NOT NULL")
    else:
        records = records.selectExpr("*", "topic IS NULL AS filler")
    writer = records.writeStream.queryName(f"lane-{lane.lane}")
    if settings.on_kafka:
        name = producer or f"lane-{lane.lane}-{lane.run}"
        if producer:
            open_producer(spark, settings, of=name)
        writer = writer.format("kafka").options(**producer_options(settings, of=name))
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
    records = spark.readStream.format("sendlater").options(**options).load()
    return (
        records.writeStream.queryName("deliver")
        .format("kafka")
        .options(**producer_options(settings))
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
