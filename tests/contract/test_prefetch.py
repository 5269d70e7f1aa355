"""What many wait for is taken in hand before it is due (ADR 41), and yet is pending until then."""

from dataclasses import replace

import pytest
from sent_rows import rows_of

from sendlater.clock import FixedClock
from sendlater.model import Cancelled, Expiry, Record, Schedule, State, Target
from sendlater.spark.delivery import claim_task, due_source
from sendlater.spark.delivery.claim_task import ShardTask
from sendlater.spark.delivery.due_source import DueReader
from sendlater.spark.delivery.lane import Lane, ShardSlice
from sendlater.store import Admin, Ahead, Answer, Batch, Filter, Move, Pending
from sendlater.store import batch as store_batch
from sendlater.store.codec import pack
from sendlater.store.scripts import LaneEnded
from sendlater.store.unsettled import recall_lanes, unsettled

NOW_MS, DUE_MS, LATE_MS = 10_000, 12_000, 13_000
AHEAD = Ahead(14_000, holds=True)


def schedule(id: bytes, due_ms: int = DUE_MS, value: bytes = b"v", **more: object) -> Schedule:
    named = {"topic": more.pop("topic", "out"), "headers": more.pop("headers", [])}
    record = Record(key=b"k", value=value, **named)
    return Schedule(id=id, due_ms=due_ms, record=record, dialect="headers", **more)


class Here:
    """A store, and a lane with a batch whose task the test moves."""

    def __init__(self, redis_url, space):
        self.clock = FixedClock(NOW_MS)
        self.pending = Pending.open(redis_url, space=space, shards=1)
        self.admin, self.shard = Admin(self.pending), self.pending.shards[0]
        self.owner = self.pending.fence()
        self.lane = Lane(
            redis_url=redis_url,
            space=space,
            shards=1,
            owner=self.owner,
            lane=0,
            lanes=2,
            run=self.pending.open_lane(0, owner=self.owner),
            window_ms=2_000,
            idle_window_ms=10_000,
            poll_ms=10,
            standby_poll_ms=50,
            claim_count=100,
            check_targets=False,
            prefetch_ms=5_000,
            prefetch_bytes_max=1_000_000,
            dead_topic="dead-letters",
        )
        self.batch = Batch(0, self.lane.run, 14_000, 1)

    def put(self, *some: Schedule) -> None:
        for one in some:
            self.pending.put(one)

    def begin(self, attempt="one"):
        return self.shard.attempt(self.batch, owner=self.owner, attempt=attempt)

    def claim(self, now_ms=NOW_MS, *, ahead=AHEAD, attempt="one", count=100):
        return self.shard.claim(
            self.batch,
            owner=self.owner,
            now_ms=now_ms,
            count_max=count,
            attempt=attempt,
            ahead=ahead,
        )

    def task(self, *, wake=None, end_ms=14_000, number=1, **lane):
        part = ShardSlice(0, end_ms, number, 60_000)
        return ShardTask(replace(self.lane, **lane), self.shard, wake or self, part, self.clock)

    def wait(self, ms):
        """As a wake: nobody wakes, time passes."""
        self.clock.advance(max(1, int(ms)))
        return False

    def left(self):
        return {k.rpartition(b"}:")[2] for k in self.shard.client.keys(f"{{{self.lane.space}:*")}


@pytest.fixture
def here(redis_url, space, monkeypatch):
    for module in (claim_task, due_source):
        monkeypatch.setattr(module, "PREFETCH_COUNT_MIN", 2)
    return Here(redis_url, space)


@pytest.fixture
def held(here):
    """A batch that has prefetched a and b."""
    here.put(schedule(b"a", tags=("x",)), schedule(b"b"), schedule(b"far", 99_000))
    here.begin()
    got = here.claim()
    assert (got.ids, got.ripe_ms, got.recalled) == ([b"a", b"b"], NOW_MS, [])
    return here


def leaves(here, now_ms=LATE_MS):
    """What the batch's task may deliver at an instant, of what it has prefetched."""
    got = here.claim(now_ms, ahead=Ahead(holds=True), count=0)
    return got.ripe_ms, set(got.recalled)


