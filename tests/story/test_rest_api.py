"""REST over Kafka, end to end: what is posted arrives, changed as asked, and the metrics tell."""

import json
import os
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
import redis
from ledger import Reader, create_topics
from prometheus_client.parser import text_string_to_metric_families
from servers import ServiceProcess, wait_until

pytestmark = pytest.mark.story


class World:
    """A service with REST on Kafka, and a reader of its target topic."""

    def __init__(self, service, reader, target):
        self.service, self.reader, self.target = service, reader, target
        (told,) = (line for line in service.said().splitlines() if "metrics are served" in line)
        port = json.loads(told)["port"]
        self.metrics_url = f"http://127.0.0.1:{port}/metrics"
        url = re.search(r"page and REST at (http\S+)", service.said()).group(1)
        self.api = httpx2.Client(base_url=url, timeout=60)

    def post(self, **given):
        answer = self.api.post("/v1/schedules", json={"topic": self.target, **given})
        assert answer.status_code == 201, answer.text
        return answer.json()

    def arrived(self, name):
        return [m for m in list(self.reader.messages) if dict(m.headers())["sendlater-id"] == name]


@pytest.fixture(scope="module")
def world(kafka, redis_url, tmp_path_factory):
    inbox, target, rejected = "rest-in", "rest-out", "rest-bad"
    create_topics(kafka, inbox, target, rejected)
    service = ServiceProcess(
        tmp_path_factory.mktemp("rest"),
        bootstrap_servers=kafka,
        redis=redis_url,
        space="rest",
        inboxes=f'[{{"topic": "{inbox}"}}]',
        rejected_topic=rejected,
        http_addr="127.0.0.1:0",
        metrics_addr="127.0.0.1:0",
        canary_topic="rest-canary",
    )
    with service.start(), Reader(kafka, target) as reader:
        yield World(service, reader, target)


def test_what_is_posted_arrives_when_it_is_due(world):
    made = world.post(id="a", value={"n": 1}, key="k", headers=[["h", "1"], ["h", None]], delay=1)
    (message,) = wait_until(lambda: world.arrived(b"a"), "it arrived")
    assert (message.key(), message.value()) == (b"k", b'{"n":1}')
    assert message.headers()[:2] == [("h", b"1"), ("h", None)]
    assert message.timestamp()[1] >= made["due_ms"]


def test_rest_and_spark_each_have_a_fair_share_of_the_cores(world):
    """Linux shares the cores between sessions first; one for both would starve REST."""
    service = world.service
    spark = service.child(lambda process: process.name() == "java")
    rest = service.child(lambda process: "sendlater.server.process" in process.cmdline())
    sessions = [os.getsid(process.pid) for process in (service.family[0], spark, rest)]
    assert len(set(sessions)) == 3, sessions


def test_a_change_is_true_although_the_inbox_is_read_later(world):
    """Moved, cancelled and hastened at once after posting, before intake can have read it."""
    for name in ("moved", "cancelled", "now"):
        world.post(id=name, value="v", delay="1h")
    moved = world.api.patch("/v1/schedules/moved", json={"delay": 3}).json()
    assert moved["answer"] == "moved"
    assert world.api.delete("/v1/schedules/cancelled").json() == {"answer": "cancelled"}
    assert world.api.post("/v1/schedules/now:deliver-now").json()["answer"] == "moved"
    (message,) = wait_until(lambda: world.arrived(b"moved"), "the moved one arrived")
    assert message.timestamp()[1] >= moved["due_ms"]
    wait_until(lambda: world.arrived(b"now"), "the hastened one arrived")
    assert world.api.get("/v1/schedules/cancelled").status_code == 404


def test_a_changed_schedule_is_not_delivered_again_by_the_copy_of_its_change(world, redis_url):
    """The copy is read after the delivery; the store knows its name and passes over it."""
    world.post(id="quick", value="v", delay="1h")
    for _ in range(3):
        world.api.patch("/v1/schedules/quick", json={"delay": 0})
    wait_until(lambda: world.arrived(b"quick"), "it arrived")
    client = redis.Redis.from_url(redis_url)
    wait_until(
        lambda: not any(client.zcard(f"{{rest:{n}}}:changes") for n in range(2)),
        "intake has read every copy",
    )
    world.post(id="after", value="v", delay=0.5)
    wait_until(lambda: world.arrived(b"after"), "a later one arrived")
    assert len(world.arrived(b"quick")) == 1


