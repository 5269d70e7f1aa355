"""Conditions on a journal: what was decided stands, whatever becomes of Redis."""

import os
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sendlater.clock import FixedClock
from sendlater.config import Inbox, Settings
from sendlater.dialects import names
from sendlater.dialects.recurrence import make_plan, read_text
from sendlater.model import Origin, Record, Schedule
from sendlater.spark.delivery.recurring import advanced
from sendlater.spark.journal import rewrite as rewriting
from sendlater.spark.journal.fill_tasks import FillTask
from sendlater.spark.journal.rewrite import bury_surplus, rescue_overtaken
from sendlater.store import Batch, Pending
from sendlater.store.codec import pack, unpack
from sendlater.store.rebuild import JournalCopy

DUE = {"early": 1_000, "middle": 2_000, "late": 3_000}


@dataclass
class Entry:
    """A record of the journal: a schedule (of `version`, if it is a copy), or a null."""

    id: bytes
    value: bytes | None
    due_ms: int = 0
    only_if: str = ""
    version: int | None = None
    done: int | None = None


class World:
    """A journal of one partition, a store of one shard, and a service in fits and starts."""

    def __init__(self, url: str, space: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings = Settings(
            bootstrap_servers="unused:1", inboxes=(Inbox(topic="s", journal=True),), space=space
        )
        self.url, self.space = url, space
        self.log: list[Entry | None] = []
        self.arrived: Counter[bytes] = Counter()
        self.open: list[tuple[Batch, list[Schedule]]] = []
        self.sent: set[tuple[bytes, int]] = set()
        self.number = self.held = 0
        self._open_store()
        monkeypatch.setattr(rewriting, "_write", self._written)
        monkeypatch.setattr(rewriting, "REWRITE_AHEAD_MS", -1_000_000)

    def _open_store(self) -> None:
        self.pending = Pending.open(self.url, space=self.space, shards=1)
        [self.shard] = self.pending.shards
        self.owner = self.pending.fence()
        self.run = self.pending.open_lane(0, owner=self.owner)

    # --- what people write -----------------------------------------------------------------------

    def put(self, value: bytes, *, due_ms: int = 2_000, only_if: str = "", id: bytes = b"a") -> int:
        self.log.append(Entry(id, value, due_ms, only_if))
        return len(self.log) - 1

    def cancel(self, id: bytes = b"a") -> None:
        self.log.append(Entry(id, None))

    def _written(self, _: Any, records: Any) -> dict[int, Any]:
        for record in records:
            told = dict(record.headers)
            version = (told.get(names.AGAIN) or told[names.ORIGIN]).decode().rpartition("/")[2]
            assert names.IF not in told
            if record.value is None:
                self.log.append(Entry(record.key, None, done=int(version)))
            else:
                due_ms = int(told[names.DUE_MS])
                self.log.append(Entry(record.key, record.value, due_ms, version=int(version)))
        return {}

    # --- what the service does -------------------------------------------------------------------

    def _row(self, at: int, entry: Entry) -> list[Any]:
        if entry.value is None:
            return [entry.id, "", "" if entry.done is None else f"s/0/{entry.done}"]
        due: Any = entry.due_ms
        if entry.only_if:
            due = f"if {entry.only_if}|{due}"
        if entry.version is not None:
            due = f"again s/0/{entry.version}|{due}"
        return [entry.id, due, pack(self._schedule(at, entry))]

    def _schedule(self, at: int, entry: Entry) -> Schedule:
        origin = Origin(topic="s", partition=0, position=at, timestamp_ms=10_000 + at)
        record = Record(topic="t", value=entry.value, headers=[("h", b"1"), ("g", None)])
        return Schedule(
            id=entry.id, due_ms=entry.due_ms, record=record, dialect="headers", origin=origin
        )

    def seen(self) -> int:
        return self.shard.seen().get("s/0", 0)

    def read(self, count: int = 10**6) -> None:
        """Intake reads some records, in one call."""
        at = self.seen()
        end = min(len(self.log), at + count)
        rows = [
            part
            for n, entry in enumerate(self.log[at:end], at)
            if entry is not None
            for part in self._row(n, entry)
        ]
        before = self.shard.client.hget(self.shard.keys["seen"], "s/0") or b""
        ends = [("s/0", before.decode(), str(end))]
        self.shard.park(rows, owner=str(self.owner), ends=ends, journal=True)

    def look_after(self) -> None:
        rescue_overtaken(self.settings, self.pending, clock=FixedClock(0))
        bury_surplus(self.settings, self.pending)

    def settle_down(self) -> None:
        """Everything is read, also what the service writes because of it."""
        for _ in range(20):
            self.read()
            self.look_after()
            left = self.shard.client.exists(self.shard.keys["overtaken"])
            if self.seen() == len(self.log) and not left:
                break
        else:
            raise AssertionError("it goes round in circles")

    def claim(self, now_ms: int) -> None:
        if self.seen() < self.held:
            return  # a start delivers nothing before it has read what was there
        self.number += 1
        batch = Batch(0, self.run, now_ms, self.number)
        got = self.shard.claim(batch, owner=self.owner, now_ms=now_ms, count_max=9)
        rows = [unpack(i, row) for i, row in zip(got.ids, got.packed, strict=True)]
        self.open.append((batch, rows))

    def deliver(self) -> None:
        """What was claimed arrives, and its tombstones do."""
        for _, rows in self.open:
            for one in rows:
                self.arrived[one.record.value or b""] += 1
                assert one.origin is not None
                self.sent.add((one.id, one.origin.position))
                self.log.append(Entry(one.id, None, done=one.origin.position))
            rows.clear()

    def settle(self) -> None:
        for batch, _ in self.open:
            self.pending.settle(batch)
        self.open.clear()

    def crash(self) -> None:
        """Another service starts: it looks up what was sent, and puts the rest back."""
        self.open.clear()
        self._open_store()
        for batch in self.shard.client.hkeys(self.shard.keys["batches"]):
            key = self.shard.keys["batches"] + ":" + batch.decode()
            for i, packed in self.shard.client.hgetall(key).items():
                found = unpack(i, b"\xcf" + packed[1:]).origin
                assert found is not None
                if (i, found.position) in self.sent:
                    self.shard.client.hdel(key, i)
        self.pending.release_all(owner=self.owner)
        self.held = len(self.log)

    # --- what becomes of Redis -------------------------------------------------------------------

    def standing(self) -> tuple[dict[bytes, tuple[int, int, Entry]], int]:
        """As spark/journal/standing.py, and where intake goes on."""
        last: dict[bytes, tuple[int, int, Entry]] = {}
        done: dict[bytes, int] = {}
        asked = [(n, e) for n, e in enumerate(self.log) if e and e.only_if]
        for at, entry in enumerate(self.log):
            if entry is None or entry.only_if:
                continue
            if entry.done is not None:
                done[entry.id] = max(done.get(entry.id, -1), entry.done)
            else:
                version = at if entry.version is None else entry.version
                if (version, at) >= last.get(entry.id, (-1, -1))[:2]:
                    last[entry.id] = (version, at, entry)
        decided = {i: max(last.get(i, (-1,))[0], done.get(i, -1)) for i in {*last, *done}}
        first = [n for n, e in asked if n > decided.get(e.id, -1)]
        stands = {
            i: found
            for i, found in last.items()
            if found[2].value is not None and found[0] > done.get(i, -1)
        }
        return stands, min(first, default=len(self.log))

    def rebuild(self, *, keeps: bool = False) -> None:
        """FLUSHALL, and the store is filled from the journal. Or it `keeps` all that is not filled
        again, as by `sendlater rebuild`, or where a journal is added."""
        if keeps:
            self.crash()
            copy = JournalCopy(self.pending, owner=self.owner)
            copy.forget_seen(["s"])
            copy.empty(["s"])
            copy.forget_changes()
        else:
            self.lose()
        stands, end = self.standing()
        rows: list[Any] = []
        for i, (version, _, entry) in stands.items():
            packed = pack(self._schedule(version, entry))
            rows += (i, entry.due_ms, packed, f"s/0/{version}")
        task = FillTask(redis_url=self.url, space=self.space, shards=1, owner=self.owner)
        task._write(self.pending, 0, rows, 0)
        JournalCopy(self.pending, owner=self.owner).complete({"s/0": end}, journals="s")

    def lose(self) -> None:
        for key in self.shard.client.scan_iter(f"*{self.space}*"):
            self.shard.client.delete(key)
        self.open.clear()
        self._open_store()
        self.held = len(self.log)

    def snapshot(self) -> dict[bytes, bytes]:
        client = self.shard.client
        return {key: client.dump(key) for key in client.scan_iter(f"*{self.space}*")}

    def go_back(self, snapshot: dict[bytes, bytes]) -> None:
        self.lose()
        client = self.shard.client
        for key in client.scan_iter(f"*{self.space}*"):
            client.delete(key)
        for key, value in snapshot.items():
            client.restore(key, 0, value)
        self.crash()

    def compact(self) -> None:
        last = {entry.id: at for at, entry in enumerate(self.log) if entry}
        self.log = [e if e and last[e.id] == at else None for at, e in enumerate(self.log)]

    def agree(self) -> None:
        """The store and its journal say the same, and everything is decided."""
        on_journal, end = self.standing()
        found = {i: (e.value, e.due_ms) for i, (_, _, e) in on_journal.items()}
        stands = self.stands()
        assert found == ({} if stands is None else {b"a": stands}), self.log
        assert end == len(self.log), self.log

    def step(self, word: str, number: int, value: bytes, kept: Any) -> Any:
        due_ms = number * 1_000
        standing = self.pending.get(b"a")
        match word:
            case "absent" | "earlier" | "later" | "once":
                self.put(value, due_ms=due_ms, only_if=word)
            case "version" if standing is not None:
                self.put(value, due_ms=due_ms, only_if=f"version={standing.version}")
            case "plain":
                self.put(value, due_ms=due_ms)
            case "cancel":
                self.cancel()
            case "read":
                self.read(number)
            case "claim":
                self.claim(due_ms)
            case "deliver":
                self.deliver()
            case "settle":
                self.deliver()
                self.settle()
            case "crash":
                self.crash()
            case "look after" if self.seen() >= self.held:
                self.look_after()
            case "snapshot":
                return self.snapshot()
            case "compact" if self.standing()[1] == len(self.log):
                self.compact()
                return None  # a store goes back by moments only, compaction takes longer
            case "rebuild" | "refill" | "go back":
                back = word == "go back" and kept is not None
                kept = kept if back else None  # a Redis that was wiped does not go back
                idle = not self.open
                if idle:
                    self.settle_down()
                before = self.stands()
                if back:
                    self.go_back(kept)
                else:
                    self.rebuild(keeps=word == "refill")
                self.settle_down()
                if idle:
                    assert self.stands() == before, self.log
                self.agree()
        return kept

    def stands(self, id: bytes = b"a") -> tuple[bytes | None, int] | None:
        found = self.pending.get(id)
        return None if found is None else (found.record.value, found.due_ms)


@pytest.fixture
def world(redis_url: str, space: str, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(redis_url, space, monkeypatch)


CASES = [
    *[(word, None, 2_000, word != "version=0") for word in ("absent", "earlier", "later", "once")],
    ("version=0", None, 2_000, False),
    ("absent", 2_000, 1_000, False),
    ("once", 2_000, 1_000, False),
    ("earlier", 2_000, 1_000, True),
    ("earlier", 2_000, 2_000, False),
    ("later", 2_000, 3_000, True),
    ("later", 2_000, 1_000, False),
    ("version=0", 2_000, 1_000, False),
    ("version", 2_000, 1_000, True),
]
STAGES = ["undecided", "unwritten", "written", "read", "compacted"]


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("only_if", "standing_ms", "due_ms", "met"), CASES)
def test_what_was_decided_stands_in_a_store_that_is_filled_again(
    world: World,
    only_if: str,
    standing_ms: int | None,
    due_ms: int,
    met: bool,
    stage: str,
    keeps: bool,
) -> None:
    if standing_ms is not None:
        world.put(b"old", due_ms=standing_ms)
        world.read()
    if only_if == "version":
        found = world.pending.get(b"a")
        assert found is not None
        only_if = f"version={found.version}"
    world.put(b"new", due_ms=due_ms, only_if=only_if)
    old = None if standing_ms is None else (b"old", standing_ms)
    expected = (b"new", due_ms) if met else old
    if stage != "undecided":
        world.read()
        assert world.stands() == expected
        assert world.pending.counts()["unmet"] == (not met)
    if stage in ("written", "compacted"):
        world.look_after()
    if stage in ("read", "compacted"):
        world.settle_down()
        assert world.pending.counts()["unmet"] == (not met)
    if stage == "compacted":
        world.compact()
    for _ in range(2):
        world.rebuild(keeps=keeps)
        world.settle_down()
        assert world.stands() == expected
    assert world.standing()[1] == len(world.log), "decided"
    # It leaves nothing behind.
    world.claim(9_000)
    world.deliver()
    world.settle()
    world.settle_down()
    world.rebuild(keeps=keeps)
    world.settle_down()
    assert world.stands() is None
    assert world.arrived == ({expected[0]: 1} if expected else {})


def test_of_two_that_ask_for_once_the_second_stays_the_second(world: World) -> None:
    """Whatever is read once more, in a store that kept what it knew."""
    world.put(b"first", only_if="once")
    world.put(b"second", due_ms=1_000, only_if="once")
    world.read()
    assert world.stands() == (b"first", 2_000)
    world.rebuild(keeps=True)
    world.settle_down()
    assert world.stands() == (b"first", 2_000)
    world.claim(9_000)
    world.deliver()
    world.settle()
    world.put(b"third", only_if="once")
    world.read()
    world.rebuild(keeps=True)
    world.settle_down()
    assert world.stands() is None
    assert world.arrived == {b"first": 1}
    world.agree()


@pytest.mark.parametrize("again", [False, True])
def test_what_was_asked_for_once_comes_once(world: World, again: bool) -> None:
    """Also in a store that goes back and reads both again."""
    world.put(b"first", only_if="once")
    world.settle_down()
    kept = world.snapshot()
    world.claim(9_000)
    world.deliver()
    world.settle()
    world.put(b"second", only_if="once")
    world.settle_down()
    if again:
        world.go_back(kept)
        world.settle_down()
    world.agree()
    assert world.stands() is None
    world.claim(9_000)
    world.deliver()
    assert world.arrived == {b"first": 1}


@pytest.mark.parametrize("arrives", [False, True])
def test_what_was_being_delivered_leaves_or_takes_the_place_of_the_record(
    world: World, arrives: bool
) -> None:
    """It is told only when it is known which of the two."""
    world.put(b"old", due_ms=1_000)
    world.read()
    world.claim(1_000)
    world.put(b"new", only_if="absent")
    world.settle_down()
    assert len(world.log) == 2
    if arrives:
        world.deliver()
    world.crash()
    world.settle_down()
    world.agree()
    assert world.stands() == (None if arrives else (b"old", 1_000))
    assert world.pending.counts()["unmet"] == 1
    world.compact()
    world.rebuild()
    world.settle_down()
    assert world.stands() == (None if arrives else (b"old", 1_000))


def test_what_was_put_back_and_delivered_is_so_in_a_store_that_forgot_both(world: World) -> None:
    world.put(b"old", due_ms=1_000)
    world.read()
    world.claim(1_000)
    world.put(b"new", only_if="absent")
    world.settle_down()
    kept = world.snapshot()
    world.crash()
    world.settle_down()
    world.claim(1_000)
    world.deliver()
    world.settle()
    world.go_back(kept)
    world.settle_down()
    world.agree()
    assert world.stands() is None
    assert world.arrived == {b"old": 1}


def test_what_is_set_aside_keeps_its_place_too(world: World) -> None:
    world.put(b"old", due_ms=1_000)
    world.read()
    world.claim(1_000)
    world.shard.set_aside(world.open[0][0], [b"a"])
    world.put(b"new", only_if="absent")
    world.settle_down()
    world.agree()
    [(_, packed)] = world.shard.aside(count_max=9)[1].items()
    found = unpack(b"a", packed)
    assert found.origin is not None
    assert (found.record.value, found.due_ms, found.origin.position) == (b"old", 1_000, 1)


def test_of_many_in_one_call_each_is_decided_by_those_before_it(world: World) -> None:
    for n, (due_ms, only_if) in enumerate(
        [(3, "absent"), (2, "later"), (4, "later"), (1, "absent"), (2, "earlier"), (9, "version=0")]
    ):
        world.put(b"%d" % n, due_ms=due_ms, only_if=only_if)
    world.put(b"other", id=b"b", only_if="later")
    world.read()
    assert (world.stands(), world.stands(b"b")) == ((b"4", 2), (b"other", 2_000))
    assert world.pending.counts()["unmet"] == 3
    world.settle_down()
    assert len(world.log) == 9, "one copy of each id"
    assert [entry.version for entry in world.log[7:] if entry] in ([5, 6], [6, 5])


@pytest.mark.parametrize("only_if", ["absent", "later"])
def test_what_is_read_once_more_is_neither_decided_nor_counted_again(
    world: World, only_if: str
) -> None:
    world.put(b"old", due_ms=1_000)
    world.read()
    world.put(b"new", due_ms=2_000, only_if=only_if)
    world.settle_down()
    stood, end = world.stands(), len(world.log)
    world.shard.client.hset(world.shard.keys["seen"], "s/0", "1")
    world.settle_down()
    assert (world.stands(), len(world.log)) == (stood, end)
    assert world.pending.counts()["unmet"] == (only_if == "absent")


def test_what_recurs_keeps_its_plan_and_goes_on_from_it(world: World) -> None:
    """Also where an occurrence has left its copy that a store has forgotten."""
    plan = make_plan(now_ms=0, every_ms=60_000)
    first = world._schedule(0, Entry(b"a", b"v", plan.due_ms(b"a")))
    first = replace(first, plan=plan.text, tags=("order:7",))
    found = advanced(first, now_ms=first.due_ms, journals=["s"])
    again = found.again
    assert again is not None
    planned = read_text(again.plan).planned_ms
    asked = world._schedule(1, Entry(b"a", b"new"))
    rows = [b"a", first.due_ms, pack(first), b"a", "if absent|2000", pack(asked)]
    world.shard.park(rows, journal=True)
    world.shard.park([b"a", f"again s/0/0 {planned} 0|{again.due_ms}", pack(again)], journal=True)
    stands = world.pending.get(b"a")
    assert stands is not None
    assert stands.origin is not None
    assert (stands.due_ms, stands.plan, stands.tags) == (again.due_ms, again.plan, again.tags)
    assert stands.origin.position == 1
    assert [one.due_ms for one in world.pending.list(count_max=9, tag="order:7")] == [again.due_ms]


WORDS = ["absent", "earlier", "later", "version", "plain", "cancel", "read", "claim", "deliver"]
WORDS += ["once", "settle", "crash", "look after", "rebuild", "compact", "snapshot", "go back"]
WORDS += ["refill"]
STEPS = st.lists(st.tuples(st.sampled_from(WORDS), st.integers(1, 5)), max_size=25)


@settings(
    max_examples=int(os.environ.get("EXAMPLES", "150")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=STEPS)
def test_in_any_history_the_store_and_its_journal_agree(redis_url, steps):
    with pytest.MonkeyPatch.context() as patch:
        world = World(redis_url, f"t{uuid.uuid4().hex[:12]}", patch)
        kept = None
        for n, (word, number) in enumerate(steps):
            kept = world.step(word, number, b"%d" % n, kept)
        world.crash()
        world.settle_down()
        world.agree()
        world.claim(9_000)
        world.deliver()
        world.settle()
        world.settle_down()
        world.agree()
        assert max(world.arrived.values(), default=0) <= 1, world.arrived
        left = ("overtaken:otherwise", "overtaken", "surplus", "due", "record")
        assert not [n for n in left if world.shard.client.exists(f"{{{world.space}:0}}:{n}")]
        world.lose()


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("asked", [1, 3])
def test_a_store_that_forgot_a_delivery_learns_it_from_the_tombstone(world, asked, copied):
    """It takes what stood for standing, and decides again once it reads that it had left."""
    world.put(b"old", due_ms=1_000)
    world.read()
    kept = world.snapshot()
    world.claim(1_000)
    for n in range(asked):
        world.put(b"%d" % n, due_ms=2_000 - n, only_if="absent")
    world.deliver()
    world.settle()
    world.read(asked)
    assert world.stands() == (b"0", 2_000)
    if copied:
        world.settle_down()
    world.go_back(kept)
    world.settle_down()
    world.agree()
    assert world.stands() == (b"0", 2_000)
    world.claim(9_000)
    world.deliver()
    assert world.arrived == {b"old": 1, b"0": 1}
