"""A horizon: what is due later waits in Kafka. An inbox without ids, copied into the journal."""

import json
import time

import pytest
import redis
from confluent_kafka import Producer
from ledger import Ledger, Reader, create_topics
from servers import ServiceProcess, cli, wait_until

pytestmark = pytest.mark.story

COUNT = 1_500
SPREAD_MS = 18_000


@pytest.fixture(scope="module")
def topics(kafka):
    names = {name: f"{name}-h{time.time_ns()}" for name in ("journal", "in", "out", "done", "bad")}
    create_topics(kafka, names["in"], names["out"], names["done"], names["bad"])
    create_topics(kafka, names["journal"], cleanup_policy="compact")
    return names


@pytest.fixture(scope="module")
def service(kafka, redis_url, topics, tmp_path_factory):
    service = ServiceProcess(
        tmp_path_factory.mktemp("horizon"),
        bootstrap_servers=kafka,
        redis=redis_url,
        space=f"h{time.time_ns()}",
        inboxes=json.dumps(
            [
                {"topic": topics["journal"], "journal": True},
                {"topic": topics["in"], "dialect": "envelope", "copy_to": topics["journal"]},
            ]
        ),
        rejected_topic=topics["bad"],
        history_topic=topics["done"],
        horizon="6s",
    )
    with service.start():
        yield service


def test_only_what_is_due_soon_is_in_redis_and_everything_arrives_once(
    service, kafka, redis_url, topics
):
    ledger = Ledger(kafka, inbox=topics["journal"], target=topics["out"])
    client = redis.Redis.from_url(redis_url)
    space = service.environment["SENDLATER_SPACE"]
    held = []

    def pending():
        held.append(sum(client.zcard(f"{{{space}:{shard}}}:due") for shard in range(2)))
        return held[-1]

    with Reader(kafka, topics["out"]) as reader:
        first_ms = time.time_ns() // 1_000_000 + 4_000
        for number in range(COUNT):
            ledger.send(first_ms + number * SPREAD_MS // COUNT)
        # Far ones change their minds, while they are in Kafka alone.
        names = list(ledger.due_ms)
        for name in names[-300::3]:
            ledger.cancel(name)
        for name in names[-299::3]:
            ledger.send(ledger.due_ms[name] - SPREAD_MS // 2, name)
        ledger.flush()
        wait_until(pending, "the near ones are pending")
        counts = json.loads(cli(service, "stats", "--json").stdout)
        assert counts["later"] > 0
        wait_until(
            lambda: pending() is not None and not ledger.missing(reader),
            "everything has arrived",
            timeout_s=90,
        )

    assert not ledger.early(reader)
    assert not ledger.outdated(reader)
    assert not ledger.doubled(reader)
    assert max(held) < 0.8 * COUNT


def test_a_copied_envelope_is_as_safe_as_what_is_written_to_the_journal(service, kafka, topics):
    with Reader(kafka, topics["out"], topics["journal"]) as reader:
        producer = Producer({"bootstrap.servers": kafka})
        envelope = {"topic": topics["out"], "message": "hello", "countdown": 2}
        producer.produce(
            topics["in"], json.dumps(envelope), key="k", headers=[("CALLER_SERVICE", b"shop")]
        )
        assert producer.flush(30) == 0

        def found(topic):
            return [
                m
                for m in list(reader.messages)
                if m.topic() == topics[topic]
                and topics["in"].encode()
                in (dict(m.headers() or []).get("sendlater-id") or m.key())
            ]

        wait_until(lambda: len(found("journal")) == 2, "schedule and tombstone are in the journal")
        [sent] = found("out")

    written, tombstone = found("journal")
    assert written.key() == tombstone.key() == dict(sent.headers())["sendlater-id"]
    assert (sent.key(), sent.value()) == (b"k", b"hello")
    assert sent.headers()[0] == ("CALLER_SERVICE", b"shop")
    assert not [name for name, _ in sent.headers() if name == "sendlater-copied"]
    assert tombstone.value() is None


def test_the_store_is_rebuilt_on_demand_while_the_service_runs(service):
    done = cli(service, "rebuild")
    assert done.returncode == 0, done.stderr
    assert b"the store is rebuilt" in done.stderr
    assert "the store is to be rebuilt" in service.said()


def test_doctor_and_start_look_whether_a_journal_is_compacted(
    service, kafka, redis_url, topics, tmp_path
):
    found = [json.loads(line) for line in cli(service, "doctor", "--json").stdout.splitlines()]
    [journal] = [row for row in found if row["check"] == f"journal {topics['journal']}"]
    assert (journal["result"], journal["found"]) == ("ok", "cleanup.policy compact")

    careless = ServiceProcess(
        tmp_path,
        bootstrap_servers=kafka,
        redis=redis_url,
        space=f"c{time.time_ns()}",
        inboxes=json.dumps([{"topic": topics["in"], "journal": True}]),
        rejected_topic=topics["bad"],
        history_topic=topics["done"],
    )
    with careless.start(wait=False):
        assert careless.wait() == 2
        assert "expected cleanup.policy=compact, got 'delete'" in careless.said()
    found = [json.loads(line) for line in cli(careless, "doctor", "--json").stdout.splitlines()]
    [journal] = [row for row in found if row["check"] == f"journal {topics['in']}"]
    assert journal["result"] == "fail"
