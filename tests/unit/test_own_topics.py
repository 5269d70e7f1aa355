"""The topics that a service creates at its start, on a broker that says no to some of it."""

import pytest
from structlog.testing import capture_logs

from sendlater.brokers.own_topics import own_kafka_topics
from sendlater.config import Inbox, Settings
from sendlater.errors import BrokerUnavailable
from sendlater.limits import REWRITE_AHEAD_MS


class Broker:
    """Has some topics, and lets us create others."""

    def __init__(self, *there, refuses=()):
        self.there, self.refuses = set(there), refuses
        self.configs = {}

    def partitions(self, topics):
        return {topic: 1 for topic in topics if topic in self.there}

    def create(self, topic, *, partitions, config):
        if topic in self.refuses:
            raise BrokerUnavailable(f"cannot create topic {topic!r}: not authorised")
        self.there.add(topic)
        self.configs[topic] = config

    def bound_timestamps(self, topic, *, alter):
        """Nothing to bound here."""


def test_missing_topics_are_created_and_the_dead_letter_topic_too():
    broker = Broker("schedules")
    own_kafka_topics(broker, Settings())
    assert broker.there == {"schedules", "envelopes", "rejected", "dead-letters"}


def test_without_permission_for_the_dead_letter_topic_it_starts_and_says_so():
    """It did so before there was such a topic; only what expires needs it."""
    broker = Broker("schedules", "envelopes", "rejected", refuses=("dead-letters",))
    with capture_logs() as logs:
        own_kafka_topics(broker, Settings())
    assert [log["event"] for log in logs] == ["the dead-letter topic is missing"]
    with pytest.raises(BrokerUnavailable):
        own_kafka_topics(Broker(refuses=("rejected",)), Settings())


def test_it_is_not_created_where_nothing_may_be():
    broker = Broker("schedules", "envelopes", "rejected")
    own_kafka_topics(broker, Settings(create_topics=False))
    assert "dead-letters" not in broker.there


def test_a_journal_keeps_what_a_condition_is_decided_by():
    broker = Broker()
    broker.require_compacted = broker.require_compaction = lambda *_: None
    inboxes = (Inbox(topic="plain", copy_to="journal"), Inbox(topic="journal", journal=True))
    own_kafka_topics(broker, Settings(bootstrap_servers="b:1", inboxes=inboxes))
    assert int(broker.configs["journal"]["min.compaction.lag.ms"]) >= 5 * REWRITE_AHEAD_MS
    assert "min.compaction.lag.ms" not in broker.configs["plain"]
