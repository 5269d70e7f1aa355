"""Orders of crashes, attempts and outages that once lost, doubled or brought back a schedule."""

import threading
from functools import partial

import psutil
import pytest
from servers import own_redis

from sendlater.clock import FixedClock
from sendlater.errors import Fenced, MissingInbox, StoreUnavailable, StoreWentBack
from sendlater.local.redis_server import RedisServer
from sendlater.model import Cancelled, Origin, Record, Schedule
from sendlater.spark.intake.watermark import Inboxes, Watermark
from sendlater.store import Admin, Answer, Batch, Move, Pending, Shard
from sendlater.store.codec import pack, unpack
from sendlater.store.expiring import expire
from sendlater.store.rebuild import JournalCopy, hold
from sendlater.store.scripts import LaneEnded, script

SOURCE = "inbox/0"


def schedule(id: bytes, due_ms: int, payload: bytes = b"v", at: int = 0) -> Schedule:
    origin = Origin(topic="inbox", partition=0, position=at, timestamp_ms=1)
    record = Record(topic="t", value=payload)
    return Schedule(id=id, due_ms=due_ms, record=record, dialect="headers", origin=origin)


def row(id: bytes, due_ms: int, payload: bytes = b"v", at: int = 0) -> list[object]:
    return [id, due_ms, pack(schedule(id, due_ms, payload, at))]


@pytest.fixture
def pending(redis_url: str, space: str) -> Pending:
    return Pending.open(redis_url, space=space, shards=1)


def lane(pending: Pending, owner: int, number: int = 0, *, batch: int = 1) -> Batch:
    return Batch(number, pending.open_lane(number, owner=owner), end_ms=100, number=batch)


def set_aside(shard: Shard) -> list[Schedule]:
    return [unpack(id, packed) for id, packed in shard.aside(count_max=9)[1].items()]


def payloads(pending: Pending) -> list[bytes | None]:
    return [s.record.value for s in pending.list(count_max=10)]


@pytest.mark.parametrize("first", [0, 1])
def test_a_release_never_brings_back_the_older_version(pending, shard, owner, first):
    """Two lanes hold two versions; batches are released in whichever order they are found."""
    lanes = [lane(pending, owner, number) for number in (0, 1)]
    for number, payload in enumerate([b"old", b"new"]):
        shard.park(row(b"a", 1, payload, at=number))
        shard.claim(lanes[number], owner=owner, now_ms=9, count_max=9)
    for batch in (lanes[first], lanes[1 - first]):
        shard.release(batch.name, owner=owner)
    assert payloads(pending) == [b"new"]


def test_what_is_cancelled_while_it_is_claimed_is_not_put_back(pending, shard, owner):
    batch = lane(pending, owner)
    shard.park([*row(b"cancelled", 1), *row(b"kept", 1), *row(b"replaced", 1)])
    shard.claim(batch, owner=owner, now_ms=9, count_max=9)
    shard.park([b"cancelled", "", "", *row(b"replaced", 50, b"newer", at=5)])
    assert shard.claimed(batch).ids == [b"kept"]
    pending.release_all(owner=owner)
    assert [s.id for s in pending.list(count_max=9)] == [b"kept", b"replaced"]
    assert payloads(pending) == [b"v", b"newer"]


def test_our_own_tombstone_does_not_take_back_what_is_claimed(pending, shard, owner):
    """It leaves together with the delivery: when that one is lost, the row must come again."""
    batch = lane(pending, owner)
    shard.park(row(b"a", 1, at=3), journal=True)
    shard.claim(batch, owner=owner, now_ms=9, count_max=9)
    shard.park([b"a", "", "inbox/0/3"], journal=True)
    pending.release_all(owner=owner)
    assert payloads(pending) == [b"v"]


def test_what_replaces_a_claimed_one_is_kept_however_far_away_it_is_due(pending, shard, owner):
    """The tombstone of the claimed one follows it in the journal: it is written again there."""
    JournalCopy(pending, owner=owner).set_horizon(10, planned_ms=10)
    batch = lane(pending, owner)
    shard.park(row(b"a", 1, at=3), journal=True)
    shard.claim(batch, owner=owner, now_ms=9, count_max=9)
    shard.park([*row(b"a", 5_000, b"newer", at=4), *row(b"b", 5_000, at=5)], journal=True)
    shard.park([b"a", "", "inbox/0/3"], journal=True)
    assert payloads(pending) == [b"newer"]
    assert shard.client.smembers(shard.keys["overtaken"]) == {b"a"}


