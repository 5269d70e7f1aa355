"""Spark users schedule rows, look at what is pending, and read rows as they fall due."""

import os
import re
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ledger import Reader, create_topics
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from servers import on_cluster, wait_until

from sendlater import Cancelled, Scheduler
from sendlater.spark.session import end_session

pytestmark = pytest.mark.story

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def spark():
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    cluster = on_cluster()
    session = (
        SparkSession.builder.master(cluster.get("spark_master", "local[2]"))
        .config(map=cluster.get("spark", {}))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.sql.streaming.checkpoint.fileChecksum.enabled", "false")
        .getOrCreate()
    )
    yield session
    end_session(session)


@pytest.fixture
def options(redis_url, space):
    return {"redis.url": redis_url, "space": space}


@pytest.fixture
def scheduler(redis_url, space):
    with Scheduler(redis_url, space=space) as opened:
        yield opened


def pending(spark, options):
    return spark.read.format("sendlater").options(**options).load()


def now_ms():
    return time.time_ns() // 1_000_000


# --- writing ----------------------------------------------------------------------------------


def test_rows_become_schedules(spark, options, scheduler):
    """Two rows with all there is to say, in a session whose time zone is not UTC."""
    rows = spark.sql(
        """
        SELECT 'a' AS id, 'orders' AS topic, 3 AS partition, 'k' AS key,
               unhex('FF00') AS value, timestamp'2030-01-01T00:00:00.0015Z' AS due,
               CAST(NULL AS DOUBLE) AS delay,
               array(struct('h' AS key, CAST('1' AS BINARY) AS value),
                     struct('h' AS key, CAST(NULL AS BINARY) AS value)) AS headers
        UNION ALL
        SELECT 'b', 'orders', NULL, NULL, unhex(''), NULL, 3600.5, NULL
        """
    )
    before_ms = now_ms()
    rows.write.format("sendlater").options(**options).mode("append").save()
    a, b = scheduler.get("a"), scheduler.get("b")

    assert (a.topic, a.partition, a.key, a.value) == ("orders", 3, b"k", b"\xff\x00")
    assert a.headers == [("h", b"1"), ("h", None)]
    assert a.due_at == datetime(2030, 1, 1, 0, 0, 0, 2_000, tzinfo=UTC)  # rounded up: never early
    assert (b.topic, b.partition, b.key, b.value, b.headers) == ("orders", None, None, b"", [])
    assert before_ms + 3_600_500 <= b.due_ms <= now_ms() + 3_600_500


@pytest.mark.parametrize(
    ("when", "more", "after_ms"),
    [
        ("'15m' AS delay", {}, 900_000),
        ("2 AS delay", {}, 2_000),
        ("INTERVAL '1 02:00' DAY TO MINUTE AS delay", {}, 93_600_000),
        ("1 AS partition", {"delay": "PT1H"}, HOUR_MS),
        ("CAST(NULL AS STRING) AS delay", {"delay": "90"}, 90_000),
    ],
)
def test_a_delay_is_a_number_a_text_an_interval_or_an_option(
    spark, options, scheduler, when, more, after_ms
):
    rows = spark.sql(f"SELECT 'x' AS id, 'v' AS value, {when}")
    before_ms = now_ms()
    rows.write.format("sendlater").options(**options, topic="t", **more).mode("append").save()
    assert before_ms + after_ms <= scheduler.get("x").due_ms <= now_ms() + after_ms


@pytest.mark.parametrize(
    ("select", "more", "told"),
    [
        ("'v' AS value, 1 AS delay, 2 AS delya", {}, "delya"),
        ("1 AS delay", {}, "value"),
        ("'v' AS value", {}, "due or delay"),
        ("'v' AS value, 1 AS delay", {"topik": "t"}, "topik"),
        ("'v' AS value, timestamp_ntz'2030-01-01T00:00:00' AS due", {}, "timestamp"),
        ("'v' AS value, true AS delay", {}, "seconds"),
        ("CAST(NULL AS STRING) AS value, 1 AS delay", {}, "value"),
        ("'v' AS value, '0 9 * *' AS cron", {}, "cron: .*'0 9 . .'"),
        ("'v' AS value, 60 AS every, 'some' AS missed", {}, "missed: .*'some'"),
        ("'v' AS value, 1 AS delay, 'maybe' AS only_if", {}, "only_if: .*'maybe'"),
    ],
)
def test_rows_that_cannot_be_meant_are_refused(spark, options, select, more, told):
    rows = spark.sql(f"SELECT {select}")
    with pytest.raises(PySparkException, match=told):
        rows.write.format("sendlater").options(**options, topic="t", **more).mode("append").save()


