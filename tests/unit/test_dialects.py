"""Encoding, and the grammar of times as people and programs write them."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendlater.dialects import (
    duration_ms,
    encode_cancel,
    encode_envelope,
    encode_headers,
    instant_ms,
    names,
)
from sendlater.errors import BadRequest, BadTime
from sendlater.model import DUE_MS_MAX, Record

RECORD = Record(
    topic="orders",
    value=b"\xff payload",
    key=b"k",
    headers=[("a", b"1"), ("scheduler-epoch", b"7"), ("a", None), ("sendlater-id", b"old")],
)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("0", 0),
        ("90", 90_000),
        ("1.5", 1_500),
        ("0.0001", 1),
        ("1.0000", 1_000),
        ("P1DT2H3.5S", 93_603_500),
        ("P2W", 1_209_600_000),
        ("PT5M", 300_000),
        ("PT0.0000000001S", 1),
        ("2h30m", 9_000_000),
        ("1.5h", 5_400_000),
        ("1.1h", 3_960_000),
        ("250ms", 250),
        ("1d2h3m4s5ms", 93_784_005),
        ("3m5ms", 180_005),
    ],
)
def test_durations_are_read_exactly_and_rounded_up(text, expected_ms):
    assert duration_ms(text) == expected_ms


@pytest.mark.parametrize(
    "text",
    [
        *[
            "",
            " ",
            "-1",
            "+1",
            "1e3",
            "NaN",
            "inf",
            "٣",
            "1.",
            ".5",
            "1,5",
            "P",
            "PT",
            "P1DT",
            "P1Y",
        ],
        *[
            "P1M",
            "P1W2D",
            "1.5h30m",
            "P1.5DT2H",
            "30m2h",
            "1h1h",
            "h",
            "5 m",
            "5M",
            "1m\n",
            "1" * 99,
        ],
    ],
)
def test_a_duration_with_two_meanings_or_none_is_refused(text):
    with pytest.raises(BadTime, match="expected a duration"):
        duration_ms(text)


@given(st.integers(0, 10**12), st.integers(0, 10**9 - 1))
def test_fractions_of_a_second_never_come_early(seconds, nanoseconds):
    exact = seconds + Fraction(nanoseconds, 10**9)
    assert duration_ms(f"{seconds}.{nanoseconds:09}") == ceil(exact * 1000)


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 1, 1)), st.integers(-1079, 1079))  # noqa: DTZ001
def test_instants_count_from_1970_in_any_zone(local, offset_minutes):
    sign, minutes = ("-" if offset_minutes < 0 else "+"), abs(offset_minutes)
    zone = f"{sign}{minutes // 60:02}:{minutes % 60:02}"
    since = (
        local.replace(tzinfo=UTC)
        - timedelta(minutes=offset_minutes)
        - datetime.fromtimestamp(0, UTC)
    )
    assert instant_ms(local.isoformat() + zone, 0) == -(-since // timedelta(milliseconds=1))


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("+15m", 900_005),
        ("+90", 90_005),
        ("1900000000", 1_900_000_000_000),
        ("1900000000.0001", 1_900_000_000_001),
        ("1970-01-01t00:00:01z", 1_000),
        ("1970-01-01T00:00:00.0000000001Z", 1),
        ("1970-01-01T01:00:00.2+01:00", 200),
    ],
)
def test_instants_as_people_type_them(text, expected_ms):
    assert instant_ms(text, 5) == expected_ms


@pytest.mark.parametrize(
    "text",
    [
        *["", "15m", "+", "-5", "2030-01-31", "2030-01-31T12:00:00", "2030-02-30T00:00:00Z"],
        *[
            "2030-01-01T24:00:00Z",
            "2030-01-01T00:00:60Z",
            "2030-01-01T00:00:00+18:00",
            "+" + "9" * 30,
        ],
        *["1900000000000", "1969-12-31T23:59:59Z", "0000-01-01T00:00:00Z", "tomorrow"],
    ],
)
def test_an_unclear_instant_is_refused_in_words(text):
    with pytest.raises(BadTime, match=r"expected .*got"):
        instant_ms(text, 0)


def test_a_due_time_is_written_for_us_and_for_s1_never_early():
    made = encode_headers(RECORD, inbox="in", id=b"\xfe", due_ms=1_001)
    assert made == Record(
        topic="in",
        key=b"\xfe",
        value=b"\xff payload",
        headers=[
            ("a", b"1"),
            ("a", None),
            (names.DUE_MS, b"1001"),
            (names.EPOCH, b"2"),
            (names.TARGET_TOPIC, b"orders"),
            (names.TARGET_KEY, b"k"),
        ],
    )


@given(st.integers(0, DUE_MS_MAX))
def test_a_delay_survives_being_written(delay_ms):
    headers = dict(encode_headers(RECORD, inbox="in", id=b"i", delay_ms=delay_ms).headers)
    assert duration_ms(headers[names.DELAY].decode()) == delay_ms
    assert names.EPOCH not in headers


def test_null_and_empty_keys_and_a_partition_are_kept_apart():
    def written(**target):
        record = Record(topic="t", value=b"", **target)
        return dict(encode_headers(record, inbox="in", id=b"i", at="2030-01-01T00:00:00Z").headers)

    assert names.TARGET_KEY not in written(key=None)
    assert written(key=b"")[names.TARGET_KEY] == b""
    assert written(partition=3)[names.TARGET_PARTITION] == b"3"
    assert written()[names.EPOCH] == b"1893456000"


@pytest.mark.parametrize(
    "when",
    [
        *[{}, {"due_ms": 1, "at": "2030-01-01T00:00:00Z"}, {"due_ms": -1}, {"delay_ms": -1}],
        *[{"at": "soon"}, {"due_ms": DUE_MS_MAX + 1}],
    ],
)
def test_exactly_one_good_time_is_wanted(when):
    with pytest.raises(BadTime):
        encode_headers(RECORD, inbox="in", id=b"i", **when)


@pytest.mark.parametrize("id", [b"", b" \t\n", b"x" * 513])
def test_an_id_that_would_be_rejected_is_refused_at_once(id):
    with pytest.raises(BadRequest):
        encode_headers(RECORD, inbox="in", id=id, due_ms=1)
    with pytest.raises(BadRequest):
        encode_cancel(inbox="in", id=id)


@pytest.mark.parametrize(
    "target",
    [
        *[{"topic": "a b"}, {"topic": ""}, {"topic": ".."}, {"topic": "t\n"}, {"topic": "x" * 250}],
        *[{"value": None}, {"partition": -1}],
    ],
)
def test_a_target_that_would_be_rejected_is_refused_at_once(target):
    record = Record(**{"topic": "t", "value": b"", **target})
    with pytest.raises(BadRequest):
        encode_headers(record, inbox="in", id=b"i", due_ms=1)


def test_cancelling_is_a_null_value():
    assert encode_cancel(inbox="in", id=b"i") == Record(topic="in", key=b"i", value=None)


def test_an_envelope_carries_key_headers_and_caller():
    record = Record(topic="t", key=b"k", value='é"'.encode(), headers=[("a", b"1")])
    assert encode_envelope(record, inbox="in", delay_ms=1_500, caller="me") == Record(
        topic="in",
        key=b"k",
        value=b'{"topic": "t", "message": "\\u00e9\\"", "countdown": 1.5}',
        headers=[("a", b"1"), ("CALLER_SERVICE", b"me")],
    )


@pytest.mark.parametrize("target", [{"value": b"\xff"}, {"partition": 1}, {"value": None}])
def test_what_an_envelope_cannot_carry_is_refused(target):
    with pytest.raises(BadRequest):
        encode_envelope(Record(**{"topic": "t", "value": b"", **target}), inbox="in", delay_ms=1)
