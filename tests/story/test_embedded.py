"""The embedded default: no settings, no servers; everything there is starts by itself."""

import json
import re
import shlex
import signal
from pathlib import Path

import pytest
from servers import START_TIMEOUT_S, ServiceProcess, cli, wait_until

from sendlater.local.redis_server import embedded_url
from sendlater.model import Record
from sendlater.topics import Topics

pytestmark = pytest.mark.story

ACCOUNT = {"scheduled", "delivered", "early", "duplicated", "lost", "late_ms"}
PERCENTILES = {"p50", "p90", "p99", "p999", "max"}
COUNT = 50
ROOT = Path(__file__).parents[2]


def test_the_demo_accounts_for_every_message(tmp_path):
    here = ServiceProcess(tmp_path)
    done = cli(here, "demo", "--count", str(COUNT), "--rate", str(COUNT), "--exit", "--json")

    account = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert account.keys() == ACCOUNT
    assert account["late_ms"].keys() == PERCENTILES
    assert account["late_ms"]["p50"] <= account["late_ms"]["max"]
    del account["late_ms"]
    assert account == {
        "scheduled": COUNT,
        "delivered": COUNT,
        "early": 0,
        "duplicated": 0,
        "lost": 0,
    }


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with ServiceProcess(tmp_path_factory.mktemp("embedded")) as service:
        yield service.start()


def open_topics(service):
    """The broker of the embedded default, found as any program on this machine finds it."""
    url = embedded_url(Path(service.environment["SENDLATER_DATA_DIR"]))
    assert url, "an embedded Redis is running"
    return Topics(url, space="sendlater")


@pytest.fixture
def topics(service):
    with open_topics(service) as topics:
        yield topics


def arrived(topics, topic, what, *, count=1):
    """The records of a topic, once there are so many."""

    def found():
        records = [
            record
            for number in range(topics.partitions(topic) if topics.exists(topic) else 0)
            for record in topics.read(topic, number, after_position=0, count_max=1_000, block_ms=0)
        ]
        return records if len(records) >= count else None

    return wait_until(found, what, timeout_s=60)


def send(service, *arguments):
    """`sendlater send ... --json`: id and due time."""
    done = cli(service, "send", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_the_command_line_sends_arrives_on_a_topic_on_redis(service, topics):
    sent = send(service, "orders", "hello", "--delay", "1", "--key", "k", "--header", "a=b")

    (record,) = arrived(topics, "orders", "the message arrives")

    assert (record.key, record.value) == (b"k", b"hello")
    assert record.timestamp_ms >= sent["due_ms"], "the clock of Redis is that of this machine"
    headers = dict(record.headers)
    assert record.headers[0] == ("a", b"b")
    assert headers["sendlater-id"] == sent["id"].encode()
    assert headers["sendlater-due"] == str(sent["due_ms"]).encode()


def test_a_short_load_tells_lateness_by_delay(service):
    done = cli(service, *shlex.split("bench short --rate 20 --seconds 2 --warm-up 1 --json"))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["scheduled"] == told["delivered"] == 2 * 60
    assert told["ways"].keys() == {"inbox", "client"}
    for way in told["ways"].values():
        assert list(way["late_ms"]) == ["0", "10", "100", "300", "1000"]
        assert all(0 <= late["p50"] <= late["max"] for late in way["late_ms"].values())


def test_what_the_pages_tell_the_shell_to_do_works(service):
    """The lines of the README and the how-to, one after the other, as they stand."""
    said = {}
    for page in ("README.md", "docs/howto.md"):
        for line in re.findall(r"^sendlater (.*)$", (ROOT / page).read_text(), re.MULTILINE):
            done = cli(service, *shlex.split(line, comments=True))
            assert done.returncode == 0, f"{line}: {done.stderr}"
            said[line.partition(" --")[0]] = done.stdout

    assert b"cancelled" in said["cancel invoice-17"]
    assert b"standup-2030-01-31" in said["send reminders 'stand up'"]


def test_what_cannot_be_scheduled_is_rejected_here_too(service, topics):
    topics.produce(Record(topic="schedules", key=b"k", value=b"no target and no time"))

    (record,) = arrived(topics, "rejected", "the record is rejected")

    assert record.value == b"no target and no time"
    assert dict(record.headers)["sendlater-rejected"] == b"no-time"


def test_a_partition_that_a_topic_does_not_have_stops_nobody(service, topics):
    for topic in ("few", "new"):  # one that is there, and one that nobody has created yet
        if topic == "few":
            topics.create(topic, partitions=2)
        bad = send(service, topic, "bad", "--delay", "1", "--partition", "4")
        send(service, topic, "good", "--delay", "1", "--partition", "1")
        (good,) = arrived(topics, topic, "the good one arrives")
        assert (good.value, good.partition) == (b"good", 1)

        def told(bad=bad):
            found = arrived(topics, "rejected", "it is rejected")
            return [
                r
                for r in found
                if dict(r.headers).get("sendlater-rejected-id") == bad["id"].encode()
            ]

        (record,) = wait_until(told, "with its id")
        assert record.value == b"bad"
        assert dict(record.headers)["sendlater-rejected"] == b"bad-target"
    assert "query failed" not in service.said()


def test_what_is_pending_survives_sigterm_and_a_restart(service, topics):
    sent = [send(service, "later", str(n), "--delay", "15") for n in range(3)]
    pending = {row["id"] for row in sent}

    def shown():
        done = cli(service, "list", "--json")
        return {json.loads(line)["id"] for line in done.stdout.splitlines()}

    wait_until(lambda: shown() >= pending, "all are pending")
    assert service.stop() == 0, service.said()
    assert "stopping: finishing what is claimed" in service.said()
    assert cli(service, "list").returncode == 5, "the embedded Redis ended with its last user"
    service.start()
    with open_topics(service) as again:
        records = arrived(again, "later", "all arrive", count=3)

    assert {record.value for record in records} == {b"0", b"1", b"2"}
    assert len(records) == 3
    due_ms = {row["id"].encode(): row["due_ms"] for row in sent}
    assert all(r.timestamp_ms >= due_ms[dict(r.headers)["sendlater-id"]] for r in records)


def test_a_second_signal_ends_it_at_once(service):
    process = service._process
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in service.said() or not service.running, "it has understood")
    process.send_signal(signal.SIGTERM)

    assert process.wait(START_TIMEOUT_S) in (0, 130)
