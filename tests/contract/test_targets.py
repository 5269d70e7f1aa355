"""Rows set aside: settled one by one, whatever the rest of them is like; none is lost."""

import pytest
from structlog.testing import capture_logs

from sendlater.clock import FixedClock
from sendlater.config import Inbox, Settings
from sendlater.dialects import names
from sendlater.errors import BadSettings, BrokerUnavailable, TopicUnavailable
from sendlater.limits import REJECTED_BYTES_MAX
from sendlater.model import Origin, Reason, Record, Schedule, Target
from sendlater.spark.arrow_rows import unpack_columns
from sendlater.spark.delivery.claim_task import ShardTask
from sendlater.spark.delivery.lane import Lane, ShardSlice
from sendlater.spark.delivery.targets import (
    ASIDE_COUNT_MAX,
    BLOCKING_LOOK_COUNT_MAX,
    BLOCKING_LOOK_MS,
    BLOCKING_MS,
    LOOK_UP_ATTEMPTS_MAX,
    REFRESH_MS,
    REFUSED_MS,
    SILENT_MS,
    UNAVAILABLE_MS,
    Targets,
)
from sendlater.spark.kafka_sink import STILL_SENT_MS
from sendlater.store import Batch, Pending
from sendlater.store.codec import unpack

ROOMY = Target(record_bytes_max=1_000_000, partitions=2)
SHARDS = 2


class Broker:
    """Says of topics what the test wants."""

    def __init__(self, **topics):
        self.topics = {"bad": ROOMY, "out": ROOMY, **topics}
        self.away = False
        self.leaderless = set()

    def look_up(self, topic):
        if self.away:
            raise BrokerUnavailable("away")
        if topic in self.leaderless:
            raise TopicUnavailable("partition 0 has no leader")
        return self.topics.get(topic, Reason.UNKNOWN_TOPIC)

    def missing_and_silent(self, topics, *, anew):
        if self.away:
            return None
        return {t for t in topics if t not in self.topics}, self.leaderless & {*topics}


class Here:
    """A space, its targets, and a lane that claims with a clock that the test moves."""

    def __init__(self, redis_url, space, broker, **settings):
        settings = {"inboxes": (Inbox(topic="in"),), **settings}
        settings |= {"rejected_topic": "bad", "bootstrap_servers": "nobody:1"}
        settings = Settings(**settings)
        self.broker, self.clock = broker, FixedClock(10_000)
        self.pending = Pending.open(redis_url, space=space, shards=SHARDS)
        self.owner = self.pending.fence()
        self.run = self.pending.open_lane(0, owner=self.owner)
        self.batches = 0
        self.targets = Targets(self.pending, broker, settings, owner=self.owner, clock=self.clock)
        numbers = {"window_ms": 1, "idle_window_ms": 1, "poll_ms": 1, "standby_poll_ms": 1}
        self.lane = Lane(
            redis_url=redis_url,
            space=space,
            shards=SHARDS,
            owner=self.owner,
            lane=0,
            lanes=1,
            run=self.run,
            claim_count=1_000,
            check_targets=True,
            **numbers,
        )

    def start(self):
        """The thread is not needed: a test has its rounds one by one."""
        self.targets.start()
        self.targets.stop()
        self.targets._stop.clear()
        self.pending.shards[0].want([b"out"])
        self.targets.tick()

    def put(self, schedule_id, *, origin=None, due_ms=1, **record):
        record = {"topic": "out", "key": b"k", "value": b"v", **record}
        self.pending.put(
            Schedule(id=schedule_id, due_ms=due_ms, record=Record(**record), origin=origin)
        )

    def deliver(self):
        """One batch: what a lane would have handed to the producer, the rest set aside."""
        self.batches += 1
        batch = Batch(0, self.run, self.clock.now_ms(), self.batches)
        sent = []
        for shard in self.pending.shards:
            task = ShardTask(self.lane, shard, None, self.part(shard, batch), self.clock)
            while (
                got := shard.claim(batch, owner=self.owner, now_ms=batch.end_ms, count_max=1_000)
            ).ids:
                refused = task.targets.refused(got, unpack_columns(got.packed))
                rows = list(zip(got.ids, got.packed, strict=True))
                shard.set_aside(batch, [rows[i][0] for i in refused])
                sent += [unpack(*row) for i, row in enumerate(rows) if i not in refused]
            shard.settle(batch.name)
        return sent

    def part(self, shard, batch):
        return ShardSlice(shard.number, batch.end_ms, batch.number, 2_000)

    def aside(self):
        return sum(self.pending.client.hlen(s.keys["aside"]) for s in self.pending.shards)


