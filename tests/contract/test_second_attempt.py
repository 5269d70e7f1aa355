"""A task that is tried again finds on its topics what the attempt before it has delivered."""

import pytest
from confluent_kafka import Producer
from ledger import create_topics, set_config
from sent_rows import rows_of
from servers import wait_until

from sendlater.brokers.client_options import client_options
from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.clock import SystemClock
from sendlater.config import Inbox, Settings
from sendlater.dialects.deliver import leaving
from sendlater.errors import NotLookedUp
from sendlater.model import Origin, Record, Schedule
from sendlater.spark.delivery import arrived, claim_task
from sendlater.spark.delivery.claim_task import ShardTask
from sendlater.spark.delivery.failed_batch import RecordByRecord
from sendlater.spark.delivery.lane import Lane, ShardSlice
from sendlater.spark.delivery.targets import Targets
from sendlater.store import Pending
from sendlater.store.codec import unpack
from sendlater.store.unsettled import unsettled

LENGTH_MS = 1_000


class Here:
    """A lane's batch on a real broker; the test is what sends the rows that a task yields."""

    def __init__(self, redis_url, space, kafka, target, journal, history, bad):
        self.kafka, self.target, self.copies = kafka, target, (journal, history)
        self.settings = Settings(
            bootstrap_servers=kafka,
            space=space,
            shards=1,
            inboxes=(Inbox(topic=journal, journal=True), Inbox(topic="plain")),
            rejected_topic=bad,
            history_topic=history,
        )
        self.pending = Pending.open(redis_url, space=space, shards=1)
        self.owner = self.pending.fence()
        self.pending.arm(owner=self.owner)
        self.run = self.pending.open_lane(0, owner=self.owner)
        self.lane = Lane.of(
            self.settings, redis_url=redis_url, owner=self.owner, lane=0, run=self.run
        )
        self.now_ms = SystemClock().now_ms()
        self.part = ShardSlice(0, self.now_ms + LENGTH_MS, 1, LENGTH_MS)
        topics = KafkaTopics(client_options(self.settings))
        self.targets = Targets(self.pending, topics, self.settings, owner=self.owner)
        self.targets.start()
        for topic in (target, bad):
            self.pending.shards[0].want([topic.encode()])
        known = self.pending.shards[0].targets
        wait_until(lambda: {target.encode(), bad.encode()} <= known().keys(), "both are known")

    def put(self, id, *, due_ms=None, origin=None, dialect="", **record):
        record = {"topic": self.target, "key": b"k", "value": b"v", **record}
        due_ms = self.now_ms if due_ms is None else due_ms
        record = Record(**record)
        self.pending.put(
            Schedule(id=id, due_ms=due_ms, record=record, dialect=dialect, origin=origin)
        )

    def attempt(self):
        """The ids that one attempt at the batch yields."""
        shard = self.pending.shards[0]
        task = ShardTask(self.lane, shard, shard.wake(), self.part, SystemClock())
        return [row["id"] for row in rows_of(task.batches()) if row["topic"] is not None]

    def claimed(self):
        """What the batch holds, by id."""
        return {
            id: unpack(id, packed)
            for batch in unsettled(self.pending)
            for id, packed in zip(batch.ids, batch.packed, strict=True)
        }

    def send(self, *ids, parts=None):
        """Deliver these, or only the first so many records of each."""
        producer = Producer({"bootstrap.servers": self.kafka})
        claimed = self.claimed()
        for id in ids:
            origin = claimed[id].origin
            copies = self.copies if origin and origin.topic in self.copies else ()
            for one in leaving(claimed[id], copies)[:parts]:
                producer.produce(one.topic, key=one.key, value=one.value, headers=one.headers)
        assert producer.flush(30) == 0


@pytest.fixture
def here(redis_url, space, kafka, topic_name):
    names = [topic_name(kind) for kind in ("out", "journal", "history", "bad")]
    create_topics(kafka, *names)
    here = Here(redis_url, space, kafka, *names)
    yield here
    here.targets.stop()


