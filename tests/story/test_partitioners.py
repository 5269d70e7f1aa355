"""Two kinds of clients write the same ids: librdkafka's partitioner is not that of Java's clients,
so an id is on two partitions. What was written last counts all the same."""

import itertools
import json
import uuid

import pytest
from confluent_kafka import Producer
from installation import now_ms
from ledger import Reader, create_topics
from servers import ServiceProcess, wait_until

pytestmark = pytest.mark.story

COUNT = 60
PARTITIONS = 4


def test_what_was_written_last_counts_whichever_client_wrote_it(kafka, redis_url, tmp_path):
    """While the service runs, and of what has gathered while it was away."""
    space = uuid.uuid4().hex[:8]
    plain, journal, out = f"in-{space}", f"journal-{space}", f"out-{space}"
    create_topics(kafka, plain, partitions=PARTITIONS)
    create_topics(kafka, journal, partitions=PARTITIONS, cleanup_policy="compact")
    create_topics(kafka, out)
    own = Producer({"bootstrap.servers": kafka})
    java = Producer({"bootstrap.servers": kafka, "partitioner": "murmur2_random"})
    service = ServiceProcess(
        tmp_path,
        bootstrap_servers=kafka,
        redis=redis_url,
        space=space,
        inboxes=json.dumps([{"topic": plain}, {"topic": journal, "journal": True}]),
    )

    def write(prefix, value, producer, other, due_ms):
        """Half of them by one kind of client, half by the other; every third is cancelled last."""
        when, to = ("sendlater-due-ms", b"%d" % due_ms), ("scheduler-target-topic", out.encode())
        for inbox, number in itertools.product((plain, journal), range(COUNT)):
            cancels = value == b"new" and number % 3 == 0
            (producer if number % 2 else other).produce(
                inbox,
                key=f"{prefix}-{inbox}-{number}",
                value=None if cancels else value,
                headers=[] if cancels else [when, to],
            )
        assert own.flush(30) == java.flush(30) == 0

    def expected(prefix):
        numbers = [n for n in range(COUNT) if n % 3]
        return {f"{prefix}-{i}-{n}".encode(): [b"new"] for i in (plain, journal) for n in numbers}

    def arrived(prefix):
        found = {}
        for message in list(reader.messages):
            name = dict(message.headers())["sendlater-id"]
            if name.startswith(prefix.encode()):
                found.setdefault(name, []).append(message.value())
        return found

    with Reader(kafka, out) as reader:
        with service.start():
            due_ms = now_ms() + 10_000
            write("live", b"old", own, java, due_ms - 2_000)
            write("live", b"new", java, own, due_ms)
            write("live", b"last", own, java, due_ms)
            write("live", b"new", java, own, due_ms)
            wait_until(lambda: arrived("live") == expected("live"), "the newest of all arrive")
        due_ms = now_ms() + 5_000
        write("away", b"old", own, java, due_ms)
        write("away", b"new", java, own, due_ms)
        newest = "the newest of all arrive"
        with service.start():
            wait_until(lambda: arrived("away") == expected("away"), newest, timeout_s=90)
            assert arrived("live") == expected("live")
