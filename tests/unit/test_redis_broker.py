"""Producers and consumers of topics on Redis, in several threads and with records that are bad."""

import threading

import pytest
from servers import wait_until

from sendlater import open_consumer
from sendlater.brokers.redis import RedisBroker
from sendlater.client.producers_consumers import TopicMessage
from sendlater.errors import BadRequest, BrokerUnavailable
from sendlater.model import Record
from sendlater.topics import TopicRecord


class Topics:
    """As sendlater.topics.Topics; a write waits for `gate`, and fails with `error`."""

    def __init__(self, *, error=None):
        self.error, self.gate, self.begun = error, threading.Event(), threading.Event()
        self.written = []
        self.gate.set()

    def partition_of(self, record):
        return 0

    def produce_many(self, records):
        values = [record.value for record in records]
        self.begun.set()
        assert self.gate.wait(20)
        if values and self.error is not None:
            raise self.error
        self.written += values
        return list(range(1, len(values) + 1))


class Told:
    """What is told about each record."""

    def __init__(self, broker):
        self.broker, self.errors = broker, {}

    def send(self, value, **more):
        def done(error, *_):
            self.errors[value] = error

        self.broker.send(Record(topic="t", value=value, **more), on_done=done)


def test_flush_waits_for_what_another_thread_writes():
    topics = Topics(error=BrokerUnavailable("away"))
    topics.gate.clear()
    broker = RedisBroker(topics)
    told, ended = Told(broker), []

    def flush(name):
        try:
            broker.flush()
        except BrokerUnavailable:
            ended.append((name, "failed"))
        else:
            ended.append((name, told.errors.get(b"second")))

    told.send(b"first")
    told.send(b"second")  # of another thread, which flushes it now, too
    threads = [threading.Thread(target=flush, args=(name,)) for name in ("one", "other")]
    threads[0].start()
    assert topics.begun.wait(20)
    threads[1].start()
    wait_until(lambda: not broker.waiting, "nothing is gathered")
    threads[1].join(0.2)
    assert ended == [], "the record is not written yet"
    topics.gate.set()
    for thread in threads:
        thread.join()
    assert dict(ended) == {"one": "failed", "other": topics.error}


def test_every_record_is_told_whatever_the_error():
    broker = RedisBroker(Topics(error=OSError("odd")))
    told = Told(broker)
    told.send(b"1")
    told.send(b"2")
    with pytest.raises(OSError, match="odd"):
        broker.flush()
    assert {value: str(error) for value, error in told.errors.items()} == {b"1": "odd", b"2": "odd"}


def test_a_callback_that_fails_or_sends_again_keeps_no_other_from_being_told():
    topics = Topics()
    broker = RedisBroker(topics)
    told = Told(broker)

    def fails(*_):
        told.send(b"again")
        broker.flush()
        raise ValueError("of the user")

    broker.send(Record(topic="t", value=b"1"), on_done=fails)
    told.send(b"2")
    with pytest.raises(ValueError, match="of the user"):
        broker.flush()
    assert told.errors == {b"again": None, b"2": None}
    assert topics.written == [b"1", b"2", b"again"]


def test_a_header_name_that_cannot_be_written_is_its_producers_only():
    topics = Topics()
    broker = RedisBroker(topics)
    told = Told(broker)
    told.send(b"good")
    with pytest.raises(BadRequest, match=r"header name: expected text in UTF-8, got '\\ud800'"):
        told.send(b"bad", headers=[("\ud800", b"")])
    broker.flush()
    assert (topics.written, told.errors) == ([b"good"], {b"good": None})


class Group:
    """As sendlater.topics.Consumer: what another member left comes after what is newer."""

    def __init__(self, *positions):
        self.left, self.acknowledged, self.given_back = list(positions), [], []

    def poll(self, count_max, *, timeout_ms):
        found, self.left = self.left[:count_max], self.left[count_max:]
        return [record(position) for position in found]

    def ack(self, records):
        self.acknowledged += [one.position for one in records]

    def give_back(self, records):
        self.given_back += [one.position for one in records]

    def close(self):
        pass


def record(position):
    return TopicRecord(
        topic="t", partition=0, position=position, timestamp_ms=0, key=None, value=b""
    )


@pytest.fixture
def consumer():
    options = {"bootstrap.servers": "redis://127.0.0.1:1/0", "group.id": "g"}
    return open_consumer(options | {"enable.auto.commit": False})


def test_a_commit_goes_by_positions_in_whatever_order_they_came(consumer):
    group = consumer._consumer = Group(7, 8, 3)
    assert len(consumer.consume(10, 0)) == 3
    consumer.commit(TopicMessage(record(3)))
    assert group.acknowledged == [3]
    consumer.commit(TopicMessage(record(7)))
    assert group.acknowledged == [3, 7]
    consumer.close()
    assert group.given_back == [8]


def test_what_could_not_be_committed_is_committed_the_next_time(consumer):
    group = consumer._consumer = Group(1, 2)
    assert len(consumer.consume(10, 0)) == 2
    ack, group.ack = group.ack, None  # any call fails
    with pytest.raises(TypeError):
        consumer.commit()
    group.ack = ack
    consumer.commit()
    assert group.acknowledged == [1, 2]
    consumer.close()
