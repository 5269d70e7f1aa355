"""The store's verbs, on a real Redis, against a model, with crashes between any two steps."""

import dataclasses
import uuid

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tag_index import index_meant, index_of

from sendlater.errors import BadSettings, Fenced, StoreWentBack
from sendlater.model import Cancelled, Origin, Record, Schedule, State
from sendlater.store import Admin, Batch, Filter, Pending, Shard
from sendlater.store.codec import pack, unpack

IDS = [b"a", b"b", b"c", b"\xff\x00", "ü".encode()]
TAGS = [(), ("none",), ("order-17", "mail"), ("mail",), tuple(f"{n}" * 64 for n in range(8))]
"""The last ones are as many and as long as they may be."""
SOURCE = "inbox/0"
MANY = 120_000
"""Rows of a batch so large that one step of a scan finds nothing at its emptied beginning."""


def schedule(
    schedule_id: bytes, due_ms: int, payload: bytes = b"v", tags: tuple[str, ...] = ()
) -> Schedule:
    origin = Origin(topic="inbox", partition=0, position=7, timestamp_ms=1)
    return Schedule(
        id=schedule_id,
        due_ms=due_ms,
        record=Record(topic="t", key=None, value=payload, headers=[("h", None), ("h", b"2")]),
        dialect="headers",
        origin=origin,
        tags=tags,
    )


def row(
    schedule_id: bytes, due_ms: int | None, payload: bytes = b"v", tags: tuple[str, ...] = ()
) -> list[object]:
    if due_ms is None:
        return [schedule_id, "", ""]
    return [schedule_id, due_ms, pack(schedule(schedule_id, due_ms, payload, tags))]


@pytest.fixture
def pending(redis_url: str, space: str) -> Pending:
    return Pending.open(redis_url, space=space, shards=2)


@pytest.fixture
def lane(pending: Pending) -> tuple[int, Batch]:
    owner = pending.fence()
    return owner, Batch(lane=0, run=pending.open_lane(0, owner=owner), end_ms=10)


def test_a_schedule_comes_back_as_it_was_put(pending: Pending) -> None:
    put = schedule(b"\xff\x00id", 2**52 - 1, b"\x00\xff")
    pending.put(put)
    assert pending.get(put.id) == put


def test_keys_null_and_empty_are_kept_apart() -> None:
    for key in (None, b""):
        record = dataclasses.replace(schedule(b"a", 1).record, key=key)
        once = dataclasses.replace(schedule(b"a", 1), record=record)
        packed = b"\xcf" + (1).to_bytes(8, "big") + pack(once)
        assert unpack(b"a", packed).record.key == key


def test_claiming_a_batch_again_gives_the_same_rows(shard: Shard, lane: tuple[int, Batch]) -> None:
    """Spark asks twice after a crash; what fell due in between must wait its turn."""
    owner, batch = lane
    shard.park([*row(b"second", 2), *row(b"first", 1)])
    got = shard.claim(batch, owner=owner, now_ms=5, count_max=10)
    shard.park(row(b"third", 3))
    assert got.ids == [b"first", b"second"]
    assert shard.claimed(batch) == got


def test_nothing_is_claimed_before_it_is_due(shard: Shard, lane: tuple[int, Batch]) -> None:
    owner, batch = lane
    shard.park(row(b"a", 6))
    got = shard.claim(batch, owner=owner, now_ms=5, count_max=10)
    assert got.ids == []
    assert got.next_due_ms == 6


def test_a_position_is_taken_once(shard: Shard) -> None:
    """Reading an inbox twice parks once."""
    shard.park(row(b"a", 1), ends=[(SOURCE, "", "5")])
    with pytest.raises(StoreWentBack):
        shard.park(row(b"a", 9), ends=[(SOURCE, "", "5")])
    assert shard.seen() == {SOURCE: 5}


def test_an_old_owner_can_do_no_harm(pending: Pending, shard: Shard) -> None:
    old = pending.fence()
    batch = Batch(lane=0, run=pending.open_lane(0, owner=old), end_ms=10)
    shard.park(row(b"a", 1))
    new = pending.fence()
    assert new > old
    with pytest.raises(Fenced):
        shard.claim(batch, owner=old, now_ms=5, count_max=10)
    with pytest.raises(Fenced):
        shard.park(row(b"a", 9), owner=str(old))
    with pytest.raises(Fenced):
        pending.open_lane(0, owner=old)


def test_a_task_of_a_dead_run_claims_nothing(shard: Shard, pending: Pending) -> None:
    owner = pending.fence()
    dead = Batch(lane=0, run=pending.open_lane(0, owner=owner), end_ms=10)
    pending.open_lane(0, owner=owner)
    shard.park(row(b"a", 1))
    with pytest.raises(Fenced):
        shard.claim(dead, owner=owner, now_ms=5, count_max=10)


def test_draining_stops_claims_and_a_new_start_lifts_it(pending: Pending, shard: Shard) -> None:
    owner = pending.fence()
    batch = Batch(lane=0, run=pending.open_lane(0, owner=owner), end_ms=10)
    shard.park(row(b"a", 1))
    pending.drain(owner=owner)
    assert shard.claim(batch, owner=owner, now_ms=5, count_max=10).draining
    assert pending.draining(owner=owner)
    owner = pending.fence()
    assert not pending.draining(owner=owner)