def test_random_calls_of_many_threads_end_as_a_model_says(world):
    """Each thread has ids of its own; what it is told is what becomes of them."""

    def caller(seed):
        draw, state = random.Random(seed), {}
        for step in range(25):
            name = f"r{seed}-{draw.randrange(5)}"
            deed = draw.choice(["post", "post", "patch", "delete", "now"])
            path = f"/v1/schedules/{name}"
            if deed == "post":
                state[name] = world.post(id=name, value=f"{step}", delay=3_600 + step)["due_ms"]
            elif deed == "patch":
                told = world.api.patch(path, json={"delay": 7_200 + step}).json()
                assert told["answer"] == ("moved" if name in state else "unknown"), (name, told)
                if name in state:
                    state[name] = told["due_ms"]
            elif deed == "delete":
                told = world.api.delete(path).json()
                assert told["answer"] == ("cancelled" if name in state else "unknown"), (name, told)
                state.pop(name, None)
        return state

    with ThreadPoolExecutor(4) as threads:
        expected = {}
        for state in threads.map(caller, range(4)):
            expected |= state

    def listed():
        page = world.api.get("/v1/schedules", params={"id_prefix": "r", "limit": 1000})
        return None if "sendlater-behind" in page.headers else page.json()["items"]

    items = wait_until(listed, "intake has read what was posted")
    assert {one["id"]: one["due_ms"] for one in items} == expected


def test_what_became_of_one_is_found_on_its_topics_and_sent_again(world):
    """Its versions on the inbox, its delivery by the time it was made, and the record itself."""
    before_ms = time.time_ns() // 1_000_000
    world.post(id="found", value="1", delay="1h")
    world.post(id="found", value="2", delay="1h")
    world.api.post("/v1/schedules/found:deliver-now")
    (message,) = wait_until(lambda: world.arrived(b"found"), "it arrived")

    def records(**asked):
        return world.api.get("/v1/records", params=asked).json()["items"]

    versions = records(topic="rest-in", key="found")
    assert [one["value"] for one in versions] == ["2", "1"]
    (delivered,) = records(topic=world.target, id="found", since_ms=before_ms)
    assert delivered["place"] == f"{message.partition()}/{message.offset()}"
    assert records(topic=world.target, id="found", since_ms=before_ms + 3_600_000) == []
    again = {"topic": world.target, "places": [delivered["place"]], "target": world.target}
    assert world.api.post("/v1/records:redrive", json=again).json()["redriven"] == 1

    def values():
        return [m.value() for m in list(world.reader.messages)].count(b"2")

    wait_until(lambda: values() == 2, "it arrived again")


def test_many_lines_arrive_and_a_spike_of_them_is_moved_at_once(world):
    line = {"topic": world.target, "value": "v", "delay": "2h"}
    body = b"\n".join(json.dumps({**line, "id": f"spike-{n}"}).encode() for n in range(1_000))
    kind = {"content-type": "application/x-ndjson"}
    told = world.api.post("/v1/schedules", content=body, headers=kind).json()
    assert told["accepted"] == 1_000
    asked_ms = time.time_ns() // 1_000_000
    moved = world.api.post(
        "/v1/schedules:reschedule", json={"id_prefix": "spike-", "delay": 2}
    ).json()
    assert moved["answers"] == {"moved": 1_000}

    def arrived():
        return [
            m.timestamp()[1]
            for m in list(world.reader.messages)
            if dict(m.headers())["sendlater-id"].startswith(b"spike-")
        ]

    wait_until(lambda: len(arrived()) >= 1_000, "the spike arrived", timeout_s=60)
    assert min(arrived()) >= asked_ms + 2_000


def test_the_metrics_tell_what_happened(world):
    def scraped():
        text = httpx2.get(world.metrics_url).text
        samples = [s for f in text_string_to_metric_families(text) for s in f.samples]
        return {(s.name, *s.labels.values()): s.value for s in samples}

    # Each part of the service tells its own numbers, every second or so and in no order.
    at_least = {
        ("sendlater_delivered_total", world.target): 1_000,
        ("sendlater_lateness_seconds_count",): 1_000,
        ("sendlater_settled_total",): 1,
        ("sendlater_rescheduled_total",): 1_000,
    }

    def told():
        got = scraped()
        return all(got.get(name, 0) >= least for name, least in at_least.items())

    wait_until(told, f"the metrics told of {at_least}")
    wait_until(
        lambda: ("sendlater_canary_lateness_seconds",) in scraped(), "the canary came through"
    )
    stats = world.api.get("/v1/stats").json()
    assert stats["workers"] == {"intake": True, "lane-0": True, "lane-1": True}
