"""What becomes of a Kafka client that gets no answer."""

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
