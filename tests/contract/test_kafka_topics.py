"""What becomes of a Kafka client that gets no answer."""

import pytest
from confluent_kafka.admin import AdminClient

from sendlater.brokers import lasting_client
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
