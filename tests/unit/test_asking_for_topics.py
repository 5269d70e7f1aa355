"""Who only wants to know about a topic changes nothing."""

import pytest
from confluent_kafka.admin import AdminClient

from sendlater.brokers.client_options import client_options
from sendlater.brokers.kafka import KafkaBroker
from sendlater.brokers.partition_reader import KafkaPartitions
from sendlater.config import load
from sendlater.errors import BrokerUnavailable
from sendlater.server.topic_records import KafkaTails

IN_MEMORY = {"test.mock.num.brokers": "1", "log_level": "0"}
"""librdkafka's own broker, inside the producer."""


def test_to_ask_about_a_topic_does_not_make_it():
    """A broker with auto.create.topics.enable makes what a producer asks for, and what it makes is
    no journal. So is the broker here."""
    settings = load(bootstrap_servers="127.0.0.1:1", kafka=IN_MEMORY)
    reader, tails = KafkaPartitions(client_options(settings), ["journal"]), KafkaTails(settings)
    with KafkaBroker(IN_MEMORY) as broker:
        with pytest.raises(BrokerUnavailable, match="UNKNOWN_TOPIC_OR_PART"):
            broker.ends("journal")
        assert (reader.places(), tails.exists("journal")) == ([], False)
        for admin in (broker._asking.client, reader._admin, tails._asking.client):
            assert "journal" not in admin.list_topics(timeout=20).topics
        assert AdminClient(IN_MEMORY).list_topics("journal", 20).topics["journal"].error is None
    reader.close()