def test_a_release_of_many_rows_ends(pending: Pending, shard: Shard) -> None:
    """More rows than one release call moves."""
    owner = pending.fence()
    batch = Batch(lane=0, run=pending.open_lane(0, owner=owner), end_ms=10)
    for first in range(0, MANY, 1_000):
        shard.park([part for n in range(first, first + 1_000) for part in row(b"%d" % n, n)])
    while shard.claim(batch, owner=owner, now_ms=MANY, count_max=1_000).ids:
        pass
    assert pending.counts()["claimed"] == MANY
    pending.release_all(owner=owner)
    assert pending.counts()["pending"] == MANY
    assert shard.batches() == {}


def test_a_waiting_task_is_woken_by_something_earlier(shard: Shard) -> None:
    shard.park(row(b"late", 100))
    wake = shard.wake()
    shard.park(row(b"later", 200))
    assert not wake.wait(1)
    shard.park(row(b"early", 50))
    assert wake.wait(1_000)
    assert not wake.wait(1)
    shard.park(row(b"earliest", 40))
    assert wake.wait(1_000)
    wake.close()


def test_pages_follow_due_order_over_shards_and_ties(pending: Pending) -> None:
    """Many ids share one due time; a page ends and begins inside them."""
    names = [b"%03d" % n for n in range(300)]
    for name in names:
        pending.put(schedule(name, 7 if name < b"250" else 8))
    found, after = [], None
    while True:
        page = Admin(pending).page(Filter(), count_max=7, after=after)
        found += [one.id for one in page.schedules]
        after = page.after
        if after is None:
            break
    assert found == names
    assert [one.id for one in Admin(pending).all(Filter(), count_max=1_000)] == names
    assert [s.id for s in pending.list(count_max=9, from_ms=8, to_ms=8)] == names[250:259]


def test_the_histogram_counts_each_schedule_once(pending: Pending) -> None:
    for n in range(10):
        pending.put(schedule(b"%d" % n, n))
    assert pending.histogram([0, 3, 9, 10]) == [3, 6, 1]


def test_moving_changes_the_due_time_of_what_is_pending(pending: Pending) -> None:
    pending.put(schedule(b"a", 100))
    assert pending.move(b"a", due_ms=50)
    assert pending.get(b"a") == schedule(b"a", 50)
    assert not pending.move(b"nobody", due_ms=50)


def test_rows_set_aside_are_neither_delivered_nor_lost(
    pending: Pending, shard: Shard, lane: tuple[int, Batch]
) -> None:
    owner, batch = lane
    shard.park([*row(b"good", 1), *row(b"odd", 2)])
    shard.claim(batch, owner=owner, now_ms=5, count_max=10)
    shard.set_aside(batch, [b"odd"])
    assert shard.settle(batch.name) == 1
    [odd] = [unpack(i, packed) for i, packed in shard.aside(count_max=10)[1].items()]
    assert odd == schedule(b"odd", 2)
    shard.readmit(odd, owner=owner)
    assert shard.aside(count_max=10) == (0, {})
    assert pending.counts()["pending"] == 1


@pytest.mark.parametrize("timestamp_ms", [-(2**62), -(2**40), -200, -1, 0, 2**62])
def test_a_version_is_found_whatever_the_timestamp_behind_it(
    shard: Shard, timestamp_ms: int
) -> None:
    """Producers write timestamps; and one that names no topic does not keep Redis looking."""
    origin = Origin(topic="inbox", partition=3, position=7, timestamp_ms=timestamp_ms)
    put = dataclasses.replace(schedule(b"a", 1), origin=origin)
    for version, stands in ((b"/3/7", 1), (b"inbox/3/6", 1), (b"/", 1), (b"inbox/3/7", 0)):
        shard.park([b"a", 1, pack(put), b"a", "", version])
        assert shard.client.hlen(shard.keys["record"]) == stands, version


def test_a_space_keeps_its_number_of_shards(redis_url: str, space: str) -> None:
    Pending.open(redis_url, space=space, shards=2).require_layout()
    with pytest.raises(BadSettings, match="laid out with 2"):
        Pending.open(redis_url, space=space, shards=3).require_layout()


