"""Spark reads and writes topics on Redis as it would Kafka's."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from servers import on_cluster, wait_until

from sendlater.model import Record
from sendlater.spark.session import end_session
from sendlater.topics import TopicRecord, Topics

pytestmark = pytest.mark.story

KAFKA_SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
    "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    cluster = on_cluster()
    session = (
        SparkSession.builder.master(cluster.get("spark_master", "local[2]"))
        .config(map=cluster.get("spark", {}))
        .config("spark.ui.enabled", "false")
        .config("spark.buffer.size", "64")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    yield session
    end_session(session)


@pytest.fixture
def topics(redis_url: str, space: str) -> Iterator[Topics]:
    with Topics(redis_url, space=space) as opened:
        yield opened


@pytest.fixture
def options(redis_url: str, space: str) -> dict[str, str]:
    return {"redis.url": redis_url, "space": space}


def read_stream(spark: SparkSession, options: dict[str, str], **more: str) -> DataFrame:
    return spark.readStream.format("sendlater-topics").options(**options, **more).load()


def start_copy(rows: DataFrame, options: dict[str, str], *, checkpoint: Path) -> Any:
    writer = rows.writeStream.format("sendlater-topics").options(**options)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def values_of(topics: Topics, topic: str) -> list[bytes | None]:
    return [record.value for record in records_of(topics, topic)]


def records_of(topics: Topics, topic: str) -> list[TopicRecord]:
    return [
        record
        for partition in range(topics.partitions(topic))
        for record in topics.read(topic, partition, after_position=0, count_max=100_000)
    ]


def test_the_schema_is_that_of_sparks_kafka_source(spark, options):
    rows = read_stream(spark, options, subscribe="t")
    assert rows.schema.simpleString() == KAFKA_SCHEMA


def test_a_stream_copies_a_topic_byte_for_byte_across_a_restart(spark, topics, options, tmp_path):
    """The second run goes on where the checkpoint of the first says, so nothing comes twice."""
    headers = [("a", b"\x00"), ("b", None), ("a", b"2")]
    topics.produce(Record(topic="in", key=b"k", value=None, headers=headers))
    topics.produce(Record(topic="in", key=None, value=b"plain"))
    rows = read_stream(spark, options, subscribe="in, in2").selectExpr(
        "'out' AS topic", "key", "value", "headers", "partition"
    )

    query = start_copy(rows, options, checkpoint=tmp_path)
    wait_until(lambda: len(records_of(topics, "out")) == 2, "two records copied", timeout_s=60)
    topics.produce(Record(topic="in2", value=b"a topic made later"))
    wait_until(lambda: len(records_of(topics, "out")) == 3, "the third copied")
    query.stop()
    topics.produce(Record(topic="in", value=b"while stopped"))
    query = start_copy(rows, options, checkpoint=tmp_path)
    wait_until(lambda: len(records_of(topics, "out")) == 4, "the fourth copied")
    query.processAllAvailable()
    query.stop()

    by_value = {record.value: record for record in records_of(topics, "out")}
    assert set(by_value) == {None, b"plain", b"a topic made later", b"while stopped"}
    assert (by_value[None].key, by_value[None].headers) == (b"k", headers)
    assert (by_value[b"plain"].key, by_value[b"plain"].headers) == (None, [])
    places = {record.value: record.partition for record in records_of(topics, "in")}
    assert by_value[b"plain"].partition == places[b"plain"]


def test_starting_offsets_limit_and_metadata(spark, topics, options, tmp_path):
    topics.create("in", 2)
    positions = topics.produce_many(
        Record(topic="in", value=b"%d" % n, partition=n % 2) for n in range(100)
    )
    starting = json.dumps({"in": {"0": positions[50], "1": -1}})
    rows = read_stream(
        spark, options, subscribe="in", startingOffsets=starting, maxOffsetsPerTrigger="10"
    )
    query = (
        rows.writeStream.format("memory")
        .queryName("limited")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    query.processAllAvailable()
    progress = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
    query.stop()

    found = spark.table("limited").orderBy("offset").collect()
    assert [row.value for row in found] == [b"%d" % n for n in range(50, 100, 2)]
    assert [row.offset for row in found] == positions[50::2]
    assert all(int(row.timestamp.timestamp() * 1000) for row in found)
    assert progress == [10, 10, 5]


def test_entries_trimmed_behind_the_query_are_passed_over(
    spark, topics, options, tmp_path, redis_url, space
):
    topics.create("in", 1)
    positions = topics.produce_many(Record(topic="in", value=b"%d" % n) for n in range(10))
    topics.connection.command("XTRIM", f"{space}:topic:{{in/0}}", "MAXLEN", 4)
    starting = json.dumps({"in": {"0": positions[1]}})
    rows = read_stream(spark, options, subscribe="in", startingOffsets=starting)

    query = start_copy(rows.selectExpr("value", "'out' AS topic"), options, checkpoint=tmp_path)
    query.processAllAvailable()
    query.stop()

    assert sorted(values_of(topics, "out")) == [b"6", b"7", b"8", b"9"]


def test_a_batch_is_written_and_fillers_are_dropped(spark, topics, options):
    rows = spark.sql(
        "SELECT 'text' AS key, CAST(NULL AS BINARY) AS value, id = 3 AS filler FROM range(5)"
    )
    rows.write.format("sendlater-topics").options(**options, topic="out").mode("append").save()

    found = records_of(topics, "out")
    assert [(record.key, record.value) for record in found] == [(b"text", None)] * 4


def test_an_idle_query_costs_next_to_nothing(spark, topics, options, tmp_path):
    """Spark asks every 10 ms; the source answers every 200."""
    topics.create("in", 1)
    asked: list[int] = []
    query = start_copy(
        read_stream(spark, options, subscribe="in").selectExpr("value", "'out' AS topic"),
        options,
        checkpoint=tmp_path,
    )

    def calls() -> int:
        stats = topics.connection.command("INFO", "commandstats")
        asked.append(stats["cmdstat_xread"]["calls"])
        return asked[-1]

    before = wait_until(calls, "the query reads")
    started = topics.produce(Record(topic="clock", value=b"")) >> 20
    wait_until(
        lambda: topics.produce(Record(topic="clock", value=b"")) >> 20 > started + 2_000,
        "two seconds",
    )
    query.stop()
    assert calls() - before <= 15


def test_the_example_of_the_page_copies_topics(
    spark: SparkSession, topics: Topics, redis_url: str, space: str, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "topics-on-redis.md").read_text()
    (code,) = (c for c in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if "spark" in c)
    for stands, here in {
        "redis://127.0.0.1:6379/0": redis_url,
        '"space", "sendlater"': f'"space", "{space}"',
        "checkpoints/copy": str(tmp_path),
    }.items():
        assert stands in code
        code = code.replace(stands, here)
    for topic in ("orders", "payments"):
        topics.produce(Record(topic=topic, value=topic.encode()))
    exec(compile(code, "example", "exec"), {"spark": spark})
    wait_until(
        lambda: sorted(values_of(topics, "copy")) == [b"orders", b"payments"],
        "both are copied",
        timeout_s=90,
    )
    for query in spark.streams.active:
        query.stop()
