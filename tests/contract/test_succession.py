"""Handing a space over: what an heir may do before it owns, and what it gets."""

import time
import uuid

import pytest

from sendlater.errors import BadSettings, Fenced, NotSupported, StoreWentBack
from sendlater.model import Record, Schedule
from sendlater.store import Pending, succession
from sendlater.store.batch import Batch
from sendlater.store.codec import pack
from sendlater.store.lease import Lease
from sendlater.store.rebuild import hold

DUE_MS = 5


@pytest.fixture
def pending(redis_url: str, space: str) -> Pending:
    return Pending.open(redis_url, space=space, shards=2)


def put(pending: Pending, *ids: bytes) -> None:
    for id in ids:
        pending.put(Schedule(id=id, due_ms=DUE_MS, record=Record(topic="t", value=b"v")))


class Run:
    """A lane's batch of an owner, or of an heir, with one attempt at it on each shard."""

    def __init__(self, pending: Pending, owner: int) -> None:
        self.pending, self.owner = pending, owner
        self.lane = succession.lanes_of(owner)[0]
        self.run = pending.open_lane(self.lane, owner=owner)
        self.batch = Batch(self.lane, self.run, end_ms=10, number=1)
        for shard in pending.shards:
            shard.attempt(self.batch, owner=owner, attempt="a")

    def claims(self):
        return [
            shard.claim(self.batch, owner=self.owner, now_ms=9, count_max=9, attempt="a")
            for shard in self.pending.shards
        ]

    def ids(self) -> set[bytes]:
        return {id for claim in self.claims() for id in claim.ids}

    def close(self) -> None:
        for shard in self.pending.shards:
            shard.close(self.batch, owner=self.owner, attempt="a")


def test_an_heir_is_ready_and_claims_nothing_until_it_inherits(pending: Pending) -> None:
    owner = pending.fence()
    heir, follows = succession.announce(pending)
    assert (follows, succession.stands(pending, heir)) == (owner, "heir")
    mine, next_one = Run(pending, owner), Run(pending, heir)
    put(pending, b"a", b"b", b"c")
    assert all(claim.heir for claim in next_one.claims())
    assert not pending.draining(owner=heir)
    assert mine.ids() == {b"a", b"b", b"c"}, "the owner goes on"
    put(pending, b"later")

    assert succession.inherit(pending, heir, bound_stays=True)
    assert succession.stands(pending, heir) == "owner"
    with pytest.raises(Fenced):
        mine.claims()
    assert next_one.ids() == {b"later"}
    # What the first one has claimed is its own to settle.
    assert succession.foreign_lanes(pending, heir) == {mine.lane}
    assert pending.settle(mine.batch, owner=owner) == 3
    assert not succession.foreign_lanes(pending, heir)


def test_what_a_dead_owner_has_claimed_is_put_back(pending: Pending) -> None:
    mine = Run(pending, pending.fence())
    heir, _ = succession.announce(pending)
    next_one = Run(pending, heir)
    put(pending, b"a")
    assert mine.ids() == {b"a"}
    pending.arm(owner=heir)
    succession.inherit(pending, heir, bound_stays=True)
    assert next_one.ids() == set()
    succession.release_lane(pending, mine.lane, owner=heir)
    assert next_one.ids() == {b"a"}


def test_the_bound_and_a_hold_are_handed_over(pending: Pending) -> None:
    put(pending, b"a")
    for stays in (True, False):
        owner = pending.fence()
        pending.set_bound(DUE_MS - 1, owner=owner)
        heir, _ = succession.announce(pending)
        next_one = Run(pending, heir)
        succession.inherit(pending, heir, bound_stays=stays)
        assert any(claim.held for claim in next_one.claims())
        stands = [shard.state() for shard in pending.shards]
        assert all(("bound" in one) == stays and ("held" in one) != stays for one in stands)
        pending.set_bound(DUE_MS, owner=heir)
        if not stays:
            assert next_one.ids() == {b"a"}


def test_a_fence_ends_the_heir_and_has_a_higher_number(pending: Pending) -> None:
    owner = pending.fence()
    heir, _ = succession.announce(pending)
    next_one = Run(pending, heir)
    assert pending.fence() > heir > owner
    assert succession.stands(pending, heir) == ""
    assert not succession.inherit(pending, heir, bound_stays=True)
    with pytest.raises(Fenced):
        next_one.claims()


