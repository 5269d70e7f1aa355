"""What a worker reads: one bad record, or an error between two, takes no other with it."""

import pytest
from any_bytes import produce_bytes
from confluent_kafka import KafkaError, Producer
from servers import wait_until

from sendlater.brokers.group_reader import KafkaGroupReader, RedisGroupReader
from sendlater.errors import BrokerUnavailable
from sendlater.topics import TopicRecord, Topics

BESIDE = 20
"""Good records beside each bad one."""
BAD = 10
"""More than Python needs to compile a call."""


class Message:
    """As confluent_kafka.Message."""

    def __init__(self, at=0, *, error=None, bad=False):
        self._at, self._error, self._bad = at, error, bad

    def error(self):
        return None if self._error is None else KafkaError(self._error)

    def headers(self):
        return []

    def topic(self):
        return "t"

    def partition(self):
        return 0

    def offset(self):
        return self._at

    def key(self):
        return None

    def value(self):
        if self._bad:
            raise RuntimeError("cannot be told")
        return b"%d" % self._at

    def timestamp(self):
        return 1, 1_000


class Consumer:
    """Gives these messages at once: the first to `poll`, what is asked for to `consume`."""

    def __init__(self, *messages, error=None):
        self.left, self.error, self.committed = list(messages), error, []

    def poll(self, timeout_s):
        return self.left.pop(0) if self.left else None

    def consume(self, count, timeout_s):
        if self.error is not None:
            raise self.error
        found, self.left = self.left[:count], self.left[count:]
        return found

    def commit(self, *, offsets, asynchronous):
        self.committed += [place.offset for place in offsets]

    def assignment(self):
        return []


def reading(consumer):
    """A reader of what this consumer gives."""
    options = {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}
    reader = KafkaGroupReader(options, topic="t", group="g")
    reader._consumer.close()
    reader._consumer = consumer
    return reader


def poll(reader):
    return [record.position for record in reader.poll(10, timeout_s=0)]


@pytest.mark.parametrize(
    "bad", [Message(error=KafkaError.TOPIC_AUTHORIZATION_FAILED), Message(1, bad=True)]
)
def test_what_is_read_beside_an_error_is_returned_first(bad):
    consumer = Consumer(Message(0), bad, Message(2))
    reader = reading(consumer)
    found = reader.poll(10, timeout_s=0)
    assert [record.position for record in found] == [0, 2]
    with pytest.raises((BrokerUnavailable, RuntimeError), match=r"cannot be told|topic 't'"):
        reader.poll(10, timeout_s=0)
    assert poll(reader) == [], "it is told once"
    reader.done(found[1])
    assert poll(reader) == []
    assert consumer.committed == [], "the first is not done"
    reader.done(found[0])
    assert poll(reader) == []
    assert consumer.committed == [3]


def test_an_error_alone_is_told_at_once_and_what_passes_by_itself_is_not():
    passes = Message(error=KafkaError.UNKNOWN_TOPIC_OR_PART)
    reader = reading(Consumer(passes, Message(error=KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    with pytest.raises(BrokerUnavailable, match="topic 't'"):
        poll(reader)
    assert poll(reader) == []


def test_what_comes_before_a_consumer_fails_is_returned():
    reader = reading(Consumer(Message(0), error=RuntimeError("away")))
    assert poll(reader) == [0]
    with pytest.raises(RuntimeError, match="away"):
        poll(reader)


def test_names_of_headers_that_are_no_text_cost_no_other_event():
    """The client answers and leaves an error behind, which strikes at any later call."""
    with_mock = {"bootstrap.servers": "-", "test.mock.num.brokers": 1, "log_level": "0"}
    producer = Producer(with_mock)  # it is the broker, too, for as long as it is there
    (broker,) = producer.list_topics("t").brokers.values()
    servers = f"{broker.host}:{broker.port}"
    for _ in range(BAD):
        for _ in range(BESIDE):
            producer.produce("t", b"good", partition=0, headers=[("name", b"1")])
        assert producer.flush(30) == 0
        headers = [("name", b"1"), (b"\xff", b"2")]
        produce_bytes(servers, "t", key=b"k", value=b"bad", headers=headers)
    reader = KafkaGroupReader(
        {"bootstrap.servers": servers, "log_level": "0"}, topic="t", group="g"
    )
    found = []

    def all_come():
        found.extend(reader.poll(50, timeout_s=0.1))
        return len(found) == BAD * (BESIDE + 1)

    try:
        wait_until(all_come, "all have come", timeout_s=30)
    finally:
        reader.close()
    assert [r.headers for r in found if r.value == b"bad"] == [[]] * BAD
    assert all(r.headers == [("name", b"1")] for r in found if r.value == b"good")


def test_what_could_not_be_acknowledged_on_redis_is_with_the_next(monkeypatch):
    acknowledged, away = [], [BrokerUnavailable("away")]

    def ack(records):
        if away:
            raise away.pop()
        acknowledged.extend(record.position for record in records)

    with Topics("redis://127.0.0.1:1/0") as topics:
        reader = RedisGroupReader(topics, topic="t", group="g", timeout_s=1)
        records = [
            TopicRecord(topic="t", partition=0, position=n, timestamp_ms=n, key=None, value=b"")
            for n in range(3)
        ]
        monkeypatch.setattr(reader._consumer, "ack", ack)
        monkeypatch.setattr(reader._consumer, "poll", lambda *_, **__: records)
        for record in reader.poll(3, timeout_s=0):
            reader.done(record)
        with pytest.raises(BrokerUnavailable):
            reader.poll(0, timeout_s=0)
        assert reader.poll(3, timeout_s=0) != [], "they are nobody's now, and may come again"
    assert acknowledged == [0, 1, 2]
