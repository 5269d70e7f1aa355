"""The command line's doors: what is wrong is told in one line on stderr, with a documented code."""

import io
import json
import re
import sys
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sendlater import __version__
from sendlater.cli import main
from sendlater.cli.connection import FAILED, NO_CONNECTION, OK, USAGE
from sendlater.cli.output import id_of, text_of
from sendlater.cli.send_request import SendRequest, read_lines
from sendlater.cli.topics import _send_again
from sendlater.errors import BadRequest, BrokerUnavailable
from sendlater.local.process import free_ports
from sendlater.model import Record
from sendlater.operations.arguments import to_id

LONG = 2_000_000


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs `sendlater ...` here: (exit code, stdout, stderr). Nothing of this machine is used."""
    monkeypatch.setenv("SENDLATER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("SENDLATER_CONFIG", "")
    monkeypatch.chdir(tmp_path)

    def run(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "argv", ["sendlater", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return ended.value.code, told.out, told.err

    return run


def test_the_version_is_data(run):
    assert run("--version") == (OK, f"{__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["send", "orders"], "expected TOPIC and VALUE, or --jsonl FILE"),
        (["send", "orders", "x"], "expected one of delay and at, got neither"),
        (["send", "orders", "x", "--delay", "1", "--at", "+1m"], "delay and at, got both"),
        (["send", "orders", "x", "--delay", "soon"], "2h30m, got 'soon'"),
        (["send", "orders", "x", "--delay", "-5"], "zero or more: seconds .*got '-5'"),
        (["send", "orders", "x", "--delay", "99999d"], "within 3660 days .*got 99999d"),
        (["send", "orders", "x", "--at", "2030-01-31T12:00:00"], "with a zone .*T12:00:00'"),
        (["send", "orders", "x", "--at", "1900000000000"], "looks like milliseconds"),
        (
            ["send", "orders", "x", "--delay", "5", "-H", "a"],
            "header: expected name=value, got 'a'",
        ),
        (["send", "orders", "x", "--delay", "5", "-H", "=a"], "name=value, got '=a'"),
        (["send", "or ders", "x", "--delay", "5"], "topic name .*got 'or ders'"),
        (["send", "orders", "x", "--delay", "5", "--id", " "], "an id that is not blank"),
        (["send", "orders", "x", "--delay", "5", "--id", "i" * 513], "at most 512 bytes, got 513"),
        (["send", "orders", "x", "--delay", "5", "--partition", "-1"], "partition of zero or more"),
        (
            ["send", "orders", "x", "--delay", "5", "--partition", "1.5"],
            "expected a whole number, got '1.5'",
        ),
        (["send", "orders", "x", "--every", "1h", "--count", "2.7"], "whole number, got '2.7'"),
        (["send", "orders", "x" * LONG, "--delay", "5"], f"max_payload_bytes.*got {LONG}"),
        (["send", "orders", "x", "--jsonl", "f"], "--jsonl alone, got a message besides"),
        (["send", "--jsonl", "nowhere.jsonl"], "cannot read nowhere.jsonl: No such file"),
        (["send", "--jsonl", "."], "cannot read .: Is a directory"),
        (["bench", "short", "--rate", "inf"], "inf"),
        (["bench", "short", "--warm-up", "inf"], "inf"),
        (["cancel"], "either ids"),
        (["cancel", "--all", "--tag", "a"], "either --all or a filter"),
        (["list", "--due-after", "soon"], "got 'soon'"),
        (["list", "--limit", "0"], "--limit"),
        (["list", "--limit", "many"], "many"),
        (["demo", "--rate", "0"], "--rate"),
        (["demo", "--exit"], "expected --count with --exit"),
        (["kafka", "--port", "70000"], "--port"),
        (["config", "show", "--config", "nowhere.toml"], "nowhere.toml: No such file"),
        (["config", "show", "--space", "a b"], "space: .*'a b'"),
        (["send", "--no-such-flag"], "expected TOPIC|Unknown option|--no-such-flag"),
        (["dance"], "dance"),
        (["cancel", "--all", "--url", "http://a:1", "--space", "b"], "--url alone.*got --space"),
        (["list", "--url", "http://a:1", "--redis", "redis://b"], "--url alone.*got --redis"),
        (["promote", "--url", "http://a:1"], "--url: this command works on the installation of"),
        (["reshard", "--shards", "3", "--url", "http://a:1"], "--url: this command works on"),
        (
            ["send", "orders", "x" * 999_999, "--key", "k" * 9, "--delay", "5"],
            "value, key and h",
        ),
        (
            ["send", "orders", "x", "--delay", "3659d", "--spread", "300d", "--id", "i"],
            "within 3660 days",
        ),
        (["tail", "orders", "--count", "-5"], "--count"),
    ],
)
def test_bad_input_is_told_on_stderr_with_code_2(run, arguments, told):
    code, out, err = run(*arguments)

    assert (code, out) == (USAGE, "")
    assert re.search(told, err, re.DOTALL), err
    assert "Traceback" not in err


def test_without_any_redis_a_command_says_what_to_do(run):
    code, out, err = run("list")

    assert (code, out) == (NO_CONNECTION, "")
    assert "start `sendlater serve`, or give --redis URL" in err


def test_a_redis_that_does_not_answer_is_told_with_code_5(run):
    code, out, err = run("stats", "--redis", f"redis://127.0.0.1:{free_ports(1)[0]}")

    assert (code, out) == (NO_CONNECTION, "")
    assert "Redis does not answer" in err


def test_a_kafka_that_does_not_answer_is_told_once_and_soon(run, monkeypatch):
    """And not by librdkafka, which would fill the terminal."""
    monkeypatch.setattr("sendlater.cli.connection.BROKER_TIMEOUT_S", 0.3)
    where = f"127.0.0.1:{free_ports(1)[0]}"

    code, out, err = run(
        *("send", "orders", "x", "--delay", "5"),
        *("--bootstrap-servers", where, "--redis", "redis://127.0.0.1:1"),
    )

    assert (code, out) == (NO_CONNECTION, "")
    assert f"Kafka at {where} does not answer" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("command", ["list", "stats"])
def test_what_is_in_the_store_can_be_seen_while_kafka_is_away(run, redis_url, command):
    where = f"127.0.0.1:{free_ports(1)[0]}"
    code, out, err = run(
        command, "--json", "--bootstrap-servers", where, "--redis", redis_url, "--space", "empty"
    )

    assert (code, "does not answer" in err) == (OK, False)
    assert out == "" if command == "list" else json.loads(out)["pending"] == 0


def test_settings_are_shown_as_json_without_secrets(run):
    code, out, err = run("config", "show", "--redis", "redis://:hunter2@host", "--space", "mine")

    shown = json.loads(out)
    assert (code, err, shown["space"]) == (OK, "", "mine")
    assert shown["redis"] == "redis://**********@host"


def test_options_of_the_connection_may_stand_before_the_command(run):
    code, out, err = run("--space=mine", "--redis", "redis://a", "config", "show")
    assert (code, err) == (OK, "")
    assert json.loads(out)["space"] == "mine"
    shared = json.loads(run("--space", "mine", "config", "show", "--redis", "redis://a")[1])
    assert (shared["space"], shared["redis"]) == ("mine", "redis://a")
    twice = run("--space", "a", "config", "show", "--space", "b")
    assert (twice[0], "multiple times" in twice[2]) == (USAGE, True)
    unknown = run("--space", "mine", "token", "ann")
    assert (unknown[0], "Unknown option" in unknown[2]) == (USAGE, True)


def test_the_doctor_speaks_json_and_its_code_tells_of_failures(run):
    redis = f"redis://127.0.0.1:{free_ports(1)[0]}"
    code, out, _ = run("doctor", "--json", "--redis", redis)

    findings = {row["check"]: row for row in map(json.loads, out.splitlines())}
    assert code == FAILED
    assert findings["redis"]["result"] == "fail"
    assert findings["redis"]["mend"]
    assert findings["java"]["result"] == "ok"


def test_what_messages_carry_is_shown_as_it_is(run):
    """`[red]` in a topic name is no colour."""
    _, _, err = run("send", "[red]:smile:", "x", "--delay", "5")

    assert "'[red]:smile:'" in err


@given(st.binary(min_size=1))
@example(b"base64:x")
@example(b"\xff")
@example("é".encode())
def test_an_id_that_is_shown_can_be_given_back(schedule_id):
    """Keys are bytes, and some people's are numbers."""
    shown = text_of(schedule_id)

    assert to_id(id_of(shown)) == schedule_id
    assert shown.isascii() or shown.encode() == schedule_id


