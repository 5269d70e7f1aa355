"""Kafka alone: schedules wait in bucket topics and come out in time, without any Redis."""

import json
import time
import uuid

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, ResourceType
from ledger import Ledger, Reader, create_topics
from servers import ServiceProcess, cli, wait_until

pytestmark = pytest.mark.story

SPACE = f"alone-{uuid.uuid4().hex[:8]}"
IN, ENVELOPES, OUT, BAD = (f"{name}-{SPACE}" for name in ("in", "envelopes", "out", "bad"))
COUNT = 1_000
SPREAD_MS = 20_000


@pytest.fixture(scope="module")
def service(kafka, tmp_path_factory):
    create_topics(kafka, IN, ENVELOPES, OUT, BAD)
    settings = {
        "bootstrap_servers": kafka,
        "pending": "buckets",
        "space": SPACE,
        "inboxes": json.dumps([{"topic": IN}, {"topic": ENVELOPES, "dialect": "envelope"}]),
        "rejected_topic": BAD,
    }
    with ServiceProcess(tmp_path_factory.mktemp("service"), **settings) as service:
        yield service.start()


@pytest.fixture(scope="module")
def out(kafka, service):
    with Reader(kafka, OUT) as reader:
        yield reader


@pytest.fixture(scope="module")
def bad(kafka, service):
    with Reader(kafka, BAD) as reader:
        yield reader


def arrived(reader, key, *, timeout_s=60):
    """The record with this key."""

    def found():
        return [message for message in list(reader.messages) if message.key() == key]

    return wait_until(found, f"{key} has arrived", timeout_s=timeout_s)[0]


