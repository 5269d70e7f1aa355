"""Columns of a DataFrame that becomes schedules: tags, plans; the rest is in tests/story."""

import inspect
import json
from datetime import timedelta
from decimal import Decimal

import pytest
from pyspark.sql.types import ArrayType, BooleanType, DayTimeIntervalType, StringType, StructType

from sendlater import Scheduler
from sendlater.config import Settings
from sendlater.dialects.recurrence import PLAN_HEADERS
from sendlater.errors import BadRequest
from sendlater.spark.datasource import schedule_writer

HOUR_MS = 3_600_000


def scheduled(**row):
    writer = object.__new__(schedule_writer._Scheduling)
    writer.topic, writer.due_ms, writer.delay_ms = "t", None, HOUR_MS
    writer.settings = Settings()
    return writer._schedule({"value": "v", **row}, default_id="i", now_ms=HOUR_MS)


def columns(kind):
    return StructType().add("value", StringType()).add("tags", kind)


def test_tags_are_an_array_of_text():
    check = schedule_writer._check
    check(columns(ArrayType(StringType())), has_topic=True, has_time=True)
    with pytest.raises(BadRequest, match=r"column tags: expected .*array.*, got string"):
        check(columns(StringType()), has_topic=True, has_time=True)


def test_a_row_has_the_tags_of_its_column():
    writer = object.__new__(schedule_writer._Scheduling)
    writer.topic, writer.due_ms, writer.delay_ms = "t", 5, None
    writer.settings = Settings()

    def made(tags):
        row = {"value": "v", "tags": tags}
        return writer._schedule(row, default_id="i", now_ms=1).tags

    assert made(["order-17", "mail", "mail"]) == ("order-17", "mail")
    assert made([]) == made(None) == ()
    with pytest.raises(BadRequest, match="tag: expected"):
        made(["a b"])


def test_every_word_of_the_client_is_a_column():
    """But for those that say how it is sent, and `at`, which is `due` here."""
    words = set(inspect.signature(Scheduler.send_later).parameters) | PLAN_HEADERS.keys()
    assert words - {"self", "at", "wait", "on_sent", "recurrence"} <= set(schedule_writer.COLUMNS)


@pytest.mark.parametrize(
    ("row", "due_ms", "plan"),
    [
        ({"every": "15m"}, 4_500_000, {"every_ms": 900_000}),
        ({"every": 900.5}, 4_500_500, {"every_ms": 900_500}),
        ({"every": Decimal("900.50")}, 4_500_500, {"every_ms": 900_500}),
        ({"every": timedelta(minutes=15), "count": 3}, 4_500_000, {"left": 3}),
        ({"cron": "30 * * * *", "zone": "Europe/Paris"}, 5_400_000, {"zone": "Europe/Paris"}),
        ({"every": 3600, "start": 10 * HOUR_MS * 1_000}, 10 * HOUR_MS, {"every_ms": HOUR_MS}),
        (
            {"every": 3600, "start": "1970-01-01T10:00:00Z", "end": "1970-01-02T00:00:00Z"},
            10 * HOUR_MS,
            {"end_ms": 24 * HOUR_MS},
        ),
        (
            {"every": 3600, "missed": "all", "delay": None, "due": None},
            2 * HOUR_MS,
            {"missed": "all"},
        ),
    ],
)
def test_a_row_recurs(row, due_ms, plan):
    made = scheduled(**row)
    told = json.loads(made.plan)
    assert (made.due_ms, told | plan) == (due_ms, told)
    assert scheduled(**dict.fromkeys(row)).plan == ""


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"every": "soon"}, "every: .*'soon'"),
        ({"every": -1.0}, "every: expected zero or more, got -"),
        ({"every": 60, "delay": 5}, "without delay"),
        ({"cron": "0 9 * * *", "due": HOUR_MS}, "without due"),
        ({"every": 60, "spread": 5}, "without spread"),
        ({"every": 60, "expires": "2030-01-01T00:00:00Z"}, "without expires"),
        ({"cron": "0 9 * *"}, "cron: .*'0 9 . .'"),
        ({"cron": "0 9 * * *", "zone": "Paris"}, "zone: .*'Paris'"),
        ({"every": 60, "start": "noon"}, "start: .*'noon'"),
        ({"every": 60, "count": 0}, "count: expected 1 to .*, got 0"),
        ({"every": "40000d"}, "within 3660 days, got one 40,000.0 days away, from every: '40000d'"),
        ({"every": 60, "start": "2300-01-01T00:00:00Z"}, "days away, from start: '2300"),
        ({"every": 60, "jitter": "1d"}, "jitter: .*86400000"),
        ({"every": 60, "missed": "some"}, "missed: .*'some'"),
        ({"zone": "Europe/Paris"}, "expected one of every and cron"),
        ({"spread": "wide"}, "spread: .*'wide'"),
        ({"expires": "late"}, "expires: .*'late'"),
        ({"expires_after": "late"}, "expires_after: .*'late'"),
        ({"delay": "late"}, "delay: .*'late'"),
        ({"due": "late"}, "due: .*'late'"),
    ],
)
def test_a_value_that_cannot_be_meant_is_told_with_its_column(row, told):
    with pytest.raises(BadRequest, match=told):
        scheduled(**row)


@pytest.mark.parametrize("kind", [DayTimeIntervalType(0, 1), DayTimeIntervalType(2, 2)])
def test_any_day_time_interval_is_a_span(kind):
    """INTERVAL '1 02' DAY TO HOUR, INTERVAL '15' MINUTE."""
    schema = StructType().add("value", StringType()).add("every", kind)
    schedule_writer._check(schema, has_topic=True, has_time=False)


@pytest.mark.parametrize("name", ["every", "cron"])
def test_a_plan_is_a_time(name):
    schema = StructType().add("value", StringType()).add(name, StringType())
    schedule_writer._check(schema, has_topic=True, has_time=False)


@pytest.mark.parametrize("name", ["every", "cron", "start", "count", "missed", "only_if"])
def test_a_column_of_a_wrong_type_is_refused(name):
    schema = StructType().add("value", StringType()).add(name, BooleanType())
    with pytest.raises(BadRequest, match=rf"column {name}: expected .*, got boolean"):
        schedule_writer._check(schema, has_topic=True, has_time=True)