def test_few_are_not_prefetched(here):
    here.put(schedule(b"a"), schedule(b"b"))
    here.begin()
    assert here.claim(ahead=Ahead(14_000, 3)).ids == []
    assert here.claim(ahead=Ahead(11_999, 2)).ids == []
    assert here.claim(ahead=Ahead(14_000, 2)).ids == [b"a", b"b"]


def test_a_stream_is_not_prefetched_however_many_of_it_are_pending(here):
    here.put(*(schedule(b"%d" % n, DUE_MS + 600 * n) for n in range(5)))
    here.begin()
    assert here.claim(ahead=Ahead(15_000, 3)).ids == [], "two of them are due within a second"
    here.put(schedule(b"more", DUE_MS + 1_900))
    got = here.claim(ahead=Ahead(15_000, 3))
    assert len(got.ids) == 6, "three are due in the second that begins at 13,000"


def test_a_batch_leaves_half_of_many_to_the_next_lane_until_they_are_nearly_due(here):
    here.put(*(schedule(b"%d" % n, 15_000) for n in range(10)))
    here.begin()
    ahead, held = Ahead(16_000), 0
    while took := len(here.claim(ahead=ahead, count=1).ids):
        held += took
    assert held == 6, "one more than it leaves"
    next_lane = Batch(1, here.pending.open_lane(1, owner=here.owner), 14_000, 1)
    here.shard.attempt(next_lane, owner=here.owner, attempt="next")
    its = {"owner": here.owner, "attempt": "next", "count_max": 1, "ahead": ahead}
    assert len(here.shard.claim(next_lane, now_ms=NOW_MS, **its).ids) == 1
    assert len(here.claim(12_000, ahead=ahead).ids) == 3


def test_of_millions_a_batch_takes_all_when_the_rest_takes_so_long(here, monkeypatch):
    monkeypatch.setattr(store_batch, "PREFETCH_PER_MS", 0.001)
    here.put(*(schedule(b"%d" % n, 17_000) for n in range(10)))
    here.begin()
    assert len(here.claim(ahead=Ahead(18_000), count=4).ids) == 4
    assert len(here.claim(ahead=Ahead(18_000), count=2).ids) == 2
    assert len(here.claim(ahead=Ahead(18_000)).ids) == 0, "4 of them take 4 s"
    assert len(here.claim(13_000, ahead=Ahead(18_000)).ids) == 4


def test_who_looks_ahead_and_finds_only_what_is_due_holds_nothing(here):
    here.put(schedule(b"now", NOW_MS), schedule(b"later", 99_000), schedule(b"far", 99_001))
    here.begin()
    assert here.claim(ahead=Ahead(99_001), count=1).ids == [b"now"], "as many as it may take"
    assert b"batches-ripe" not in here.left()
    task = here.task(number=2)
    here.put(schedule(b"then", NOW_MS))
    ids = [row["id"] for row in rows_of(task.batches()) if row["id"]]
    assert (ids, task.prefetched.began) == ([b"then"], False)
    assert here.pending.cancel(b"then") == Cancelled.DELIVERING


def test_what_is_prefetched_can_be_cancelled_until_it_is_due(held):
    assert held.pending.cancel(b"a") == Cancelled.CANCELLED
    assert leaves(held) == (LATE_MS, {b"a"})
    assert held.pending.cancel(b"b") == Cancelled.DELIVERING
    assert held.pending.counts()["cancelled"] == 1
    assert held.admin.count(tag="x") == 0


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (Filter(), [b"a", b"b", b"far"]),
        (Filter(tag="x"), [b"a"]),
        (Filter(tag="y"), []),
        (Filter(id_prefix=b"b"), [b"b"]),
        (Filter(topic="out"), [b"a", b"b", b"far"]),
        (Filter(topic="ou"), []),
        (Filter(from_ms=DUE_MS + 1), [b"far"]),
        (Filter(to_ms=DUE_MS, header=("h", b"1")), [b"b"]),
    ],
)
def test_whoever_looks_for_many_finds_it(here, wanted, ids):
    here.put(schedule(b"a", tags=("x",)), schedule(b"b", headers=[("h", b"1")]))
    here.put(schedule(b"far", 99_000))
    before = [one.id for one in here.admin.all(wanted, count_max=9)]
    here.begin()
    here.claim()
    assert [one.id for one in here.admin.all(wanted, count_max=9)] == before == ids
    leaves(here)
    assert [one.id for one in here.admin.all(wanted, count_max=9)] == [
        one for one in ids if one == b"far"
    ]


