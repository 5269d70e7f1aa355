"""Warms up the JVM before it is needed: a JVM that has just started is many times slower."""

import json
from typing import Any

import structlog
from pyspark.sql import SparkSession

from sendlater.brokers.kafka_options import reader_options
from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.config import Settings
from sendlater.dialects import delivered_stages, lane_stages, stages
from sendlater.spark.kafka_sink import producer_options

SERIALIZER = "org.apache.kafka.common.serialization.ByteArraySerializer"

_log = structlog.get_logger()


def read_sql(gateway: Any, settings: Settings) -> None:
    """Have the JVM behind `gateway` read the expressions of intake and lanes while it starts a
    session: the first time, that takes ten times as long, and planning waits for it."""
    try:
        parser = scala_module(gateway.jvm.org.apache.spark.sql.catalyst.parser, "CatalystSqlParser")
        for stage in (*stages(settings), *lane_stages(settings)):
            for expression in stage:
                parser.parseExpression(expression)
    except Exception as error:  # as when a start ends early; what is wrong shows in planning
        _log.debug("SQL was not read in advance", cause=str(error)[:500])


def warm_up(spark: SparkSession, settings: Settings, topics: KafkaTopics) -> None:
    """Make the JVM load and compile what a takeover runs, while there is time. Reads nothing."""
    try:
        _run_once(spark, settings, topics)
    except Exception as error:
        _log.warning("warming up failed; a takeover takes longer", cause=str(error)[:500])


def _run_once(spark: SparkSession, settings: Settings, topics: KafkaTopics) -> None:
    import sendlater.spark.arrow_rows  # noqa: F401  # a look-up after a crash needs it

    ends = topics.ends(inbox.topic for inbox in settings.taken_in)
    records = (
        spark.read.format("kafka")
        .options(**reader_options(settings))
        .option("assign", json.dumps({topic: sorted(ends[topic]) for topic in ends}))
        .option("startingOffsets", json.dumps(ends))
        .option("endingOffsets", json.dumps(ends))
        .option("includeHeaders", "true")
        .load()
    )
    for stage in stages(settings):
        records = records.selectExpr(*stage)
    for stage in delivered_stages(settings):
        records = records.selectExpr(*stage)
    records.join(records.limit(1), "key").distinct().write.format("noop").mode("overwrite").save()


def warm_up_producer(spark: SparkSession, settings: Settings) -> None:
    """Make the driver's JVM load Kafka's producer, which is more than half of what the first
    delivery waits for. Sends nothing. The executors of a cluster have JVMs of their own."""
    try:
        producer = new_producer(spark, settings)
        try:
            producer.partitionsFor(settings.rejected_topic)
        finally:
            producer.close()
    except Exception as error:
        _log.warning("warming up failed; the first delivery is later", cause=str(error)[:500])


def new_producer(spark: SparkSession, settings: Settings) -> Any:
    """Kafka's producer, as Java's object, with the options that deliveries use."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    options = {"key.serializer": SERIALIZER, "value.serializer": SERIALIZER}
    for name, value in producer_options(settings).items():
        options[name.removeprefix("kafka.")] = value
    return jvm.org.apache.kafka.clients.producer.KafkaProducer(options)


def scala_module(package: Any, name: str) -> Any:
    """Scala's object of that name."""
    return getattr(getattr(package, name + "$"), "MODULE$")