def test_rows_recur_and_are_created_under_a_condition(spark, options, scheduler):
    """A second run with `only_if` leaves what stands as it is; a row without one replaces."""

    def write(select):
        rows = spark.sql(f"SELECT 't' AS topic, array('plans') AS tags, {select}")
        rows.write.format("sendlater").options(**options).mode("append").save()

    absent = "'absent' AS only_if, CAST(3 AS BIGINT) AS count"
    for value in ("first", "second"):
        write(f"'a' AS id, '{value}' AS value, INTERVAL '15' MINUTE AS every, {absent}")
    start = "timestamp'2035-01-01T00:00:00Z' AS start, timestamp'2035-02-01T00:00:00Z' AS end"
    cron = f"'0 9 * * MON-FRI' AS cron, 'Europe/Paris' AS zone, {start}"
    for value in ("first", "second"):
        write(f"'b' AS id, '{value}' AS value, {cron}, CAST(NULL AS STRING) AS only_if")
    a, b = scheduler.get("a"), scheduler.get("b")
    assert (a.value, a.tags, a.plan["every_ms"], a.plan["left"]) == (
        b"first",
        ("plans",),
        900_000,
        3,
    )
    assert (b.value, b.due_at) == (b"second", datetime(2035, 1, 1, 8, tzinfo=UTC))
    assert b.plan["end_ms"] == datetime(2035, 2, 1, tzinfo=UTC).timestamp() * 1_000


def test_overwriting_is_refused(spark, options):
    rows = spark.sql("SELECT 'v' AS value, 1 AS delay, 't' AS topic")
    with pytest.raises(PySparkException, match="append"):
        rows.write.format("sendlater").options(**options).mode("overwrite").save()


def test_a_stream_that_fails_half_way_doubles_nothing(spark, options, scheduler, tmp_path):
    """The batch is run again from the checkpoint; its rows have the same ids, and replace."""
    (tmp_path / "in").mkdir()
    broken = tmp_path / "broken"
    broken.touch()
    for n in range(20):
        (tmp_path / "in" / f"{n}.txt").write_text(f"{n}\n")

    @F.udf("string")
    def may_break(value):
        # Some rows have been written when this one fails.
        if value == "19" and broken.exists():
            raise ValueError("broken")
        return value

    rows = (
        spark.readStream.text(str(tmp_path / "in"))
        .repartition(1)
        .select(may_break("value").alias("value"))
    )

    def run():
        query = (
            rows.writeStream.format("sendlater")
            .options(**options, topic="t", delay="1h")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    with pytest.raises(PySparkException):
        run()
    broken.unlink()
    run()
    run()
    assert sorted(int(s.value) for s in scheduler.list(limit=1_000).items) == list(range(20))


def test_on_kafka_rows_go_to_the_inbox(spark, kafka, options, topic_name):
    inbox = topic_name("in")
    create_topics(kafka, inbox)
    on_kafka = options | {"bootstrap.servers": kafka, "inbox": inbox, "topic": "t", "delay": "1h"}
    with Reader(kafka, inbox) as reader:
        rows = spark.range(100).selectExpr("CAST(id AS STRING) AS id", "'v' AS value")
        rows.write.format("sendlater").options(**on_kafka).mode("append").save()
        wait_until(lambda: len(reader.messages) == 100, "the rows are on the inbox")
    assert {m.key().decode() for m in reader.messages} == {str(n) for n in range(100)}
    assert dict(reader.messages[0].headers())["scheduler-target-topic"] == b"t"


# --- looking ----------------------------------------------------------------------------------


@pytest.fixture
def hundred(scheduler):
    """n is due n hours after 2030 began, for topic even or odd."""
    began = datetime(2030, 1, 1, tzinfo=UTC)
    scheduler.send_many(
        {
            "topic": "odd" if n % 2 else "even",
            "value": b"%d" % n,
            "id": f"{'x' if n < 50 else 'y'}-{n}",
            "at": began + timedelta(hours=n),
        }
        for n in range(100)
    )


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        ("true", range(100)),
        ("id = 'x-7'", [7]),
        ("id IN ('x-7', 'y-70', 'z')", [7, 70]),
        ("id LIKE 'y-%'", range(50, 100)),
        ("id LIKE '%-7'", [7]),
        ("topic = 'odd' AND id LIKE 'x%'", range(1, 50, 2)),
        ("due >= timestamp'2030-01-03T00:00:00Z'", range(48, 100)),
        ("due > timestamp'2030-01-03T00:00:00Z'", range(49, 100)),
        ("due <= timestamp'2030-01-01T02:00:00Z'", [0, 1, 2]),
        ("due < timestamp'2030-01-01T02:00:00.000001Z'", [0, 1, 2]),
        ("due = timestamp'2030-01-01T02:00:00Z'", [2]),
        ("due_ms BETWEEN 1893502000000 AND 1893507000000", [13, 14]),
        ("due > timestamp'2030-01-03T00:00:00Z' OR id = 'x-1'", [1, *range(49, 100)]),
        ("id = 'x-7' AND id = 'x-8'", []),
        ("NOT topic = 'odd'", range(0, 100, 2)),
    ],
)
def test_filters_are_pushed_down_and_change_nothing(spark, options, hundred, where, numbers):
    found = pending(spark, options).where(where).collect()
    assert sorted(int(row.value) for row in found) == list(numbers)