def test_an_id_that_nobody_showed_is_refused():
    with pytest.raises(BadRequest, match="expected base64 after"):
        id_of("base64:?")


LINES = (
    b'{"topic": "a", "value": "x", "delay": 5}\n'
    b"\n"
    b"{nonsense\n"
    b'{"topic": "a", "value": {"n": 1.10}, "at": "+1h", "headers": {"h": null}, "key": "k"}\n'
    b'{"topic": "a", "value": "x", "delay": 5, "dely": 5}\n'
    b'["a"]\n'
    b'{"value": "x", "delay": 5}\n'
    b'{"topic": "\xff", "value": "x"}\n'
)


def test_each_bad_line_is_known_by_its_number():
    read = [(number, request) for number, _, request in read_lines(io.BytesIO(LINES))]

    assert [n for n, request in read if isinstance(request, SendRequest)] == [1, 4]
    bad = {n: str(request) for n, request in read if isinstance(request, BadRequest)}
    assert bad.keys() == {3, 5, 6, 7, 8}
    assert "`dely`" in bad[5]
    assert "`topic`" in bad[7]


def test_a_value_that_is_no_string_stays_the_json_it_is():
    values = [
        SendRequest.parse(b'{"topic": "a", "delay": 1, "value": %s}' % value).value
        for value in (b'"\\u00e9\\n"', b'{"n": 1.10, "m": 1e400}', b"null", b"[1,  2]", b'""')
    ]

    assert values == ["é\n".encode(), b'{"n": 1.10, "m": 1e400}', b"null", b"[1,  2]", b""]