def test_schedules_come_out_in_time_through_buckets(kafka, service, out):
    """A third of them is under way when the service is stopped, and the next one goes on."""
    ledger = Ledger(kafka, inbox=IN, target=OUT)
    began_ms = time.time_ns() // 1_000_000
    for number in range(COUNT):
        ledger.send(began_ms + number * SPREAD_MS // COUNT)
    ledger.flush()
    wait_until(lambda: len(out.messages) > COUNT // 3, "a third has arrived", timeout_s=90)

    assert service.stop() == 0, service.said()
    assert "stopped before" not in service.said()
    service.start()

    wait_until(lambda: not ledger.missing(out), "everything has arrived", timeout_s=90)
    assert not ledger.early(out)
    assert not ledger.doubled(out)


def test_the_command_line_sends_as_always(service, out):
    sent = cli(service, "send", OUT, "hello", "-k", "mine", "-H", "trace=7", "--delay", "2.5")
    assert sent.returncode == 0, sent.stderr

    message = arrived(out, b"mine")

    headers = message.headers()
    assert message.value() == b"hello"
    assert headers[0] == ("trace", b"7")
    assert dict(headers)["sendlater-id"] == sent.stdout.strip()
    assert message.timestamp()[1] >= int(dict(headers)["sendlater-due"])


def test_an_envelope_is_an_envelope(kafka, service, out):
    body = {"topic": OUT, "message": {"total": 1.10}, "countdown": 1.5}
    producer = Producer({"bootstrap.servers": kafka})
    headers = [("CALLER_SERVICE", b"shop")]
    producer.produce(ENVELOPES, key=b"enveloped", value=json.dumps(body), headers=headers)
    producer.flush(30)

    message = arrived(out, b"enveloped")
    assert message.value() == b'{"total":1.1}'
    assert message.headers()[0] == ("CALLER_SERVICE", b"shop")


@pytest.mark.parametrize(
    ("key", "value", "headers", "reason"),
    [
        (b"timeless", b"x", {"scheduler-target-topic": OUT}, b"no-time"),
        (b"nowhere", b"x", {"scheduler-target-topic": "gone"}, b"unknown-topic"),
        (b"taken-back", None, {}, b"cannot-cancel"),
    ],
)
def test_what_cannot_be_done_is_rejected_aloud(kafka, service, bad, key, value, headers, reason):
    """With the reason, where it came from, and what was expected."""
    due = {"sendlater-delay": "1"} if reason != b"no-time" else {}
    target_key = {"scheduler-target-key": key}
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(IN, key=key, value=value, headers={**headers, **due, **target_key})
    producer.flush(30)

    told = dict(arrived(bad, key).headers())
    assert told["sendlater-rejected"] == reason
    assert told["sendlater-origin"].startswith(f"{IN}/".encode())
    assert told["sendlater-rejected-detail"]


def test_what_a_target_would_refuse_is_rejected_before_it_is_sent(kafka, service, out, bad):
    """To the byte and with all headers; and what the rejected topic would refuse is cut."""
    small, compacted = f"small-{SPACE}", f"compacted-{SPACE}"
    create_topics(kafka, small, max_message_bytes="10000")
    create_topics(kafka, compacted, cleanup_policy="compact")
    producer = Producer({"bootstrap.servers": kafka, "message.max.bytes": 2_000_000})
    expected = {
        "partition": (b"bad-target", OUT, b"x", {"sendlater-target-partition": "99"}),
        "headers": (b"too-large", small, b"x", {"h": b"x" * 20_000}),
        "keyless": (b"no-key", compacted, b"x", {}),
        "cut": (b"too-large", OUT, b"x" * 1_048_300, {}),
        "change": (None, OUT, b"x", {"sendlater-change": b"\xff"}),
        "room": (None, small, b"x", {"h": b"x" * 9_000, "sendlater-target-partition": "1"}),
    }
    with Reader(kafka, small) as narrow:
        for name, (_, target, value, headers) in expected.items():
            headers = {"scheduler-target-topic": target, "sendlater-delay": "0", **headers}
            producer.produce(IN, key=f"refused-{name}", value=value, headers=headers)
        assert producer.flush(30) == 0

        def told():
            found = {}
            for message in [*out.messages, *narrow.messages, *bad.messages]:
                headers = dict(message.headers())
                schedule_id = headers.get("sendlater-rejected-id", headers["sendlater-id"])
                if message.key() == b"refused-cut":
                    schedule_id = message.key()
                if schedule_id.startswith(b"refused-"):
                    name = schedule_id.decode().removeprefix("refused-")
                    found.setdefault(name, []).append(headers.get("sendlater-rejected"))
            return found if found.keys() == expected.keys() else None

        found = wait_until(told, "all have arrived somewhere", timeout_s=60)
    assert found == {name: [reason] for name, (reason, *_) in expected.items()}


def test_a_record_that_is_larger_than_a_bucket_takes_stops_nobody(kafka, service, out, bad):
    """Zeros are small for the broker and large for everybody who reads them."""
    large = {"message.max.bytes": 30_000_000, "compression.type": "gzip"}
    producer = Producer({"bootstrap.servers": kafka, **large})
    headers = {"scheduler-target-topic": OUT, "sendlater-delay": "0"}
    producer.produce(IN, key=b"zeros", value=bytes(20_000_000), headers=headers)
    assert producer.flush(60) == 0
    assert cli(service, "send", OUT, "after", "-k", "after", "--delay", "0").returncode == 0

    arrived(out, b"after")
    cut = arrived(bad, b"zeros")
    told = dict(cut.headers())
    assert (told["sendlater-rejected"], len(cut.value())) == (b"too-large", 1_024)
    assert b"20000000 bytes of value" in told["sendlater-rejected-detail"]


def test_added_partitions_of_an_inbox_are_read(kafka, service, out):
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_partitions([NewPartitions(IN, 7)])[IN].result(30)
    headers = {"scheduler-target-topic": OUT, "sendlater-delay": "0", "scheduler-target-key": "new"}
    producer = Producer({"bootstrap.servers": kafka, "topic.metadata.refresh.interval.ms": 500})

    errors = []

    def taken():
        producer.produce(
            *(IN, b"x", b"new"),
            headers=headers,
            partition=6,
            on_delivery=lambda error, _: errors.append(error),
        )
        producer.flush(30)
        return errors[-1] is None

    wait_until(taken, "the new partition has a leader")
    arrived(out, b"new")


def test_stats_show_every_bucket(kafka, service):
    """Ten years away and twenty minutes away wait in different buckets."""
    for delay in ("P3652D", "20m"):
        assert cli(service, "send", OUT, "later", "--delay", delay).returncode == 0

    def waits():
        shown = json.loads(cli(service, "stats", "--json").stdout)
        assert shown["pending"] == sum(one["rows"] for one in shown["buckets"])
        waiting = {one["bucket"]: one for one in shown["buckets"] if one["rows"]}
        return waiting if waiting.keys() >= {11, 29} else None

    waiting = wait_until(waits, "both wait in a bucket")
    assert waiting[11]["lower_ms"] == 1_024_000
    assert abs(waiting[29]["oldest_ms"] / 1_000 - time.time()) < 300
    assert f"{SPACE}-bucket-29" in cli(service, "stats").stdout.decode()


@pytest.mark.parametrize("verb", [("cancel", "x"), ("get", "x"), ("list",)])
def test_what_buckets_cannot_do_is_said_and_where_to_look(service, verb):
    answer = cli(service, *verb)
    assert answer.returncode == 2
    assert b"docs/buckets.md" in answer.stderr.replace(b"\n", b"")


def test_a_bucket_that_may_forget_is_refused(kafka, service, tmp_path):
    """Somebody shortened the retention of a topic that messages wait in for months."""
    create_topics(kafka, f"{SPACE}-f-bucket-25", partitions=1, retention_ms="604800000")
    with ServiceProcess(tmp_path) as other:
        other.environment = service.environment | {"SENDLATER_SPACE": f"{SPACE}-f"}
        other.start(wait=False)
        assert other.wait() == 2
        assert f"{SPACE}-f-bucket-25" in other.said().replace("\n", "")


def test_buckets_are_created_to_keep_what_waits(kafka, service):
    admin = AdminClient({"bootstrap.servers": kafka})
    resource = ConfigResource(ResourceType.TOPIC, f"{SPACE}-bucket-29")
    config = admin.describe_configs([resource])[resource].result(30)
    assert (config["retention.ms"].value, config["cleanup.policy"].value) == ("-1", "delete")
