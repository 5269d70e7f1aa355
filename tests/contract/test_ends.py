"""Where a topic ends, for those who read only what transactions have committed."""

import pytest
from confluent_kafka import Producer
from ledger import create_topics
from servers import wait_until

from sendlater.brokers.group_offsets import Place, Progress
from sendlater.brokers.kafka import KafkaBroker
from sendlater.brokers.kafka_topics import KafkaTopics


def of_service(options, topic):
    return KafkaTopics(options).ends([topic])[topic]


def of_doors(options, topic):
    with KafkaBroker(options) as broker:
        return broker.ends(topic)


def of_buckets(options, topic):
    place = Place(topic, 0)
    return {0: Progress(options, group=f"{topic}-ends").ends([place])[place]}


@pytest.mark.parametrize("ends", [of_service, of_doors, of_buckets])
def test_nobody_waits_for_what_a_transaction_has_not_committed(kafka, topic_name, ends):
    """They would wait for as long as it is open, as intake is not given it before."""
    topic, options = topic_name(ends.__name__.replace("_", "-")), {"bootstrap.servers": kafka}
    create_topics(kafka, topic, partitions=1)
    plain = Producer(options)
    plain.produce(topic, b"plain")
    assert plain.flush(30) == 0
    writer = Producer({**options, "transactional.id": topic})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(topic, b"open")
    assert writer.flush(30) == 0

    assert ends(options, topic) == {0: 1}
    assert ends({**options, "isolation.level": "read_uncommitted"}, topic) == {0: 2}
    writer.commit_transaction(30)
    # The coordinator answers before its marker is on the partition.
    wait_until(lambda: ends(options, topic) == {0: 3}, "the marker counts")
