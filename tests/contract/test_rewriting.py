"""What is written to a journal again, and what the store makes of it when it is read."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError
from structlog.testing import capture_logs

from sendlater.clock import FixedClock
from sendlater.config import Inbox, Settings
from sendlater.errors import BrokerUnavailable
from sendlater.model import Origin, Record, Schedule
from sendlater.spark.journal import rewrite as rewriting
from sendlater.spark.journal.rewrite import bury_surplus, rescue_overtaken
from sendlater.store import Admin, Batch, Move, Pending
from sendlater.store.codec import pack, unpack
from sendlater.store.rebuild import JournalCopy

VERSION = "s/0/5"
TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


def schedule(*, at: int, due_ms: int = 50, value: bytes | None = None) -> Schedule:
    return Schedule(
        id=b"a",
        due_ms=due_ms,
        record=Record(topic="t", value=value or b"%d" % at),
        dialect="headers",
        origin=Origin(topic="s", partition=0, position=at, timestamp_ms=1),
    )


class Store:
    """One shard, what intake does to it, and what is written to its journal."""

    def __init__(
        self, url: str, space: str, monkeypatch: pytest.MonkeyPatch, *, shards: int = 1
    ) -> None:
        self.settings = Settings(
            bootstrap_servers="unused:1", inboxes=(Inbox(topic="s", journal=True),)
        )
        self.pending = Pending.open(url, space=space, shards=shards)
        self.shard = self.pending.shards[0]
        self.owner = self.pending.fence()
        self.written: list[Record] = []
        self.refused: dict[bytes, KafkaError | None] = {}
        monkeypatch.setattr(rewriting, "_send", self._send)

    def _send(
        self, _: Settings, records: list[Record], options: dict[str, str] | None = None
    ) -> dict[int, KafkaError | None]:
        """What the broker would do: a batch with one record that is too large is so as a whole."""
        assert all(record.key for record in records)
        left = {n: self.refused[r.key] for n, r in enumerate(records) if r.key in self.refused}
        codes = [error.code() for error in left.values() if error]
        if KafkaError.MSG_SIZE_TOO_LARGE in codes and not options:
            left = dict.fromkeys(range(len(records)), TOO_LARGE)
        self.written += [record for n, record in enumerate(records) if n not in left]
        return left

    def read(self, found: Schedule, *, copy_of: str = "", journal: bool = True) -> None:
        due = f"again {copy_of}|{found.due_ms}" if copy_of else found.due_ms
        self.shard.park([found.id, due, pack(found)], journal=journal)

    def read_change(self, change: str, copy: Schedule) -> None:
        assert copy.origin is not None
        ends = [("s/0", "", str(copy.origin.position + 1))]
        rows = [copy.id, f"{change}|{copy.due_ms}", pack(copy)]
        self.shard.park(rows, owner=str(self.owner), ends=ends, journal=True)

    def read_null(self, version: str = "") -> None:
        self.shard.park([b"a", "", version], journal=True)

    def stands(self) -> tuple[int, int] | None:
        """Due time and position of the version that is pending."""
        found = self.pending.get(b"a")
        assert found is None or found.origin is not None
        return (found.due_ms, found.origin.position) if found and found.origin else None

    def overtaken(self) -> bool:
        return bool(self.shard.client.smembers(self.shard.keys["overtaken"]))

    def surplus(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self.shard.client.hgetall(self.shard.keys["surplus"])
        return found

    def bury(self) -> list[tuple[bytes | None, object]]:
        """Tombstones written: key and version."""
        self.written.clear()
        bury_surplus(self.settings, self.pending)
        assert all(record.value is None for record in self.written)
        return [(record.key, record.headers[0][1]) for record in self.written]

    def claim(self) -> Batch:
        batch = Batch(lane=0, run=self.pending.open_lane(0, owner=self.owner), end_ms=99)
        self.shard.claim(batch, owner=self.owner, now_ms=99, count_max=9)
        return batch


@pytest.fixture
def store(redis_url: str, space: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    return Store(redis_url, space, monkeypatch)


def test_a_copy_of_what_stands_changes_nothing(store: Store) -> None:
    """Not its due time, which may have been moved meanwhile; and its tombstone ends it."""
    store.read(schedule(at=5))
    store.pending.move(b"a", due_ms=70)
    store.read(schedule(at=8), copy_of=VERSION)
    assert store.stands() == (70, 5)
    assert not store.overtaken()
    assert store.surplus() == {}
    store.read_null(VERSION)
    assert store.stands() is None


@pytest.mark.parametrize(
    ("left_ms", "change", "then"),
    [(50, "c1", (70, 5)), (70, "c1", None), (50, "", None)],
    ids=["it left before the move", "it left after the move", "no copy is to come"],
)
def test_what_is_moved_in_a_store_that_went_back_outlives_the_tombstone_of_what_had_left(
    store: Store, left_ms: int, change: str, then: tuple[int, int] | None
) -> None:
    """On the journal the copy of the change follows that tombstone, and stands."""
    store.read(schedule(at=5))
    Admin(store.pending).move(Move(b"a", 70, change=change))
    store.read_null(f"{VERSION} {left_ms}")
    assert store.stands() == then
    store.read_change("c1", schedule(at=7, due_ms=70, value=b"5"))
    if then:
        assert store.stands() == (70, 7)
        store.read_null("s/0/7 70")
        assert store.stands() is None


@pytest.mark.parametrize("copy_first", [True, False])
@pytest.mark.parametrize("left_ms", [70, 50])
def test_what_left_as_moved_does_not_come_again_in_a_store_that_forgot_both(
    store: Store, copy_first: bool, left_ms: int
) -> None:
    """The tombstone names the version before the change: only the due time tells which one left."""
    store.read(schedule(at=5))
    steps = [
        lambda: store.read_change("c1", schedule(at=7, due_ms=70, value=b"5")),
        lambda: store.read_null(f"{VERSION} {left_ms}"),
    ]
    for step in steps if copy_first else steps[::-1]:
        step()
    assert store.stands() == (None if left_ms == 70 else (70, 7))
    assert bool(store.surplus()) == (left_ms == 70 and not copy_first), "it must be buried"


def test_a_copy_never_overrules_what_was_written_before_it_landed(store: Store) -> None:
    """Compaction would keep the copy alone: what stands must be written again behind it."""
    store.read(schedule(at=5))
    store.read(schedule(at=7))
    store.read(schedule(at=8), copy_of=VERSION)
    assert store.stands() == (50, 7)
    assert store.overtaken()
    assert store.surplus() == {}


def test_a_copy_of_what_was_taken_back_is_buried(store: Store) -> None:
    store.read(schedule(at=5))
    store.read_null()
    store.read(schedule(at=8), copy_of=VERSION)
    assert store.stands() is None
    assert not store.overtaken()
    assert store.bury() == [(b"a", VERSION.encode())]
    assert store.surplus() == {}


def test_a_copy_of_what_is_on_its_way_waits_until_that_has_left(store: Store) -> None:
    store.read(schedule(at=5))
    batch = store.claim()
    store.read(schedule(at=8), copy_of=VERSION)
    assert store.bury() == []
    assert store.surplus()
    # Set aside is pending: whatever becomes of it has a tombstone of its own.
    store.shard.set_aside(batch, [b"a"])
    assert store.bury() == []
    assert store.surplus() == {}
    [(id, packed)] = store.shard.aside(count_max=9)[1].items()
    store.shard.readmit(unpack(id, packed), owner=store.owner)
    assert store.stands() == (50, 5)


def test_a_copy_is_taken_for_its_version_where_only_an_older_one_was_read(store: Store) -> None:
    """As when compaction has removed what it is a copy of."""
    store.read(schedule(at=2))
    store.read(schedule(at=8), copy_of=VERSION)
    assert store.stands() == (50, 8)


def test_the_copy_of_a_change_stays_to_be_buried_as_itself(store: Store) -> None:
    store.shard.client.zadd(store.shard.keys["changes"], {b"c": 1})
    store.shard.park([b"a", "c|50", pack(schedule(at=9))], journal=True)
    store.read(schedule(at=10), copy_of=VERSION)
    assert store.bury() == [(b"a", b"s/0/9")]


def test_copies_of_changes_leave_what_is_newer(store: Store) -> None:
    """It was acknowledged between the change in the store and its copy on the inbox."""
    moved = pack(schedule(at=9, value=b"5"))
    for seen, change, copy in (("", "move|50", moved), ("9", "cancel|", b"")):
        store.shard.client.zadd(store.shard.keys["changes"], {change.partition("|")[0]: 1})
        store.read(schedule(at=8, due_ms=60))
        store.shard.park([b"a", change, copy], ends=[("s/0", seen, "9")], journal=True)
        assert store.stands() == (60, 8)
        assert store.overtaken(), "compaction would keep only the copy"
        store.shard.client.delete(store.shard.keys["overtaken"])


def test_the_copy_of_a_move_is_what_stands_from_then_on(store: Store) -> None:
    store.shard.client.zadd(store.shard.keys["changes"], {"move": 1})
    store.read(schedule(at=8, due_ms=60))
    copy = pack(schedule(at=9, value=b"8"))
    store.shard.park([b"a", "move|60", copy], ends=[("s/0", "", "9")], journal=True)
    assert store.stands() == (60, 9)
    assert not store.overtaken()


def test_a_copy_beyond_what_is_planned_in_is_left_to_planning(store: Store) -> None:
    copy = JournalCopy(store.pending, owner=store.owner)
    copy.set_horizon(100, planned_ms=40)
    store.read(schedule(at=8), copy_of=VERSION)
    assert store.stands() is None
    assert store.surplus() == {}
    assert not store.shard.client.exists(store.shard.keys["touched"])


def test_elsewhere_than_on_a_journal_a_copy_is_a_schedule(store: Store) -> None:
    store.read(schedule(at=8), copy_of=VERSION, journal=False)
    assert store.stands() == (50, 8)


@pytest.mark.parametrize("others", [DENIED, TOO_LARGE])
def test_a_copy_that_is_refused_keeps_no_other_from_being_written(
    redis_url: str,
    space: str,
    monkeypatch: pytest.MonkeyPatch,
    others: KafkaError,
) -> None:
    """What is too large is so for good, whatever else waits."""
    store = Store(redis_url, space, monkeypatch, shards=2)
    ids = [b"%d" % n for n in range(8)]
    for i in ids:
        found = replace(schedule(at=5, due_ms=10**9), id=i)
        shard = store.pending.shard_of(i)
        shard.park([i, found.due_ms, pack(found)], journal=True)
        shard.client.sadd(shard.keys["overtaken"], i, b"gone")
        shard.client.hset(shard.keys["surplus"], b"gone" + i, VERSION)
        shard.client.hset(shard.keys["surplus"] + ":elsewhere", VERSION, b"older" + i)
    store.refused = {b"1": TOO_LARGE, b"gone1": TOO_LARGE}
    if others is not TOO_LARGE:
        store.refused |= {b"2": others, b"gone2": others, b"older7": others}
    waiting = {key for key in store.refused if store.refused[key] is not TOO_LARGE}
    lost: list[str] = []
    for tidy in (lambda *of: rescue_overtaken(*of, clock=FixedClock(0)), bury_surplus):
        for _ in range(2):
            told = pytest.raises(BrokerUnavailable) if waiting else nullcontext()
            with capture_logs() as logs, told:
                tidy(store.settings, store.pending)
            lost += [line["id"] for line in logs if line["log_level"] == "error"]
    keys = [record.key for record in store.written]
    assert len(keys) == len({*keys}), "each of them once"
    assert {*keys} >= {*ids, *(b"gone" + i for i in ids)} - {*store.refused}
    left: set[bytes] = set()
    for one in store.pending.shards:
        left |= one.client.smembers(one.keys["overtaken"])
        left |= {*one.client.hkeys(one.keys["surplus"])}
        left |= {*one.client.hvals(one.keys["surplus"] + ":elsewhere")}
    assert left == waiting
    assert lost == ["b'1'", "b'gone1'"]


def test_a_broker_that_does_not_answer_is_asked_once(store: Store) -> None:
    """Not shard after shard: each time nobody looks after the store for half a minute."""
    store.read(schedule(at=5, due_ms=10**9))
    store.shard.client.sadd(store.shard.keys["overtaken"], b"a")
    store.refused = {b"a": None}
    with pytest.raises(BrokerUnavailable, match="no answer"):
        rescue_overtaken(store.settings, store.pending, clock=FixedClock(0))
    assert store.overtaken()
