"""A journal: a compacted topic is the truth, and everything that happens to a schedule is in it.

The service runs as `sendlater serve --etf1`, in place of an etf1 kafka-message-scheduler.
"""

import base64
import json
import re
import time
from collections import Counter
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from ledger import Reader, create_topics
from servers import ServiceProcess, wait_until

from sendlater.local.process import free_ports

pytestmark = pytest.mark.story

S1_ADDED = ("scheduler-timestamp", "scheduler-key", "scheduler-topic")
OURS = ("sendlater-topic", "sendlater-id", "sendlater-due", "sendlater-origin")


class Journal:
    """Two journals, a service on them, and everything that was ever written to any topic."""

    def __init__(self, kafka, reader, names, *, rest, metrics):
        self.reader, self.names, self.kafka = reader, names, kafka
        self.rest, self.metrics = rest, metrics
        # librdkafka's own partitioner, CRC32; Spark's producer would choose by murmur2.
        self.producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0})

    def write(self, id, value, *headers, to="schedules", **placed):
        """One record on a journal, as any client of the compacted-topic scheduler writes it."""
        self.producer.produce(self.names[to], value=value, key=id, headers=list(headers), **placed)
        assert self.producer.flush(30) == 0

    def schedule(self, id, value, *headers, epoch=None, to="schedules", key=b"k", target="target"):
        epoch = str(int(time.time()) if epoch is None else epoch)
        control = [("scheduler-epoch", epoch), ("scheduler-target-topic", self.names[target])]
        if key is not None:
            control.append(("scheduler-target-key", key))
        self.write(id, value, *headers, *control, to=to)

    def on(self, topic, **wanted):
        """Records on a topic whose id (key, or header) is as wanted."""
        return [
            m
            for m in list(self.reader.messages)
            if m.topic() == self.names[topic] and wanted["id"] in (m.key(), id_of(m))
        ]

    def get(self, path, *, port=None):
        """Status, headers and body of an answer."""
        try:
            with urlopen(f"http://127.0.0.1:{port or self.rest}{path}", timeout=10) as answer:
                return answer.status, answer.headers, answer.read()
        except HTTPError as error:
            return error.code, error.headers, error.read()

    def one(self, topic, *, id, tombstone=False):
        """The only record of that id on a topic, once it is there."""
        found = wait_until(
            lambda: [m for m in self.on(topic, id=id) if not tombstone or m.value() is None],
            f"{id} is on {topic}{' as a tombstone' * tombstone}",
        )
        assert len(found) == 1, found
        return found[0]


def id_of(message):
    headers = dict(message.headers() or [])
    return headers.get("sendlater-rejected-id") or headers.get("sendlater-id")


def headers_of(message):
    return [(name, value) for name, value in message.headers() or [] if name not in OURS]


@pytest.fixture(scope="module")
def journal(kafka, redis_url, tmp_path_factory):
    space = f"j{time.time_ns()}"
    kinds = ("schedules", "more", "target", "history", "rejected", "closed", "liveness")
    names = {name: f"{name}-{space}" for name in kinds}
    create_topics(kafka, names["target"], names["history"], names["rejected"], partitions=4)
    create_topics(kafka, names["schedules"], names["more"], partitions=4, cleanup_policy="compact")
    service = ServiceProcess(
        tmp_path_factory.mktemp("journal"),
        redis=redis_url,
        rejected_topic=names["rejected"],
        liveness_topic=names["liveness"],
    )
    # The rest is the environment of an etf1 scheduler, and its container may be swapped for ours.
    rest, metrics = free_ports(2)
    service.arguments = ["--etf1"]
    service.environment |= {
        "BOOTSTRAP_SERVERS": kafka,
        "GROUP_ID": space,
        "SCHEDULES_TOPICS": f"{names['schedules']},{names['more']}",
        "HISTORY_TOPIC": names["history"],
        "SERVER_ADDR": f":{rest}",
        "METRICS_ADDR": f":{metrics}",
    }
    with service.start(), Reader(kafka, *names.values()) as reader:
        yield Journal(kafka, reader, names, rest=rest, metrics=metrics)


