"""The offsets that a broker tells, of topics that change."""

from confluent_kafka.admin import AdminClient, NewPartitions
from ledger import create_topics

from sendlater.brokers.group_offsets import Place, Progress


def test_a_partition_added_after_the_first_question_has_an_end_at_once(kafka, topic_name):
    """A client knows only the partitions that a topic had when it asked for it, for minutes."""
    topic = topic_name("in")
    create_topics(kafka, topic, partitions=1)
    progress = Progress({"bootstrap.servers": kafka}, group="g")
    assert progress.ends([Place(topic, 0)]) == {Place(topic, 0): 0}

    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)

    both = [Place(topic, 0), Place(topic, 1)]
    assert progress.ends(both) == progress.firsts(both) == dict.fromkeys(both, 0)
