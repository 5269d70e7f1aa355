"""What is chosen for large bursts: few headers, and practice before the first one (ADR 42, 43)."""

import json
import time

import pytest
from handovers import Relay
from ledger import Reader
from servers import wait_until

from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.dialects import names
from sendlater.spark.delivery.practice import CHUNK_ROWS, CHUNKS, ROUNDS, SUFFIX

pytestmark = pytest.mark.story
COUNT = 300
SOON_MS = 3_000


@pytest.fixture
def few(kafka, redis_url, tmp_path):
    """Services whose inbox adds few headers, and that compile twice."""
    one = Relay(kafka, redis_url, tmp_path, compile_twice="true", stand_by="false")
    one._settings["inboxes"] = json.dumps([{"topic": one.inbox, "added_headers": "few"}])
    yield one
    one.close()


def now_ms():
    return time.time_ns() // 1_000_000


def practised(topics, topic):
    """How many records lie on the topic for practice."""
    there = topic in topics.partitions([topic])
    return sum(topics.ends([topic])[topic].values()) if there else 0


def test_a_delivery_has_what_tells_duplicates_and_a_crash_doubles_none(few, kafka):
    topics = KafkaTopics({"bootstrap.servers": kafka})
    topic = few.another(until="is ready").environment["SENDLATER_SPACE"] + SUFFIX
    wait_until(
        lambda: practised(topics, topic) == ROUNDS * CHUNKS * CHUNK_ROWS,
        "it has practised",
        timeout_s=120,
    )
    with Reader(kafka, few.target) as reader:
        ids = [few.ledger.send(now_ms() + SOON_MS + n) for n in range(COUNT)]
        few.ledger.flush()
        wait_until(lambda: len(reader.messages) >= COUNT // 3, "some have arrived", timeout_s=60)
        few.services[0].kill()
        few.another(until="is ready")
        wait_until(lambda: not few.ledger.missing(reader), "all have arrived", timeout_s=120)
        assert not few.ledger.doubled(reader)
        assert not few.ledger.early(reader)
        for message in reader.messages:
            name = message.key().decode()
            due = str(few.ledger.due_ms[name]).encode()
            assert message.headers() == [(names.ID, name.encode()), (names.DUE, due)]
    assert len(ids) == COUNT