def test_what_has_arrived_is_not_delivered_again_and_the_rest_is(here):
    origin = Origin(topic="plain", partition=0, position=7, timestamp_ms=here.now_ms)
    here.put(b"plain")
    here.put(b"empty", key=None, value=None)
    here.put(b"told", headers=[("a", b"1"), ("a", None)], dialect="headers", origin=origin)
    here.put(b"few", headers=[("a", b"1")], dialect="few", origin=origin)
    here.put(b"left", headers=[("a", b"1")])
    assert set(here.attempt()) == {b"plain", b"empty", b"told", b"few", b"left"}
    here.send(b"plain", b"empty", b"told", b"few")
    assert here.attempt() == [b"left"]


def test_another_version_of_a_schedule_is_not_taken_for_it(here):
    here.put(b"one", value=b"first")
    here.attempt()
    here.send(b"one")
    here.pending.shards[0].settle(*here.pending.shards[0].batches())
    here.put(b"one", value=b"second")
    here.part = ShardSlice(0, here.part.end_ms + LENGTH_MS, 2, LENGTH_MS)
    assert here.attempt() == [b"one"]
    assert here.attempt() == [b"one"]


def test_of_a_journal_all_must_have_arrived_or_nothing(here):
    origin = Origin(topic=here.copies[0], partition=0, position=7, timestamp_ms=here.now_ms)
    for id in (b"whole", b"left"):
        here.put(id, origin=origin)
    here.attempt()
    here.send(b"whole")
    assert here.attempt() == [b"left"]
    here.send(b"left", parts=1)
    with pytest.raises(NotLookedUp, match="in part"):
        here.attempt()


def test_what_is_overdue_may_be_on_its_way_still(here):
    here.put(b"old", due_ms=here.now_ms - arrived.YOUNG_MS)
    here.attempt()
    with pytest.raises(NotLookedUp, match="on its way"):
        here.attempt()
    here.send(b"old")
    assert here.attempt() == []


def test_too_many_records_are_left_to_the_service(here, monkeypatch):
    monkeypatch.setattr(arrived, "LOOK_COUNT_MAX", 1)
    here.put(b"a")
    here.put(b"b")
    here.attempt()
    here.send(b"a", b"b")
    with pytest.raises(NotLookedUp, match="at most 1"):
        here.attempt()


def test_too_many_rows_are_left_to_the_service(here, monkeypatch):
    """They would be in a task's memory all at once."""
    monkeypatch.setattr(claim_task, "LOOK_COUNT_MAX", 1)
    here.put(b"a")
    here.put(b"b")
    assert set(here.attempt()) == {b"a", b"b"}
    with pytest.raises(NotLookedUp, match="at most 1 rows in a batch, got 2"):
        here.attempt()


def test_a_broker_that_takes_long_is_left_to_the_service(here, monkeypatch):
    monkeypatch.setattr(arrived, "ANSWER_MS_MAX", -1)
    here.put(b"a")
    here.attempt()
    with pytest.raises(NotLookedUp, match="long"):
        here.attempt()


def test_a_target_is_asked_again_before_anything_goes_there(here):
    """What it takes no more waits aside until the service has rejected it."""
    here.put(b"keyless", key=None)
    here.put(b"keyed")
    assert set(here.attempt()) == {b"keyless", b"keyed"}
    set_config(here.kafka, here.target, "cleanup.policy", "compact")
    assert here.attempt() == [b"keyed"]
    assert set(here.claimed()) == {b"keyed"}


def test_record_by_record_the_culprit_is_rejected_in_the_brokers_words(here):
    """What a look at the topic does not tell, here because nobody has looked again."""
    here.put(b"keyless", key=None)
    here.put(b"keyed")
    here.attempt()
    set_config(here.kafka, here.target, "cleanup.policy", "compact")
    rescue = RecordByRecord(here.settings, here.pending, here.targets, owner=here.owner)
    assert rescue.deliver(0) == 1
    [instead] = here.pending.list(count_max=9)
    told = dict(instead.record.headers)
    assert told["sendlater-rejected"] == b"refused"
    assert b"the broker says" in told["sendlater-rejected-detail"]
