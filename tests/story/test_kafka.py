"""Kafka to Kafka, through one running service: what is promised to those who send and receive."""

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis
from confluent_kafka import Producer
from installation import (
    ARRIVE_S,
    PAYLOAD_BYTES_MAX,
    SMALL_TOPIC_BYTES_MAX,
    Installation,
    now_ms,
)
from servers import cli, wait_until

pytestmark = pytest.mark.story

DAY_S = 86_400
CALLS = ("evalsha", "hgetall", "hscan", "spop", "xread")
CALLS_A_SECOND_MAX, CALLS_A_MESSAGE_MAX = 120, 20
"""Of two lanes on two shards, seen: 61 a second, and 4 more a message."""


@pytest.fixture(scope="module")
def here(kafka, redis_url, tmp_path_factory):
    here = Installation(kafka, redis_url, tmp_path_factory.mktemp("service"))
    with here.service:
        here.service.start()
        for reader in here.readers.values():
            reader.__enter__()
        yield here
        for reader in here.readers.values():
            reader.__exit__()


def test_a_record_arrives_when_it_is_due_byte_for_byte(here):
    value = bytes(range(256))
    headers = [
        ("trace", b"1"),
        ("empty", b""),
        ("null", None),
        ("trace", b"\xff\x00"),
        ("last", b"2"),
    ]
    due_ms = now_ms() + 2_000
    here.schedule(
        value,
        key=b"whole",
        when=("sendlater-due-ms", str(due_ms)),
        headers=[*headers, ("scheduler-target-key", b"k\x00\xff")],
    )

    message = here.arrival(b"whole")
    seconds = here.place(here.inbox, value)[2] // 1_000

    assert (message.value(), message.key()) == (value, b"k\x00\xff")
    assert message.timestamp()[1] >= due_ms
    assert message.headers() == [
        *headers,
        ("scheduler-timestamp", str(seconds).encode()),
        ("scheduler-key", b"whole"),
        ("scheduler-topic", here.inbox.encode()),
        ("sendlater-topic", here.target.encode()),
        ("sendlater-id", b"whole"),
        ("sendlater-due", str(due_ms).encode()),
    ]


def test_an_empty_payload_and_an_empty_key_are_not_null(here):
    here.schedule(b"", key=b"no-key")
    here.schedule(b"", key=b"empty-key", headers=[("scheduler-target-key", b"")])
    here.schedule(b"", key=b"null-key", headers=[("scheduler-target-key", None)])

    assert here.arrival(b"no-key").key() is None
    assert here.arrival(b"null-key").key() is None
    assert here.arrival(b"empty-key").key() == b""
    assert here.arrival(b"empty-key").value() == b""


def test_a_target_partition_can_be_asked_for(here):
    for number in (0, 1):
        name = b"to-%d" % number
        here.schedule(key=name, headers=[("sendlater-target-partition", str(number))])
        assert here.arrival(name).partition() == number


def test_what_a_transaction_has_aborted_is_never_delivered(here, kafka):
    """All on one partition, so that what comes later on it tells that this was read."""
    writer = Producer({"bootstrap.servers": kafka, "transactional.id": here.name})
    writer.init_transactions(30)
    to, now = ("scheduler-target-topic", here.target), ("sendlater-delay", "0")
    for name, end in {
        b"aborted": writer.abort_transaction,
        b"meant": writer.commit_transaction,
    }.items():
        writer.begin_transaction()
        writer.produce(here.inbox, value=b"v", key=name, headers=[to, now], partition=0)
        assert writer.flush(30) == 0
        end(30)
    here.producer.produce(here.inbox, value=b"v", key=b"plain", headers=[to, now], partition=0)

    assert here.producer.flush(30) == 0
    assert here.arrival(b"plain")
    assert here.arrival(b"meant")
    assert not here.arrivals(here.target, b"aborted")


