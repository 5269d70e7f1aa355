"""Logs: JSON lines on standard error, and GELF to a Graylog; what repeats is told now and then."""

import json
import socket
import zlib
from types import SimpleNamespace

import pytest
import structlog

from sendlater import logs
from sendlater.clock import FixedClock
from sendlater.config import Settings
from sendlater.limits import LOG_REPEAT_MS
from sendlater.logs import configure


@pytest.fixture(autouse=True)
def as_before():
    yield
    structlog.reset_defaults()


def test_an_event_is_a_line_of_json_on_standard_error(capsys):
    configure(Settings(log_level="warning"))
    structlog.get_logger().info("too quiet")
    structlog.get_logger().warning("query failed", query="lane-0", topic=b"x")
    told = capsys.readouterr()
    assert told.out == ""
    [line] = told.err.splitlines()
    event = json.loads(line)
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "event": "query failed",
        "level": "warning",
        "query": "lane-0",
        "topic": "b'x'",
    }


def fail(secret="open sesame"):
    try:
        raise LookupError(f"no topic of {len(secret)} characters")
    except LookupError:
        structlog.get_logger().exception("looking up failed")


def test_an_exception_is_told_with_its_traceback(capsys):
    configure(Settings())
    fail()
    event = json.loads(capsys.readouterr().err)
    assert event["exception"].startswith("Traceback (most recent call last):")
    assert "in fail" in event["exception"]
    assert event["exception"].endswith("LookupError: no topic of 11 characters")
    assert "exc_info" not in event


def test_a_traceback_on_a_terminal_tells_no_variables(capsys):
    """They may be passwords."""
    configure(Settings(log_format="text"))
    fail()
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert "LookupError: no topic of 11 characters" in told
    assert "open sesame" not in told


@pytest.fixture
def told(capsys):
    """The events told since it was last asked."""
    return lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_what_repeats_is_told_once_in_a_while_with_how_often_it_was_not(told):
    clock = FixedClock()
    configure(Settings(), clock=clock)
    log = structlog.get_logger()
    ran = "run 6f9619ff-8b86-4d01-b42d-00cf4fc964ff at 0x7f31: 9 ms"
    for other in (ran, "run 12345678-9abc-4def-8123-456789abcdef at 0xb4: 10 ms", "another"):
        log.warning("targets wait", cause=other)
    clock.advance(LOG_REPEAT_MS - 1)
    for _ in range(20):
        log.warning("targets wait", cause=ran)
    assert [event["cause"] for event in told()] == [ran, "another"]

    clock.advance(1)
    log.warning("targets wait", cause=ran)
    log.warning("targets wait", cause=ran)
    log.warning("targets wait", cause="another")
    assert [event.get("repeated") for event in told()] == [21, None]


def test_an_exception_repeats_too(told):
    configure(Settings(), clock=FixedClock())
    fail()
    fail("sesame")
    assert len(told()) == 1


def test_two_topics_are_two_warnings_and_a_warning_is_no_error(told):
    configure(Settings(), clock=FixedClock())
    log = structlog.get_logger()
    log.warning("target refused", topic="orders-1")
    log.warning("target refused", topic="orders-2")
    log.error("target refused", topic="orders-2")
    assert len(told()) == 3


def test_what_went_well_is_told_every_time(told):
    configure(Settings(log_level="debug"), clock=FixedClock())
    for _ in range(3):
        structlog.get_logger().info("is ready")
        structlog.get_logger().debug("looks")
    assert len(told()) == 6


def test_a_clock_that_was_set_back_silences_nothing(told):
    clock = SimpleNamespace(now_ms=iter([LOG_REPEAT_MS * 9, 0, 1]).__next__)
    configure(Settings(), clock=clock)
    for _ in range(3):
        structlog.get_logger().error("query failed")
    assert len(told()) == 2


def test_of_too_many_warnings_the_one_told_longest_ago_is_forgotten(told, monkeypatch):
    monkeypatch.setattr(logs, "LOG_KINDS_MAX", 2)
    configure(Settings(), clock=FixedClock())
    for topic in ("a", "b", "c", "b", "c", "a"):
        structlog.get_logger().warning("target refused", topic=topic)
    assert [event["topic"] for event in told()] == ["a", "b", "c", "a"]


def test_a_graylog_gets_the_same_event():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as graylog:
        graylog.bind(("127.0.0.1", 0))
        graylog.settimeout(10)
        configure(Settings(graylog=f"127.0.0.1:{graylog.getsockname()[1]}"))
        structlog.get_logger().error("query failed", query="lane-0")
        message = json.loads(zlib.decompress(graylog.recv(65_536)))
        fail()
        failed = json.loads(zlib.decompress(graylog.recv(65_536)))
    assert message["version"] == "1.1"
    assert (message["short_message"], message["level"]) == ("query failed", 3)
    assert message["_query"] == "lane-0"
    assert failed["_exception"].endswith("LookupError: no topic of 11 characters")


def test_a_graylog_that_is_not_there_costs_nothing(capsys):
    configure(Settings(graylog="no-such-host.invalid:12201"))
    structlog.get_logger().error("query failed")
    assert "query failed" in capsys.readouterr().err