def test_a_delivery_leaves_a_tombstone_and_a_history(journal):
    """The three records of contract 1.3: same headers, in order, with duplicates."""
    epoch = int(time.time()) + 1
    mine = [("trace-id", b"t1"), ("nothing", None), ("scheduler-foo", b"x"), ("trace-id", b"t2")]
    journal.schedule(b"order-1", b"\x00payload\xff", *mine, epoch=epoch, key=b"tk")

    sent = journal.one("target", id=b"order-1")
    written = [m for m in journal.on("schedules", id=b"order-1") if m.value() is not None]
    added = dict(zip(S1_ADDED, [written[0].timestamp()[1] // 1000, "order-1"], strict=False))
    assert (sent.key(), sent.value()) == (b"tk", b"\x00payload\xff")
    assert headers_of(sent) == [
        *mine,
        *((name, str(value).encode()) for name, value in added.items()),
        ("scheduler-topic", journal.names["schedules"].encode()),
    ]
    assert sent.timestamp()[1] >= epoch * 1000

    tombstone = journal.one("schedules", id=b"order-1", tombstone=True)
    history = journal.one("history", id=b"order-1")
    assert tombstone.key() == b"order-1"
    assert tombstone.headers() == history.headers() == sent.headers()
    assert (history.key(), history.value()) == (b"tk", b"\x00payload\xff")
    assert dict(sent.headers())["sendlater-origin"] == (
        f"{written[0].topic()}/{written[0].partition()}/{written[0].offset()}".encode()
    )


@pytest.mark.parametrize(("given", "got"), [(None, None), (b"", b""), (b"\xff", b"\xff")])
def test_a_target_key_is_null_empty_or_bytes(journal, given, got):
    id = b"key-%r" % given
    journal.schedule(id, b"v", key=given)
    assert journal.one("target", id=id).key() == got
    assert journal.one("history", id=id).key() == got


def test_an_empty_payload_is_a_payload(journal):
    journal.schedule(b"empty", b"")
    assert journal.one("target", id=b"empty").value() == b""
    assert journal.one("schedules", id=b"empty", tombstone=True).value() is None
    assert journal.one("history", id=b"empty").value() == b""


def test_a_tombstone_goes_to_the_partition_its_schedule_came_from(journal):
    """Whatever partitioner the producer uses; elsewhere it would never replace the schedule."""
    ids = [b"p%d" % n for n in range(40)]
    for id in ids:
        journal.schedule(id, b"v")
    places = {}
    for id in ids:
        tombstone = journal.one("schedules", id=id, tombstone=True)
        written = [m for m in journal.on("schedules", id=id) if m.value() is not None]
        places[id] = tombstone.partition()
        assert tombstone.partition() == written[0].partition()
    assert len(set(places.values())) == 4


def test_a_null_value_cancels_and_the_same_id_replaces(journal):
    soon = int(time.time()) + 3
    journal.schedule(b"cancelled", b"v", epoch=soon)
    journal.schedule(b"replaced", b"old", epoch=soon)
    journal.schedule(b"replaced", b"new", epoch=soon)
    journal.write(b"cancelled", None)
    journal.schedule(b"after", b"v", epoch=soon + 1)

    assert journal.one("target", id=b"replaced").value() == b"new"
    assert journal.one("target", id=b"after").value() == b"v"
    assert not journal.on("target", id=b"cancelled")


def test_one_id_on_several_topics_is_one_schedule(journal):
    soon = int(time.time()) + 8
    journal.schedule(b"shared", b"old", epoch=soon, to="schedules")
    journal.schedule(b"first", b"v", to="more")
    journal.one("target", id=b"first")
    journal.schedule(b"shared", b"new", epoch=soon, to="more")
    sent = journal.one("target", id=b"shared")
    assert sent.value() == b"new"
    assert dict(sent.headers())["scheduler-topic"] == journal.names["more"].encode()
    assert journal.one("more", id=b"shared", tombstone=True).value() is None


def test_a_schedule_written_while_the_last_one_leaves_survives_its_tombstone(journal):
    """The tombstone comes after it on the topic, and is about the version before."""
    later = int(time.time()) + 4
    for n in range(10):
        journal.schedule(b"again-%d" % n, b"first")
        journal.schedule(b"other-%d" % n, b"second", epoch=later)
    for n in range(10):
        id = b"again-%d" % n
        journal.one("target", id=id)
        journal.schedule(id, b"second", epoch=later)
    for n in range(10):
        id = b"again-%d" % n
        wait_until(lambda id=id: len(journal.on("target", id=id)) == 2, f"{id} came again")
        assert [m.value() for m in journal.on("target", id=id)] == [b"first", b"second"]


def test_what_a_tombstone_would_compact_away_is_written_again(journal):
    """The older version's tombstone is its id's last record: compaction would keep only that."""
    epoch = int(time.time()) + 3_000
    journal.schedule(b"kept", b"old", ("mine", b"1"), epoch=epoch)
    journal.schedule(b"kept", b"new", ("mine", b"2"), epoch=epoch)
    wait_until(lambda: len(journal.on("schedules", id=b"kept")) == 2, "both are there")
    old, new = journal.on("schedules", id=b"kept")
    about = f"{old.topic()}/{old.partition()}/{old.offset()}"
    journal.write(b"kept", None, ("sendlater-origin", about))

    again = wait_until(lambda: journal.on("schedules", id=b"kept")[3:], "it is there again")[0]
    assert (again.value(), again.partition()) == (b"new", new.partition())
    assert dict(again.headers())["scheduler-target-key"] == b"k"
    assert again.headers()[-1] == ("mine", b"2")
    journal.write(b"kept", None)


@pytest.mark.parametrize(
    ("epoch", "reason"),
    [
        (None, "no-time"),
        ("abc", "bad-time"),
        (" 12", "bad-time"),
        ("12.5", "bad-time"),
        ("-1", "bad-time"),
        ("1795219929000", "milliseconds"),
    ],
)
def test_what_cannot_be_scheduled_is_rejected_loudly_and_tombstoned_once(journal, epoch, reason):
    """With the headers it came with, and never echoed."""
    id = f"bad-{epoch}".encode()
    target = ("scheduler-target-topic", journal.names["target"])
    headers = [("mine", b"1"), target, *([("scheduler-epoch", epoch)] if epoch else [])]
    journal.write(id, b"v", *headers)

    rejected = journal.one("rejected", id=id)
    assert dict(rejected.headers())["sendlater-rejected"] == reason.encode()
    tombstone = journal.one("schedules", id=id, tombstone=True)
    as_bytes = [(k, v if isinstance(v, bytes) else v.encode()) for k, v in headers]
    assert headers_of(tombstone) == as_bytes

    journal.schedule(b"after-" + id, b"v")
    journal.one("schedules", id=b"after-" + id, tombstone=True)
    assert len(journal.on("rejected", id=id)) == len(journal.on("history", id=id)) + 1 == 1


def test_a_blank_id_is_rejected_and_its_tombstone_is_not(journal):
    """S1 answers its own tombstone with another one."""
    journal.schedule(b"  ", b"v")
    assert dict(journal.one("rejected", id=b"  ").headers())["sendlater-rejected"] == b"no-id"
    journal.one("schedules", id=b"  ", tombstone=True)
    journal.schedule(b"after-blank", b"v")
    journal.one("target", id=b"after-blank")
    assert Counter(m.value() is None for m in journal.on("schedules", id=b"  ")) == {
        False: 1,
        True: 1,
    }


def test_a_target_that_takes_nothing_costs_one_schedule(journal):
    """S1 tries it again at each restart and each midnight, and tells nobody."""
    journal.schedule(b"nowhere", b"v", target="closed")
    rejected = journal.one("rejected", id=b"nowhere")
    assert dict(rejected.headers())["sendlater-rejected"] == b"unknown-topic"
    assert journal.one("schedules", id=b"nowhere", tombstone=True).value() is None


def test_a_past_epoch_is_delivered_at_once(journal):
    now_s = int(time.time())
    journal.schedule(b"past", b"v", epoch=now_s - 100_000)
    journal.schedule(b"plus", b"v", epoch=f"+{now_s}")
    journal.write(
        b"twice",
        b"v",
        ("scheduler-epoch", str(now_s)),
        ("scheduler-epoch", "9999999999"),
        ("scheduler-target-topic", journal.names["target"]),
    )
    for id in (b"past", b"plus", b"twice"):
        assert journal.one("target", id=id).value() == b"v"


# --- what the admin page, the dashboards and the orchestrator of an etf1 scheduler ask ------


def test_info_tells_where_the_topics_are(journal):
    status, headers, body = journal.get("/info")
    info = json.loads(body)
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert list(info) == ["hostname", "address", "server_address", "kafka"]
    assert info["server_address"] == f":{journal.rest}"
    assert info["kafka"] == {
        "bootstrap_servers": journal.kafka,
        "topics": [journal.names["schedules"], journal.names["more"]],
        "history_topic": journal.names["history"],
    }


def test_schedules_are_listed_in_the_known_shape(journal):
    epoch = int(time.time()) + 3_000
    for id in (b"listed-1", b"listed-2"):
        journal.schedule(id, b"value \xff", epoch=epoch, key=b"tk")

    def listed():
        rows = {row["id"]: row for row in json.loads(journal.get("/schedules")[2])}
        return rows if {"listed-1", "listed-2"} <= rows.keys() else None

    row = wait_until(listed, "both are listed")["listed-1"]
    written = journal.one("schedules", id=b"listed-1")
    assert row == {
        "epoch": epoch,
        "id": "listed-1",
        "target-key": "tk",
        "target-topic": journal.names["target"],
        "timestamp": written.timestamp()[1] // 1000,
        "topic": journal.names["schedules"],
        "value": base64.b64encode(b"value \xff").decode(),
    }
    for id in (b"listed-1", b"listed-2"):
        journal.write(id, None)
    wait_until(lambda: not listed(), "cancelled ones are gone")


def test_liveness_sends_a_probe_through_the_whole_pipeline(journal):
    assert journal.get("/liveness")[0] == 200
    assert journal.get("/livenes")[::2] == (404, b"404 page not found\n")

    def probes():
        return [
            m.value() for m in journal.reader.messages if m.topic() == journal.names["liveness"]
        ]

    [probe] = wait_until(probes, "the probe is seen")
    journal.one("schedules", id=probe, tombstone=True)
    assert not journal.on("history", id=probe)


def test_the_counter_of_the_dashboards_counts(journal):
    def counts():
        body = journal.get("/metrics", port=journal.metrics)[2].decode()
        assert "# HELP kafka_scheduler_event_total The number of event triggered by type" in body
        assert "# TYPE kafka_scheduler_event_total counter" in body
        found = re.findall(
            r'kafka_scheduler_event_total\{type="kafka_scheduler_(\w+)"\} (\S+)', body
        )
        return {name: float(count) for name, count in found}

    before = counts()
    assert before.keys() >= {"planned_schedule", "triggered_schedule", "invalid_schedule"}
    assert before["deleted_schedule"] > 0 < before["missed_schedule"]
    journal.schedule(b"counted", b"v", epoch=int(time.time()) + 1)
    journal.one("target", id=b"counted")
    wait_until(
        lambda: counts()["triggered_schedule"] > before["triggered_schedule"], "it is counted"
    )
    assert counts()["planned_schedule"] > before["planned_schedule"]
