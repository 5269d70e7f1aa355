"""Finds on target topics what a dead run had delivered from bucket 0: it is not sent again."""

from collections.abc import Iterable

import structlog
from pyspark.sql import SparkSession

from sendlater.brokers.group_offsets import Progress
from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.clock import SystemClock
from sendlater.config import Settings
from sendlater.dialects import delivered_headers, fingerprint
from sendlater.limits import RECOVERY_CLOCK_SKEW_MS
from sendlater.spark.buckets.holding import Offsets, Standing
from sendlater.spark.buckets.ladder import Ladder
from sendlater.spark.buckets.passes import read
from sendlater.spark.topic_reads import deliveries, readable_topics

_log = structlog.get_logger()


def arrived(
    spark: SparkSession,
    settings: Settings,
    ladder: Ladder,
    progress: Progress,
    *,
    topics: KafkaTopics,
) -> Offsets:
    """Offsets of bucket 0, per partition, that were delivered after the last committed batch.

    A delivery is recognised by id, due time and a digest of all it carries; a rejected record by
    the place it was read from. Raises what Spark and Kafka raise.
    """
    places = ladder.places(0)
    known = {p: Standing.of(at) for p, at in progress.committed(places).items()}
    firsts, ends = progress.firsts(places), progress.ends(places)
    starts = {p: max(firsts[p], known[p].resume if p in known else 0) for p in places}
    stopped = bool(known) and all(at.drained for at in known.values())
    if stopped or starts == ends:
        return {}
    control = "split(CAST(get(headers, 0).value AS STRING), ' ')"
    rows = (
        read(spark, settings, {p: (starts[p], ends[p]) for p in places})
        .filter("key IS NOT NULL AND get(headers, 0).key = 'schedule'")
        .selectExpr("partition", "offset", "key AS id", "value", "headers", f"{control} AS told")
        .selectExpr(
            *("partition", "offset", "id", "value"),
            "get(headers, 1).value AS key",
            "slice(headers, 3, size(headers)) AS headers",
            # None may raise: one record that somebody else wrote would stop the look-up.
            "try_cast(get(told, 0) AS BIGINT) AS due_ms",
            "get(told, 1) AS dialect",
            "get(told, 2) AS origin_topic",
            "try_cast(get(told, 5) AS BIGINT) AS origin_timestamp_ms",
            "get(told, 6) AS topic",
            "concat_ws('/', get(told, 2), get(told, 3), get(told, 4)) AS place",
        )
        .filter(f"due_ms <= {SystemClock().now_ms()}L AND origin_topic <> '{ladder.topic(0)}'")
        .filter("topic IS NOT NULL")
        .selectExpr(
            *("partition", "offset", "id", "due_ms", "topic"),
            f"array({fingerprint('key', 'value', delivered_headers())}, place) AS versions",
        )
        .cache()
    )
    try:
        looked = rows.groupBy("topic").agg({"due_ms": "min"}).collect()
        targets = readable_topics(topics, {r[0] for r in looked})
        if not targets:
            return {}
        # Nothing is delivered before it is due, nor before the end of the last committed batch.
        counted_ms = min((at.end_ms for at in known.values()), default=0)
        if counted_ms > SystemClock().now_ms():
            counted_ms = 0  # by a clock that has been set back since
        from_ms = max(counted_ms, min(r[1] for r in looked)) - RECOVERY_CLOCK_SKEW_MS
        there = deliveries(spark, settings, targets | {settings.rejected_topic}, from_ms=from_ms)
        asked = rows.selectExpr("partition", "offset", "id", "due_ms", "explode(versions) version")
        hits = asked.join(there, ["id", "due_ms", "version"]).select("partition", "offset")
        found = [(row[0], row[1]) for row in hits.distinct().collect()]
        _log.warning("deliveries of a dead run looked up", rows=rows.count(), arrived=len(found))
    finally:
        rows.unpersist()
    return ranges(found)


def ranges(places: Iterable[tuple[int, int]]) -> Offsets:
    """Partitions and offsets as ranges, [first, end), per partition."""
    found: dict[str, list[list[int]]] = {}
    for partition, offset in sorted(places):
        mine = found.setdefault(str(partition), [])
        if mine and mine[-1][1] == offset:
            mine[-1][1] = offset + 1
        else:
            mine.append([offset, offset + 1])
    return found
