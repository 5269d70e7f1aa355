"""What a start asks of the store: the lease, the version a tombstone is about, the horizon."""

import time
from functools import partial

import pytest

from sendlater.errors import Fenced, StoreWentBack
from sendlater.model import Origin, Record, Schedule
from sendlater.store import Pending, Shard
from sendlater.store import unsettled as unsettled_module
from sendlater.store.at_work import HANDOVERS_MAX, STANDBY_MS, services
from sendlater.store.batch import Batch
from sendlater.store.codec import pack, unpack
from sendlater.store.lease import Lease
from sendlater.store.rebuild import JournalCopy, hold
from sendlater.store.scripts import script
from sendlater.store.unsettled import settle_some, unsettled


def schedule(id: bytes, *, due_ms: int = 5, topic: str = "s", partition: int = 0, at: int = 0):
    origin = Origin(topic=topic, partition=partition, position=at, timestamp_ms=2**40)
    record = Record(topic="t", value=b"v" * 300, headers=[("h", b"schedules")])
    return Schedule(id=id, due_ms=due_ms, record=record, dialect="headers", origin=origin)


@pytest.fixture
def pending(redis_url: str, space: str) -> Pending:
    return Pending.open(redis_url, space=space, shards=1)


def park(shard: Shard, *rows: Schedule | tuple[bytes, str]) -> None:
    flat: list[object] = []
    for row in rows:
        if isinstance(row, Schedule):
            flat += [row.id, row.due_ms, pack(row)]
        else:
            flat += [row[0], "", row[1]]
    shard.park(flat, journal=True)


@pytest.mark.parametrize("topic", ["s", "schedules", "a-b.c_d"])
@pytest.mark.parametrize("at", [0, 127, 128, 255, 256, 65_535, 65_536, 2**31, 2**33])
def test_a_tombstone_of_ours_spares_what_is_newer(pending: Pending, shard: Shard, topic, at):
    for partition in (0, 7, 200):
        stands = schedule(b"a", topic=topic, partition=partition, at=at)
        for about, spared in {
            (topic, partition, at): False,
            (topic, partition, at + 1): False,
            (topic, partition, max(0, at - 1)): at > 0,
            (topic, partition + 1, at): True,
            (topic + "x", partition, at): True,
            ("other", partition, at): True,
        }.items():
            park(shard, stands)
            park(shard, (b"a", "/".join(map(str, about))))
            assert (pending.get(b"a") is not None) == spared, (partition, about)
            # It must be written to its journal again, or compaction takes it.
            assert shard.client.spop(shard.keys["overtaken"]) == (b"a" if spared else None)


def test_the_copy_of_a_change_takes_the_place_of_what_it_changed(pending: Pending, shard: Shard):
    """The tombstone must be about the copy, which is what the journal says last."""
    for id, moved, seen in ((b"a", True, ""), (b"b", False, "3")):
        park(shard, schedule(id, due_ms=5, at=1))
        shard.client.zadd(shard.keys["changes"], {b"c-" + id: 1})
        copy = schedule(id, due_ms=9, at=2)
        if moved:
            assert pending.move(id, due_ms=9)
        else:
            pending.cancel(id)  # as if delivered
        assert copy.origin is not None
        ends = [(f"{copy.origin.topic}/0", seen, "3")]
        shard.park([id, b"c-%s|9" % id, pack(copy)], ends=ends, journal=True)
    found = pending.get(b"a")
    assert found is not None
    assert found.origin is not None
    assert (found.due_ms, found.origin.position) == (9, 2)
    assert pending.get(b"b") is None
    assert shard.client.hkeys(shard.keys["surplus"]) == [b"b"]


def test_one_holds_the_lease_until_it_lets_go(redis_url: str, space: str) -> None:
    first, second = (
        Lease(redis_url, space=space, holder=name, lease_ms=60_000) for name in ("a", "b")
    )
    assert first.acquire()
    assert not second.acquire()
    assert second.holder() == "a"
    first.release()
    assert second.acquire()
    second.release()