@pytest.mark.parametrize("kind", ["other", "envelopes"])
def test_every_inbox_is_read_at_once(here, kind):
    inbox = getattr(here, kind)
    if kind == "other":
        here.schedule(inbox=inbox, key=b"elsewhere")
        assert dict(here.arrival(b"elsewhere").headers())["scheduler-topic"] == inbox.encode()
    else:
        value = json.dumps({"topic": here.target, "message": "hi", "countdown": 0}).encode()
        here.put(inbox, value)
        partition, offset, _ = here.place(inbox, value)
        assert here.arrival(f"{inbox}-{partition}-{offset}".encode()).value() == b"hi"


def test_an_envelope_is_opened_when_its_countdown_has_passed(here):
    value = b'{"topic": "%s", "message": {"n": 1.10}, "countdown": 1.5}' % here.target.encode()
    caller = ("CALLER_SERVICE", b"billing")
    here.put(here.envelopes, value, key=b"k", headers=[("trace", b"1"), caller])
    partition, offset, timestamp_ms = here.place(here.envelopes, value)

    name = f"{here.envelopes}-{partition}-{offset}".encode()
    message = here.arrival(name)

    assert (message.key(), json.loads(message.value())) == (b"k", {"n": 1.1})
    assert b"1.10" in message.value(), "numbers stay exact"
    assert message.headers() == [
        ("trace", b"1"),
        caller,
        ("sendlater-topic", here.target.encode()),
        ("sendlater-id", name),
        ("sendlater-due", str(timestamp_ms + 1_500).encode()),
    ]


