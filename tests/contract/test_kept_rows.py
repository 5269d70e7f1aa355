"""Rows whose topics take nothing for the moment: kept, so that others go on, and none twice."""

import pytest

from sendlater.clock import FixedClock
from sendlater.config import Inbox, Settings
from sendlater.limits import KEPT_LANE
from sendlater.model import Cancelled, Origin, Record, Schedule, State
from sendlater.spark.delivery import kept_rows
from sendlater.spark.delivery.kept_rows import LOOK_AGAIN_MS, KeptRows
from sendlater.spark.kafka_sink import STILL_SENT_MS
from sendlater.store import Batch, Pending
from sendlater.store.codec import pack
from sendlater.store.scripts import script
from sendlater.store.succession import foreign_lanes
from sendlater.store.unsettled import (
    goes_to,
    kept,
    read_whole,
    settle_some,
    touch_kept,
    unsettled,
)

SHARDS, LANE = 2, 3
PAUSE_MS = Settings().recovery_pause_ms
ROWS = {b"%s-%d" % (topic, n): topic.decode() for topic in (b"mute", b"out") for n in range(20)}


class Topics:
    """Says which topics take nothing."""

    def __init__(self):
        self.mute = {"mute"}

    def silent(self, topics):
        return self.mute & {*topics}


class Here:
    """A space with a batch that a lane has left, and a clock that the test moves."""

    def __init__(self, redis_url, space, **settings):
        self.pending = Pending.open(redis_url, space=space, shards=SHARDS)
        self.owner, self.clock, self.topics = self.pending.fence(), FixedClock(50_000), Topics()
        self.pending.arm(owner=self.owner)
        self.run = self.pending.open_lane(LANE, owner=self.owner)
        self.kept = KeptRows(Settings(**settings), self.pending, self.topics, self.clock)

    def put(self, id, topic, *, origin=None):
        record = Record(topic=topic, value=b"v")
        self.pending.put(Schedule(id=id, due_ms=1_000, record=record, origin=origin))

    def claim(self):
        batch = Batch(LANE, self.run, 40_000, 1)
        for shard in self.pending.shards:
            shard.claim(batch, owner=self.owner, now_ms=40_000, count_max=1_000)

    def hold_back(self, *waits):
        batches = list(unsettled(self.pending, lane=LANE))
        return ids(self.kept.hold_back(batches, waits, owner=self.owner))

    def ready(self):
        return ids(self.kept.ready(owner=self.owner))

    def looks(self):
        """A first look, at which nothing is ready; the next one finds what is."""
        assert self.kept.ready(owner=self.owner) == []

    def lanes(self):
        return {lane for shard in self.pending.shards for lane in shard.batches().values()}

    def pending_ids(self):
        return {schedule.id for schedule in self.pending.list(count_max=1_000)}


def ids(batches):
    return {id for batch in batches for id in batch.ids}


def of(topic):
    return {id for id, target in ROWS.items() if target == topic}


@pytest.fixture
def here(redis_url, space):
    here = Here(redis_url, space)
    for id, topic in ROWS.items():
        here.put(id, topic)
    here.claim()
    return here


def test_what_can_be_looked_up_is_and_the_rest_stays_claimed(here):
    assert here.hold_back() == of("out")
    assert here.lanes() == {LANE, KEPT_LANE + LANE}
    assert here.pending.counts()["claimed"] == len(ROWS)
    here.pending.open_lane(LANE, owner=here.owner, looked_up=True)
    assert here.pending_ids() == of("out")
    for id in of("mute"):
        found = here.pending.get(id)
        assert found is not None
        assert found.state is State.CLAIMED


def test_a_topic_for_whose_sake_a_lane_was_ended_waits_though_it_takes_something_again(here):
    """What its leader has taken may not be readable yet."""
    here.topics.mute = set()
    assert here.hold_back("mute") == of("out")
    here.looks()
    here.clock.advance(PAUSE_MS - 1)
    assert here.ready() == set()
    here.clock.advance(1)
    assert here.ready() == of("mute")


def test_on_a_cluster_it_waits_until_no_producer_sends_it_any_more(redis_url, space):
    here = Here(redis_url, space, spark_master="spark://s:7077", bootstrap_servers="nobody:1")
    here.put(b"a", "out")
    here.claim()
    assert here.hold_back("out") == set()
    here.looks()
    here.clock.advance(STILL_SENT_MS - 1)
    assert here.ready() == set()
    here.clock.advance(1)
    assert here.ready() == {b"a"}


def test_what_a_lane_that_was_ended_has_not_delivered_is_looked_up_twice(here):
    """What is not found at first may not have been readable yet."""
    here.topics.mute = set()
    here.kept.keep_all(unsettled(here.pending), owner=here.owner)
    assert here.pending.counts()["claimed"] == len(ROWS)
    here.pending.open_lane(LANE, owner=here.owner, looked_up=True)
    assert here.pending_ids() == set()
    here.looks()
    assert here.ready() == set()
    here.clock.advance(PAUSE_MS)
    assert here.ready() == ROWS.keys()


def test_it_waits_until_its_topic_takes_something(here):
    here.hold_back()
    here.clock.advance(PAUSE_MS)
    here.looks()
    assert here.ready() == set()
    here.topics.mute = set()
    assert here.ready() == set(), "what its leader has taken may not be readable at once"
    assert here.ready() == of("mute")


def test_one_topic_does_not_wait_for_the_other(here):
    here.hold_back("out")
    here.looks()
    here.clock.advance(PAUSE_MS)
    assert here.ready() == of("out")
    here.pending.release_all(owner=here.owner)  # as who has looked up a part would not
    assert here.pending_ids() == ROWS.keys()