def test_who_stands_by_and_who_took_over_is_noted(redis_url: str, space: str, pending: Pending):
    """For people. What stands by no more ages out; what gives the lease back does not count."""
    names = [f"n{n:02}" for n in range(HANDOVERS_MAX + 3)]
    every = [Lease(redis_url, space=space, holder=name, lease_ms=60_000) for name in names]
    began_ms = time.time_ns() // 1_000_000
    assert every[0].acquire()
    assert every[0].acquire(), "renewed, not handed over"
    assert not any(lease.acquire() for lease in every[1:3])
    found = services(pending, now_ms=began_ms)
    assert (found.active, found.standby) == ("n00", ["n01", "n02"])
    [(since_ms, name)] = found.handovers
    assert name == "n00"
    assert since_ms >= began_ms
    assert services(pending, now_ms=began_ms + 2 * STANDBY_MS).standby == []
    every[0].release()
    assert every[1].acquire()
    every[2].release()
    found = services(pending, now_ms=began_ms)
    assert (found.active, found.standby) == ("n01", ["n02"])
    for lease in every[2:]:
        assert lease.acquire(by_force=True)
    told = [name for _, name in services(pending, now_ms=began_ms).handovers]
    assert told == names[: -1 - HANDOVERS_MAX : -1]
    for lease in every:
        lease.release()


def test_what_is_found_delivered_is_settled_and_the_rest_released(pending: Pending, shard: Shard):
    owner = pending.fence()
    batch = Batch(lane=0, run=pending.open_lane(0, owner=owner), end_ms=10)
    park(shard, *(schedule(b"%d" % n, due_ms=n) for n in range(4)))
    shard.claim(batch, owner=owner, now_ms=9, count_max=10)
    [left] = unsettled(pending)
    assert (sorted(left.ids), left.end_ms) == ([b"0", b"1", b"2", b"3"], 10)
    settle_some(left, [b"1", b"3"], owner=owner)
    pending.release_all(owner=owner)
    assert [s.id for s in pending.list(count_max=9)] == [b"0", b"2"]
    assert pending.counts()["settled"] == 2


def test_a_large_batch_is_read_in_parts_while_it_is_settled(
    pending: Pending, shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsettled_module, "LOOK_UP_COUNT_MAX", 50)
    monkeypatch.setattr(unsettled_module, "SCAN_COUNT", 10)
    owner, ids = pending.fence(), {b"%03d" % n for n in range(500)}
    run = pending.open_lane(0, owner=owner)
    park(shard, *(schedule(id) for id in ids))
    for number in (1, 2):
        batch = Batch(lane=0, run=run, end_ms=10, number=number)
        shard.claim(batch, owner=owner, now_ms=9, count_max=250)
    seen, sizes = set(), []
    for part in unsettled(pending, lane=0):
        assert all(unpack(*row).id == row[0] for row in zip(part.ids, part.packed, strict=True))
        seen |= set(part.ids)
        sizes.append(len(part.ids))
        settle_some(part, [id for id in part.ids if int(id) % 2], owner=owner)
    assert seen == ids
    assert len(sizes) >= 500 // 70
    assert max(sizes) < 100  # a step of a scan may find a few more than it was asked for
    pending.release_all(owner=owner)
    assert {s.id for s in pending.list(count_max=999)} == {id for id in ids if not int(id) % 2}


def test_beyond_the_horizon_nothing_is_kept(pending: Pending, shard: Shard) -> None:
    copy = JournalCopy(pending, owner=pending.fence())
    copy.set_horizon(100, planned_ms=100, later=0)
    park(shard, schedule(b"near", due_ms=100), schedule(b"far", due_ms=101))
    park(shard, schedule(b"moved", due_ms=50), schedule(b"moved", due_ms=500))
    assert [s.id for s in pending.list(count_max=9)] == [b"near"]
    assert pending.counts()["later"] == 2
    assert copy.horizon() == (100, 100)


def test_planning_never_overrules_what_intake_has_read_since(pending: Pending, shard: Shard):
    """Cancelled, moved away, or delivered again while the journal was read: what it says is old."""
    owner = pending.fence()
    copy = JournalCopy(pending, owner=owner)
    copy.set_horizon(100, planned_ms=100, later=7)
    copy.set_horizon(200, planned_ms=100)
    park(shard, schedule(b"newer", due_ms=160), (b"cancelled", ""), schedule(b"away", due_ms=999))
    left, stays = (schedule(n, due_ms=150, at=7) for n in (b"left", b"stays"))
    park(shard, (b"left", "s/0/7"), (b"stays", "s/0/3"))
    found = [schedule(n, due_ms=150) for n in (b"newer", b"cancelled", b"away", b"unseen")]
    found += [left, stays]
    written = script("plan")(
        shard.client,
        **shard._keys("due", "record", "state", "wake", "touched", "beyond"),
        owner=owner,
        rejected_count=0,
        rest=[
            part for s in found for part in (s.id, s.due_ms, pack(s), f"s/0/{s.origin.position}")
        ],
    )
    assert written == 2
    assert [(s.id, s.due_ms) for s in pending.list(count_max=9)] == [
        (b"stays", 150),
        (b"unseen", 150),
        (b"newer", 160),
    ]
    copy.set_horizon(300, planned_ms=100)  # the step has failed, and is taken again
    assert shard.client.sismember(shard.keys["touched"], b"newer")
    # It reads further, to where the version that was passed over stands.
    assert not shard.client.sismember(shard.keys["touched"], b"away")
    assert not shard.client.exists(shard.keys["beyond"])
    copy.set_horizon(300, planned_ms=300, later=3)
    assert pending.counts()["later"] == 3
    assert not shard.client.exists(shard.keys["touched"])


