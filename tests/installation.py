"""A service on real servers, its topics, and what has arrived on them."""

import json
import time
import uuid

from confluent_kafka import Producer
from ledger import Reader, create_topics
from servers import ServiceProcess, cli, wait_until

ARRIVE_S = 60.0
PAYLOAD_BYTES_MAX = 50_000
SMALL_TOPIC_BYTES_MAX = 10_000


class Installation:
    """A service, its topics, and what has arrived on them."""

    def __init__(self, kafka, redis_url, directory):
        self.name = uuid.uuid4().hex[:8]
        self.inbox, self.other, self.envelopes, self.rejected, self.target, self.small = topics = [
            f"{kind}-{self.name}" for kind in ("in", "other", "envelopes", "bad", "out", "small")
        ]
        create_topics(kafka, *topics[:-1])
        create_topics(kafka, self.small, max_message_bytes=str(SMALL_TOPIC_BYTES_MAX))
        self.service = ServiceProcess(
            directory,
            bootstrap_servers=kafka,
            redis=redis_url,
            space=self.name,
            rejected_topic=self.rejected,
            max_delay_days=30,
            max_payload_bytes=PAYLOAD_BYTES_MAX,
            inboxes=json.dumps(
                [
                    {"topic": self.inbox},
                    {"topic": self.other, "dialect": "headers"},
                    {"topic": self.envelopes, "dialect": "envelope"},
                ]
            ),
        )
        self.producer = Producer({"bootstrap.servers": kafka})
        self.readers = {topic: Reader(kafka, topic) for topic in topics}

    def put(self, topic, value, *, key=None, headers=()):
        """One record on a topic, acknowledged."""
        self.producer.produce(topic, value=value, key=key, headers=list(headers))
        assert self.producer.flush(30) == 0

    def schedule(self, value=b"payload", *, key, inbox=None, target=None, headers=None, when=None):
        """A record in dialect `headers`; due in a second unless `when`, a header, says when."""
        when = when or ("sendlater-due-ms", str(now_ms() + 1_000))
        to = ("scheduler-target-topic", target or self.target)
        self.put(inbox or self.inbox, value, key=key, headers=[when, to, *(headers or ())])

    def arrivals(self, topic, schedule_id):
        """What has arrived for a schedule."""
        return [
            message
            for message in self.readers[topic].messages
            if dict(message.headers() or ()).get("sendlater-id") == schedule_id
        ]

    def arrival(self, schedule_id, *, topic=None):
        """The first thing that arrives for a schedule."""
        topic = topic or self.target
        what = f"{schedule_id!r} arrives on {topic}"
        return wait_until(lambda: self.arrivals(topic, schedule_id), what, timeout_s=ARRIVE_S)[0]

    def place(self, topic, value):
        """Where a record lies on a topic: (partition, offset, timestamp)."""

        def found():
            return [m for m in self.readers[topic].messages if m.value() == value]

        message = wait_until(found, f"{value!r} is on {topic}")[0]
        return message.partition(), message.offset(), message.timestamp()[1]

    def cli(self, *arguments, stdin=b"", codes=(0,)):
        """`sendlater ... --json`; its output, one value per line."""
        done = cli(self.service, *arguments, "--json", stdin=stdin)
        assert done.returncode in codes, (done.returncode, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]


def now_ms():
    return time.time_ns() // 1_000_000
