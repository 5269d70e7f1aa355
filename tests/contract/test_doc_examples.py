"""The examples of the pages run as they stand, on Redis alone and on Kafka; those for Spark, for
the shell and for the README have their places in tests/story."""

import json
import re
import shlex
import tomllib
from datetime import datetime
from pathlib import Path

import pytest
import redis
from confluent_kafka import Producer
from ledger import Reader, create_topics
from servers import wait_until

from sendlater import Scheduler, Topics, open_producer
from sendlater.config import Settings
from sendlater.dialects import duration_ms

ROOT = Path(__file__).parents[2]


def examples(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.M | re.S)


def run(code, redis_url, **places):
    for stands, here in {"redis://127.0.0.1:6379/0": redis_url, **places}.items():
        code = code.replace(stands, here)
    exec(compile(code, "example", "exec"), {"__name__": "example"})


@pytest.fixture(autouse=True)
def own_space(monkeypatch, space):
    monkeypatch.setenv("SENDLATER_SPACE", space)


def on_redis(page):
    return [code for code in examples(page) if "9092" not in code]


@pytest.mark.parametrize("number", range(4))
def test_the_client_page_on_redis(number, redis_url, capsys):
    pages = [code for code in on_redis("client.md") if "redis://" in code]
    assert len(pages) == 4
    run(pages[number], redis_url)
    expected = ("cancelled", "10000", "cancelled", "b'1'")[number]
    assert expected in capsys.readouterr().out


def test_the_expiry_page_on_redis(redis_url, capsys):
    (code,) = on_redis("expiry.md")
    run(code, redis_url)
    assert capsys.readouterr().out == "0:10:00 2035-06-01 16:00:00+00:00\n"


def test_the_conditions_page_on_redis(redis_url, space, capsys):
    (code,) = on_redis("conditions.md")
    for said in ("", "it stands already, due"):
        run(code, redis_url)
        assert capsys.readouterr().out.startswith(said)
        with Scheduler(redis_url, space=space) as scheduler:
            found = {one.id: one.value for one in scheduler.iter()}
        assert found == {
            "report-7": b"weekly",
            "index-7": b"page 7",
            "mail-ann": b"news",
            "order-17/paid": b"pay",
        }


def test_the_tags_page_on_redis(redis_url, capsys):
    (code,) = on_redis("tags.md")
    run(code, redis_url)
    said = capsys.readouterr().out
    assert said == "['warehouse', 'mail']\n2\n2\n[('mail',)]\n"


def test_the_limits_page_on_redis(redis_url, space):
    """Its settings are accepted, and its schedules come one caller after the other."""
    page = (ROOT / "docs" / "limits.md").read_text()
    tables = [tomllib.loads(text) for text in re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)]
    first, shared = (Settings(**table).limits["sms"] for table in tables)
    assert (first.per_second, first.burst) == (50, 100)
    assert shared.weights == {"passwords": 5, "campaigns": 1}
    (code,) = on_redis("limits.md")
    run(code, redis_url)
    with Scheduler(redis_url, space=space) as scheduler:
        callers = [dict(one.headers)["CALLER_SERVICE"] for one in scheduler.iter()]
    assert sorted(callers) == [b"campaigns"] * 3 + [b"passwords"]


def test_the_recurring_page_on_redis(redis_url, capsys):
    (code,) = on_redis("recurring.md")
    run(code, redis_url)
    assert capsys.readouterr().out == "2035-01-01 08:00:00+00:00 8\n"


def test_the_handlers_page_on_redis(redis_url):
    code = examples("handlers.md")[0]
    run(code.replace('"__main__"', '"example"'), redis_url)


@pytest.mark.parametrize("number", [0, 1])
def test_the_topics_page_on_redis(number, redis_url, capsys):
    code = [code for code in examples("topics-on-redis.md") if "spark" not in code]
    assert len(code) == 2
    run(code[number], redis_url)
    assert capsys.readouterr().out == ("", "b'k1' b'hello' [('a', b'1')]\n")[number]


