"""An inbox copied into a journal: each record once, whatever became of the committed offsets."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from ledger import Reader, create_topics
from servers import wait_until

from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.config import Settings
from sendlater.limits import OFFSETS_RECOMMIT_MS
from sendlater.spark.journal.copy_inboxes import Copier

pytestmark = pytest.mark.story


class Later:
    """A clock that is ahead by what it is told."""

    def __init__(self):
        self.ahead_ms = 0

    def now_ms(self):
        return 1_000_000 + self.ahead_ms


class Copying:
    """A copier that can be stopped and started, and what is on its journal."""

    def __init__(self, kafka, spark, reader, topics, space, directory):
        self.inbox, self.journal = topics
        self.kafka, self.spark, self.reader, self.directory = kafka, spark, reader, directory
        self.settings = Settings(
            bootstrap_servers=kafka,
            space=space,
            inboxes=[
                {"topic": self.journal, "journal": True},
                {"topic": self.inbox, "copy_to": self.journal},
            ],
        )
        self.group = f"sendlater-{space}-copy"
        options = {"bootstrap.servers": kafka, "log_level": 0}
        self.producer, self.admin = Producer(options), AdminClient(options)
        self.asking = Consumer({**options, "group.id": self.group})
        self.topics, self.clock, self.runs = KafkaTopics(options), Later(), 0

    def write(self, *values, partition=0, time=("sendlater-delay", "1h"), **more):
        control = [time, ("scheduler-target-topic", "out")]
        for value in values:
            self.producer.produce(self.inbox, value, headers=control, partition=partition, **more)
        assert self.producer.flush(30) == 0

    def run_until(self, count):
        """Copy until so many copies are there; every place of theirs."""
        self.runs += 1
        copier = Copier(self.spark, self.settings, self.topics, clock=self.clock)
        query = copier.start(self.directory / str(self.runs))
        wait_until(lambda: len(self.reader.messages) >= count, f"{count} copies", timeout_s=60)

        def committed():
            copier.commit(query)
            return self.committed() == self.ends()

        wait_until(committed, "what was copied is committed", timeout_s=60)
        query.stop()
        return copier, [dict(m.headers())["sendlater-copied"] for m in self.reader.messages]

    def ends(self):
        return {str(n): end for n, end in self.topics.ends([self.inbox])[self.inbox].items()}

    def committed(self):
        places = [TopicPartition(self.inbox, int(n)) for n in self.ends()]
        found = self.asking.committed(places, timeout=10)
        return {str(one.partition): one.offset for one in found if one.offset >= 0}

    def forget(self):
        """As the broker does after offsets.retention.minutes."""
        self.admin.delete_consumer_groups([self.group])[self.group].result(30)
        assert self.committed() == {}


@pytest.fixture
def copying(kafka, spark_on_kafka, topic_name, space, tmp_path):
    topics = inbox, journal = topic_name("in"), topic_name("journal")
    create_topics(kafka, inbox, partitions=1)
    create_topics(kafka, journal, cleanup_policy="compact")
    with Reader(kafka, journal) as reader:
        yield Copying(kafka, spark_on_kafka, reader, topics, space, tmp_path)


def test_without_committed_offsets_it_goes_on_behind_the_last_copy(copying):
    """They expire after a week of standing still; all would be scheduled once more."""
    copying.write(b"1", b"2", b"3")
    copying.run_until(3)
    copying.forget()
    copying.write(b"4")
    # Partitions added since have no copies, and are read from their first record.
    grown = copying.admin.create_partitions([NewPartitions(copying.inbox, 2)])
    grown[copying.inbox].result(30)
    wait_until(lambda: len(copying.ends()) == 2, "there are two partitions")
    copying.producer = Producer({"bootstrap.servers": copying.kafka, "log_level": 0})
    copying.write(b"5", partition=1)

    _, places = copying.run_until(5)
    expected = {f"{copying.inbox}/{place}" for place in ("0/0", "0/1", "0/2", "0/3", "1/0")}
    assert sorted(places) == sorted(place.encode() for place in expected)


def test_versions_that_are_copied_together_keep_their_order(copying):
    """The newest wins: a copy of an older one behind it would bring that back."""
    copying.write(b"1")
    copying.run_until(1)
    copying.write(*(b"%d" % n for n in range(2, 300)), key=b"same")
    copying.run_until(299)
    there = [m.value() for m in copying.reader.messages if m.key() == b"same"]
    assert there == [b"%d" % n for n in range(2, 300)]


def test_what_stands_still_is_committed_again_in_time(copying):
    copying.write(b"1")
    copier, _ = copying.run_until(1)
    copying.forget()
    copying.clock.ahead_ms += OFFSETS_RECOMMIT_MS - 1
    copier.commit(None)
    assert copying.committed() == {}
    copying.clock.ahead_ms += 1
    copier.commit(None)
    assert copying.committed() == {"0": 1}


def test_an_inbox_made_anew_is_copied_from_its_first_record(copying, kafka):
    """Copies of the old one name places that the new one has as well."""
    copying.write(b"1", b"2")
    copying.run_until(2)
    copying.admin.delete_topics([copying.inbox])[copying.inbox].result(30)
    wait_until(
        lambda: copying.inbox not in copying.topics.partitions([copying.inbox]), "it is deleted"
    )
    create_topics(kafka, copying.inbox, partitions=1, message_timestamp_type="CreateTime")
    copied_ms = copying.reader.messages[-1].timestamp()[1]
    copying.write(b"3", b"4", b"5", timestamp=copied_ms + 60_000)

    copying.run_until(5)
    assert {m.value() for m in copying.reader.messages} == {b"1", b"2", b"3", b"4", b"5"}


def test_a_plan_is_copied_with_the_time_from_which_its_intervals_count(copying):
    stamps = []
    copying.write(
        b"1",
        time=("sendlater-every", "15m"),
        key=b"report",
        on_delivery=lambda _, message: stamps.append(message.timestamp()[1]),
    )
    copying.run_until(1)
    [copy] = copying.reader.messages
    headers = [(name, value.decode()) for name, value in copy.headers()]
    assert (copy.key(), copy.value()) == (b"report", b"1")
    assert headers == [
        ("sendlater-copied", f"{copying.inbox}/0/0"),
        ("sendlater-origin-timestamp-ms", str(stamps[0])),
        ("sendlater-every", "15m"),
        ("scheduler-target-topic", "out"),
    ]