def test_what_is_pending_is_read_where_filters_are_not_pushed_down(spark, options, hundred):
    """Spark's default."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        found = pending(spark, options)
        assert found.count() == 100
        assert [row.id for row in found.where("id = 'x-7'").collect()] == ["x-7"]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_filters_narrow_what_is_read(options, hundred):
    """What Spark filters away again must not have been read at first."""
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan, StringStartsWith

    from sendlater.spark.datasource.pending_reader import PendingReader

    def read(*filters):
        reader = PendingReader(options)
        assert list(reader.pushFilters(list(filters))) == list(filters)
        return sum(rows.num_rows for part in reader.partitions() for rows in reader.read(part))

    low, high = datetime(2030, 1, 1, 5, tzinfo=UTC), datetime(2030, 1, 1, 7, tzinfo=UTC)
    assert read() == 100
    assert read(GreaterThanOrEqual(("due",), low), LessThan(("due",), high)) <= 3
    assert read(EqualTo(("id",), "x-7")) == 1
    assert read(StringStartsWith(("id",), "y-")) == 50
    assert read(EqualTo(("topic",), "odd")) == 50


def test_more_than_a_page_is_read_and_columns_may_be_chosen(spark, options, scheduler):
    at = datetime(2030, 1, 1, tzinfo=UTC)
    scheduler.send_many(
        {"topic": "t", "value": b"v", "id": f"{n}", "at": at, "headers": [("a", None)]}
        for n in range(2_500)
    )
    rows = pending(spark, options)
    assert rows.count() == 2_500
    assert rows.select("id").distinct().count() == 2_500
    row = rows.where("id = '1'").first()
    assert (row.topic, row.partition, row.key, bytes(row.value)) == ("t", None, None, b"v")
    assert row.headers == [("a", None)]
    assert row.due_ms == at.timestamp() * 1000


# --- as they fall due -------------------------------------------------------------------------


def due_stream(spark, options, **more):
    return spark.readStream.format("sendlater").options(**options, **more).load()


def into(seen, rows, checkpoint, **trigger):
    """Start a query that gathers ids per batch."""

    def gather(batch, number):
        seen.append([row.id for row in batch.select("id").collect()])

    writer = rows.writeStream.foreachBatch(gather).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


def send(scheduler, *names, delay=0.0):
    scheduler.send_many({"topic": "t", "value": n.encode(), "id": n, "delay": delay} for n in names)


def flat(seen):
    return sorted(name for batch in seen for name in batch)


def test_rows_come_as_they_fall_due_once_over_restarts(spark, options, scheduler, tmp_path):
    seen = []
    rows = due_stream(spark, options)
    send(scheduler, "a", "b")
    send(scheduler, "later", delay=3)
    due_ms = scheduler.get("later").due_ms
    query = into(seen, rows, tmp_path)
    wait_until(lambda: flat(seen) == ["a", "b", "later"], "all have come", timeout_s=90)
    assert now_ms() >= due_ms
    query.processAllAvailable()  # until the batch is committed, not only seen
    query.stop()

    send(scheduler, "c")
    query = into(seen, rows, tmp_path)
    wait_until(lambda: "c" in flat(seen), "what fell due while stopped", timeout_s=90)
    send(scheduler, "d")
    query.processAllAvailable()
    query.stop()
    assert flat(seen) == ["a", "b", "c", "d", "later"], seen
    assert scheduler.cancel("d") in (Cancelled.UNKNOWN, Cancelled.DELIVERING)


def test_a_batch_that_failed_comes_again_whole(spark, options, scheduler, tmp_path):
    seen, failing = [], [True]
    send(scheduler, "a", "b", "c")

    def gather(batch, number):
        seen.append([row.id for row in batch.select("id").collect()])
        if failing:
            raise ValueError("not today")

    def run():
        query = (
            due_stream(spark, options)
            .writeStream.foreachBatch(gather)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    with pytest.raises(PySparkException):
        run()
    assert flat(seen) == ["a", "b", "c"]
    failing.clear()
    run()
    assert flat(seen) == ["a", "a", "b", "b", "c", "c"]
    run()
    assert len(flat(seen)) == 6
    # Even without its checkpoint nothing that was committed comes again.
    scheduler.send_later("t", b"d", delay=0, id="d")
    into(seen, due_stream(spark, options), tmp_path / "new", availableNow=True).awaitTermination(
        120
    )
    assert flat(seen)[6:] == ["d"]


def test_available_now_ends_and_a_row_limit_holds(spark, options, scheduler, tmp_path):
    at = datetime.now(UTC) - timedelta(seconds=1)
    scheduler.send_many({"topic": "t", "value": b"v", "id": f"{n:03}", "at": at} for n in range(5))
    for n in range(5, 60):
        send(scheduler, f"{n:03}")
    send(scheduler, "later", delay=3_600)
    seen = []
    rows = due_stream(spark, options, maxRowsPerTrigger="20")
    query = into(seen, rows, tmp_path, availableNow=True)
    assert query.awaitTermination(180)
    assert flat(seen) == [f"{n:03}" for n in range(60)]
    assert len(seen) >= 3
    assert max(len(batch) for batch in seen) <= 30
    assert scheduler.get("later") is not None


def test_a_space_that_a_service_owns_is_not_taken_unasked(spark, options, scheduler, tmp_path):
    scheduler.pending.fence()
    send(scheduler, "a")
    seen = []
    with pytest.raises(PySparkException, match="belongs to a service"):
        into(seen, due_stream(spark, options), tmp_path, availableNow=True).awaitTermination(120)
    rows = due_stream(spark, options, takeover="true")
    into(seen, rows, tmp_path / "2", availableNow=True).awaitTermination(120)
    assert flat(seen) == ["a"]


def test_the_examples_of_the_page_come_true_in_a_stream_of_their_own(
    spark, redis_url, space, tmp_path, capsys
):
    """The page's blocks in turn: schedule, recur, look, read what falls due."""
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert len(blocks) == 4
    names = {"spark": spark, "checkpoint": str(tmp_path)}
    with Scheduler(redis_url, space="analytics") as scheduler:
        scheduler.send_later("t", b"v", delay=0, id=space)
    for code in blocks:
        here = code.replace(
            '"redis://127.0.0.1:6379/0")', f'"{redis_url}").option("space", "{space}")'
        )
        exec(compile(here, "example", "exec"), names)
    assert "|reminders|    2|" in capsys.readouterr().out
    assert space in [row.id for row in spark.table("due").collect()]