def test_what_redis_cli_is_told_to_do(redis_url, space):
    page = (ROOT / "docs" / "topics-on-redis.md").read_text()
    lines = re.findall(r"^redis-cli (.*)$", page, re.M)
    assert len(lines) == 9
    with redis.Redis.from_url(redis_url) as client:
        told = [
            client.execute_command(
                # Not behind the end: nobody writes there meanwhile.
                *(w.replace("sendlater:", f"{space}:").replace("$", "0") for w in shlex.split(line))
            )
            for line in lines
        ]
    assert told[0] == 1
    assert json.loads(told[-1][b"orders"]) == {"partitions": 4}
    with Topics(redis_url, space=space) as topics:
        plain, full = topics.read("orders", 0, after_position=0, count_max=9)
    assert (plain.key, plain.value, plain.headers) == (None, b"hello", [])
    assert (full.key, full.headers) == (
        b"k1",
        [("source", b"shell"), ("source", b"twice"), ("empty", None)],
    )


def test_the_instant_and_the_cancellation_of_the_how_to(redis_url, space):
    _, instant, cancellation, spread = examples("howto.md")
    said = {}
    exec(compile(spread, "example", "exec"), said)
    assert duration_ms(dict(said["headers"])["sendlater-spread"]) == 600_000
    exec(compile(instant, "example", "exec"), said)
    shell = re.search(r"--at (\S+)", (ROOT / "docs" / "howto.md").read_text())[1]
    assert said["headers"]["sendlater-at"] == shell
    assert said["at"] == datetime.fromisoformat(shell)
    producer = open_producer({"bootstrap.servers": redis_url, "sendlater.space": space})
    exec(compile(cancellation, "example", "exec"), {"producer": producer})
    producer.close()
    with Topics(redis_url, space=space) as topics:
        written = [
            record
            for number in range(4)
            for record in topics.read("schedules", number, after_position=0, count_max=9)
        ]
    assert [(record.key, record.value) for record in written] == [(b"invoice-17", None)]


def test_the_client_of_the_buckets_page(kafka, redis_url, topic_name, monkeypatch):
    inbox = topic_name("in")
    create_topics(kafka, inbox)
    monkeypatch.setenv("SENDLATER_INBOXES", json.dumps([{"topic": inbox}]))
    (code,) = examples("buckets.md")
    with Reader(kafka, inbox) as reader:
        run(code, redis_url, **{"localhost:9092": kafka})
        (sent,) = wait_until(lambda: reader.messages, "it is on the inbox")
    assert (sent.value(), dict(sent.headers())["scheduler-target-key"]) == (b"hello", b"k1")


def test_the_consumer_of_the_recipes_does_a_delivery_once(kafka, topic_name):
    topic = topic_name("reminders")
    create_topics(kafka, topic)
    (code,) = (code for code in examples("recipes.md") if "plain_consumer.py" in code)
    recipe = {}
    exec(compile(code, "example", "exec"), recipe)
    producer = Producer({"bootstrap.servers": kafka})
    for value, headers in (
        (b"once", {"sendlater-id": "a", "sendlater-due": "1"}),
        (b"once", {"sendlater-id": "a", "sendlater-due": "1"}),
        (b"again", {"sendlater-id": "a", "sendlater-due": "2"}),
        (b"plain", None),
        (b"plain", None),
    ):
        producer.produce(topic, value, partition=0, headers=headers)
    assert producer.flush(30) == 0
    done = []
    consumer = recipe["open_consumer"](kafka, topic)
    wait_until(
        lambda: recipe["consume"](consumer, set(), done.append) or done, "the group has joined"
    )
    consumer.close()
    assert done == [b"once", b"again", b"plain", b"plain"]


def test_the_producer_of_the_client_page(kafka, redis_url, topic_name):
    """Needs no service: what it writes is looked at on the inbox and on the target."""
    inbox, target = topic_name("in"), topic_name("orders")
    create_topics(kafka, inbox, target)
    (code,) = (code for code in examples("client.md") if "SchedulingProducer" in code)
    with Reader(kafka, inbox, target) as reader:
        places = {"127.0.0.1:9092": kafka, '"schedules"': repr(inbox), '"orders"': repr(target)}
        run(code, redis_url, **places)
        wait_until(lambda: len(reader.messages) == 2, "both records are there")
    now, later = sorted(reader.messages, key=lambda message: message.topic() == inbox)
    assert (now.topic(), now.value(), now.headers()) == (target, b"now", None)
    assert (later.key(), later.value()) == (b"o-17", b"later")
    assert dict(later.headers())["scheduler-target-topic"] == target.encode()
    assert dict(later.headers())["scheduler-target-key"] == b"k"
