"""The journals as a table: what stands in them now, and the store filled with it.

Of an id the newest record decides: by offset within a partition, by timestamp between partitions.
A tombstone of ours is about one version, and leaves a newer one standing. A copy that was written
again counts as the version it is a copy of.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sendlater.brokers.kafka_options import reader_options
from sendlater.config import Settings
from sendlater.dialects.decode import COPY_OF, DONE
from sendlater.limits import PLAN_RECORDS_PER_TASK

if TYPE_CHECKING:
    pass


Ends = Mapping[str, Mapping[int, int]]
"""Per topic and partition the offset after the last record."""


def task_count(ends: Ends) -> int:
    """Tasks that read journals up to `ends`, and as many again that write what stands."""
    total = sum(sum(partitions.values()) for partitions in ends.values())
    return max(2, total // PLAN_RECORDS_PER_TASK)


def records(spark: SparkSession, settings: Settings, *, ends: Ends, tasks: int) -> DataFrame:
    """Everything on the journals up to `ends`, in the columns of the Kafka source."""
    return (
        spark.read.format("kafka")
        .options(**reader_options(settings))
        .option("assign", json.dumps({topic: sorted(ends[topic]) for topic in ends}))
        .option("startingOffsets", "earliest")
        .option("endingOffsets", json.dumps(ends))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "false")
        .option("minPartitions", str(tasks))
        .load()
    )


def standing(read: DataFrame, *, tasks: int) -> DataFrame:
    """The record that stands under each id, from all records and in the same columns.

    A copy comes with the offset of its version.
    """
    # The version that a tombstone of ours is about; null for every other record.
    offset = f"try_cast(substring_index({DONE}, '/', -1) AS BIGINT)"
    done = f"CASE WHEN value IS NULL THEN {offset} END"
    last = "struct(timestamp, value, headers, version)"
    newest = "struct(topic, partition, last, done)"
    marked = (
        read.filter("key IS NOT NULL")
        .selectExpr("*", "headers.key AS names")
        .selectExpr("*", f"{done} AS done", f"coalesce({COPY_OF}, offset) AS version")
    )
    # By id first: both groupings that follow then find their rows together. One task needs less.
    together = marked.coalesce(1) if tasks == 1 else marked.repartition(tasks, "key")
    return (
        together.groupBy("key", "topic", "partition")
        .agg(
            F.expr(f"max_by({last}, struct(version, offset)) FILTER (WHERE done IS NULL) AS last"),
            F.expr("max(done) AS done"),
            F.expr("max(timestamp) AS at"),
        )
        .groupBy("key")
        .agg(F.expr(f"max_by({newest}, coalesce(last.timestamp, at)) AS newest"))
        .filter("newest.last.value IS NOT NULL")
        .filter("newest.done IS NULL OR newest.last.version > newest.done")
        .selectExpr("key", "newest.topic", "newest.partition", "newest.last.*")
        .selectExpr(
            "key", "value", "topic", "partition", "version AS offset", "timestamp", "headers"
        )
    )