@pytest.mark.parametrize(
    ("given", "headers"),
    [
        ('["a=1", "a=2=3", "b="]', [("a", b"1"), ("a", b"2=3"), ("b", b"")]),
        ('[["a", "1"], ["a", null]]', [("a", b"1"), ("a", None)]),
        ('{"a": "1", "b": null}', [("a", b"1"), ("b", None)]),
    ],
)
def test_headers_of_a_line_keep_order_duplicates_and_nulls(given, headers):
    line = f'{{"topic": "a", "delay": 1, "value": "", "headers": {given}}}'
    request = SendRequest.parse(line.encode())

    assert request.record().headers == headers


class RefusingBroker:
    """Takes what is called good; refuses others at once, in a report, or not at all."""

    def send(self, record, *, on_done):
        if record.value == b"refused":
            raise BadRequest("too large")
        if record.value != b"lost":
            on_done(None if record.value == b"good" else BrokerUnavailable("no leader"), 0, 7)

    def flush(self):
        raise BrokerUnavailable("1 records not acknowledged")


def test_each_letter_that_could_not_be_sent_again_is_told_for_itself():
    scheduler = SimpleNamespace(remote=None, broker=RefusingBroker())
    values = (b"refused", b"good", b"reported", b"lost", b"good")
    events = {f"0/{n}": Record(topic="t", value=value) for n, value in enumerate(values)}
    assert _send_again(scheduler, "dead", events) == {
        "0/0": "too large",
        "0/2": "no leader",
        "0/3": "not acknowledged",
    }
