"""Inboxes change under a running service: partitions are added, topics deleted and made anew."""

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from ledger import create_topics
from servers import wait_until

from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.brokers.own_topics import inbox_facts
from sendlater.config import Inbox, Settings
from sendlater.errors import BrokerUnavailable, Fenced, StoreWentBack
from sendlater.store import Pending
from sendlater.store.inbox_ids import recognise


@pytest.fixture
def pending(redis_url: str, space: str) -> Pending:
    return Pending.open(redis_url, space=space, shards=2)


def read(pending: Pending, **ends: int) -> None:
    """As intake leaves a store that has read inboxes `a_0` (topic a, partition 0) up to ends."""
    for shard in pending.shards:
        for name, end in ends.items():
            source = name.replace("_", "/")
            before = shard.client.hget(shard.keys["seen"], source) or b""
            shard.park([], ends=[(source, before.decode(), str(end))])


def test_an_inbox_made_anew_is_read_from_its_beginning(pending: Pending, capsys: Any) -> None:
    """Its offsets count from 0 again: all below the old ones would be passed over in silence."""
    owner = pending.fence()
    read(pending, a_0=5, a_1=7, ab_0=9)
    assert recognise(pending, {"a": "1", "ab": "2"}, owner=owner) == []
    assert recognise(pending, {"a": "1", "ab": "2"}, owner=owner) == []
    assert pending.positions().keys() == {"a/0", "a/1", "ab/0"}
    assert capsys.readouterr().out == ""

    assert recognise(pending, {"a": "3", "ab": "2"}, owner=owner) == ["a"]
    assert pending.positions().keys() == {"ab/0"}
    for shard in pending.shards:
        assert shard.seen().keys() == {"ab/0"}
        # A task that began before it must not put the old position back.
        with pytest.raises(StoreWentBack):
            shard.park([], ends=[("a/0", "5", "6")])
    told = capsys.readouterr().out
    assert "error" in told
    assert "was deleted and recreated" in told
    assert recognise(pending, {"a": "3", "ab": "2"}, owner=owner) == []


def test_a_death_between_two_shards_leaves_nothing_half_done(pending: Pending) -> None:
    owner = pending.fence()
    read(pending, a_0=5)
    recognise(pending, {"a": "1"}, owner=owner)
    half = Pending(pending.clients, space=pending.space, shards=2)
    half.shards = half.shards[:1]
    assert recognise(half, {"a": "2"}, owner=owner) == ["a"]
    assert recognise(pending, {"a": "2"}, owner=owner) == ["a"]
    assert pending.positions() == {}


def test_an_old_owner_forgets_nothing(pending: Pending) -> None:
    owner = pending.fence()
    read(pending, a_0=5)
    recognise(pending, {"a": "1"}, owner=owner)
    pending.fence()
    with pytest.raises(Fenced):
        recognise(pending, {"a": "2"}, owner=owner)
    assert pending.positions()["a/0"] == 5


def test_facts_tell_what_an_inbox_is_now(kafka: str, topic_name: Any) -> None:
    name = topic_name("in")
    settings = Settings(bootstrap_servers=kafka, inboxes=(Inbox(topic=name),))
    topics, admin = (
        KafkaTopics({"bootstrap.servers": kafka}),
        AdminClient({"bootstrap.servers": kafka}),
    )
    create_topics(kafka, name, partitions=1)
    first = inbox_facts(topics, settings)[name]
    admin.create_partitions([NewPartitions(name, 3)])[name].result(30)
    wait_until(lambda: inbox_facts(topics, settings)[name].partitions == 3, "there are three")
    grown = inbox_facts(topics, settings)[name]
    assert (first.partitions, grown.id) == (1, first.id)

    admin.delete_topics([name])[name].result(30)
    wait_until(lambda: name not in topics.partitions([name]), "it is deleted")
    with pytest.raises(BrokerUnavailable, match=name):
        inbox_facts(topics, settings)
    create_topics(kafka, name, partitions=1)
    wait_until(lambda: name in topics.partitions([name]), "it is there again")
    assert inbox_facts(topics, settings)[name].id != first.id
