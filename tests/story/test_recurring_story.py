"""Recurring schedules on real servers: each planned occurrence once, over a kill of the service."""

import json
import re
import uuid
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from installation import now_ms
from ledger import Reader, create_topics
from servers import ServiceProcess, cli, wait_until

pytestmark = pytest.mark.story
PAGE = Path(__file__).parents[2] / "docs" / "recurring.md"
PLANS = {"second": (1_000, 60), "two-seconds": (2_000, 30), "jitter": (1_500, 40)}
"""Interval and number of occurrences of some recurring schedules."""


@pytest.fixture
def service(kafka, redis_url, tmp_path_factory):
    name = uuid.uuid4().hex[:8]
    inbox, out, bad = (f"{kind}-{name}" for kind in ("in", "out", "bad"))
    create_topics(kafka, inbox, out, bad)
    service = ServiceProcess(
        tmp_path_factory.mktemp("service"),
        bootstrap_servers=kafka,
        redis=redis_url,
        space=name,
        inboxes=json.dumps([{"topic": inbox}]),
        rejected_topic=bad,
        dead_topic=f"dead-{name}",
    )
    service.inbox, service.out, service.bad = inbox, out, bad
    with service.start():
        yield service


def test_each_planned_occurrence_comes_once_over_a_kill(kafka, service):
    producer = Producer({"bootstrap.servers": kafka})
    sent_ms = {}

    def produce(id, value, **headers):
        told = {"scheduler-target-topic": service.out, **headers}
        producer.produce(
            service.inbox,
            key=id,
            value=value,
            headers=list(told.items()),
            on_delivery=lambda _, message: sent_ms.setdefault(id, message.timestamp()[1]),
        )
        assert producer.flush(30) == 0

    def every(ms, **more):
        return {"sendlater-every": f"{ms}ms", "sendlater-missed": "all", **more}

    with Reader(kafka, service.out, service.bad) as reader:
        for id, (interval_ms, count) in PLANS.items():
            jitter = {"sendlater-jitter": "1s"} if id == "jitter" else {}
            produce(id, b"v", **every(interval_ms, **{"sendlater-count": str(count)}, **jitter))
        produce("cancelled", b"v", **every(1_000))
        produce("bad", b"v", **{"sendlater-cron": "@daily"})

        def came(id):
            """Planned times of the occurrences of a schedule, in order of arrival."""
            found = [dict(m.headers()) for m in list(reader.messages)]
            mine = [told for told in found if told.get("sendlater-schedule") == id.encode()]
            return [int(told["sendlater-id"].rpartition(b"@")[2]) for told in mine]

        wait_until(lambda: len(came("second")) >= 3, "some have come", timeout_s=60)
        service.kill()
        service.start()
        wait_until(lambda: len(came("cancelled")) >= 5, "they go on", timeout_s=60)
        producer.produce(service.inbox, key="cancelled", value=None)
        assert producer.flush(30) == 0
        cancelled_ms = now_ms()

        for id, (interval_ms, count) in PLANS.items():
            wait_until(lambda: len(came(id)) >= count, f"all of {id}", timeout_s=120)  # noqa: B023
            expected = [sent_ms[id] + n * interval_ms for n in range(1, count + 1)]
            assert Counter(came(id)) == Counter(expected), id
        assert max(came("cancelled")) <= cancelled_ms + 1_000
        assert len(set(came("cancelled"))) == len(came("cancelled"))

        early = [
            m
            for m in reader.messages
            if m.topic() == service.out
            and m.timestamp()[1] < int(dict(m.headers())["sendlater-due"])
        ]
        assert not early
        [bad] = [dict(m.headers()) for m in reader.messages if m.topic() == service.bad]
        assert bad["sendlater-rejected"] == b"bad-plan"
        assert b"five fields" in bad["sendlater-rejected-detail"]
        assert json.loads(cli(service, "stats", "--json").stdout)["pending"] == 0


def test_the_kafka_example_of_the_page(kafka, service):
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)[0]
    for stands, here in {
        "127.0.0.1:9092": kafka,
        '"schedules"': f'"{service.inbox}"',
        '"reports"': f'"{service.out}"',
    }.items():
        assert stands in code
        code = code.replace(stands, here)
    exec(compile(code, "example", "exec"), {})

    def listed():
        return [json.loads(line) for line in cli(service, "list", "--json").stdout.splitlines()]

    [found] = wait_until(listed, "it is in Redis")
    assert found["plan"]["cron"] == "0 9 * * MON-FRI"
    assert found["plan"]["zone"] == "Europe/Paris"
    assert cli(service, "deliver-now", found["id"]).returncode == 0
    with Reader(kafka, service.out) as reader:
        [message] = wait_until(lambda: reader.messages, "an occurrence")
    assert dict(message.headers())["sendlater-schedule"] == found["id"].encode()
    [after] = wait_until(listed, "it comes again")
    assert after["plan"]["planned_ms"] > found["plan"]["planned_ms"]
    assert cli(service, "cancel", found["id"]).returncode == 0
    assert listed() == []