@pytest.fixture
def here(redis_url, space):
    here = Here(redis_url, space, Broker())
    here.start()
    return here


def details(schedule):
    return dict(schedule.record.headers)


def test_a_row_without_an_origin_is_rejected_as_any_other(here):
    """It was written directly, by a door without Kafka."""
    here.put(b"x" * 600, topic="nowhere")
    here.put(b"good")
    assert [s.id for s in here.deliver()] == [b"good"]
    here.targets.tick()
    rejected = {details(s)[names.REJECTED_ID]: s for s in here.deliver()}
    assert {s.record.topic for s in rejected.values()} == {"bad"}
    assert details(rejected[b"x" * 512])[names.REJECTED] == b"unknown-topic"
    assert here.pending.counts()["rejected"] == 1
    assert here.aside() == 0


def test_a_store_that_is_emptied_after_a_claim_refuses_nothing_of_it(here):
    here.put(b"1")
    batch = Batch(0, here.run, here.clock.now_ms(), 1)
    shard = here.pending.shard_of(b"1")
    task = ShardTask(here.lane, shard, None, here.part(shard, batch), here.clock)
    asked = {"owner": here.owner, "now_ms": batch.end_ms, "count_max": 1}
    got = shard.claim(batch, **asked)
    assert task.targets.refused(got, unpack_columns(got.packed)) == set()
    shard.client.delete(shard.keys["targets"])
    task.targets._until_ms = 0
    assert task.targets.refused(got, unpack_columns(got.packed)) == set()


def test_a_row_that_cannot_be_read_keeps_nobody_there(here):
    for shard in here.pending.shards:
        here.pending.client.hset(shard.keys["aside"], b"broken", b"\xc1")
    for n in range(20):
        here.put(b"%d" % n, topic="nowhere")
    here.deliver()
    with capture_logs() as logs:
        for _ in range(3):
            here.targets.tick()
    assert len(here.deliver()) == 20
    assert here.aside() == SHARDS, "what nobody can read is kept"
    assert [log["event"] for log in logs].count("a row stays aside") == 1


def test_what_the_rejected_topic_does_not_take_waits_and_comes_once(redis_url, space):
    """It neither grows nor goes round, and what is good passes it."""
    tiny = Target(record_bytes_max=100, partitions=1)
    here = Here(redis_url, space, Broker(bad=Reason.UNKNOWN_TOPIC))
    here.start()
    count = 2 * ASIDE_COUNT_MAX
    for n in range(count):
        here.put(b"bad-%d" % n, topic="nowhere")
    here.put(b"late", topic="new")
    assert here.deliver() == []
    here.broker.topics["new"] = ROOMY
    with capture_logs() as logs:
        for _ in range(50):
            here.targets.tick()
        assert [s.id for s in here.deliver()] == [b"late"]
        here.broker.topics["bad"] = tiny
        here.clock.advance(REFUSED_MS)
        here.targets.tick()
        assert here.deliver() == []
    waits = [log for log in logs if "rejected records wait" in log["event"]]
    assert len(waits) == 1
    here.broker.topics["bad"] = Target(REJECTED_BYTES_MAX, 1)
    here.clock.advance(REFUSED_MS)
    for _ in range(50):
        here.targets.tick()
    rejected = here.deliver()
    assert len({details(s)[names.REJECTED_ID] for s in rejected}) == len(rejected) == count
    assert {len(s.record.headers) for s in rejected} == {4}
    assert here.aside() == 0


def test_a_rejected_record_too_large_for_its_topic_is_cut_not_rejected_again(redis_url, space):
    here = Here(redis_url, space, Broker(bad=Target(10_000, 1)))
    here.start()
    origin = Origin(topic="in", partition=0, position=7, timestamp_ms=-1)
    headers = [(f"h{n}", b"x" * 100) for n in range(1_000)]
    here.put(b"large", topic="nowhere", origin=origin, headers=headers)
    here.deliver()
    here.targets.tick()
    here.broker.topics["bad"] = Target(REJECTED_BYTES_MAX, 1)
    here.clock.advance(REFRESH_MS)
    here.targets.tick()
    (told,) = here.deliver()
    assert told.id == b"in-0-7"
    assert len(told.record.headers) == 6
    assert b"left out: 1000 headers of" in details(told)[names.REJECTED_DETAIL]