def test_what_is_prefetched_or_goes_back_while_somebody_reads_is_read_once(here):
    here.put(*(schedule(b"%d" % n, DUE_MS + n) for n in range(5)), schedule(b"far", 99_000))
    here.begin()
    here.claim(count=2)
    found = here.admin.all(Filter(), count_max=9)
    ids = [next(found).id]
    here.claim(count=2)
    here.pending.move(b"1", due_ms=DUE_MS + 9)
    ids += [one.id for one in found]
    assert sorted(ids) == [b"0", b"1", b"2", b"3", b"4", b"far"]


def test_what_a_dead_service_has_prefetched_waits_for_no_look_up(held):
    held.put(schedule(b"now", NOW_MS))
    held.claim(ahead=Ahead(holds=True))
    recall_lanes(held.pending, {1})
    assert held.admin.count() == 1
    recall_lanes(held.pending, {0})
    assert [one.id for one in held.pending.list(count_max=9)] == [b"a", b"b", b"far"]


def test_it_can_be_moved_and_the_old_time_no_longer_counts(held):
    answer, moved = held.admin.move(Move(id=b"a", due_ms=13_500))
    assert (answer, moved.due_ms) == (Answer.MOVED, 13_500)
    assert leaves(held) == (LATE_MS, {b"a"})
    assert held.claim(13_500, ahead=Ahead(holds=True)).ids == [b"a"]


@pytest.mark.parametrize("due_ms", [DUE_MS, 13_500])
def test_a_newer_version_comes_in_its_place(held, due_ms):
    held.put(schedule(b"a", due_ms, b"new"))
    assert leaves(held, 12_999) == (12_999, {b"a"})
    got = held.claim(13_500, ahead=Ahead(holds=True))
    assert got.ids == [b"a"]
    assert b"new" in got.packed[0]
    assert held.pending.counts()["replaced"] == 1


def test_a_cancellation_from_an_inbox_ends_it(held):
    held.shard.park([b"a", "", ""], ends=[("in/0", "", "5")])
    assert leaves(held) == (LATE_MS, {b"a"})
    assert held.admin.count() == 1


def test_a_condition_sees_it_as_pending(held):
    again = [b"a", f"if absent|{LATE_MS}", pack(schedule(b"a", LATE_MS, b"no"))]
    held.shard.park(again, ends=[("in/0", "", "5")])
    assert held.pending.counts()["unmet"] == 1
    assert held.pending.get(b"a").record.value == b"v"


def test_it_is_found_as_pending_and_as_claimed_when_it_is_due(held):
    assert held.pending.get(b"b").state is State.PENDING
    leaves(held)
    assert held.pending.get(b"b").state is State.CLAIMED


def test_what_went_back_may_be_prefetched_again_and_leaves_once(held):
    held.pending.move(b"a", due_ms=12_500)
    again = held.claim(11_000)
    assert (again.ids, again.recalled) == ([b"a"], [b"a"])
    assert leaves(held) == (LATE_MS, set())


def test_nothing_is_ripe_before_intake_has_caught_up(held):
    held.pending.set_bound(12_500, owner=held.owner)
    assert leaves(held) == (12_500, set())
    held.put(schedule(b"c", 12_700), schedule(b"d", 12_700))
    held.claim(12_600)
    assert held.pending.cancel(b"c") == Cancelled.CANCELLED


def test_a_crash_puts_it_back(held):
    held.pending.open_lane(0, owner=held.owner)
    assert [one.id for one in held.pending.list(count_max=9)] == [b"a", b"b", b"far"]
    assert held.admin.count(tag="x") == 1
    assert not {key for key in held.left() if key.startswith(b"batches")}


def test_the_next_attempt_has_only_what_was_due(held):
    held.put(schedule(b"now", NOW_MS))
    assert held.claim(ahead=Ahead(holds=True)).ids == [b"now"]
    assert held.begin("two").ids == [b"now"]
    assert held.admin.count() == 3
    with pytest.raises(LaneEnded):
        held.claim()
    held.claim(LATE_MS, ahead=Ahead(), attempt="two")
    assert held.pending.cancel(b"a") == Cancelled.DELIVERING