def test_planning_writes_nothing_that_was_cancelled_meanwhile(pending, shard, owner):
    """A step is tried again, before intake has read the tombstone of a cancellation by a door."""
    JournalCopy(pending, owner=owner).set_horizon(10_000, planned_ms=10)
    found = [b"a", 5_000, pack(schedule(b"a", 5_000)), "inbox/0/3"]
    keys = shard._keys("due", "record", "state", "wake", "touched", "beyond")
    step = partial(script("plan"), shard.client, **keys, owner=owner, rejected_count=0, rest=found)
    assert step() == 1
    assert Admin(pending).cancel_many([(b"a", "")], changes=["c"]) == [Answer.CANCELLED]
    assert step() == 0
    assert payloads(pending) == []


def test_what_is_set_aside_is_seen_changed_taken_back_and_replaced(pending, shard, owner):
    batch = lane(pending, owner)
    names = [b"cancelled", b"replaced", b"moved", b"seen"]
    shard.park([part for n in names for part in row(n, 1)])
    shard.claim(batch, owner=owner, now_ms=9, count_max=9)
    shard.set_aside(batch, names)
    before = {s.id: s for s in set_aside(shard)}
    assert pending.get(b"seen") == before[b"seen"]
    assert pending.cancel(b"cancelled") is Cancelled.CANCELLED
    assert pending.cancel(b"cancelled") is Cancelled.UNKNOWN
    shard.park(row(b"replaced", 7, b"newer"))
    answer, after = Admin(pending).move(Move(b"moved", 70))
    assert answer is Answer.MOVED
    assert after is not None
    assert after.due_ms == 70
    # Whoever judged them before that must look again.
    for name in names:
        shard.readmit(before[name], owner=owner)
    stands = [(s.id, s.due_ms) for s in pending.list(count_max=9)]
    assert stands == [(b"seen", 1), (b"replaced", 7), (b"moved", 70)]
    assert set_aside(shard) == []


def test_a_park_that_was_lost_in_a_failover_is_noticed_at_the_next(shard, owner):
    shard.park(row(b"a", 1), owner=str(owner), ends=[(SOURCE, "", "5")])
    # The replica that takes over had not heard of it; the task stands at its end.
    shard.client.hdel(shard.keys["seen"], SOURCE)
    for rows in (row(b"b", 1), []):
        with pytest.raises(StoreWentBack):
            shard.park(rows, owner=str(owner), ends=[("other/0", "", "1"), (SOURCE, "5", "6")])
    assert shard.seen() == {}


def test_of_two_starts_that_ask_for_one_number_the_first_has_it(pending, shard):
    number = pending.fence() + 1
    fence = script("fence")
    state = shard.keys["state"]
    assert fence(shard.client, state=state, number=number, token="a") == 1
    assert fence(shard.client, state=state, number=number, token="b") == 0
    assert fence(shard.client, state=state, number=number, token="a") == 1
    assert pending.fence() == number + 1


def test_a_store_without_its_owner_has_gone_back_and_nobody_has_taken_over(pending, shard, owner):
    batch = lane(pending, owner)
    shard.client.delete(shard.keys["state"])
    with pytest.raises(StoreWentBack):
        shard.attempt(batch, owner=owner, attempt="x")
    assert pending.owners() == [0]
    assert pending.fence(above=owner) > owner