def test_owners_of_a_store_that_is_emptied_twice_in_a_second_have_different_numbers(
    pending: Pending, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    tokens = iter((uuid.UUID(int=8_000), uuid.UUID(int=1_000)))
    monkeypatch.setattr(uuid, "uuid4", lambda: next(tokens))
    first = Run(pending, pending.fence())
    for shard in pending.shards:
        shard.client.delete(*shard.keys.values())
    second = Run(pending, pending.fence())
    assert first.owner != second.owner
    put(pending, b"a")
    with pytest.raises((Fenced, StoreWentBack)):
        first.claims()
    assert second.ids() == {b"a"}


def test_a_second_heir_takes_the_place_of_the_first(pending: Pending) -> None:
    owner = pending.fence()
    first, _ = succession.announce(pending)
    succession.tell_ready(pending, first, asks=True)
    assert succession.ready_heir(pending, asking=True) == first
    second, _ = succession.announce(pending)
    assert second > first
    assert succession.ready_heir(pending) == 0, "that was the first one"
    assert not succession.ask(pending)
    assert succession.stands(pending, first) == ""
    assert not succession.inherit(pending, first, bound_stays=True)
    lanes = [set(succession.lanes_of(one)) for one in (owner, first, second)]
    assert lanes[0].isdisjoint(lanes[1])
    assert lanes[1] == lanes[2]
    succession.tell_ready(pending, second, asks=False)
    assert succession.ready_heir(pending, asking=True) == 0
    assert succession.ask(pending)
    assert succession.ready_heir(pending, asking=True) == second


def test_an_heir_that_has_inherited_one_shard_only_inherits_the_rest(pending: Pending) -> None:
    """The owner died between two shards."""
    pending.fence()
    heir, _ = succession.announce(pending)
    one = Pending(pending.clients, space=pending.space, shards=1)
    assert succession.inherit(one, heir, bound_stays=True)
    assert succession.stands(pending, heir) == "heir"
    assert succession.inherit(pending, heir, bound_stays=True)
    assert succession.stands(pending, heir) == "owner"


def test_an_heir_of_a_store_that_forgot_it_is_told_so(pending: Pending) -> None:
    pending.fence()
    heir, _ = succession.announce(pending)
    next_one = Run(pending, heir)
    for shard in pending.shards:
        shard.mark("state", {"heir": "", "owner": heir - 2})
    with pytest.raises(StoreWentBack):
        next_one.claims()
    assert succession.stands(pending, heir) == ""


def test_an_owner_that_lives_goes_on_until_it_is_dismissed(pending: Pending) -> None:
    mine = Run(pending, pending.fence())
    heir, _ = succession.announce(pending)
    next_one = Run(pending, heir)
    assert all(succession.shares(shard, heir) for shard in pending.shards)
    assert succession.inherit(pending, heir, bound_stays=True, leaves=True)
    put(pending, b"a")
    assert mine.ids() == {b"a"}
    assert not any(succession.shares(shard, mine.owner) for shard in pending.shards)
    put(pending, b"b")
    assert next_one.ids() == {b"b"}
    assert all(succession.shares(shard, heir) for shard in pending.shards)
    assert not pending.draining(owner=mine.owner)
    assert not succession.may_leave(pending, mine.owner)

    succession.dismiss(pending)
    put(pending, b"c")
    assert pending.draining(owner=mine.owner)
    assert succession.may_leave(pending, mine.owner)
    assert not any(succession.shares(shard, heir) for shard in pending.shards)
    assert all(claim.draining for claim in mine.claims())
    mine.close()
    assert next_one.ids() == {b"c"}
    assert (pending.settle(mine.batch, owner=mine.owner), mine.owner) == (1, mine.owner)


def test_who_leaves_parks_until_the_next_one_reads(pending: Pending) -> None:
    owner = pending.fence()
    heir, _ = succession.announce(pending)
    assert not succession.reads_along(pending)
    succession.inherit(pending, heir, bound_stays=True, leaves=True)
    assert succession.reads_along(pending)
    packed = pack(Schedule(id=b"a", due_ms=DUE_MS, record=Record(topic="t", value=b"v")))
    rows = [b"a", DUE_MS, packed]
    [shard, _] = pending.shards
    shard.park(rows, owner=str(owner), ends=[("in/0", "", "1")])
    succession.take_reading(pending)
    assert not succession.reads_along(pending)
    with pytest.raises(Fenced):
        shard.park(rows, owner=str(owner), ends=[("in/0", "1", "2")])
    shard.park(rows, owner=str(heir), ends=[("in/0", "1", "2")])


def test_who_leaves_only_raises_the_bound(pending: Pending) -> None:
    owner = pending.fence()
    pending.set_bound(10, owner=owner)
    heir, _ = succession.announce(pending)
    succession.inherit(pending, heir, bound_stays=True, leaves=True)

    def bounds() -> set[str | None]:
        return {shard.state().get("bound") for shard in pending.shards}

    for bound_ms, stands in ((20, "20"), (15, "20")):
        pending.set_bound(bound_ms, owner=owner)
        assert bounds() == {stands}
    hold(pending, owner=heir)
    pending.set_bound(30, owner=owner)
    assert bounds() == {None}
    assert all("held" in shard.state() for shard in pending.shards)


def test_a_hold_and_a_fence_are_for_who_leaves_too(pending: Pending) -> None:
    mine = Run(pending, pending.fence())
    heir, _ = succession.announce(pending)
    succession.inherit(pending, heir, bound_stays=True, leaves=True)
    put(pending, b"a")
    hold(pending, owner=heir)
    assert any(claim.held for claim in mine.claims())
    pending.fence()
    with pytest.raises(Fenced):
        mine.claims()


def test_a_layout_that_cannot_be_handed_over_is_refused_in_words(pending: Pending) -> None:
    succession.require_layout(pending)
    with pytest.raises(NotSupported, match="older than handovers"):
        succession.require_handover(pending)
    succession.tell_layout(pending)
    succession.require_handover(pending)
    succession.require_layout(pending)
    pending.shards[0].mark("state", {"layout": succession.LAYOUT + 1})
    with pytest.raises(NotSupported, match="stop it"):
        succession.require_handover(pending)
    with pytest.raises(BadSettings, match="newer version"):
        succession.require_layout(pending)


def test_a_space_has_several_leases(redis_url: str, space: str) -> None:
    named = {"lease_ms": 60_000, "space": space}
    active = Lease(redis_url, holder="a", **named)
    heir = Lease(redis_url, holder="b", key=succession.HEIR, **named)
    asking = Lease(redis_url, holder="c", key=succession.HEIR, **named)
    assert active.acquire()
    assert heir.acquire()
    assert heir.is_held
    assert not asking.acquire()
    assert asking.acquire(by_force=True)
    assert not heir._renew()
    assert not heir.is_held
    for lease in (active, heir, asking):
        lease.release()
