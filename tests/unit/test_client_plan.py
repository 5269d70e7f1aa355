"""What a call means, before anything is touched: times, bytes, pages, pauses, S1's records."""

import math
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendlater import Backoff, Record
from sendlater.client.etf1_records import (
    attempts_made,
    delete_record,
    is_retried,
    is_scheduled,
    retried,
    schedule_record,
)
from sendlater.client.scheduling_producer import partition_of
from sendlater.dialects import names
from sendlater.dialects.tags import TAG, TAGS, tags_headers
from sendlater.errors import BadRequest, BadTime, NoAttemptsLeft, SendlaterError
from sendlater.operations.arguments import INSTEAD, id_text, plan_send, to_id
from sendlater.operations.queries import from_cursor, plan_bulk, plan_list, to_cursor

NOW_MS = 1_900_000_000_000
PARIS = timezone(timedelta(hours=1))


def plan(**arguments):
    return plan_send("t", b"v", now_ms=NOW_MS, **arguments)


@pytest.mark.parametrize(
    ("when", "after_ms"),
    [
        ({"delay": 90}, 90_000),
        ({"delay": 1.5}, 1_500),
        ({"delay": timedelta(minutes=15)}, 900_000),
        ({"delay": 0}, 0),
        ({"delay": timedelta(microseconds=1)}, 1),  # rounded up: never early
        ({"at": datetime.fromtimestamp(NOW_MS / 1000 + 60, PARIS)}, 60_000),
        ({"at": datetime(2001, 1, 1, tzinfo=UTC)}, 0),  # a past time means now
        ({"at": datetime(1969, 1, 1, tzinfo=UTC)}, 0),
        ({"delay": "15m"}, 900_000),
        ({"delay": "PT1.5S"}, 1_500),
        ({"delay": "90"}, 90_000),
        ({"at": "+15m"}, 900_000),
        ({"at": "2030-03-17T17:46:40.0001Z"}, 1),
        ({"at": "1900000060"}, 60_000),
    ],
)
def test_a_time_is_a_delay_or_an_instant(when, after_ms):
    assert plan(**when).due_ms == NOW_MS + after_ms


@pytest.mark.parametrize(
    "when",
    [
        {},
        {"delay": 1, "at": datetime.now(UTC)},
        {"delay": -1},
        {"delay": True},
        {"delay": timedelta(milliseconds=-1)},
        {"delay": math.inf},
        {"delay": math.nan},
        {"delay": timedelta.max},
        {"at": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"at": 1_900_000_000},
        {"at": "tomorrow"},
        {"at": "2030-01-31T12:00:00"},
        {"delay": "soon"},
        {"delay": "-5s"},
        {"delay": "9999999999d"},
    ],
)
def test_a_time_that_cannot_be_meant_is_refused(when):
    with pytest.raises(BadTime):
        plan(**when)


@pytest.mark.parametrize(
    "arguments",
    [
        {"id": ""},
        {"id": 5},
        {"id": b"5"},
        {"tags": 5},
        {"key": 5},
        {"headers": [("a",)]},
        {"headers": [("", b"1")]},
        {"headers": {"a": 1}},
        {"headers": 7},
        {"partition": 1.5},
        {"partition": True},
        {"partition": "1"},
    ],
)
def test_what_is_neither_bytes_nor_text_is_refused(arguments):
    with pytest.raises(BadRequest):
        plan(delay=1, **arguments)


def test_a_value_is_not_null():
    with pytest.raises(BadRequest):
        plan_send("t", None, now_ms=NOW_MS, delay=1)


def test_headers_keep_order_and_doubles():
    headers = [("a", b"1"), ("b", None), ("a", "zwei")]
    assert plan(delay=1, headers=headers).record.headers == [
        ("a", b"1"),
        ("b", None),
        ("a", b"zwei"),
    ]
    assert plan(delay=1, headers={"a": "1"}).record.headers == [("a", b"1")]


def test_without_an_id_each_call_has_its_own():
    assert plan(delay=1).id != plan(delay=1).id


@given(st.binary(min_size=1), st.integers(0, 2**53 - 1))
def test_ids_and_cursors_carry_any_bytes(schedule_id, due_ms):
    assert to_id(id_text(schedule_id)) == plan(delay=1, id=id_text(schedule_id)).id == schedule_id
    assert from_cursor(to_cursor((due_ms, schedule_id))) == (due_ms, schedule_id)


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"limit": 1_001},
        {"due_from": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"tag": "a,b"},
        {"tag": ""},
        {"due_from": "+2h", "due_to": "+1h"},
    ],
)
def test_a_page_has_limits(query):
    with pytest.raises(BadRequest):
        plan_list(now_ms=NOW_MS, **query)


@pytest.mark.parametrize(
    "tags", ["order-17", ["a b"], [""], ["a,b"], ["x" * 65], ["é"], [b"a"], [None], ["a"] * 9]
)
def test_what_is_no_tag_is_refused(tags):
    with pytest.raises(BadRequest, match=r"^tags?: expected "):
        plan(delay=1, tags=tags)


@given(st.lists(st.from_regex(TAG, fullmatch=True), max_size=8))
def test_tags_keep_their_order_and_come_once(tags):
    put = plan(delay=1, tags=iter(tags)).tags
    assert put == tuple(dict.fromkeys(tags))
    headers = dict(tags_headers(put))
    assert bool(headers) == bool(put)
    assert not put or re.fullmatch(TAGS, headers["sendlater-tags"].decode())


