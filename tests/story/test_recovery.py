"""After a crash: what had arrived is settled, and nothing else."""

import time
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from ledger import Reader, create_topics
from servers import wait_until

from sendlater.brokers.client_options import client_options
from sendlater.brokers.group_offsets import Progress
from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.config import Inbox, Settings
from sendlater.dialects.deliver import leaving
from sendlater.dialects.recurrence import make_plan
from sendlater.model import Origin, Record, Schedule
from sendlater.spark import topic_reads
from sendlater.spark.buckets.crash_lookup import arrived
from sendlater.spark.buckets.ladder import Ladder
from sendlater.spark.delivery import crash_lookup
from sendlater.spark.delivery.crash_lookup import CrashLookup
from sendlater.spark.delivery.recurring import advanced
from sendlater.spark.journal.rebuild import Filling
from sendlater.spark.topic_reads import deliveries
from sendlater.store import Batch, Pending
from sendlater.store import unsettled as unsettled_rows
from sendlater.store.rebuild import JournalCopy
from sendlater.store.unsettled import unsettled

pytestmark = pytest.mark.story


class Crashed:
    """A store with unsettled batches, and what had reached the topics before the crash."""

    def __init__(self, kafka, redis_url, space, topic_name, *, journal):
        self.inbox, self.target, self.history = map(topic_name, ("in", "out", "done"))
        policy = {"cleanup_policy": "compact"} if journal else {}
        create_topics(kafka, self.inbox, partitions=1, **policy)
        create_topics(kafka, self.target, self.history, partitions=1)
        self.settings = Settings(
            bootstrap_servers=kafka,
            space=space,
            inboxes=(Inbox(topic=self.inbox, journal=journal),),
            history_topic=self.history,
            rejected_topic=self.history,
            shards=1,
        )
        self.pending = Pending.open(redis_url, space=space, shards=1)
        self.owner = self.pending.fence()
        self.producer = Producer({"bootstrap.servers": kafka})
        self.topics = KafkaTopics({"bootstrap.servers": kafka})
        self.due_ms = time.time_ns() // 1_000_000

    def schedule(self, id, *, at=0, key=None, value=b"v", headers=()):
        return Schedule(
            id=id,
            due_ms=self.due_ms,
            record=Record(topic=self.target, key=key, value=value, headers=list(headers)),
            dialect="headers",
            origin=Origin(
                topic=self.inbox, partition=0, position=at, timestamp_ms=self.due_ms - 5_000
            ),
        )

    def claim(self, lane, *schedules):
        """Claimed by a lane that nobody will settle."""
        run = self.pending.open_lane(lane, owner=self.owner)
        batch = Batch(lane=lane, run=run, end_ms=self.due_ms + 2_000)
        for schedule in schedules:
            self.pending.put(schedule)
        got = self.pending.shards[0].claim(
            batch, owner=self.owner, now_ms=self.due_ms, count_max=100
        )
        assert len(got.ids) == len(schedules)

    def left(self):
        """Ids in the batches of each lane."""
        found = {}
        for batch in unsettled(self.pending):
            found.setdefault(int(batch.name.partition(":")[0]), set()).update(batch.ids)
        return found

    def headers_of(self, schedule, *more):
        """What the delivered record carries."""
        origin = schedule.origin
        return [
            *schedule.record.headers,
            ("scheduler-timestamp", str(origin.timestamp_ms // 1_000)),
            ("scheduler-key", schedule.id),
            ("scheduler-topic", origin.topic),
            ("sendlater-topic", schedule.record.topic),
            ("sendlater-id", schedule.id),
            ("sendlater-due", str(schedule.due_ms)),
            *more,
        ]

    def write(self, topic, key, value, headers=()):
        self.producer.produce(topic, value=value, key=key, headers=list(headers), partition=0)
        assert self.producer.flush(30) == 0

    def settle(self, spark):
        recovery = CrashLookup(spark, self.settings, self.pending, self.topics)
        return recovery.settle(owner=self.owner)


@pytest.fixture
def crashed(kafka, redis_url, space, topic_name, request):
    journal = getattr(request, "param", False)
    return Crashed(kafka, redis_url, space, topic_name, journal=journal)


def test_what_arrived_is_told_from_another_version_by_all_that_it_carries(crashed, spark_on_kafka):
    """Both are due at once, with the same payload: what has not arrived must not count as such."""
    versions = {
        b"header": ({"headers": [("x", b"1")]}, {"headers": [("x", b"2")]}),
        b"null header": ({"headers": [("x", b"")]}, {"headers": [("x", None)]}),
        b"which is null": (
            {"headers": [("x", b"1"), ("x", None)]},
            {"headers": [("x", None), ("x", b"1")]},
        ),
        b"order": (
            {"headers": [("x", b"1"), ("y", b"2")]},
            {"headers": [("y", b"2"), ("x", b"1")]},
        ),
        b"key": ({"key": b"1"}, {"key": b"2"}),
        b"null key": ({"key": b""}, {"key": None}),
        b"value": ({"value": b""}, {"value": b"0"}),
        b"key and value": ({"key": b"ab", "value": b"c"}, {"key": b"a", "value": b"bc"}),
    }
    arrived = [crashed.schedule(id, **first) for id, (first, _) in versions.items()]
    others = [crashed.schedule(id, at=1, **second) for id, (_, second) in versions.items()]
    crashed.claim(0, *arrived)
    crashed.claim(1, *others)
    for schedule in arrived:
        record = schedule.record
        crashed.write(crashed.target, record.key, record.value, crashed.headers_of(schedule))

    assert crashed.settle(spark_on_kafka) == len(versions)
    assert crashed.left() == {1: set(versions)}


def test_of_a_large_batch_some_are_looked_up_at_a_time_and_the_topics_read_once(
    crashed, spark_on_kafka, monkeypatch
):
    for module in (crash_lookup, unsettled_rows):
        monkeypatch.setattr(module, "LOOK_UP_COUNT_MAX", 10)
    monkeypatch.setattr(unsettled_rows, "SCAN_COUNT", 3)
    reads = []

    def reads_topics(*given, **since):
        reads.append(given)
        return deliveries(*given, **since)

    monkeypatch.setattr(topic_reads, "deliveries", reads_topics)
    rows = [crashed.schedule(b"%d" % n, value=b"v" * 300) for n in range(80)]
    crashed.claim(0, *rows[:40])
    crashed.claim(1, *rows[40:])
    for schedule in rows[::3]:
        crashed.write(crashed.target, None, b"v" * 300, crashed.headers_of(schedule))

    assert crashed.settle(spark_on_kafka) == len(rows[::3])
    assert len(reads) == 1
    left = {one.id for one in rows} - {one.id for one in rows[::3]}
    assert set().union(*crashed.left().values()) == left


def test_in_buckets_too_what_arrived_is_told_by_all_that_it_carries(
    crashed, kafka, spark_on_kafka, topic_name
):
    settings = crashed.settings.model_copy(
        update={"pending": "buckets", "bucket_count": 2, "bucket_topics": topic_name("bucket")}
    )
    ladder, client = Ladder.of(settings), client_options(settings)
    create_topics(kafka, ladder.topic(0), partitions=1)
    schedules = [
        crashed.schedule(b"a", at=at, key=key, headers=headers)
        for at, (key, headers) in enumerate(
            [(b"", [("x", None)]), (None, [("x", None)]), (b"", [("x", b"")])]
        )
    ]
    stamp_ms = schedules[0].origin.timestamp_ms
    for schedule in schedules:
        told = f"{crashed.due_ms} headers {crashed.inbox} 0 {schedule.origin.position} {stamp_ms}"
        control = [("schedule", f"{told} {crashed.target}"), ("key", schedule.record.key)]
        crashed.write(ladder.topic(0), b"a", b"v", [*control, *schedule.record.headers])
    delivered = schedules[1]
    crashed.write(crashed.target, delivered.record.key, b"v", crashed.headers_of(delivered))

    progress = Progress(client, group=crashed.inbox)
    found = arrived(spark_on_kafka, settings, ladder, progress, topics=crashed.topics)
    assert found == {"0": [[1, 2]]}


@pytest.mark.parametrize("crashed", [True], indirect=True)
def test_what_has_a_tombstone_and_never_arrived_is_delivered_unless_replaced(
    crashed, kafka, spark_on_kafka
):
    """A new version or a cancellation written since the crash is the newest, and wins."""
    ids = [b"torn", b"replaced", b"cancelled"]
    torn = [crashed.schedule(id, at=at) for at, id in enumerate(ids)]
    for schedule in torn:
        crashed.write(crashed.inbox, schedule.id, b"v")
    crashed.claim(0, *torn)
    for schedule in torn:
        version = f"{crashed.inbox}/0/{schedule.origin.position}"
        headers = crashed.headers_of(schedule, ("sendlater-origin", version))
        crashed.write(crashed.inbox, schedule.id, None, headers)
    crashed.write(crashed.inbox, b"replaced", b"newer")
    crashed.write(crashed.inbox, b"cancelled", None)
    # A copy of its own version replaces nothing.
    crashed.write(crashed.inbox, b"torn", b"v", [("sendlater-again", f"{crashed.inbox}/0/0")])

    assert crashed.settle(spark_on_kafka) == len(ids)
    assert crashed.left() == {}
    with Reader(kafka, crashed.inbox, crashed.target, crashed.history) as reader:
        wait_until(lambda: len(reader.messages) == 3 + 3 + 3 + 3, "all is read")
        found = [m for m in reader.messages if m.topic() != crashed.inbox]
        again = [m for m in reader.messages if m.topic() == crashed.inbox][9:]
    assert {m.topic() for m in found} == {crashed.target, crashed.history}
    assert {dict(m.headers())["sendlater-id"] for m in found} == {b"torn"}
    assert [(m.key(), m.value()) for m in again] == [(b"torn", None)]


@pytest.mark.parametrize("forgotten", ["everything", "the claims"])
@pytest.mark.parametrize("crashed", [True], indirect=True)
def test_it_stands_again_where_the_store_has_forgotten_that_it_was_claimed(
    crashed, spark_on_kafka, redis_url, forgotten
):
    """Power fails: the producer's last deliveries are gone, and Redis has lost its last second."""
    ids = [b"torn", b"arrived", b"replaced", b"cancelled"]
    wanted = [
        ("scheduler-target-topic", crashed.target),
        ("sendlater-due-ms", str(crashed.due_ms)),
    ]
    schedules = [crashed.schedule(id, at=at) for at, id in enumerate(ids)]
    for schedule in schedules:
        crashed.write(crashed.inbox, schedule.id, b"v", wanted)
    for schedule in schedules:
        version = f"{crashed.inbox}/0/{schedule.origin.position}"
        headers = crashed.headers_of(schedule, ("sendlater-origin", version))
        crashed.write(crashed.inbox, schedule.id, None, headers)
        if schedule.id == b"arrived":
            crashed.write(crashed.target, None, b"v", headers)
    crashed.write(crashed.inbox, b"replaced", b"newer", wanted)
    crashed.write(crashed.inbox, b"cancelled", None)
    filling = Filling(
        spark_on_kafka,
        crashed.settings,
        crashed.pending,
        crashed.topics,
        redis_url=redis_url,
        owner=crashed.owner,
    )
    if forgotten == "the claims":
        for schedule in schedules:
            crashed.pending.put(schedule)
        read = {f"{crashed.inbox}/0": len(ids)}
        JournalCopy(crashed.pending, owner=crashed.owner).complete(read, journals=filling.journals)
        assert filling.is_copy()

    filling.fill()

    found = {one.id: one.record.value for one in crashed.pending.list(count_max=9)}
    assert found == {b"torn": b"v", b"replaced": b"newer"}


@pytest.mark.parametrize("crashed", [True], indirect=True)
def test_a_torn_occurrence_is_delivered_unless_its_schedule_was_replaced(
    crashed, kafka, spark_on_kafka
):
    """What it left on its journal is there, but the occurrence has not arrived."""
    torn = [
        crashed.schedule(id + b"@1", at=at, headers=[("sendlater-schedule", id)])
        for at, id in enumerate([b"kept", b"changed"])
    ]
    for schedule in torn:
        crashed.write(crashed.inbox, schedule.id.removesuffix(b"@1"), b"v")
    crashed.claim(0, *torn)
    for schedule in torn:
        left = leaving(schedule, (crashed.inbox, crashed.history))[1]
        crashed.write(left.topic, left.key, left.value, left.headers)
    crashed.write(crashed.inbox, b"changed", b"newer")

    assert crashed.settle(spark_on_kafka) == len(torn)
    assert crashed.left() == {}
    with Reader(kafka, crashed.inbox, crashed.target, crashed.history) as reader:
        wait_until(lambda: len(reader.messages) == 5 + 3, "all is read")
        found = [m for m in reader.messages if m.topic() != crashed.inbox]
    assert {m.topic() for m in found} == {crashed.target, crashed.history}
    assert {dict(m.headers())["sendlater-id"] for m in found} == {b"kept@1"}


@pytest.mark.parametrize("crashed", [False, True], indirect=True)
def test_a_store_that_went_back_behind_an_occurrence_finds_that_it_has_arrived(
    crashed, kafka, spark_on_kafka
):
    """It holds the schedule as it was claimed; its lane had put the occurrence in its place."""
    plan = make_plan(now_ms=crashed.due_ms - 60_000, every_ms=60_000)
    schedules = [
        replace(crashed.schedule(id, at=at), plan=plan.text)
        for at, id in enumerate([b"arrived", b"not"])
    ]
    crashed.claim(0, *schedules)
    journals = crashed.settings.journals
    step = advanced(schedules[0], now_ms=crashed.due_ms, journals=journals)
    copies = (crashed.inbox, crashed.history) if journals else ()
    for record in leaving(step.occurrence, copies):
        crashed.write(record.topic, record.key, record.value, record.headers)

    assert crashed.settle(spark_on_kafka) == 1
    crashed.pending.release_all(owner=crashed.owner)
    found = {one.id: one for one in crashed.pending.list(count_max=9)}
    assert found[b"arrived"].due_ms == step.again.due_ms
    assert found[b"not"].due_ms == crashed.due_ms
    assert len(found) == 2
