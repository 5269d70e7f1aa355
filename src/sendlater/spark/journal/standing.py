"""The journals as a table of their current schedules.

The newest record of an id decides: by offset within a partition, by timestamp between partitions.
Our own tombstone removes one version, and not a newer one. A copy that was written again counts as
the version that it is a copy of; of several, the one whose plan has come furthest. The copy of a
reschedule may be written when its schedule is being delivered: the tombstone then names the version
before it, but tells the new due time.

A record with a condition does not count: what stands after it is written behind it. Where that is
missing still, intake decides (again), see `undecided`.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sendlater.brokers.kafka_options import reader_options
from sendlater.config import Settings
from sendlater.dialects import names, sql
from sendlater.dialects.decode import CONDITIONAL, COPY_OF, DONE, NAMES
from sendlater.limits import PLAN_RECORDS_PER_TASK

if TYPE_CHECKING:
    pass


"""A due time as we write it."""

_DONE = f"CASE WHEN value IS NULL THEN try_cast(substring_index({DONE}, '/', -1) AS BIGINT) END"
"""The version that our own tombstone removes; null for every other record."""

_CHANGE = sql.header_text(names.CHANGE, names.CHANGE_NAME)

Ends = Mapping[str, Mapping[int, int]]
"""Per topic and partition the offset after the last record."""


def task_count(ends: Ends) -> int:
    """Tasks that read journals up to `ends`; as many again write the result."""
    total = sum(sum(partitions.values()) for partitions in ends.values())
    return max(2, total // PLAN_RECORDS_PER_TASK)


def records(
    spark: SparkSession, settings: Settings, *, ends: Ends, tasks: int, starts: Ends | None = None
) -> DataFrame:
    """Records of journals up to `ends` (from `starts` on), in the columns of the Kafka source."""
    return (
        spark.read.format("kafka")
        .options(**reader_options(settings))
        .option("assign", json.dumps({topic: sorted(ends[topic]) for topic in ends}))
        .option("startingOffsets", "earliest" if starts is None else json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "false")
        .option("minPartitions", str(tasks))
        .load()
    )


def standing(read: DataFrame, *, tasks: int, decided: bool = True) -> DataFrame:
    """From all records, the current one of each id, in the same columns.

    A copy has the offset of its version. `decided`: records with a condition do not count.
    """
    left = sql.header_text(names.DUE, names.WHOLE_MS)
    asks = CONDITIONAL if decided else "false"
    moved = (
        f"CASE WHEN {_CHANGE} IS NOT NULL THEN {sql.header_text(names.DUE_MS, names.WHOLE_MS)} END"
    )
    # Of copies of one version the one whose plan has come furthest, in whatever order they are.
    plan = f"CAST({sql.header(sql.text(names.PLAN))} AS STRING)"
    planned, changes = (
        f"try_cast(get_json_object({plan}, '$.{name}') AS BIGINT)"
        for name in ("planned_ms", "changes")
    )
    last = "struct(timestamp, value, headers, version, moved)"
    newest = "struct(topic, partition, last, done)"
    marked = (
        read.filter("key IS NOT NULL")
        .selectExpr("*", f"{NAMES} AS names")
        .selectExpr(
            *("*", f"{_DONE} AS done", f"{left} AS left", f"{moved} AS moved"),
            f"coalesce({COPY_OF}, offset) AS version",
            f"struct({planned}, coalesce({changes}, 0)) AS planned",
        )
    )
    # Partitioned by id once, for both groupings that follow. For one task, coalesce is cheaper.
    together = marked.coalesce(1) if tasks == 1 else marked.repartition(tasks, "key")
    return (
        together.groupBy("key", "topic", "partition")
        .agg(
            F.expr(
                f"max_by({last}, struct(version, planned, offset)) "
                f"FILTER (WHERE done IS NULL AND NOT {asks}) AS last"
            ),
            F.expr("max(struct(done, left)) FILTER (WHERE done IS NOT NULL) AS done"),
        )
        .groupBy("key")
        .agg(F.expr(f"max_by({newest}, last.timestamp) AS newest"))
        .filter("newest.last.value IS NOT NULL")
        .filter("newest.done IS NULL OR newest.last.version > newest.done.done")
        .filter("NOT newest.last.moved <=> newest.done.left OR newest.last.moved IS NULL")
        .selectExpr("key", "newest.topic", "newest.partition", "newest.last.*")
        .selectExpr(
            "key", "value", "topic", "partition", "version AS offset", "timestamp", "headers"
        )
    )


def undecided(read: DataFrame) -> dict[str, list[int]]:
    """Per `topic/partition` the offsets of the records with a condition that nothing behind them
    tells to be decided, in their order."""
    rows = (
        read.filter("key IS NOT NULL")
        .selectExpr("*", f"{NAMES} AS names")
        .selectExpr("*", f"{_DONE} AS done", f"coalesce({COPY_OF}, offset) AS version")
        .groupBy("key", "topic", "partition")
        .agg(
            F.expr(
                f"greatest(max(version) FILTER (WHERE done IS NULL AND NOT {CONDITIONAL}), "
                "max(done), -1) AS decided"
            ),
            F.expr(f"collect_list(offset) FILTER (WHERE {CONDITIONAL}) AS asked"),
        )
        .selectExpr("topic", "partition", "filter(asked, at -> at > decided) AS open")
        .groupBy("topic", "partition")
        .agg(F.expr("array_sort(flatten(collect_list(open))) AS open"))
        .filter("size(open) > 0")
    )
    return {f"{row.topic}/{row.partition}": list(row.open) for row in rows.collect()}
