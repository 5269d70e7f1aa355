"""Kafka behind the client's face: what passes by itself is waited for, the rest is told."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from sendlater.brokers import kafka as brokers
from sendlater.brokers.kafka import KafkaBroker
from sendlater.errors import BrokerUnavailable
from sendlater.model import Record


@pytest.fixture
def kafka(monkeypatch):
    monkeypatch.setattr(brokers, "LEADER_PAUSE_S", 0)
    with KafkaBroker({"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}) as broker:
        yield broker


def answering(kafka, monkeypatch, *codes):
    """Let Kafka answer with these errors, one after the other, and then with an end."""
    left = list(codes)

    def ends(topic):
        if left:
            raise KafkaException(KafkaError(left.pop(0)))
        return {0: 7}

    monkeypatch.setattr(kafka, "_ends", ends)


def test_a_change_of_leaders_is_waited_for(kafka, monkeypatch):
    answering(kafka, monkeypatch, KafkaError._NOENT, KafkaError.UNKNOWN_LEADER_EPOCH)
    assert kafka.ends("t") == {0: 7}


def test_it_is_not_waited_for_without_end_nor_is_anything_else(kafka, monkeypatch):
    answering(kafka, monkeypatch, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerUnavailable, match="ends of topic 't'"):
        kafka.ends("t")
    monkeypatch.setattr(brokers, "LEADER_S", -1)
    answering(kafka, monkeypatch, KafkaError._NOENT)
    with pytest.raises(BrokerUnavailable, match="ends of topic 't'"):
        kafka.ends("t")


def test_a_queue_that_is_full_by_bytes_has_no_room():
    """Else a send from an event loop would wait for room, and everybody on that loop with it."""
    small = {"queue.buffering.max.kbytes": "1024", "message.timeout.ms": "300"}
    options = {"bootstrap.servers": "127.0.0.1:1", "log_level": "0", **small}
    told = []
    with KafkaBroker(options) as broker:
        for _ in range(6):
            assert broker.has_room()
            record = Record(topic="t", value=b"v" * 100_000)
            broker.send(record, on_done=lambda error, *_: told.append(error))
        assert not broker.has_room()
        broker.flush()
        assert len(told) == 6
        assert broker.has_room(), "what is told is no longer held"