def test_times_can_be_written_in_every_form(here):
    """Far ahead, so that the pending store shows what each was understood as."""
    at = datetime.fromtimestamp((now_ms() + DAY_S * 1_000) // 1_000, UTC)
    at_ms = int(at.timestamp()) * 1_000
    delays = {"9000": 9_000_000, "PT5H5.5S": 18_005_500, "2h30m": 9_000_000, "1d": 86_400_000}
    instants = {
        ("sendlater-at", at.isoformat()): at_ms,
        ("sendlater-at", at.strftime("%Y-%m-%dT%H:%M:%S.0015Z")): at_ms + 2,
        ("scheduler-epoch", str(at_ms // 1_000)): at_ms,
        ("sendlater-due-ms", str(at_ms + 7)): at_ms + 7,
    }
    expected = {}
    for number, (form, ms) in enumerate([*delays.items(), *instants.items()]):
        name = f"form-{number}"
        when = form if isinstance(form, tuple) else ("sendlater-delay", form)
        here.schedule(name.encode(), key=name, when=when)
        expected[name] = (
            ms if isinstance(form, tuple) else ms + here.place(here.inbox, name.encode())[2]
        )

    def shown():
        rows = here.cli("list", "--due-after", "+2h")
        return {row["id"]: row["due_ms"] for row in rows if row["id"].startswith("form-")}

    wait_until(lambda: len(shown()) == len(expected), "all forms are pending", timeout_s=ARRIVE_S)
    assert shown() == expected
    here.cli("cancel", *expected)


def bad_records(here):
    """Reason -> (inbox, value, key, headers) of a record that is rejected for it."""
    to, soon = ("scheduler-target-topic", here.target), ("sendlater-delay", "0")
    inbox, seconds = here.inbox, now_ms() // 1_000
    return {
        "no-time": (inbox, b"1", b"a", [to]),
        "bad-time": (inbox, b"2", b"a", [to, ("sendlater-at", "2030-01-31T12:00:00")]),
        "milliseconds": (inbox, b"3", b"a", [to, ("scheduler-epoch", str(seconds * 1_000))]),
        "too-far": (inbox, b"4", b"a", [to, ("sendlater-delay", "31d")]),
        "no-target": (inbox, b"5", b"a", [soon]),
        "bad-target": (inbox, b"6", b"a", [soon, ("scheduler-target-topic", "a b")]),
        "no-id": (inbox, b"7", None, [soon, to]),
        "id-too-long": (inbox, b"8", b"a" * 600, [soon, to]),
        "too-large": (inbox, b"9" * (PAYLOAD_BYTES_MAX + 1), b"a", [soon, to]),
        "bad-envelope": (here.envelopes, b'{"topic": "x"}', b"a", [("h", b"1")]),
        "unknown-topic": (inbox, b"11", b"a", [soon, ("scheduler-target-topic", "nowhere")]),
    }


def test_what_cannot_be_scheduled_is_rejected_once_with_reason_and_origin(here):
    bad = bad_records(here)
    # A target that takes less than an inbox does is found out only when its turn has come.
    small = [("sendlater-delay", "0"), ("scheduler-target-topic", here.small)]
    bad["too-large for its target"] = (here.inbox, b"s" * SMALL_TOPIC_BYTES_MAX, b"b", small)
    for inbox, value, key, headers in bad.values():
        here.put(inbox, value, key=key, headers=headers)
    before = len(here.readers[here.target].messages)

    def rejections(value):
        return [m for m in here.readers[here.rejected].messages if m.value() == value]

    for reason, (inbox, value, key, headers) in bad.items():
        what = f"{reason} is rejected"
        message = wait_until(lambda v=value: rejections(v), what, timeout_s=ARRIVE_S)[0]
        partition, offset, timestamp_ms = here.place(inbox, value)
        told = dict(message.headers())
        assert told["sendlater-rejected"].decode() == reason.partition(" ")[0]
        assert told["sendlater-origin"].decode() == f"{inbox}/{partition}/{offset}"
        assert told["sendlater-origin-timestamp-ms"].decode() == str(timestamp_ms)
        assert told["sendlater-rejected-detail"]
        if reason not in ("unknown-topic", "too-large for its target"):
            # Looked at before anything was taken off: the record is as it was.
            assert message.key() == key
            sent = [(name, v.encode() if isinstance(v, str) else v) for name, v in headers]
            assert message.headers()[: len(headers)] == sent

    # Something good, sent after them all: nothing else can be under way.
    here.schedule(key=b"after")
    here.arrival(b"after")
    assert [len(rejections(value)) for _, value, _, _ in bad.values()] == [1] * len(bad)
    assert len(here.readers[here.target].messages) == before + 1


def test_an_unknown_target_does_not_hurt_others(here):
    due_ms = now_ms() + 3_000
    when = ("sendlater-due-ms", str(due_ms))
    for number in range(20):
        here.schedule(key=b"lost-%d" % number, target=f"nowhere-{number}", when=when)
        here.schedule(key=b"fine-%d" % number, when=when)

    late_ms = [here.arrival(b"fine-%d" % n).timestamp()[1] - due_ms for n in range(20)]

    assert min(late_ms) >= 0
    # Far below what a failed batch or a producer's timeout would cost.
    assert max(late_ms) < 5_000


def test_the_newest_version_of_an_id_wins(here):
    here.schedule(b"old", key=b"twice", when=("sendlater-delay", "2"))
    here.schedule(b"new", key=b"twice", when=("sendlater-delay", "3"))
    here.schedule(b"later", key=b"later", when=("sendlater-delay", "5"))

    here.arrival(b"later")

    assert [m.value() for m in here.arrivals(here.target, b"twice")] == [b"new"]


def test_a_null_value_cancels(here):
    here.schedule(key=b"taken-back", when=("sendlater-delay", "3"))
    here.put(here.inbox, None, key=b"taken-back")
    here.put(here.inbox, None, key=b"never-was")
    here.schedule(key=b"left", when=("sendlater-delay", "5"))

    here.arrival(b"left")

    assert not here.arrivals(here.target, b"taken-back")
    assert not [m for m in here.readers[here.rejected].messages if m.key() == b"never-was"]


def test_cancel_says_the_truth(here):
    """While a stream of schedules falls due, all of them are taken back, the last ones first."""
    began_ms, names = now_ms() + 3_000, [f"c-{number}" for number in range(48)]
    for number, name in enumerate(names):
        here.schedule(key=name, when=("sendlater-due-ms", str(began_ms + 250 * number)))
    here.arrival(names[len(names) // 4].encode())  # the command itself starts in seconds

    (answers,) = here.cli("cancel", "nobody", *reversed(names), codes=[4])
    kinds = {kind: [n for n in names if answers[n] == kind] for kind in set(answers.values())}
    here.schedule(key=b"c-end", when=("sendlater-due-ms", str(began_ms + 250 * (len(names) + 2))))
    here.arrival(b"c-end")

    assert answers["nobody"] == "unknown"
    assert kinds["cancelled"]
    assert kinds["delivering"]
    assert not [n for n in kinds["cancelled"] if here.arrivals(here.target, n.encode())]
    delivered = kinds["delivering"] + kinds["unknown"]
    assert [len(here.arrivals(here.target, n.encode())) for n in delivered] == [1] * len(delivered)


def test_the_command_line_sends_shows_and_counts(here):
    sent = cli(
        here.service,
        *("send", here.target, "-", "--key", "k", "--delay", "1d", "--id", "shown", "--json"),
        *("--header", "a=1", "--header", "a=2"),
        stdin=b"from a pipe\n",
    )
    due_ms = json.loads(sent.stdout)["due_ms"]
    wait_until(lambda: here.cli("get", "shown", codes=[0, 3]), "it is pending", timeout_s=ARRIVE_S)

    (got,) = here.cli("get", "shown")
    (listed,) = here.cli("list", "--due-after", "+23h", "--due-before", "+25h")
    (stats,) = here.cli("stats")

    assert got == listed
    origin = got.pop("origin")
    assert origin.startswith(f"{here.inbox}/")
    assert got == {
        "id": "shown",
        "state": "pending",
        "due_ms": due_ms,
        "due": datetime.fromtimestamp(due_ms / 1_000, UTC).isoformat(timespec="milliseconds"),
        "expires": None,
        "plan": None,
        "tags": [],
        "topic": here.target,
        "key": "k",
        "value": "from a pipe\n",
        "headers": [["a", "1"], ["a", "2"]],
        "partition": None,
    }
    assert stats["pending"] >= 1
    assert stats["oldest_due_ms"] <= due_ms

    assert here.cli("cancel", "shown") == [{"shown": "cancelled"}]
    assert here.cli("stats")[0]["cancelled"] >= 1
    assert here.cli("get", "shown", codes=[3]) == []
    assert here.cli("cancel", "shown", codes=[3]) == [{"shown": "unknown"}]


def test_good_lines_of_a_file_are_sent_and_bad_ones_told(here, tmp_path):
    lines = [{"topic": here.target, "value": f"l{n}", "delay": 1, "id": f"l{n}"} for n in range(50)]
    texts = [json.dumps(line) for line in lines]
    texts[10:10] = ["{half", json.dumps({"topic": here.target, "value": "x"})]
    path = tmp_path / "many.jsonl"
    path.write_text("\n".join(texts))

    done = cli(here.service, "send", "--jsonl", str(path))

    assert (done.returncode, done.stdout) == (4, b"50\n")
    told = done.stderr.decode()
    assert "line 11: expected a JSON object" in told
    assert "line 12: expected one of delay and at" in told
    assert "50 sent, 2 refused" in told
    for line in lines:
        assert here.arrival(line["id"].encode()).value() == line["value"].encode()


@pytest.fixture
def example(here, kafka, redis_url, monkeypatch):
    """Runs a Python example of the documentation against this installation; what it defines."""
    for name in ("SPACE", "INBOXES"):
        monkeypatch.setenv(f"SENDLATER_{name}", here.service.environment[f"SENDLATER_{name}"])
    places = {
        "127.0.0.1:9092": kafka,
        "redis://127.0.0.1:6379/0": redis_url,
        '"schedules"': repr(here.inbox),
    }

    def example(page, number):
        text = (Path(__file__).parents[2] / page).read_text()
        code = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[number]
        for place, ours in places.items():
            code = code.replace(place, ours)
        defined = {}
        exec(code, defined)
        return defined

    return example


def test_the_examples_of_the_readme_work(here, example):
    example("README.md", 0)

    def got():
        return here.cli("get", "invoice-17", codes=[0, 3])

    (schedule,) = wait_until(got, "it is pending", timeout_s=ARRIVE_S)
    sent_ms = here.place(here.inbox, b'{"n": 17}')[2]

    assert schedule["due_ms"] == sent_ms + 15 * 60_000
    assert (schedule["topic"], schedule["value"]) == ("reminders", '{"n": 17}')
    assert schedule["headers"] == [["trace", "abc"]]

    assert str(example("README.md", 1)["answer"]) == "cancelled"
    assert here.cli("get", "invoice-17", codes=[3]) == []


def test_a_record_can_be_retried_as_the_how_to_shows(here, example):
    retry_later = example("docs/howto.md", 0)["retry_later"]
    here.schedule(b"cannot be handled", key=b"first")
    failed = here.arrival(b"first")

    retry_later(here.producer, failed)
    here.producer.flush(30)
    again = here.arrival(f"{here.target}-{failed.partition()}-{failed.offset()}".encode())

    assert (again.value(), again.key()) == (failed.value(), failed.key())
    assert dict(again.headers())["attempt"] == b"1"
    sent_ms = int(dict(again.headers())["sendlater-due"]) - 5_000
    assert failed.timestamp()[1] <= sent_ms <= again.timestamp()[1] - 5_000


def test_the_doctor_finds_it_well_and_makes_a_topic_only_if_asked(here):
    quiet = {f["check"] for f in here.cli("doctor")}
    assert "broker" in quiet
    assert "clock of the broker" not in quiet, "this check makes a topic"
    findings = here.cli("doctor", "--broker-clock")

    assert [f for f in findings if f["result"] == "fail"] == []
    names = {f["check"] for f in findings}
    assert {
        "java",
        "pyspark",
        "connector",
        "broker",
        "redis persistence",
        "redis eviction",
    } <= names
    assert {"clock of Redis", "clock of the broker"} <= names
    assert {f"topic {here.inbox}", f"topic {here.rejected}"} <= names


def test_waiting_and_a_message_cost_redis_few_calls(here, redis_url):
    """Nothing polls faster than it must: what waits is woken by the store."""
    client = redis.Redis.from_url(redis_url)

    def calls():
        told = client.info("commandstats")
        return sum(told.get(f"cmdstat_{name}", {}).get("calls", 0) for name in CALLS)

    began_s, before = time.monotonic(), calls()
    here.schedule(key=b"waits", when=("sendlater-delay", "5"))
    here.arrival(b"waits")
    idle = (calls() - before) / (time.monotonic() - began_s)
    assert idle < CALLS_A_SECOND_MAX

    began_s, before = time.monotonic(), calls()
    for number in range(20):
        here.schedule(key=b"one-%d" % number, when=("sendlater-delay", "0"))
        here.arrival(b"one-%d" % number)
    waiting = CALLS_A_SECOND_MAX * (time.monotonic() - began_s)
    assert calls() - before < 20 * CALLS_A_MESSAGE_MAX + waiting


def test_pending_schedules_outlive_a_restart_and_come_once(here):
    for number in range(100):
        here.schedule(key=b"r-%d" % number, when=("sendlater-delay", str(5 + number / 10)))
    assert here.service.stop() == 0, here.service.said()
    here.schedule(key=b"while-down", when=("sendlater-delay", "0"))
    here.service.start()

    here.arrival(b"while-down")
    names = [b"r-%d" % number for number in range(100)]
    messages = [here.arrival(name) for name in names]
    here.schedule(key=b"r-end")
    here.arrival(b"r-end")

    assert [len(here.arrivals(here.target, name)) for name in names] == [1] * 100
    for message in messages:
        assert message.timestamp()[1] >= int(dict(message.headers())["sendlater-due"])
