"""Logs: JSON lines on standard error, and GELF to a Graylog."""

import json
import socket
import zlib

import pytest
import structlog

from sendlater.config import Settings
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


def test_a_graylog_gets_the_same_event():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as graylog:
        graylog.bind(("127.0.0.1", 0))
        graylog.settimeout(10)
        configure(Settings(graylog=f"127.0.0.1:{graylog.getsockname()[1]}"))
        structlog.get_logger().error("query failed", query="lane-0")
        message = json.loads(zlib.decompress(graylog.recv(65_536)))
    assert message["version"] == "1.1"
    assert (message["short_message"], message["level"]) == ("query failed", 3)
    assert message["_query"] == "lane-0"


def test_a_graylog_that_is_not_there_costs_nothing(capsys):
    configure(Settings(graylog="no-such-host.invalid:12201"))
    structlog.get_logger().error("query failed")
    assert "query failed" in capsys.readouterr().err