def test_what_was_ready_is_settled_or_put_back_without_the_rest(here):
    here.hold_back("out")
    here.looks()
    here.clock.advance(PAUSE_MS)
    arrived = {b"out-1", b"out-2"}
    for batch in here.kept.ready(owner=here.owner):
        settle_some(batch, [id for id in batch.ids if id in arrived], owner=here.owner)
        batch.shard.release(batch.name, owner=here.owner)
    assert here.pending_ids() == of("out") - arrived
    assert here.pending.counts()["claimed"] == len(of("mute"))
    here.topics.mute = set()
    here.clock.advance(LOOK_AGAIN_MS)
    here.ready()
    assert here.ready() == of("mute")


def test_what_is_kept_may_be_cancelled_or_written_again(here):
    here.hold_back()
    assert here.pending.cancel(b"mute-1") is Cancelled.DELIVERING
    newer = Schedule(id=b"mute-2", due_ms=2_000, record=Record(topic="mute", value=b"new"))
    here.pending.put(newer)
    here.topics.mute = set()
    here.looks()
    here.clock.advance(PAUSE_MS)
    for batch in here.kept.ready(owner=here.owner):
        batch.shard.release(batch.name, owner=here.owner)
    standing = {one.id: one.record.value for one in here.pending.list(count_max=1_000)}
    assert standing.keys() == of("mute")
    assert standing[b"mute-2"] == b"new"


def test_the_next_owner_keeps_it(here):
    here.hold_back()
    owner = here.pending.fence()
    assert foreign_lanes(here.pending, owner) >= {KEPT_LANE + LANE}
    here.pending.arm(owner=owner)
    assert ids(unsettled(here.pending)) == of("out")
    here.pending.release_all(owner=owner, looked_up=True)
    assert here.pending_ids() == of("out")
    assert here.pending.counts()["claimed"] == len(of("mute"))
    here.pending.release_all(owner=owner)  # one who looks nothing up keeps nothing
    assert here.pending_ids() == ROWS.keys()


@pytest.mark.parametrize("mute", ["journal", "history"])
def test_a_journal_that_takes_no_tombstone_keeps_what_came_by_it(redis_url, space, mute):
    inboxes = (Inbox(topic="journal", journal=True), Inbox(topic="plain"))
    settings = {"bootstrap_servers": "nobody:1", "inboxes": inboxes, "history_topic": "history"}
    here = Here(redis_url, space, **settings)
    for topic in ("journal", "plain"):
        origin = Origin(topic=topic, partition=0, position=1, timestamp_ms=1)
        here.put(topic.encode(), "out", origin=origin)
    here.claim()
    here.topics.mute = {mute}
    assert here.hold_back() == {b"plain"}


def test_a_lane_goes_to_its_targets_and_journals(redis_url, space):
    here = Here(redis_url, space)
    here.put(b"a", "out", origin=Origin(topic="journal", partition=0, position=1, timestamp_ms=1))
    here.claim()
    assert [goes_to(here.pending, LANE, {one}) for one in ("out", "journal", "x")] == [
        True,
        True,
        False,
    ]
    assert not goes_to(here.pending, LANE + 1, {"out"})


def test_a_row_keeps_what_is_needed_to_look_it_up(here):
    before = {i: p for b in unsettled(here.pending) for i, p in zip(b.ids, b.packed, strict=True)}
    here.hold_back()
    here.topics.mute = set()
    here.looks()
    here.clock.advance(PAUSE_MS)
    for batch in here.kept.ready(owner=here.owner):
        assert batch.end_ms == 40_000
        assert all(before[id] == packed for id, packed in zip(batch.ids, batch.packed, strict=True))
        assert all(pack(here.pending.get(id)) == before[id][9:] for id in batch.ids)


def test_what_is_kept_is_read_when_it_may_be_ready_not_at_each_look(here, monkeypatch):
    read = []

    def reads(shard, name):
        read.append((shard.number, name))
        return read_whole(shard, name)

    monkeypatch.setattr(kept_rows, "read_whole", reads)
    here.hold_back()
    here.clock.advance(PAUSE_MS)
    here.looks()
    assert len(read) == len(set(read)) == SHARDS
    for _ in range(10):
        assert here.ready() == set()
    assert len(read) == SHARDS


def test_a_batch_that_is_empty_is_removed(here):
    """Its rows were settled by a service that died then."""
    here.hold_back()
    here.clock.advance(PAUSE_MS)
    for shard, name in kept(here.pending):
        settle_some(read_whole(shard, name), list(ROWS), owner=here.owner)
    here.looks()
    for batch in here.kept.ready(owner=here.owner):
        batch.shard.release(batch.name, owner=here.owner)
    assert not list(kept(here.pending))


def test_a_store_that_is_filled_again_does_not_write_what_is_kept(redis_url, space):
    """Its version stands on the journal until it is known whether it has arrived."""
    settings = {"bootstrap_servers": "nobody:1", "inboxes": (Inbox(topic="j", journal=True),)}
    here = Here(redis_url, space, **settings)
    origin = Origin(topic="j", partition=0, position=7, timestamp_ms=1)
    here.put(b"a", "mute", origin=origin)
    one = here.pending.get(b"a")
    here.claim()
    here.hold_back()
    touch_kept(here.pending)
    shard = here.pending.shard_of(b"a")
    keys = shard._keys("due", "record", "state", "wake", "touched", "beyond")
    for position, count in ((7, 0), (8, 1)):
        row = [b"a", 1_000, pack(one), f"j/0/{position}"]
        written = script("plan")(shard.client, **keys, owner=here.owner, rejected_count=0, rest=row)
        assert written == count, "only this version"
