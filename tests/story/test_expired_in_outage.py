"""Nothing that has expired is delivered: not after an outage, and not from a journal that filled an
emptied Redis."""

import json
import re
import uuid
from pathlib import Path

import pytest
import redis
from confluent_kafka import Producer
from installation import now_ms
from ledger import Reader, create_topics
from servers import ServiceProcess, cli, own_redis, wait_until

from sendlater.config import Settings
from sendlater.store import Pending

pytestmark = pytest.mark.story
PAGE = Path(__file__).parents[2] / "docs" / "expiry.md"


def test_what_expires_in_an_outage_becomes_a_dead_letter(kafka, tmp_path_factory):
    name = uuid.uuid4().hex[:8]
    inbox, journal, out, bad, dead = names = [
        f"{kind}-{name}" for kind in ("in", "journal", "out", "bad", "dead")
    ]
    create_topics(kafka, inbox, out, bad)
    create_topics(kafka, journal, cleanup_policy="compact")
    producer = Producer({"bootstrap.servers": kafka})

    def schedule(topic, id, **more):
        when = ("sendlater-due-ms", str(due_ms))
        headers = [when, ("scheduler-target-topic", out), *more.items()]
        producer.produce(topic, value=id.encode(), key=id, headers=headers)

    def arrived(topic):
        return [m.value().decode() for m in reader.messages if m.topic() == topic and m.value()]

    with own_redis(tmp_path_factory.mktemp("redis")) as server, Reader(kafka, *names) as reader:
        service = ServiceProcess(
            tmp_path_factory.mktemp("service"),
            bootstrap_servers=kafka,
            redis=server.url,
            space=name,
            inboxes=json.dumps([{"topic": inbox}, {"topic": journal, "journal": True}]),
            rejected_topic=bad,
            dead_topic=dead,
            history_topic="",
        )
        pending = Pending.open(server.url, space=name, shards=Settings().shards)
        with service.start():
            due_ms = now_ms() + 30_000
            for topic in (inbox, journal):
                schedule(topic, f"code of {topic}", **{"sendlater-expires-after": "3s"})
                schedule(topic, f"offer of {topic}", **{"sendlater-expires": str(due_ms + 3_000)})
                schedule(topic, f"letter of {topic}")
            assert producer.flush(30) == 0
            kinds = ("code", "offer", "letter")
            ids = [f"{kind} of {topic}".encode() for kind in kinds for topic in (inbox, journal)]
            wait_until(lambda: all(map(pending.get, ids)), "all are in Redis")
            service.kill()
            redis.Redis.from_url(server.url).flushall()
            wait_until(lambda: now_ms() > due_ms + 3_000, "they have expired", timeout_s=90)

            service.start()
            letters = {f"letter of {topic}" for topic in (inbox, journal)}
            expired = {f"{kind} of {t}" for kind in ("code", "offer") for t in (inbox, journal)}
            wait_until(lambda: set(arrived(dead)) == expired, "the dead letters", timeout_s=60)
            wait_until(lambda: set(arrived(out)) == letters, "the letters", timeout_s=60)
            assert sorted(arrived(dead)) == sorted(expired), "once each"

            [code] = [m for m in reader.messages if m.value() == f"code of {journal}".encode()][1:]
            told = dict(code.headers())
            assert told["sendlater-rejected"] == b"expired"
            assert told["sendlater-due"] == str(due_ms).encode()
            assert told["sendlater-expiry"] == str(due_ms + 3_000).encode()
            tombstones = {f"{kind} of {journal}" for kind in ("code", "offer", "letter")}
            wait_until(
                lambda: (
                    tombstones <= {m.key().decode() for m in reader.messages if m.value() is None}
                ),
                "the journal has forgotten all three",
            )

            # Redriven, it has no expiry any more.
            assert cli(service, "dead", "redrive", "--all").returncode == 0
            wait_until(lambda: set(arrived(out)) == letters | expired, "what was redriven")


def test_the_kafka_example_of_the_page(kafka, redis_url, tmp_path_factory):
    name = uuid.uuid4().hex[:8]
    inbox, sms, bad = f"in-{name}", f"sms-{name}", f"bad-{name}"
    create_topics(kafka, inbox, sms, bad)
    service = ServiceProcess(
        tmp_path_factory.mktemp("service"),
        bootstrap_servers=kafka,
        redis=redis_url,
        space=name,
        inboxes=json.dumps([{"topic": inbox}]),
        rejected_topic=bad,
        dead_topic=f"dead-{name}",
    )
    code, _ = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    for stands, here in {
        "127.0.0.1:9092": kafka,
        '"schedules"': f'"{inbox}"',
        '"sms"': f'"{sms}"',
    }.items():
        assert stands in code
        code = code.replace(stands, here)
    with service.start(), Reader(kafka, sms) as reader:
        before_ms = now_ms()
        exec(compile(code, "example", "exec"), {})
        [message] = wait_until(lambda: reader.messages, "the password arrives")
        told = dict(message.headers())
        assert message.value() == b"739155"
        assert int(told["sendlater-expiry"]) - int(told["sendlater-due"]) == 600_000
        assert int(told["sendlater-due"]) >= before_ms
        assert "sendlater-expires-after" not in told
