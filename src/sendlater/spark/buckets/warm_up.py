"""Warms up the passes of the buckets: a JVM that has just started is many times slower."""

from confluent_kafka import KafkaError, Message, Producer
from pyspark.sql import SparkSession

from sendlater.brokers.client_options import client_options
from sendlater.brokers.group_offsets import Place
from sendlater.clock import Clock
from sendlater.config import Settings
from sendlater.dialects.encode import encode_envelope, encode_headers
from sendlater.model import Record
from sendlater.spark.buckets.ladder import Ladder
from sendlater.spark.buckets.passes import Range, decoded, read, waiting, write
from sendlater.spark.buckets.record import primer

PRIMERS_COUNT = 3_000
"""Records that warm up passes: enough for the JVM to compile what it does per record."""
PRIMER_BYTES = 100
"""Payload of such a record: like many schedules."""
PRIMING_PASSES = 3
"""How often they are moved, so that what Spark does per pass is compiled too."""
PRIMERS_S = 30.0
"""Longest wait for the broker to take them; without them the first real pass is slow."""


def warm_up(
    spark: SparkSession, settings: Settings, ladder: Ladder, clock: Clock, *, room_bytes: int
) -> None:
    """Make Spark load and compile all that passes need, before the first schedule comes.

    Moves records from bucket 0 to bucket 0, and takes in records of bucket 0 as if it were an
    inbox. None is delivered, because their origin is bucket 0.
    """
    bucket, now_ms = ladder.places(0)[0], clock.now_ms()
    own = Record(topic=bucket.topic, value=b"x" * PRIMER_BYTES, key=b"primer")
    asked = {
        "headers": encode_headers(own, inbox=bucket.topic, id=b"primer", due_ms=now_ms),
        "envelope": encode_envelope(own, inbox=bucket.topic, delay_ms=0),
    }
    dialects = {inbox.dialect for inbox in settings.inboxes}
    as_inbox = {dialect: _as_inbox(settings, bucket.topic, dialect) for dialect in dialects}
    kept = _written(settings, bucket, primer(own, now_ms=now_ms))
    new = {dialect: _written(settings, bucket, asked[dialect]) for dialect in dialects}
    for _ in range(PRIMING_PASSES):
        write(waiting(read(spark, settings, kept)), settings, ladder, clock)
        for dialect, ranges in new.items():
            records = read(spark, settings, ranges)
            rows = decoded(records, as_inbox[dialect], clock, room_bytes=room_bytes)
            write(rows, settings, ladder, clock)


def _as_inbox(settings: Settings, topic: str, dialect: str) -> Settings:
    """The same with `topic` as one of the inboxes of that dialect: the same plan in Spark."""
    inboxes = list(settings.inboxes)
    at = next(n for n, inbox in enumerate(inboxes) if inbox.dialect == dialect)
    inboxes[at] = inboxes[at].model_copy(update={"topic": topic})
    return settings.model_copy(update={"inboxes": inboxes})


def _written(settings: Settings, bucket: Place, record: Record) -> dict[Place, Range]:
    """Write PRIMERS_COUNT of it; returns their range, empty if other records are among them."""
    offsets: list[int] = []

    def written(error: KafkaError | None, message: Message) -> None:
        if error is None:
            offsets.append(message.offset() or 0)

    producer = Producer(client_options(settings))
    for _ in range(PRIMERS_COUNT):
        producer.produce(
            bucket.topic,
            record.value,
            record.key,
            partition=bucket.partition,
            headers=list(record.headers),
            on_delivery=written,
        )
    producer.flush(PRIMERS_S)
    first, end = min(offsets, default=0), max(offsets, default=-1) + 1
    return {bucket: (first, end if end - first == PRIMERS_COUNT else first)}