def test_partitions_and_sizes_are_looked_at_before_and_growth_is_noticed(here):
    here.put(b"beyond", partition=2)
    here.put(b"within", partition=1)
    here.put(b"huge", headers=[("h", b"x" * 1_000_000)])
    assert [s.id for s in here.deliver()] == [b"within"]
    here.targets.tick()
    rejected = {details(s)[names.REJECTED_ID]: details(s) for s in here.deliver()}
    assert rejected[b"beyond"][names.REJECTED] == b"bad-target"
    assert rejected[b"huge"][names.REJECTED] == b"too-large"

    # Nobody is rejected for an answer that is getting old, and lanes hear of a new one.
    here.broker.topics["out"] = Target(2_000_000, 3)
    here.clock.advance(REFUSED_MS)
    here.put(b"beyond", partition=2)
    here.deliver()
    here.targets.tick()
    assert [s.id for s in here.deliver()] == [b"beyond"]
    here.broker.topics["out"] = Target(2_000_000, 4)
    here.clock.advance(REFRESH_MS)
    here.targets.tick()
    here.put(b"beyond", partition=3)
    assert [s.id for s in here.deliver()] == [b"beyond"]


def test_while_the_broker_is_away_nothing_is_rejected(here):
    """However often it is asked: that says nothing about a topic."""
    here.put(b"patient", topic="new")
    here.broker.topics["new"], here.broker.away = ROOMY, True
    here.deliver()
    for _ in range(2 * LOOK_UP_ATTEMPTS_MAX):
        here.clock.advance(REFRESH_MS)
        here.targets.tick()
    assert (here.aside(), here.pending.counts()["rejected"]) == (1, 0)
    here.broker.away = False
    here.targets.tick()
    assert [s.id for s in here.deliver()] == [b"patient"]


def test_a_new_owner_looks_known_targets_up_before_anything_is_due(redis_url, space):
    """Nobody knows what they take by now; the first message for each would have to wait."""
    Here(redis_url, space, Broker()).start()
    here = Here(redis_url, space, Broker(out=Target(2_000, 2)))
    here.targets.start()
    here.targets.stop()
    here.targets._stop.clear()
    assert here.pending.shards[0].targets().keys() == {b"bad"}
    here.targets.tick()
    assert here.pending.shards[0].targets()[b"out"].record_bytes_max == 2_000


def test_a_target_that_takes_nothing_for_the_moment_keeps_its_messages_waiting(here):
    """One without a leader, or with too few replicas in sync: a producer would wait, and all others
    with it. Its messages are neither delivered nor rejected until it is well again."""
    here.put(b"well")
    assert [s.id for s in here.deliver()] == [b"well"]
    here.broker.leaderless = {"out"}
    here.clock.advance(REFRESH_MS)
    here.put(b"patient")
    with capture_logs() as told:
        here.targets.tick()
    assert here.deliver() == []
    for _ in range(2 * LOOK_UP_ATTEMPTS_MAX):
        here.clock.advance(UNAVAILABLE_MS)
        here.targets.tick()
    assert (here.aside(), here.pending.counts()["rejected"]) == (1, 0)
    assert [
        (line["topic"], line["cause"]) for line in told if "takes nothing now" in line["event"]
    ] == [("out", "partition 0 has no leader")]
    here.broker.leaderless = set()
    here.clock.advance(UNAVAILABLE_MS)
    here.targets.tick()
    assert [s.id for s in here.deliver()] == [b"patient"]


def test_a_target_that_is_deleted_is_noticed_before_the_next_delivery(here):
    """Its producer would block a lane, and whatever else that lane has claimed. Two looks must
    agree: a broker may not know of a new topic yet."""
    out = here.broker.topics.pop("out")
    for _ in range(2):
        here.clock.advance(BLOCKING_LOOK_MS)
        here.targets.tick()
        here.broker.topics["out"] = out
        here.clock.advance(BLOCKING_LOOK_MS)
        here.targets.tick()
        assert here.targets.deleted() == set()
        del here.broker.topics["out"]
    for _ in range(2):
        here.clock.advance(BLOCKING_LOOK_MS)
        here.targets.tick()
    assert here.targets.deleted() == {"out"}
    here.put(b"waits")
    assert here.deliver() == []
    here.clock.advance(BLOCKING_MS)
    assert here.targets.deleted() == set()


