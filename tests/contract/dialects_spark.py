"""Inbox records through real Spark SQL."""

import os
import sys
from datetime import UTC, datetime, timedelta

import pytest
from dialects_model import COLUMNS, READ_MS, SETTINGS
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sendlater.dialects import SPARK_SETTINGS, delivered_headers, stages

PAIR = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("headers", ArrayType(PAIR)),
    ]
)


@pytest.fixture(scope="module")
def spark():
    """A small one, with the settings that decoding needs."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    # A zone that is not UTC, so that a forgotten one shows.
    builder = builder.config("spark.sql.session.timeZone", "Asia/Kolkata")
    for name, value in SPARK_SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


def frame_of(spark, records, *, read_ms=READ_MS):
    """Records as Kafka's source gives them, one after the other on a partition of their topics."""
    instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=read_ms)
    rows = [
        (r.key, r.value, r.topic, 1, place, instant, r.headers or None)
        for place, r in enumerate(records)
    ]
    return spark.createDataFrame(rows, SCHEMA)


def decode(spark, records, chosen=SETTINGS, **when):
    """Each record decoded, in order, as a dict; headers as pairs, bytes as bytes."""
    frame = frame_of(spark, records, **when)
    for stage in stages(chosen):
        frame = frame.selectExpr(*stage)
    assert frame.columns == COLUMNS
    frame = frame.selectExpr("*", f"{delivered_headers(chosen.journals)} AS delivered")
    decoded = [row.asDict() for row in sorted(frame.collect(), key=lambda r: r.origin_position)]
    for row in decoded:
        for name in ("id", "key", "value"):
            row[name] = None if row[name] is None else bytes(row[name])
        for name in ("headers", "delivered"):
            row[name] = row[name] and [(k, v if v is None else bytes(v)) for k, v in row[name]]
    return decoded