def test_after_a_failure_only_what_was_due_is_looked_up_and_sent(held):
    held.put(schedule(b"now", NOW_MS))
    held.claim(ahead=Ahead(holds=True))
    (batch,) = unsettled(held.pending, lane=0)
    assert batch.ids == [b"now"]
    assert held.admin.count() == 3


def test_a_batch_with_something_that_is_not_due_cannot_be_settled(held):
    with pytest.raises(LaneEnded):
        held.shard.settle(held.batch.name)
    held.shard.recall(held.batch.name)
    held.shard.close(held.batch, owner=held.owner, attempt="one")
    assert held.shard.settle(held.batch.name) == 0
    assert not {key for key in held.left() if key.startswith(b"batches")}


def test_a_task_has_the_rows_ready_and_yields_each_when_it_is_due(here):
    here.put(*(schedule(b"%d" % n, DUE_MS + n // 50) for n in range(250)))
    seen = []
    for batch in here.task().batches():
        rows = rows_of([batch])
        assert all(row["due_ms"] <= here.clock.now_ms() for row in rows)
        seen += [(row["id"], here.clock.now_ms()) for row in rows]
    assert len({id for id, _ in seen}) == len(seen) == 250
    assert {at for _, at in seen} <= {*range(DUE_MS, DUE_MS + 30)}
    assert here.pending.counts()["claimed"] == 250
    assert here.shard.settle(here.batch.name) == 250
    assert not {key for key in here.left() if key.startswith(b"batches")}


def test_a_task_prefetches_and_claims_at_the_same_time(here):
    """What is parked shortly before it is due is not held up by what is in hand."""
    here.put(*(schedule(b"%d" % n) for n in range(20)))
    sooner = [11_000]

    def wait(ms):
        if sooner and here.clock.now_ms() + ms >= sooner[0]:
            here.put(schedule(b"sooner", sooner.pop()))
            return True
        return here.wait(ms)

    seen = {}
    for batch in here.task(wake=type("Wake", (), {"wait": staticmethod(wait)})).batches():
        seen |= {row["id"]: here.clock.now_ms() for row in rows_of([batch])}
    assert seen.pop(b"sooner") < DUE_MS
    assert {*seen.values()} == {DUE_MS}


def test_what_expires_or_recurs_is_decided_when_it_is_due(here):
    here.put(schedule(b"a", expiry=Expiry(11_000)), schedule(b"b", expiry=Expiry(99_000)))
    here.put(schedule(b"plain"))
    rows = [row for row in rows_of(here.task().batches()) if row["id"]]
    told = {row["id"]: row["topic"] for row in rows}
    assert told.pop(b"plain") == told.pop(b"b") == "out"
    assert {*told.values()} <= {"dead-letters"}


def test_what_a_target_does_not_take_is_set_aside_when_it_is_due(here):
    here.put(*(schedule(b"%d" % n, topic="gone") for n in range(4)))
    taken = schedule(b"taken", topic="there")
    here.put(taken, schedule(b"too large", topic="there", value=b"v" * 5_000))
    here.pending.set_target("there", Target(record_bytes_max=4_000, partitions=1))
    rows = [row["id"] for row in rows_of(here.task(check_targets=True).batches()) if row["id"]]
    assert rows == [b"taken"]
    assert here.pending.counts()["aside"] == 5


def test_a_task_that_drains_gives_back_what_is_not_due(here):
    here.put(schedule(b"a"), schedule(b"b"), schedule(b"now", NOW_MS))

    def wait(ms):
        here.pending.drain(owner=here.owner)
        return True

    task = here.task(wake=type("Wake", (), {"wait": staticmethod(wait)}))
    assert [row["id"] for row in rows_of(task.batches()) if row["id"]] == [b"now"]
    assert here.shard.settle(here.batch.name) == 1
    assert here.admin.count() == 2


def test_a_clock_that_goes_back_prefetches_nothing_until_it_has_caught_up(here):
    """What has left would look as if it were not due, and could be changed."""
    task = here.task()
    assert task._ahead(NOW_MS).to_ms
    task.look_ahead_ms = 0
    assert not task._ahead(NOW_MS - 1).to_ms
    assert task._ahead(NOW_MS).to_ms


def test_a_task_that_follows_another_prefetches_nothing(here):
    here.put(schedule(b"now", NOW_MS), schedule(b"a"), schedule(b"b"))
    here.begin()
    here.claim(ahead=Ahead())
    task = here.task()
    next(task.batches())
    assert not task.looks_ahead


@pytest.mark.parametrize(
    "lane", [{"prefetch_ms": 0}, {"journals": "in"}, {"limits": '{"out":[1,1,{}]}'}]
)
def test_where_it_cannot_be_nothing_is_prefetched(here, lane):
    assert not here.task(**lane)._ahead(NOW_MS).to_ms


def test_a_task_holds_no_more_than_it_may(here):
    here.put(*(schedule(b"%03d" % n) for n in range(250)))
    held = set()

    def wait(ms):
        held.add(here.pending.counts()["claimed"])
        return here.wait(ms)

    wake = type("Wake", (), {"wait": staticmethod(wait)})
    task = here.task(wake=wake, prefetch_bytes_max=1)
    assert len([row for row in rows_of(task.batches()) if row["id"]]) == 250
    assert held == {100, 250}


@pytest.mark.parametrize("shift_ms", range(0, 4_000, 400))
def test_a_batch_begins_some_time_before_what_many_wait_for(here, monkeypatch, shift_ms):
    """Of two lanes at least one has the time to prefetch it."""
    monkeypatch.setattr(due_source, "RISK_COUNT", 1)
    many_ms = 10_016_000 + shift_ms
    here.put(*(schedule(b"%d" % n, many_ms) for n in range(4)))
    began_ms = []
    for lane in (0, 1):
        reader = DueReader(replace(here.lane, lane=lane), clock=FixedClock(10_000_000))
        at = {"batch": 10, "from_ms": 9_990_000, "end_ms": 9_999_900}
        while at["end_ms"] < many_ms:
            reader._clock = FixedClock(max(at["end_ms"] + 100, 10_000_000))
            at = reader.latestOffset(at, None)
        assert at["end_ms"] <= many_ms + here.lane.window_ms
        began_ms.append(at["from_ms"])
    assert many_ms - min(began_ms) >= 4_000


@pytest.mark.parametrize("many_s", range(2, 40))
def test_both_lanes_have_the_time_to_prefetch_what_is_known_long_before(here, many_s):
    """A batch that would end shortly before it ends sooner, so that the next one lasts until
    then."""
    many_ms = 10_000_000 + 1_000 * many_s
    here.put(*(schedule(b"%d" % n, many_ms) for n in range(4)))
    for lane in (0, 1):
        reader = DueReader(replace(here.lane, lane=lane), clock=FixedClock(10_000_000))
        at = {"batch": 10, "from_ms": 9_990_000, "end_ms": 9_999_900}
        lengths_ms = []
        while at["end_ms"] < many_ms:
            reader._clock = FixedClock(max(at["end_ms"] + 100, 10_000_000))
            at = reader.latestOffset(at, None)
            lengths_ms.append(at["end_ms"] - at["from_ms"])
        first_ms = 10_000_000
        wanted_ms = here.lane.prefetch_ms - here.lane.window_ms
        assert many_ms - at["from_ms"] >= min(wanted_ms, many_ms - first_ms)
        # Only one is short, before it.
        assert sum(one < here.lane.window_ms for one in lengths_ms) <= 1


@pytest.mark.parametrize(("held_per_ms", "sooner_ms"), [(0, 2_000), (3, 2_000), (4, 0), (100, 0)])
def test_beside_a_stream_a_batch_is_not_shorter_for_what_the_next_one_does_not_reach(
    here, held_per_ms, sooner_ms
):
    """4 a millisecond allow a batch of 5 s, a window of which may be lost: what is due 2 s after
    this one is too far for a next one that would begin a window sooner."""
    here.put(*(schedule(b"%d" % n, 10_002_000) for n in range(4)))
    reader = DueReader(here.lane, clock=FixedClock(9_990_000))
    end_ms = reader._sooner_ms(here.pending, 10_000_000, 9_990_000, held_per_ms)
    assert end_ms == 10_000_000 - sooner_ms