class StoreMachine(RuleBasedStateMachine):
    """Two shards, one inbox, two lanes; a crash can come between any two steps."""

    redis_url = ""

    @initialize()
    def begin(self) -> None:
        space = f"m{uuid.uuid4().hex}"
        self.pending = Pending.open(self.redis_url, space=space, shards=2)
        self.inbox: list[tuple[bytes, int | None, tuple[str, ...]]] = []
        self.now_ms = 0
        self.waiting: dict[bytes, int] = {}
        self.batches: dict[str, dict[bytes, int]] = {}
        self.overtaken: set[tuple[str, bytes]] = set()
        self.delivered, self.ended = 0, [0, 0]
        self.start()

    def start(self) -> None:
        """A new process: fence, release, open; the model puts unsettled rows back."""
        self.owner = self.pending.fence()
        self.pending.release_all(owner=self.owner)
        for batch in list(self.batches):
            self.put_back(batch)
        self.runs = [self.pending.open_lane(n, owner=self.owner) for n in range(2)]

    @rule(id=st.sampled_from(IDS), due=st.none() | st.integers(0, 50), tags=st.sampled_from(TAGS))
    def produce(self, id: bytes, due: int | None, tags: tuple[str, ...]) -> None:
        self.inbox.append((id, due, tags))

    @rule(crash_after=st.none() | st.integers(0, 1))
    def take_in(self, crash_after: int | None) -> None:
        """One chunk of intake; it may die after a shard."""
        start = self.pending.positions().get(SOURCE, 0)
        for number, shard in enumerate(self.pending.shards):
            before = str(shard.seen().get(SOURCE, ""))
            rows: list[object] = []
            for at, (name, due, tags) in enumerate(self.inbox):
                mine = self.pending.shard_of(name) is shard
                if at >= start and at >= int(before or 0) and mine:
                    rows += row(name, due, tags=tags)
                    self.overtaken |= {
                        (b, name) for b, rows in self.batches.items() if name in rows
                    }
                    if due is None:
                        self.waiting.pop(name, None)
                    else:
                        self.waiting[name] = due
            ends = [(SOURCE, before, str(len(self.inbox)))]
            shard.park(rows, owner=str(self.owner), ends=ends)
            if crash_after == number:
                self.start()
                return

    @rule(lane=st.integers(0, 1), shard=st.integers(0, 1), count=st.integers(1, 3))
    def claim(self, lane: int, shard: int, count: int) -> None:
        batch = Batch(lane, self.runs[lane], end_ms=self.ended[lane])
        owned = self.pending.shards[shard]
        got = owned.claim(batch, owner=self.owner, now_ms=self.now_ms, count_max=count)
        due = sorted(
            (due, name)
            for name, due in self.waiting.items()
            if due <= self.now_ms and self.pending.shard_of(name) is owned
        )
        assert got.ids == [name for _, name in due[:count]]
        for due_ms, name in due[:count]:
            self.batches.setdefault(batch.name, {})[name] = due_ms
            del self.waiting[name]

    @rule(lane=st.integers(0, 1), twice=st.booleans())
    def settle(self, lane: int, twice: bool) -> None:
        batch = Batch(lane, self.runs[lane], end_ms=self.ended[lane])
        rows = self.batches.pop(batch.name, {})
        assert self.pending.settle(batch) == len(rows)
        if twice:
            assert self.pending.settle(batch) == 0
        self.delivered += len(rows)
        self.ended[lane] += 1

    @rule(lane=st.integers(0, 1))
    def restart_lane(self, lane: int) -> None:
        self.runs[lane] = self.pending.open_lane(lane, owner=self.owner)
        for name in [n for n in self.batches if n.startswith(f"{lane}:")]:
            self.put_back(name)

    def put_back(self, batch: str) -> None:
        """A batch is released: all that was not written again or cancelled since its claim."""
        rows = self.batches.pop(batch)
        standing = {n: due for n, due in rows.items() if (batch, n) not in self.overtaken}
        self.waiting = standing | self.waiting

    @rule(id=st.sampled_from(IDS))
    def cancel(self, id: bytes) -> None:
        expected = Cancelled.UNKNOWN
        if id in self.waiting:
            expected = Cancelled.CANCELLED
            del self.waiting[id]
        elif any(id in rows for rows in self.batches.values()):
            expected = Cancelled.DELIVERING
        assert self.pending.cancel(id) == expected

    @rule(id=st.sampled_from(IDS), due=st.integers(0, 50))
    def move(self, id: bytes, due: int) -> None:
        assert self.pending.move(id, due_ms=due) == (id in self.waiting)
        if id in self.waiting:
            self.waiting[id] = due

    @rule(by=st.integers(1, 20))
    def time_passes(self, by: int) -> None:
        self.now_ms += by

    @precondition(lambda self: self.now_ms > 0)
    @rule()
    def crash(self) -> None:
        self.start()

    @invariant()
    def store_and_model_agree(self) -> None:
        if not hasattr(self, "pending"):
            return
        assert index_of(self.pending) == index_meant(self.pending)
        counts = self.pending.counts()
        assert counts["pending"] == len(self.waiting)
        assert counts["claimed"] == sum(len(rows) for rows in self.batches.values())
        assert counts["settled"] == self.delivered
        listed = self.pending.list(count_max=100)
        assert [(s.due_ms, s.id) for s in listed] == sorted(
            (due, name) for name, due in self.waiting.items()
        )
        for name in IDS:
            found = self.pending.get(name)
            claimed = any(name in rows for rows in self.batches.values())
            if name in self.waiting:
                assert found is not None
                assert found.state is State.PENDING
            else:
                assert (found is not None) == claimed


def test_every_verb_matches_the_model_through_crashes(redis_url: str) -> None:
    StoreMachine.redis_url = redis_url
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
