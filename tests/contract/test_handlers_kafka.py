"""Handlers on Kafka: workers are killed, and every event succeeds or is dead with its reason."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from handler_worker import PARALLELISM, RETRIES
from ledger import Reader, create_topics
from servers import wait_until

from sendlater import Scheduler
from sendlater.client.inlets import AHEAD_COUNT_MAX, KafkaInlet

EVENTS = int(os.environ.get("HANDLER_EVENTS", "800"))
"""20,000 in the benchmark: HANDLER_EVENTS=20000."""


@pytest.fixture
def type_(kafka, topic_name):
    create_topics(kafka, topic_name("work"), topic_name("dead"), partitions=6)
    return topic_name("work")


def poll(inlet, count):
    """So many records, one call after another."""
    found = []
    wait_until(
        lambda: found.extend(inlet.poll(count - len(found), timeout_s=0.2)) or len(found) == count,
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
    first = KafkaInlet({"bootstrap.servers": kafka}, topic=topic, group=topic)
    found = poll(first, 4)
    for record in (found[0], found[1], found[3]):
        first.done(record)
    assert first.poll(0, timeout_s=0) == []
    first.close()

    second = KafkaInlet({"bootstrap.servers": kafka}, topic=topic, group=topic)
    assert [r.value for r in poll(second, 4)] == [b"2", b"3", b"4", b"5"]
    second.close()


@pytest.mark.timeout(600)
def test_workers_are_killed_and_nothing_is_lost(
    kafka, kafka_installation, type_, tmp_path, record_property
):
    where, arguments, _ = kafka_installation
    dead = type_.replace("work", "dead")
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
        with Reader(kafka, dead) as reader:
            for number in range(2):
                share = (number + 1) * EVENTS // 4
                wait_until(lambda s=share: len(succeeded()) > s, "some are done", timeout_s=120)
                workers[number].kill()
                workers[number].wait()

            def ended():
                done = {line.split()[0] for line in succeeded()}
                return done | {dict(m.headers())["event-id"].decode() for m in reader.messages}

            wait_until(lambda: len(ended()) == EVENTS, "every event has ended", timeout_s=180)
            letters = [dict(m.headers()) for m in reader.messages]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()

    assert "above the limit" not in succeeded()
    assert all(line.split()[0] == line.split()[1] for line in succeeded())
    assert letters, "with one in four failing some give up"
    for letter in letters:
        assert letter["event-error"] == f"ValueError: attempt {RETRIES + 1}".encode()
    times = Counter(line.split()[0] for line in succeeded())
    times.update(letter["event-id"].decode() for letter in letters)
    again = [i for i, count in times.items() if count > 1]
    # Only what a killed worker had begun or had not told Kafka of may come twice.
    assert len(again) <= 2 * (AHEAD_COUNT_MAX + 2 * PARALLELISM)
    record_property("dead, and handled twice", (len(letters), len(again)))
