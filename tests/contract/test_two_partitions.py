"""An id on two partitions of an inbox, as of producers with different partitioners: the later
timestamp wins, in whatever order the two are read."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendlater.config import Inbox, Settings
from sendlater.model import Origin, Record, Schedule
from sendlater.spark.journal import rewrite as rewriting
from sendlater.spark.journal.rewrite import bury_surplus
from sendlater.store import Batch, Pending, shard
from sendlater.store.codec import pack


class Store:
    """One shard, and intake that reads two partitions of a journal."""

    def __init__(self, url, space):
        self.pending = Pending.open(url, space=space, shards=1)
        [self.shard] = self.pending.shards
        self.owner = self.pending.fence()

    def read(self, *records, id=b"a"):
        """Records are (partition, offset, timestamp_ms, due_ms), or cancel where that is None."""
        rows, stands, ends = [], self.shard.seen(), {}
        for partition, offset, at_ms, due_ms in records:
            source = f"in/{partition}"
            ends[source] = (source, str(stands.get(source, "")), str(offset + 1))
            if due_ms is None:
                rows += [id, "", f"from {source} {at_ms}"]
            else:
                place = Origin(topic="in", partition=partition, position=offset, timestamp_ms=at_ms)
                record = Record(topic="t", value=b"%d" % due_ms)
                tags = ("x",) if due_ms % 2 else ()
                one = Schedule(
                    id=id, due_ms=due_ms, record=record, dialect="headers", origin=place, tags=tags
                )
                rows += [id, due_ms, pack(one)]
        self.shard.park(rows, owner=str(self.owner), ends=ends.values(), journal=True)

    def stands(self, id=b"a"):
        found = self.pending.get(id)
        return found and found.due_ms

    def tagged(self):
        key = self.shard.due_key("x")
        return [int(ms) for _, ms in self.shard.client.zrange(key, 0, -1, withscores=True)]

    def older(self):
        """Versions that need a tombstone."""
        return set(self.shard.client.hkeys(self.shard.keys["surplus"] + ":elsewhere"))

    def claim(self):
        batch = Batch(lane=0, run=self.pending.open_lane(0, owner=self.owner), end_ms=99)
        self.shard.claim(batch, owner=self.owner, now_ms=99, count_max=9)
        return batch


@pytest.fixture
def store(redis_url, space):
    return Store(redis_url, space)


@st.composite
def histories(draw):
    """What was written, in its order: (partition, offset, timestamp_ms, due_ms or None); and in
    which order of partitions it is read, in how many calls."""
    written, ends = [], [0, 0]
    # Those of a producer that writes microseconds are no longer written out by Lua.
    since_ms = draw(st.sampled_from((1, 1_780_000_000_000_001)))
    for number in range(draw(st.integers(1, 7))):
        partition = draw(st.integers(0, 1))
        due_ms = draw(st.sampled_from((None, 1_000 + number, 1_001 + number)))
        written.append((partition, ends[partition], 10 * number + since_ms, due_ms))
        ends[partition] += 1
    return written, draw(st.permutations([one[0] for one in written])), draw(st.integers(1, 8))


def test_an_end_that_an_earlier_version_wrote_is_read(store):
    """Of microseconds, as Lua writes such a number by itself."""
    key = store.shard.keys["seen"] + ":cancelled"
    store.shard.client.hset(key, "a", "in/0 1.78e+15")
    store.read((1, 0, 5, 1_000))
    assert store.stands() is None
    store.read((1, 1, 1_780_000_000_000_001, 2_000))
    assert store.stands() == 2_000


@given(histories())
def test_what_was_written_last_stands_in_whatever_order_it_is_read(redis_url, history):
    written, order, size = history
    store = Store(redis_url, uuid.uuid4().hex)
    left = [[one for one in written if one[0] == partition] for partition in (0, 1)]
    read = [left[partition].pop(0) for partition in order]
    while read:
        store.read(*read[:size])
        read = read[size:]
    *_, stands = written[-1]
    assert store.stands() == stands
    assert store.tagged() == ([stands] if stands and stands % 2 else [])
    for partition in (0, 1):
        mine = [one for one in written if one[0] == partition]
        if mine and mine[-1][3] is not None and mine[-1] is not written[-1]:
            assert b"in/%d/%d" % mine[-1][:2] in store.older(), "nothing else ends it there"
    if stands is not None:
        assert b"in/%d/%d" % written[-1][:2] not in store.older()


def test_the_older_one_gets_a_tombstone_on_its_journal(store, monkeypatch):
    sent = []
    monkeypatch.setattr(rewriting, "_write", lambda _, records: sent.extend(records) or {})
    settings = Settings(bootstrap_servers="unused:1", inboxes=(Inbox(topic="in", journal=True),))
    store.read((0, 7, 50, 900), (1, 3, 60, 800))
    assert bury_surplus(settings, store.pending) == 1
    [tombstone] = sent
    assert (tombstone.topic, tombstone.partition, tombstone.key) == ("in", 0, b"a")
    assert tombstone.value is None
    assert tombstone.headers == [("sendlater-origin", b"in/0/7")]
    assert store.older() == set()
    store.shard.park([b"a", "", "in/0/7"], journal=True)
    assert store.stands() == 800, "read again, it ends only what it is about"


@pytest.mark.parametrize("newer", [True, False])
@pytest.mark.parametrize("aside", [True, False])
@pytest.mark.parametrize("due_ms", [None, 800])
def test_what_is_claimed_or_set_aside_counts_too(store, newer, aside, due_ms):
    store.read((0, 7, 50, 90))
    batch = store.claim()
    if aside:
        store.shard.set_aside(batch, [b"a"])
    store.read((1, 3, 60 if newer else 40, due_ms))
    store.pending.release_all(owner=store.owner)
    assert store.stands() == (due_ms if newer else 90), "after a crash"


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("topic", ["in", "x" * 31, "x" * 32, "-" * 45, "x" * 249])
@pytest.mark.parametrize("before", ["", "eu-", "-", "."])
def test_a_tombstone_ends_nothing_on_an_inbox_whose_name_only_ends_so(store, topic, before, number):
    """The byte in front of a long name tells its length, and may be a letter of another name."""
    name = before + topic[len(before) :] if len(topic) > 248 else before + topic
    place = Origin(topic=name, partition=number, position=7, timestamp_ms=60)
    record = Record(topic="t", value=b"v")
    one = Schedule(id=b"a", due_ms=800, record=record, dialect="headers", origin=place)
    store.shard.park([b"a", 800, pack(one)], journal=True)
    store.shard.park([b"a", "", f"{topic}/0/8 800"], journal=True)
    ends = name == topic and number == 0
    assert store.stands() == (None if ends else 800)
    assert store.shard.client.sismember(store.shard.keys["overtaken"], b"a") == (not ends)


def test_only_so_many_cancellations_are_remembered(store, monkeypatch):
    monkeypatch.setattr(shard, "CANCELLED_COUNT_MAX", 3)
    for number in range(10):
        store.read((0, number, 50, None), id=b"%d" % number)
    kept = [
        store.shard.client.hlen(store.shard.keys["seen"] + n)
        for n in (":cancelled", ":cancelled:before")
    ]
    assert kept == [1, 3]
    for number in range(10):
        store.read((1, number, 40, 90), id=b"%d" % number)
    assert [n for n in range(10) if store.stands(b"%d" % n) is None] == [6, 7, 8, 9]


def test_what_lost_is_counted(store):
    store.read((0, 7, 50, 900))
    store.read((1, 3, 40, 800))
    counts = store.pending.counts()
    assert (counts["parked"], counts["outdated"], counts["replaced"]) == (1, 1, 0)