def test_a_task_that_is_tried_again_knows_all_and_the_first_try_can_do_no_more(
    pending, shard, owner
):
    batch = lane(pending, owner)
    shard.park(row(b"a", 1))
    assert shard.attempt(batch, owner=owner, attempt="1").ids == []
    assert shard.claim(batch, owner=owner, now_ms=9, count_max=9, attempt="1").ids == [b"a"]
    shard.park(row(b"b", 1))
    assert shard.attempt(batch, owner=owner, attempt="2").ids == [b"a"]
    with pytest.raises(LaneEnded):
        shard.claim(batch, owner=owner, now_ms=9, count_max=9, attempt="1")
    with pytest.raises(LaneEnded):
        shard.close(batch, owner=owner, attempt="1")
    assert shard.claim(batch, owner=owner, now_ms=9, count_max=9, attempt="2").ids == [b"b"]
    shard.close(batch, owner=owner, attempt="2")
    # Spark may lose its result and try again: the same rows, and no more.
    assert shard.attempt(batch, owner=owner, attempt="3") is None
    assert sorted(shard.claimed(batch).ids) == [b"a", b"b"]
    shard.park(row(b"c", 1))
    for attempt in ("2", "3"):
        with pytest.raises(LaneEnded):
            shard.claim(batch, owner=owner, now_ms=9, count_max=9, attempt=attempt)
    assert pending.settle(batch) == 2
    for attempt in ("2", "4"):
        with pytest.raises(LaneEnded):
            shard.claim(batch, owner=owner, now_ms=9, count_max=9, attempt=attempt)
        with pytest.raises(LaneEnded):
            shard.attempt(batch, owner=owner, attempt=attempt)
    assert [s.id for s in pending.list(count_max=9)] == [b"c"]


def test_only_the_last_attempt_takes_rows_out_of_its_batch(pending, shard, owner):
    """What an earlier one took out came again, beside what the last one had read and delivered."""
    batch = lane(pending, owner)
    for number, id in enumerate((b"a", b"b", b"c", b"d")):
        shard.park(row(id, 1, at=number))

    def set_aside_one(id: bytes, attempt: str) -> list[bytes]:
        shard.set_aside(batch, [id], attempt=attempt)
        return sorted(shard.claimed(batch).ids)

    def drop(id: bytes, attempt: str) -> int:
        return expire(shard, batch, [(id, None)], owner=owner, attempt=attempt)

    shard.attempt(batch, owner=owner, attempt="1")
    shard.claim(batch, owner=owner, now_ms=9, count_max=9, attempt="1")
    assert len(shard.attempt(batch, owner=owner, attempt="2").ids) == 4
    for take_out in (set_aside_one, drop):
        with pytest.raises(LaneEnded):
            take_out(b"a", "1")
    assert set_aside_one(b"a", "2") == [b"b", b"c", b"d"]
    assert drop(b"b", "2") == 1
    shard.close(batch, owner=owner, attempt="2")
    # A batch that was closed may have failed on its way to the broker.
    assert shard.attempt(batch, owner=owner, attempt="3") is None
    for take_out in (set_aside_one, drop):
        with pytest.raises(LaneEnded):
            take_out(b"c", "2")
    assert set_aside_one(b"c", "3") == [b"d"]
    assert drop(b"d", "3") == 1


def test_a_run_that_ends_leaves_nothing_of_its_attempts(pending, shard, owner):
    """Not even of those that claimed no row: nobody would come by them again."""
    shard.attempt(lane(pending, owner), owner=owner, attempt="1")
    other = lane(pending, owner, 1)
    shard.attempt(other, owner=owner, attempt="1")
    assert shard.client.hlen(shard.keys["batches"] + "-attempts") == 2
    lane(pending, owner)
    assert shard.client.hkeys(shard.keys["batches"] + "-attempts") == [other.name.encode()]


def test_a_server_that_was_started_anew_gives_nothing_out_until_it_is_armed(tmp_path):
    """It may have lost its last moments, and what was claimed in them has left already."""
    with own_redis(tmp_path) as server:
        pending = Pending.open(server.url, space="s", shards=1)
        owner = pending.fence()
        batch = lane(pending, owner)
        shard = pending.shards[0]
        shard.park(row(b"a", 1))
        assert not pending.is_armed(owner=owner)
        pending.arm(owner=owner)
        assert pending.is_armed(owner=owner)
        pending.client.script_flush()  # what a restart does to scripts
        assert not pending.is_armed(owner=owner)
        with pytest.raises(StoreWentBack, match="was restarted"):
            shard.claim(batch, owner=owner, now_ms=9, count_max=9)
        # Another installation on the same server does not speak for this one.
        other = Pending.open(server.url, space="other", shards=1)
        lane(other, other.fence())
        assert not pending.is_armed(owner=owner)
        # Nor does who finds that out: runs that began before have lost what they stand on.
        pending.arm(owner=owner)
        with pytest.raises(StoreWentBack, match="was restarted"):
            shard.claim(batch, owner=owner, now_ms=9, count_max=9)
        batch = lane(pending, owner)
        assert shard.claim(batch, owner=owner, now_ms=9, count_max=9).ids == [b"a"]
        # What was taken out of the batch, and not delivered, may be in it again.
        pending.client.script_flush()
        with pytest.raises(StoreWentBack, match="was restarted"):
            pending.settle(batch, owner=owner)
        assert shard.claimed(batch).ids == [b"a"]


