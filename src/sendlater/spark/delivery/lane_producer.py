"""The Kafka producer of a run of a lane, which Spark keeps in a pool of this process. Each has its
own: what blocks one lane blocks no other, nor its next run.

The executors of a cluster have pools of their own, which nobody here reaches.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from pyspark.sql import SparkSession

from sendlater.config import Settings
from sendlater.spark.kafka_sink import producer_options
from sendlater.spark.warm_up import scala_module

LINGER_FIELD = "lingerMs"
"""Of RecordAccumulator in Kafka's client."""

_log = structlog.get_logger()


def open_producer(spark: SparkSession, settings: Settings, *, of: str) -> None:
    """Have Spark make and connect the producer `of` now; else the first record it delivers waits
    for that. Sends nothing."""
    try:
        with _acquired(spark, settings, of):
            pass
    except Exception as error:  # Spark's own affairs: a later version may keep them otherwise
        _log.warning("warming up failed; the first delivery is later", cause=str(error)[:500])


def close_producer(spark: SparkSession, settings: Settings, *, of: str) -> None:
    """Have the producer `of` give up what it still has: who waits for that goes on with an error.
    What a broker was sent already may still arrive."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    try:
        with _acquired(spark, settings, of) as cached:
            cached.producer().close(jvm.java.time.Duration.ZERO)
    except Exception as error:
        _log.warning("a lane's producer is not closed; it may still send", cause=str(error)[:500])


def linger_of(spark: SparkSession, settings: Settings, *, of: str) -> Callable[[int], None] | None:
    """What changes how long the producer `of` gathers records, in ms; None if it cannot be changed.

    `linger.ms` is a setting of a new producer. But Kafka's client looks at its field for each batch
    (RecordAccumulator.batchReady)."""
    try:
        with _acquired(spark, settings, of) as cached:
            producer = cached.producer()
            accumulator = _field(producer, "accumulator").get(producer)
        linger = _field(accumulator, LINGER_FIELD)
        linger.setInt(accumulator, linger.getInt(accumulator))
    except Exception as error:  # Kafka's own affairs: a later version may keep them otherwise
        _log.warning("a burst leaves in small batches, which cost more", cause=str(error)[:500])
        return None
    return lambda linger_ms: linger.setInt(accumulator, linger_ms)


def _field(of: Any, name: str) -> Any:
    field = of.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field


@contextmanager
def _acquired(spark: SparkSession, settings: Settings, of: str) -> Iterator[Any]:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    kafka = jvm.org.apache.spark.sql.kafka010
    options = jvm.PythonUtils.toScalaMap(producer_options(settings, of=of))
    options = jvm.org.apache.spark.sql.catalyst.util.CaseInsensitiveMap(options)
    params = scala_module(kafka, "KafkaSourceProvider").kafkaParamsForProducer(options)
    pool = scala_module(kafka.producer, "InternalKafkaProducerPool")
    cached = pool.acquire(params)
    try:
        yield cached
    finally:
        pool.release(cached)
