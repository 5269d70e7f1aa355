"""Practice: records that nobody waits for, delivered as lanes deliver, before the first burst.

Java compiles what it has often done, and only that. Without practice the first burst after a start
leaves half as fast as the next (docs/adr/0043).
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pyspark.sql.datasource import InputPartition

from sendlater.spark.one_batch import OneBatch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from sendlater.brokers.kafka_topics import KafkaTopics
    from sendlater.config import Settings

# What only tasks, or only the driver needs is imported there: Spark starts a process for each step
# of planning.

ROUNDS, CHUNKS, CHUNK_ROWS = 3, 50, 1_000
"""Producers, one after the other, chunks of each, and rows of a chunk, as in a burst. Java's second
compiler takes what has been done some ten thousand times, and leaves out what was never done
meanwhile: what is done first by a task, or by a producer, must be done again."""
KEYS, VALUES = 12, 100
"""So many different lengths."""
SUFFIX = "-warm-up"
"""The topic's name behind that of the space."""
RETENTION_MS = 60_000
"""How long Kafka keeps what is sent there."""
OPTION = "practice"
"""Of the format: the topic."""

_log = structlog.get_logger()


def topic_of(settings: "Settings") -> str:
    """Where an installation practises."""
    return f"{settings.space}{SUFFIX}"


class PracticeReader(OneBatch):
    """In SENT_SCHEMA."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":  # noqa: ARG002
        """CHUNKS times the same rows."""
        from sendlater.model import Origin, Record, Schedule
        from sendlater.spark.arrow_rows import filler, to_sent, unpack_columns
        from sendlater.spark.pipe import pass_on
        from sendlater.store.codec import pack, with_due

        ids = [b"%d" % number for number in range(CHUNK_ROWS)]
        origin = Origin(topic=self._topic, partition=0, position=0, timestamp_ms=0)
        packed = []
        for number, id in enumerate(ids):
            # Of many lengths: a loop over four bytes at once has never run where keys have three.
            key = id * (number % KEYS) if number % KEYS else None
            record = Record(topic=self._topic, key=key, value=b"{}" * (number % VALUES))
            one = Schedule(id=id, due_ms=0, record=record, dialect="headers", origin=origin)
            packed.append(with_due(0, pack(one)))
        rows = to_sent(ids, unpack_columns(packed))
        for _ in range(CHUNKS):
            yield rows
            yield filler(0, sent=True)
            pass_on()


def practise(
    spark: "SparkSession",
    settings: "Settings",
    topics: "KafkaTopics",
    *,
    checkpoint: Path,
    over: threading.Event,
) -> None:
    """Deliver what PracticeReader reads; takes seconds of a core, and a slot beside the lanes'.

    Where the topic is missing and may not be created, or is not kept as one for practice, there is
    no practice. `over`: the service ends, which ends this, too.
    """
    topic, began_s = topic_of(settings), time.monotonic()
    try:
        if why := _unfit(topic, settings, topics):
            _log.warning("no practice: the first burst is slower", topic=topic, cause=why)
            return
        for number in range(ROUNDS):
            _deliver(spark, settings, topic, checkpoint / str(number), of=f"{OPTION}-{number}")
            if over.is_set():
                return
    except Exception as error:
        if not over.is_set():
            told = str(error)[:500]
            _log.warning("no practice: the first burst is slower", topic=topic, cause=told)
        return
    _log.info("practised", topic=topic, seconds=round(time.monotonic() - began_s, 1))


def _unfit(topic: str, settings: "Settings", topics: "KafkaTopics") -> str:
    """Why nothing should be sent there; makes the topic if it may. What is kept for longer is
    somebody else's, or would grow with each start."""
    kept_ms = str(RETENTION_MS)
    if topic not in topics.partitions([topic]):
        if not settings.create_topics:
            return "it does not exist, and create_topics is off"
        config = {"retention.ms": kept_ms}
        topics.create(topic, partitions=settings.topic_partitions, config=config)
        return ""
    found = topics.config(topic).get("retention.ms", "")
    return "" if found == kept_ms else f"expected retention.ms={kept_ms}, got {found!r}"


def _deliver(
    spark: "SparkSession", settings: "Settings", topic: str, checkpoint: Path, *, of: str
) -> None:
    from sendlater.spark.delivery.lane_producer import close_producer
    from sendlater.spark.kafka_sink import producer_options

    # The plan of a lane without journals, so that Java compiles what that runs.
    records = spark.readStream.format("sendlater").option(OPTION, topic).load()
    writer = records.where("topic IS NOT NULL").writeStream.queryName(of).format("kafka")
    writer = writer.options(**producer_options(settings, of=of))
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.processAllAvailable()
    query.stop()
    close_producer(spark, settings, of=of)