def test_a_restart_is_noticed_although_nothing_was_lost_in_it(tmp_path):
    """Redis before 7 writes SCRIPT LOAD to its file: what is known by that says nothing."""
    with own_redis(tmp_path) as server:
        pending = Pending.open(server.url, space="s", shards=2)
        owner = pending.fence()
        batch = lane(pending, owner)
        pending.arm(owner=owner)
        pending.put(schedule(b"a", 1))
        process = psutil.Process(server.pid)
        process.kill()
        process.wait(10)
        with RedisServer(tmp_path, port=server.port):
            pending = Pending.open(server.url, space="s", shards=2)
            assert pending.get(b"a") is not None
            assert not pending.is_armed(owner=owner)
            with pytest.raises(StoreWentBack, match="was restarted"):
                pending.shard_of(b"a").claim(batch, owner=owner, now_ms=9, count_max=9)


def test_a_full_redis_lets_deliveries_go_on_however_late_they_are(tmp_path):
    """Delivery is what frees memory: counting the late ones must not stop it."""
    with own_redis(tmp_path) as server:
        pending = Pending.open(server.url, space="full", shards=1)
        owner = pending.fence()
        batch = lane(pending, owner)
        shard = pending.shards[0]
        for n in range(4):
            shard.park(row(b"%d" % n, 1))
        pending.client.config_set("maxmemory", 1)
        late_ms = 1_000_000
        shard.attempt(batch, owner=owner, attempt="1")
        got = shard.claim(batch, owner=owner, now_ms=late_ms, count_max=2, attempt="1")
        assert len(got.ids) == 2
        shard.set_aside(batch, got.ids[:1], attempt="1")
        [odd] = set_aside(shard)
        shard.readmit(odd, owner=owner)
        shard.close(batch, owner=owner, attempt="1")
        assert pending.settle(batch) == 1
        # A lane that failed begins again, a new service takes over, and what they hold goes out.
        again = lane(pending, owner, 1)
        assert len(shard.claim(again, owner=owner, now_ms=late_ms, count_max=2).ids) == 2
        newer = pending.fence()
        pending.release_all(owner=newer)
        pending.set_bound(late_ms, owner=newer)
        last = lane(pending, newer)
        assert len(shard.claim(last, owner=newer, now_ms=late_ms, count_max=9).ids) == 3
        assert pending.settle(last) == 3
        # Taking back needs no memory; taking in does.
        shard.park([b"x", "", ""], ends=[(SOURCE, "", "1")])
        with pytest.raises(StoreUnavailable, match="full"):
            shard.park(row(b"y", 1), ends=[(SOURCE, "1", "2")])
        assert shard.seen() == {SOURCE: 1}


def test_large_schedules_are_claimed_a_few_at_a_time(pending, shard, owner):
    batch = lane(pending, owner)
    for n in range(30):
        shard.park(row(b"%02d" % n, n, b"x" * 100_000))
    found: list[bytes] = []
    while got := shard.claim(batch, owner=owner, now_ms=99, count_max=30, bytes_max=350_000).ids:
        assert 1 <= len(got) <= 3
        found += got
    assert found == [b"%02d" % n for n in range(30)]


def test_what_is_due_beyond_the_bound_waits_and_the_bound_goes_with_its_store(
    pending, shard, owner
):
    batch = lane(pending, owner)
    shard.park([*row(b"a", 10), *row(b"b", 20)])
    pending.set_bound(15, owner=owner)
    assert shard.claim(batch, owner=owner, now_ms=30, count_max=9).ids == [b"a"]
    got = shard.claim(batch, owner=owner, now_ms=30, count_max=9)
    assert got.held
    assert got.next_due_ms is None
    pending.set_bound(25, owner=owner)
    assert shard.claim(batch, owner=owner, now_ms=30, count_max=9).ids == [b"b"]
    with pytest.raises(Fenced):
        pending.set_bound(99, owner=owner - 1)
    assert "bound" not in (pending.fence(), shard.state())[1]


