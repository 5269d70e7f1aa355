"""What the service asks of Kafka about topics, and what becomes of a client that gets no answer."""

import gc
import threading

import pytest
from confluent_kafka.admin import AdminClient

from sendlater.brokers import lasting_client
from sendlater.brokers.kafka import KafkaBroker
from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.errors import BrokerUnavailable


def test_a_client_that_never_connects_again_is_replaced(kafka, monkeypatch):
    """As librdkafka's do not, after a broker that comes back has told them of no brokers."""
    topics = KafkaTopics({"bootstrap.servers": kafka})
    topics.require_answer()
    cut_off = AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    monkeypatch.setattr("sendlater.brokers.kafka_topics.REQUEST_S", 0.2)
    topics._asking.client = cut_off
    with pytest.raises(BrokerUnavailable):
        topics.require_answer()
    assert topics._admin is cut_off, "a short outage is no reason"
    monkeypatch.setattr(lasting_client, "SILENT_S", 0.0)
    with pytest.raises(BrokerUnavailable):
        topics.require_answer()
    monkeypatch.setattr("sendlater.brokers.kafka_topics.REQUEST_S", 10.0)
    topics.require_answer()


def test_a_topic_that_is_not_there_is_told_and_not_waited_for(kafka, topic_name):
    with KafkaBroker({"bootstrap.servers": kafka}) as broker:
        with pytest.raises(BrokerUnavailable, match=topic_name("none")):
            next(broker.follow(topic_name("none"), stop=threading.Event()))
        broker.ensure(topic_name("some"), partitions=2)
        broker.ensure(topic_name("some"), partitions=2)
        assert next(broker.follow(topic_name("some"), stop=threading.Event())) == []


def test_a_look_that_never_ends_leaves_nothing_in_memory(kafka, topic_name):
    """Each description of a topic leaves its id there for good, by a fault of confluent-kafka."""
    topics = KafkaTopics({"bootstrap.servers": kafka})
    there, none = topic_name("there"), topic_name("none")
    topics.create(there, partitions=1, config={})

    def ids():
        gc.collect()
        return sum(type(one).__name__ == "Uuid" for one in gc.get_objects())

    before = ids()
    for _ in range(10):
        assert topics.missing_and_silent([there, none], anew=True) == ({none}, set())
    assert ids() == before