def test_a_bulk_change_selects_by_something_or_is_for_all():
    assert plan_bulk(now_ms=NOW_MS, all=False, tag="order-17").tag == "order-17"
    for given_ in ({"all": False}, {"all": True, "tag": "a"}):
        with pytest.raises(BadRequest, match="tag, caller"):
            plan_bulk(now_ms=NOW_MS, **given_)
    with pytest.raises(BadRequest, match="tag: expected text that is not empty"):
        plan_bulk(now_ms=NOW_MS, all=False, tag="", topic="sms")
    with pytest.raises(TypeError, match="tags"):
        plan_bulk(now_ms=NOW_MS, all=False, tags="a")


def test_a_cursor_of_somebody_else_is_refused():
    for cursor in ("%%", "aGFsbG8=", "é"):
        with pytest.raises(BadRequest):
            from_cursor(cursor)


# --- pauses -----------------------------------------------------------------------------------


@given(
    st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1, 10), st.floats(0, 1), st.integers(1, 5_000)
)
def test_a_pause_stays_within_its_limits(min_s, more_s, factor, jitter, attempt):
    backoff = Backoff(min_s=min_s, max_s=min_s + more_s, factor=factor, jitter=jitter)
    longest = backoff.pause_s(attempt, chance=0)
    assert min_s <= longest <= min_s + more_s
    assert longest * (1 - jitter) <= backoff.pause_s(attempt) <= longest


def test_pauses_can_be_given_one_by_one():
    backoff = Backoff(intervals_s=(1, 60, 600))
    assert [backoff.pause_s(n) for n in (1, 2, 3, 4)] == [1, 60, 600, 600]


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_s": -1},
        {"min_s": 10, "max_s": 5},
        {"factor": 0.5},
        {"retries": -1},
        {"jitter": 2},
        {"intervals_s": (-1,)},
    ],
)
def test_a_backoff_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(BadRequest):
        Backoff(**wrong)


# --- S1 ---------------------------------------------------------------------------------------


def test_s1_schedules_with_three_headers_and_drops_its_own():
    delivered = Record(
        topic="t",
        value=b"v",
        key=b"k",
        headers=[("a", b"1"), ("scheduler-key", b"old"), ("sendlater-id", b"old"), ("a", b"2")],
    )
    record = schedule_record(delivered, id="x", epoch_s=1_900_000_060, inbox="in", now_ms=NOW_MS)
    assert (record.topic, record.key, record.value) == ("in", b"x", b"v")
    assert record.headers == [
        ("a", b"1"),
        ("a", b"2"),
        ("scheduler-epoch", b"1900000060"),
        ("scheduler-target-topic", b"t"),
        ("scheduler-target-key", b"k"),
    ]
    with pytest.raises(BadTime):
        schedule_record(delivered, id="x", epoch_s=1_800_000_000, inbox="in", now_ms=NOW_MS)


def test_s1_deletes_with_a_null():
    assert delete_record(id="x", inbox="in") == Record(topic="in", key=b"x", value=None)
    with pytest.raises(BadRequest):
        delete_record(id=" ", inbox="in")


@pytest.mark.parametrize("broken", [SystemError(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "")])
def test_a_message_whose_headers_no_client_in_python_can_read_is_refused(broken):
    def headers():
        raise broken

    message = SimpleNamespace(
        topic=lambda: "t", value=lambda: b"v", key=lambda: None, headers=headers
    )
    for ask in (is_scheduled, is_retried, attempts_made):
        with pytest.raises(BadRequest, match="expected header names in UTF-8"):
            ask(message)
    message.headers = lambda: None
    assert not is_scheduled(message)


def test_s1_counts_attempts_and_keeps_the_first_time():
    backoff = Backoff(retries=3)
    record = Record(topic="t", value=b"v", headers=[("a", b"1"), ("retry-attempt", b"nonsense")])
    assert not is_scheduled(record)
    assert attempts_made(record) == 0
    waits = []
    for _ in range(3):
        record, due_ms = retried(record, backoff=backoff, now_ms=NOW_MS)
        waits.append((due_ms - NOW_MS) / 1000)
    assert waits == [5, 10, 20]
    assert is_retried(record)
    assert record.headers == [
        ("a", b"1"),
        ("retry-original-timestamp", b"1900000000"),
        ("retry-attempt", b"3"),
    ]
    with pytest.raises(NoAttemptsLeft):
        retried(record, backoff=backoff, now_ms=NOW_MS)


def test_partitions_are_those_of_javas_client():
    """Expected values: org.apache.kafka.common.utils.UtilsTest.testMurmur2."""
    for text, hashed in {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }.items():
        assert partition_of(text, count=2**31) == hashed & 0x7FFFFFFF


# --- the package ------------------------------------------------------------------------------


def test_importing_costs_nothing():
    """Neither Spark nor a client of a broker is loaded until something needs it."""
    heavy = ("pyspark", "pydantic", "redis", "confluent_kafka", "httpx2", "fastapi")
    told = f"import sys, sendlater; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", told], capture_output=True, check=True)
    assert found.stdout.strip() == b"[]"


def test_importing_takes_less_than_150_ms():
    told = (
        "import time; began = time.process_time(); import sendlater; "
        "print(time.process_time() - began)"
    )
    times = [
        float(subprocess.run([sys.executable, "-c", told], capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(times) < 0.15


def test_every_public_name_is_there():
    import sendlater

    assert all(getattr(sendlater, name) is not None for name in sendlater.__all__)
    assert issubclass(sendlater.SendlaterError, SendlaterError)
    with pytest.raises(AttributeError):
        _ = sendlater.nonsense


def test_a_caller_is_text() -> None:
    with pytest.raises(BadRequest, match="caller: expected text, got 5"):
        plan_bulk(now_ms=NOW_MS, all=False, caller=5)  # type: ignore[typeddict-item]


def test_only_names_of_schedulers_tell_intake_what_to_do():
    """So headers without any need no second look."""
    assert all(name.startswith(names.PREFIXES) for name in INSTEAD)