class World:
    """An inbox with one partition, and a clock, for a watermark."""

    def __init__(self, pending: Pending, owner: int, **limits: int) -> None:
        self.clock = FixedClock(1_000_000)
        self.end = 0
        self.pending, self.shard = pending, pending.shards[0]
        self.fails: Exception | None = None
        self.begins = False
        self.watermark = Watermark(
            pending,
            Inboxes(
                ends=self.ends,
                begins=lambda: self.begins,
            ),
            owner=owner,
            clock=self.clock,
            **{"margin_ms": 5_000, "hold_ms_max": 30_000} | limits,
        )

    def ends(self) -> dict[str, int]:
        if self.fails:
            raise self.fails
        return {SOURCE: self.end} if self.end else {}

    def read(self, position: int) -> None:
        self.shard.client.hset(self.shard.keys["seen"], SOURCE, position)

    def after(self, ms: int) -> int | None:
        """The bound after a while, less now."""
        self.clock.advance(ms)
        self.watermark.tick()
        bound = self.shard.state().get("bound")
        return None if bound is None else int(bound) - self.clock.now_ms()


def test_the_bound_is_a_margin_ahead_of_what_intake_has_read(pending, owner):
    world = World(pending, owner)
    assert world.after(0) == 5_000
    world.end = 7
    assert world.after(500) == 4_500  # asked, not read yet
    assert world.after(500) == 4_000
    world.read(7)
    assert world.after(500) == 5_000
    world.end = 9
    assert [world.after(2_000) for _ in range(4)] == [3_000, 1_000, -1_000, -3_000]


def test_nothing_is_held_for_ever_and_an_outage_does_not_count(pending, owner):
    world = World(pending, owner)
    world.end = 7
    assert world.after(0) is None
    assert world.after(29_999) is None
    assert world.after(1) == 5_000
    world.fails = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        world.after(100_000)
    world.fails = None
    before = pending.shards[0].state()["bound"]
    world.after(1)
    world.after(29_000)
    assert pending.shards[0].state()["bound"] == before
    assert world.after(1_000) == 5_000
    world.read(7)
    assert world.after(1) == 5_000
    # Something was due and waited: that is told apart from lateness.
    assert Admin(pending).tally()["held-ms"] == 0
    pending.put(schedule(b"a", world.clock.now_ms() + 6_000))
    world.end = 8
    world.after(5_500)
    world.after(1_000)
    assert Admin(pending).tally()["held-ms"] == 1_000


def test_an_intake_that_lags_holds_each_schedule_for_a_while_only(pending, owner):
    """Its watermark moves, far behind: what is due waits for it, and never longer than allowed."""
    world = World(pending, owner)
    for n in range(1, 40):
        world.end = n
        world.after(2_000)
        if n > 20:
            world.read(n - 20)
    assert world.after(100) == -30_000


def test_an_inbox_that_is_gone_is_not_taken_for_one_that_was_read(pending, owner):
    """Right after a broker's start its topics are missing for a moment; a deleted one for ever."""
    world = World(pending, owner)
    world.fails = MissingInbox("gone")
    assert world.after(0) is None
    assert world.after(29_000) is None
    assert world.after(1_000) == 5_000
    world.fails = None
    assert world.after(1) == 5_000


def test_a_start_that_is_slow_does_not_count_either(pending, owner):
    """Until intake is past its first batch it is not stuck, only cold."""
    world = World(pending, owner)
    world.end, world.begins = 7, True
    assert [world.after(20_000) for _ in range(5)] == [None] * 5
    world.begins = False
    assert world.after(19_000) is None
    assert world.after(11_000) == 5_000


def test_a_watermark_that_begins_anew_tells_the_store_nothing_of_before(pending, owner):
    """A look under way must not let go of what is held because the store has gone back."""
    world = World(pending, owner)
    ends = world.ends
    begun, anew = threading.Event(), threading.Event()

    def slow_ends() -> dict[str, int]:
        begun.set()
        anew.wait(0.05)
        return ends()

    world.watermark._inboxes = Inboxes(ends=slow_ends)
    ticking = threading.Thread(target=world.watermark.tick)
    ticking.start()
    begun.wait()
    world.watermark.begin_anew(pause_ms=1_000)
    anew.set()
    hold(pending, owner=owner)
    ticking.join()
    assert pending.shards[0].state()["held"] == str(owner)
    assert world.after(999) is None
    assert world.after(1) == 5_000
