"""Buckets without a broker: where a schedule waits, how often it is written, and how it is read."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendlater.config import load
from sendlater.errors import BadSettings
from sendlater.spark.buckets.ladder import Ladder
from sendlater.spark.buckets.record import parse

LADDER = Ladder(prefix="b", count=30, delivering=2)
YEAR_MS = 31_557_600_000
EVERY_BUCKET_MS = 600 + sum(LADDER.hold_ms(bucket) for bucket in range(1, 30))
LATE_MS_MAX = 400
"""A pass that is so late costs the shortest bucket's records nothing."""


def path(left_ms: int, *, late_ms: int = 0) -> list[int]:
    """The buckets a schedule is written to, each pass `late_ms` late, until it may go out."""
    written = [LADDER.place(left_ms)]
    while written[-1]:
        left_ms -= LADDER.hold_ms(written[-1]) + late_ms
        assert left_ms >= 0, f"overslept by {-left_ms} ms in bucket {written[-1]}"
        written.append(LADDER.place(left_ms))
    return written


@given(st.integers(0, 10 * YEAR_MS), st.integers(0, LATE_MS_MAX))
def test_nobody_oversleeps_and_nobody_is_written_too_often(left_ms, late_ms):
    """Up to ten years, on time or a little late at every step."""
    written = path(left_ms, late_ms=late_ms)

    assert len(written) <= 2 * math.log2(max(1, left_ms / 1_000)) + 3
    assert written == sorted(written, reverse=True)
    assert max(map(written.count, written)) <= 2


def test_ten_years_away_is_still_within_the_buckets():
    assert LADDER.reach_ms > 10 * YEAR_MS
    assert path(10 * YEAR_MS)[0] == 29
    assert path(10 * YEAR_MS)[-1] == 0


def test_one_path_leads_through_every_bucket():
    assert path(EVERY_BUCKET_MS) == list(range(29, -1, -1))


@pytest.mark.parametrize(
    ("left_ms", "bucket"),
    [(-5, 0), (0, 0), (999, 0), (1_000, 1), (1_999, 1), (2_000, 2), (3_999, 2), (4_000, 3)],
)
def test_bounds_are_powers_of_two_seconds(left_ms, bucket):
    assert LADDER.place(left_ms) == bucket
    assert bucket == 0 or LADDER.lower_ms(bucket) <= left_ms < LADDER.upper_ms(bucket)


@pytest.mark.parametrize("dialect", ["headers", "few"])
def test_a_record_is_read_as_it_was_written(dialect):
    headers = [
        ("schedule", b"1700 %s in 3 77 1600 orders 5" % dialect.encode()),
        ("key", None),
        ("trace", b"1"),
        ("trace", None),
    ]
    row = parse(9, b"id", b"payload", headers)

    assert row is not None
    schedule = row.as_schedule()
    assert (schedule.id, schedule.due_ms, schedule.dialect) == (b"id", 1700, dialect)
    assert schedule.record.topic == "orders"
    assert schedule.record.partition == 5
    assert schedule.record.key is None
    assert schedule.record.headers == [("trace", b"1"), ("trace", None)]
    assert (schedule.origin.topic, schedule.origin.partition) == ("in", 3)
    assert (schedule.origin.position, schedule.origin.timestamp_ms) == (77, 1600)


@pytest.mark.parametrize(
    "headers", [[], [("drain", b"x")], [("schedule", None), ("key", None)], [("other", b"1")] * 2]
)
def test_what_is_no_schedule_is_passed_over(headers):
    assert parse(0, b"id", b"", headers) is None


def test_settings_that_contradict_are_refused():
    with pytest.raises(BadSettings, match="expected bootstrap_servers"):
        load(pending="buckets")
    with pytest.raises(BadSettings, match="expected at least max_delay_days"):
        load(pending="buckets", bootstrap_servers="x:1", bucket_count=20)
    with pytest.raises(BadSettings, match="http_addr: asks the store"):
        load(pending="buckets", bootstrap_servers="x:1", http_addr="127.0.0.1:1")
