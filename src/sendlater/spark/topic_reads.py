"""Records of topics since an instant, as Spark tables; and which of them we have delivered."""

from collections.abc import Iterable

import structlog
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from sendlater.brokers.kafka_options import reader_options
from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.config import Settings
from sendlater.dialects import fingerprint, names
from sendlater.dialects.sql import header, text

_log = structlog.get_logger()


def readable_topics(topics: KafkaTopics, targets: Iterable[str]) -> set[str]:
    """The targets that we may read; the log names the others."""
    targets = set(targets)
    readable = {topic for topic in targets if topics.may_read(topic)}
    for topic in sorted(targets - readable):
        _log.warning("a target cannot be read; a crash may deliver twice", topic=topic)
    return readable


def records_since(
    spark: SparkSession, settings: Settings, topics: Iterable[str], *, from_ms: int
) -> DataFrame:
    """Records written to topics since an instant, in the columns of the Kafka source."""
    return (
        spark.read.format("kafka")
        .options(**reader_options(settings))
        .option("subscribe", ",".join(sorted(topics)))
        .option("startingTimestamp", str(max(0, from_ms)))
        .option("startingOffsetsByTimestampStrategy", "latest")
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "false")
        # A partition without a leader: who looks up tries again, and gives up after some times.
        .option("fetchOffset.numRetries", "1")
        .load()
    )


def deliveries(
    spark: SparkSession, settings: Settings, topics: Iterable[str], *, from_ms: int
) -> DataFrame:
    """Our records on these topics since an instant: id, due_ms, version, topic, deleted, as
    `as_told`."""
    found = as_told(records_since(spark, settings, topics, from_ms=from_ms))
    return found.select("id", "due_ms", "version", "topic", "deleted")


class Deliveries:
    """What `deliveries` finds, read once for several that ask."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark, self._settings = spark, settings
        self._kept: tuple[int, set[str], DataFrame] | None = None

    def since(self, from_ms: int, topics: set[str], *, shared: bool) -> DataFrame:
        """Our records on these topics since an instant, or more than these. `shared`: others will
        ask for the same, so it is kept on disk until `forget`."""
        if self._kept is not None:
            kept_ms, kept_topics, found = self._kept
            if kept_ms <= from_ms and topics <= kept_topics:
                return found
        found = deliveries(self._spark, self._settings, topics, from_ms=from_ms)
        if shared:
            self.forget()
            found = found.persist(StorageLevel.DISK_ONLY)
            self._kept = from_ms, topics, found
        return found

    def forget(self) -> None:
        """What is kept is needed no more."""
        if self._kept is not None:
            self._kept[2].unpersist()
            self._kept = None


def as_told(records: DataFrame) -> DataFrame:
    """What our headers say on records in the columns of the Kafka source: id, due_ms, version,
    target (the topic it was delivered to), deleted; and topic, partition, offset, timestamp, key.

    `deleted` is true for tombstones, and for what an occurrence leaves on its journal in place of
    one."""

    def ours(name: str) -> str:
        # A name may occur twice: ours is the last one, but in a tombstone the first.
        return header(text(name)).replace("headers", "turned")

    version = f"CAST({ours(names.ORIGIN)} AS STRING)"
    copy = f"array_contains(headers.key, {text(names.AGAIN)})"
    return (
        records.filter("headers IS NOT NULL")
        .selectExpr("*", f"value IS NULL OR {copy} AS deleted", "headers AS given")
        .selectExpr("*", "IF(value IS NULL, given, reverse(given)) AS turned")
        .selectExpr("*", "turned.key AS names")
        .selectExpr(
            f"{ours(names.ID)} AS id",
            f"try_cast(CAST({ours(names.DUE)} AS STRING) AS BIGINT) AS due_ms",
            f"coalesce({version}, {fingerprint('key', 'value', 'headers')}) AS version",
            f"CAST({ours(names.DELIVERED_TO)} AS STRING) AS target",
            *("deleted", "topic", "partition", "offset", "timestamp", "key"),
        )
    )
