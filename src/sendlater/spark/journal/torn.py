"""Tombstones whose delivery never arrived, for a store that has forgotten the claim.

A delivery and its tombstone go to different partitions at the same time, so a service that is
killed may leave the tombstone alone. As long as the store knows what was claimed, the look-up after
a crash notices (see delivery/crash_lookup.py). If the store has lost its last moments too, the
schedule stands again: the store is filled as if there was no such tombstone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.dialects.sql import texts
from sendlater.limits import RECOVERY_CLOCK_SKEW_MS, TORN_LOOK_BACK_MS, TORN_MS
from sendlater.spark.topic_reads import as_told, deliveries, readable_topics

Place = tuple[str, int, int]
"""Topic, partition, offset."""
_NAMED = ["id", "due_ms", "version"]


@dataclass(frozen=True, slots=True)
class Mark:
    """What tells on a journal that a version was delivered: the ids it may have in the store (an
    occurrence that of its schedule, or its own), the version, the due time of that delivery."""

    ids: tuple[bytes, bytes]
    version: str
    due_ms: int


def _marks(read: DataFrame, settings: Settings) -> DataFrame:
    """Tombstones of deliveries, and what occurrences leave in place of one; as `as_told`."""
    return as_told(read).filter(
        f"deleted AND id IS NOT NULL AND due_ms IS NOT NULL AND version NOT LIKE '#%' "
        f"AND target IS NOT NULL AND NOT target IN {texts(settings.journals)}"
    )


def marks(read: DataFrame, settings: Settings) -> Iterator[Mark]:
    """Those among records of journals (in the columns of the Kafka source)."""
    for row in _marks(read, settings).toLocalIterator():
        yield Mark((bytes(row.id), bytes(row.key)), row.version, row.due_ms)


def torn(
    spark: SparkSession,
    settings: Settings,
    topics: KafkaTopics,
    read: DataFrame,
    *,
    clock: Clock | None = None,
) -> list[Place]:
    """Where they are, among records of journals (in the columns of the Kafka source).

    Only those of the last TORN_MS before the last one, when a producer may have died. On a target
    that we may not read, all have arrived. One that says it is from a time to come is not the
    last: anybody may write such a record, and nothing would be looked up any more."""
    found = _marks(read, settings).selectExpr("*", "unix_millis(timestamp) AS at_ms")
    until_ms = (clock or SystemClock()).now_ms() + RECOVERY_CLOCK_SKEW_MS
    # With a clock that is far behind, all are from a time to come.
    latest = f"coalesce(max(at_ms) FILTER (WHERE at_ms <= {until_ms}), max(at_ms))"
    last = found.agg(F.expr(latest).alias("ms")).first()
    if last is None or last.ms is None:
        return []
    found = found.filter(f"at_ms > {last.ms - TORN_MS}")
    asked = found.groupBy("target").agg(F.min("due_ms").alias("due_ms")).collect()
    targets = {row.target for row in asked}
    instead = {settings.rejected_topic, settings.expired_topic} - {""}
    instead -= topics.silent(instead)
    readable = readable_topics(topics, targets | instead)
    due_ms = min(row.due_ms for row in asked)
    since_ms = max(min(due_ms, last.ms - TORN_MS), last.ms - TORN_MS - TORN_LOOK_BACK_MS)
    if not targets & readable:
        return []
    there = (
        deliveries(spark, settings, readable, from_ms=since_ms - RECOVERY_CLOCK_SKEW_MS)
        .filter("NOT deleted")
        .select(*_NAMED)
    )
    lost = (
        found.filter(f"target IN {texts(tuple(sorted(readable)))}")
        .join(there, _NAMED, "left_anti")
        .select("topic", "partition", "offset")
    )
    return [(row.topic, row.partition, row.offset) for row in lost.collect()]


def without(read: DataFrame, places: Sequence[Place]) -> DataFrame:
    """Records of journals but for those at these places."""
    if not places:
        return read
    spark = read.sparkSession
    gone = spark.createDataFrame(list(places), "topic string, partition int, offset bigint")
    return read.join(F.broadcast(gone), ["topic", "partition", "offset"], "left_anti")