def test_planning_does_not_end_what_the_store_has_not_begun(pending: Pending, shard: Shard):
    """A store that went back meanwhile has passed over what nobody has planned."""
    copy = JournalCopy(pending, owner=pending.fence())
    copy.set_horizon(100, planned_ms=100)
    copy.begin()
    before = shard.client.dump(shard.keys["state"])
    copy.set_horizon(200, planned_ms=100)
    shard.client.restore(shard.keys["state"], 0, before, replace=True)
    park(shard, schedule(b"far", due_ms=150))
    with pytest.raises(StoreWentBack):
        copy.set_horizon(200, planned_ms=200, begun=True)
    assert copy.horizon() == (100, 100)


@pytest.mark.parametrize("end", ["complete", "horizon"])
def test_what_was_written_before_a_restart_counts_as_incomplete(pending, shard, end):
    """The server may have lost it, and yet know that it was begun."""
    copy = JournalCopy(pending, owner=pending.fence())
    copy.begin()
    copy.set_horizon(200, planned_ms=100)
    ends = {
        "complete": partial(copy.complete, {"s/0": 5}, journals="s", begun=True),
        "horizon": partial(copy.set_horizon, 200, planned_ms=200, begun=True),
    }
    shard.client.script_flush()  # as a restart does
    with pytest.raises(StoreWentBack):
        ends[end]()
    assert (copy.horizon(), copy.is_one()) == ((200, 100), False)
    copy.begin()
    ends[end]()
    assert copy.horizon() == (200, 200) or copy.is_one()


def test_an_old_owner_can_neither_plan_nor_move_the_horizon(pending: Pending, shard: Shard):
    old = JournalCopy(pending, owner=pending.fence())
    pending.fence()
    with pytest.raises(Fenced):
        old.set_horizon(1, planned_ms=1)
    with pytest.raises(Fenced):
        old.complete({}, journals="x")


def test_emptying_takes_one_inbox_and_leaves_the_others(pending: Pending, shard: Shard) -> None:
    copy = JournalCopy(pending, owner=pending.fence())
    park(shard, *(schedule(b"%d" % n, due_ms=n, topic="st"[n % 2]) for n in range(2_000)))
    copy.empty(["s"])
    assert pending.counts()["pending"] == 1_000
    assert all(s.origin and s.origin.topic == "t" for s in pending.list(count_max=1_000))
    copy.complete({"s/0": 5}, journals="s=1")
    assert copy.stands_for("s=1")
    assert not copy.stands_for("s=2")
    assert shard.seen() == {"s/0": 5}
    copy.forget()
    assert not copy.is_one()


def test_what_is_held_is_found_by_nobody_until_it_is_let_go(pending: Pending, shard: Shard):
    owner = pending.fence()
    batch = Batch(lane=0, run=pending.open_lane(0, owner=owner), end_ms=10)
    park(shard, schedule(b"a", due_ms=1))
    hold(pending, owner=owner)
    assert shard.claim(batch, owner=owner, now_ms=5, count_max=9).ids == []
    wake = shard.wake()
    shard.mark("state", {"held": ""}, word="let_go")
    assert wake.wait(1_000)
    wake.close()
    assert shard.claim(batch, owner=owner, now_ms=5, count_max=9).ids == [b"a"]


def test_a_shard_that_forgot_a_step_of_the_horizon_is_noticed(redis_url: str, space: str) -> None:
    """A later step would not write what that one had."""
    pending = Pending.open(redis_url, space=space, shards=2)
    copy, second = JournalCopy(pending, owner=pending.fence()), pending.shards[1]
    assert copy.is_even()
    copy.set_horizon(100, planned_ms=100)
    before = second.state()
    copy.set_horizon(200, planned_ms=100)
    assert copy.is_even(), "a step is under way"
    second.mark("state", {"horizon": before["horizon"], "planned": before["planned"]})
    assert copy.is_even(), "it has not begun there"
    copy.set_horizon(200, planned_ms=100)
    copy.begin()
    copy.set_horizon(200, planned_ms=200, begun=True)
    assert copy.is_even()
    second.mark("state", {"horizon": before["horizon"], "planned": before["planned"]})
    assert not copy.is_even()