def test_what_blocked_a_lane_gets_nothing_while_its_producer_may_still_send(here):
    out = here.broker.topics.pop("out")
    for _ in range(3):
        here.clock.advance(BLOCKING_LOOK_MS)
        here.targets.tick()
    here.targets.hold(here.targets.deleted())
    here.broker.topics["out"] = out
    here.put(b"waits")
    for _ in range(LOOK_UP_ATTEMPTS_MAX):
        here.clock.advance((STILL_SENT_MS - 1) // LOOK_UP_ATTEMPTS_MAX)
        here.targets.tick()
        assert here.deliver() == []
    here.clock.advance(STILL_SENT_MS // LOOK_UP_ATTEMPTS_MAX)
    here.targets.tick()
    assert [s.id for s in here.deliver()] == [b"waits"]
    assert here.pending.counts()["rejected"] == 0


def looks(here, for_ms):
    """As many looks as there are in this time."""
    for _ in range(for_ms // BLOCKING_LOOK_MS):
        here.clock.advance(BLOCKING_LOOK_MS)
        here.targets.tick()


def test_a_target_that_takes_nothing_for_a_while_is_named_once_and_left_alone(here):
    """It blocks lanes as a deleted one does; a change of its leader is over sooner."""
    for name in (b"first", b"second"):
        here.broker.leaderless = {"out"}
        looks(here, SILENT_MS)
        assert here.targets.silent() == set()
        looks(here, BLOCKING_LOOK_MS)
        assert here.targets.silent() == {"out"}
        here.put(name)
        assert here.deliver() == []
        looks(here, BLOCKING_MS)
        assert here.targets.silent() == set()
        here.broker.leaderless = set()
        looks(here, UNAVAILABLE_MS + BLOCKING_LOOK_MS)
        assert [s.id for s in here.deliver()] == [name]


def test_a_target_whose_leader_changes_is_delivered_to(here):
    for _ in range(5):
        here.broker.leaderless = {"out"}
        looks(here, SILENT_MS)
        here.broker.leaderless = set()
        looks(here, BLOCKING_LOOK_MS)
    here.put(b"goes")
    assert [s.id for s in here.deliver()] == [b"goes"]


def test_lanes_end_for_the_sake_of_none_that_takes_something_again(here):
    here.broker.leaderless = {"out"}
    looks(here, SILENT_MS + BLOCKING_LOOK_MS)
    assert here.targets.silent() == {"out"}
    here.broker.leaderless = set()
    looks(here, BLOCKING_LOOK_MS)
    assert here.targets.silent() == set()


def test_nobody_is_named_where_nothing_takes_anything(here):
    """Who delivers to others would have no use of it."""
    here.broker.leaderless = {"out", "bad"}
    looks(here, 2 * SILENT_MS)
    assert here.targets.silent() == set()


def test_more_targets_than_one_look_has_take_turns(redis_url, space):
    others = {f"t{n:04d}": ROOMY for n in range(2 * BLOCKING_LOOK_COUNT_MAX)}
    here = Here(redis_url, space, Broker(**others))
    here.start()
    here.pending.shards[0].want([name.encode() for name in others])
    here.targets.tick()
    last = max(others)
    del here.broker.topics[last]
    for _ in range(6):
        here.clock.advance(BLOCKING_LOOK_MS)
        here.targets.tick()
    assert here.targets.deleted() == {last}


def test_a_compacted_target_takes_no_null_key(redis_url, space):
    here = Here(redis_url, space, Broker(out=Target(1_000_000, 2, compacted=True)))
    here.start()
    here.put(b"keyless", key=None)
    here.put(b"empty", key=b"")
    assert [s.id for s in here.deliver()] == [b"empty"]
    here.targets.tick()
    (told,) = here.deliver()
    assert details(told)[names.REJECTED] == b"no-key"


def test_copies_of_a_journal_are_looked_at_before(redis_url, space):
    """The tombstone, and the record on the history topic."""
    small = Target(record_bytes_max=2_000, partitions=2)
    settings = {"inboxes": (Inbox(topic="in", journal=True),), "history_topic": "history"}
    here = Here(redis_url, space, Broker(**{"in": ROOMY, "history": small}), **settings)
    here.start()
    origin = Origin(topic="in", partition=0, position=7, timestamp_ms=1)
    here.put(b"journalled", value=b"x" * 2_000, origin=origin)
    here.put(b"plain", value=b"x" * 2_000)
    assert [s.id for s in here.deliver()] == [b"plain"]
    here.targets.tick()
    (told,) = here.deliver()
    assert b"'history'" in details(told)[names.REJECTED_DETAIL]


@pytest.mark.parametrize("missing", ["in", "history"])
def test_a_start_without_a_journal_or_its_history_is_refused(redis_url, space, missing):
    settings = {"inboxes": (Inbox(topic="in", journal=True),), "history_topic": "history"}
    topics = {"in": ROOMY, "history": ROOMY, missing: Reason.NOT_AUTHORISED}
    here = Here(redis_url, space, Broker(**topics), **settings)
    with pytest.raises(BadSettings, match="not-authorised"):
        here.targets.start()
