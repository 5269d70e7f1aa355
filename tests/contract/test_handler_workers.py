"""Handlers in several processes: some are killed, and every event succeeds or is dead with its
reason, on Kafka and on Redis alone."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from handler_worker import HOPELESS_EVERY, PARALLELISM, RETRIES, TIMEOUT_S
from ledger import Reader, create_topics
from servers import wait_until

from sendlater import Scheduler, Topics
from sendlater.brokers.group_reader import AHEAD_COUNT_MAX, KafkaGroupReader

EVENTS = int(os.environ.get("HANDLER_EVENTS", "800"))
"""HANDLER_EVENTS says another number, such as 20000."""
WAIT_S = 120 + EVENTS / 20
"""A busy machine handles more than twenty a second."""


@pytest.fixture
def on_kafka(kafka, kafka_installation, topic_name):
    """Where workers connect to, their type, the dead-letter topic, and what is on that."""
    work, dead = topic_name("work"), topic_name("dead")
    create_topics(kafka, work, dead, partitions=6)
    where, arguments, _ = kafka_installation
    with Reader(kafka, dead) as reader:
        yield where, arguments, work, dead, lambda: [m.headers() for m in list(reader.messages)]


@pytest.fixture
def on_redis(redis_url, space, deliverer):
    """The same without Kafka and without a service."""
    with Topics(redis_url, space=space) as topics:
        count = topics.create("dead")
        topics.create("work")

        def letters():
            return [
                record.headers
                for p in range(count)
                for record in topics.read("dead", p, after_position=0, count_max=EVENTS)
            ]

        yield (redis_url,), {"space": space}, "work", "dead", letters


def poll(reader, count):
    """So many records, one call after another."""
    found = []
    wait_until(
        lambda: found.extend(reader.poll(count - len(found), timeout_s=0.2)) or len(found) == count,
        "the records have come",
        timeout_s=60,
    )
    return found


def test_commits_wait_for_the_oldest_that_is_not_done(kafka, topic_name):
    topic = topic_name("t")
    create_topics(kafka, topic, partitions=1)
    producer = Producer({"bootstrap.servers": kafka})
    for n in range(6):
        producer.produce(topic, b"%d" % n)
    producer.flush(30)
    first = KafkaGroupReader({"bootstrap.servers": kafka}, topic=topic, group=topic)
    found = poll(first, 4)
    assert first.unread() == 2
    for record in (found[0], found[1], found[3]):
        first.done(record)
    assert first.poll(0, timeout_s=0) == []
    first.close()

    second = KafkaGroupReader({"bootstrap.servers": kafka}, topic=topic, group=topic)
    assert [r.value for r in poll(second, 4)] == [b"2", b"3", b"4", b"5"]
    second.close()


@pytest.mark.timeout(3_600 if "HANDLER_EVENTS" in os.environ else 600)
@pytest.mark.parametrize("kind", ["kafka", "redis"])
def test_workers_are_killed_and_nothing_is_lost(request, kind, tmp_path, record_property):
    where, arguments, type_, dead, letters = request.getfixturevalue(f"on_{kind}")
    told = {
        "where": where,
        "arguments": arguments,
        "type": type_,
        "dead": dead,
        "notes": str(tmp_path / "notes"),
    }
    script = Path(__file__).with_name("handler_worker.py")

    def start(number):
        log = (tmp_path / f"worker-{number}.log").open("wb")
        return subprocess.Popen([sys.executable, script, json.dumps(told)], stderr=log, stdout=log)

    def succeeded():
        notes = tmp_path / "notes"
        return notes.read_text().splitlines() if notes.exists() else []

    workers = [start(n) for n in range(3)]
    try:
        with Scheduler(*where, **arguments) as scheduler:
            scheduler.send_many(
                {
                    "topic": type_,
                    "value": str(n),
                    "key": str(n),
                    "delay": 2 * n / EVENTS,
                    "headers": {"event-id": str(n)},
                }
                for n in range(EVENTS)
            )
        for number in range(2):
            share = (number + 1) * EVENTS // 4
            wait_until(lambda s=share: len(succeeded()) > s, "some are done", timeout_s=WAIT_S)
            workers[number].kill()
            workers[number].wait()

        def ended():
            done = {line.split()[0] for line in succeeded()}
            return done | {dict(headers)["event-id"].decode() for headers in letters()}

        wait_until(lambda: len(ended()) == EVENTS, "every event has ended", timeout_s=WAIT_S)
        found = [dict(headers) for headers in letters()]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()

    assert "above the limit" not in succeeded()
    assert all(line.split()[0] == line.split()[1] for line in succeeded())
    dead_ids = {int(letter["event-id"]) for letter in found}
    assert dead_ids >= set(range(0, EVENTS, HOPELESS_EVERY)), "what fails always is dead"
    # A time-out is a reason too, on a very busy machine.
    reasons = {
        f"ValueError: attempt {RETRIES + 1}".encode(),
        b"not finished within %d s" % TIMEOUT_S,
    }
    assert {letter["event-error"] for letter in found} <= reasons
    times = Counter(line.split()[0] for line in succeeded())
    times.update(letter["event-id"].decode() for letter in found)
    again = [i for i, count in times.items() if count > 1]
    # Only what a killed worker had begun or had not told Kafka of may come twice.
    assert len(again) <= 2 * (AHEAD_COUNT_MAX + 2 * PARALLELISM)
    record_property("dead, and handled twice", (len(found), len(again)))
