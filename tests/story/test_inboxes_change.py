"""Inboxes change while the service runs: partitions are added, a topic is deleted and made anew."""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from installation import Installation
from ledger import create_topics
from servers import wait_until

pytestmark = pytest.mark.story
SERVERS = "SENDLATER_BOOTSTRAP_SERVERS"


@pytest.fixture(scope="module")
def here(kafka, redis_url, tmp_path_factory):
    here = Installation(kafka, redis_url, tmp_path_factory.mktemp("changes"))
    with here.service.start(), here.readers[here.target]:
        yield here


def soon(here, key, partition):
    """A schedule on a partition of the inbox, due at once; what arrives of it."""
    producer = Producer({"bootstrap.servers": here.service.environment[SERVERS]})
    producer.produce(
        here.inbox,
        value=key,
        key=key,
        headers=[("sendlater-delay", "0"), ("scheduler-target-topic", here.target)],
        partition=partition,
    )
    assert producer.flush(30) == 0
    return here.arrival(key)


@pytest.mark.timeout(400)
def test_added_partitions_are_read_and_a_topic_made_anew_from_its_beginning(here, kafka):
    admin = AdminClient({"bootstrap.servers": kafka})
    for n in range(5):
        soon(here, b"before-%d" % n, 0)

    admin.create_partitions([NewPartitions(here.inbox, 3)])[here.inbox].result(30)
    wait_until(lambda: partitions(admin, here.inbox) == 3, "the partition is there")
    soon(here, b"added", 2)

    admin.delete_topics([here.inbox])[here.inbox].result(30)
    wait_until(lambda: partitions(admin, here.inbox) == 0, "the topic is gone")
    create_topics(kafka, here.inbox)
    # Its offsets are below those that had been read of the other one.
    soon(here, b"anew", 0)
    assert "was deleted and recreated" in here.service.said()
    assert here.service.running


def partitions(admin, topic):
    found = admin.list_topics(timeout=10).topics.get(topic)
    return len(found.partitions) if found else 0
