"""Plain records in bundles: packed as the sink packs, and parked once whatever breaks off."""

from collections import defaultdict
from dataclasses import replace
from zlib import crc32

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendlater.brokers.partition_reader import Read
from sendlater.clock import FixedClock
from sendlater.dialects import names
from sendlater.dialects.plain import PlainRules
from sendlater.spark.intake import bundle, park_task
from sendlater.spark.intake.bundle import Gathered, unpack_bundle
from sendlater.spark.intake.inbox_rows import chunk
from sendlater.spark.intake.park_task import ParkTask
from sendlater.spark.intake.share import BUNDLE
from sendlater.store.codec import pack_columns, place_of, unpack, with_due

RULES = PlainRules(topics=("in", "other"), bytes_max=1_000, delay_ms_max=10**13, past=True)
PLAIN = [(names.DUE_MS, b"5000"), (names.TARGET_TOPIC, b"t")]
NOT_PLAIN = [*PLAIN, (names.TAGS, b"a")]
SHARDS = 3


def add(read, at, key, *, topic="in", partition=0, headers=PLAIN, value=b"v"):
    """A record behind the others."""
    read.add((key, value, topic, partition, at, 1, headers))
    read.ends[topic, partition] = at + 1


def decoded(read):
    """The rows of a chunk as they come out of Spark's decoding."""
    rows = chunk(read, read.ends).to_pylist()
    columns = defaultdict(list)
    for row in rows:
        is_row = row["timestamp"] is not None
        columns["id"].append(row["key"])
        columns["due_ms"].append(5_000 if is_row else None)
        columns["topic"].append("t" if is_row else None)
        for name in ("partition", "key"):
            columns[name].append(None)
        columns["value"].append(row["value"])
        columns["headers"].append(None)
        columns["dialect"].append("headers")
        for name in ("expires_ms", "expires_after_ms", "tags"):
            columns[name].append(None)
        columns["origin_topic"].append(row["topic"])
        columns["origin_partition"].append(row["partition"])
        columns["origin_position"].append(row["offset"])
        columns["origin_timestamp_ms"].append(1 if is_row else None)
        columns["shard"].append(crc32(row["key"] or b"") % SHARDS)
        columns["change"].append(None)
    return pa.RecordBatch.from_pydict(columns)


class Shard:
    """What a shard answers; it breaks off when the `fuse` is burnt."""

    def __init__(self, fuse):
        self.fuse, self.stands, self.parked, self.wanted = fuse, {}, [], []

    def seen(self):
        return dict(self.stands)

    def targets(self):
        return []

    def want(self, topics):
        self.wanted += topics

    def park(self, rows, *, owner, ends, journal, rejected_count):
        if self.fuse:
            self.fuse[0] -= 1
            if self.fuse[0] < 0:
                raise ConnectionError
        assert len(rows) <= 3 * park_task.PARK_COUNT_MAX
        for source, before, after in ends:
            assert self.stands.get(source, "") == before
            self.stands[source] = after
        for packed in rows[2::3]:
            partition, at = place_of(packed)
            assert at < int(self.stands[f"in/{partition}"]), "a position that does not cover it"
        self.parked += rows[0::3]


class Store:
    def __init__(self, fuse=()):
        self.shards = [Shard(fuse) for _ in range(SHARDS)]


def bundled(*reads, shards=1):
    """What is passed on of these reads."""
    gathered = Gathered(RULES, shards=shards)
    for read in reads:
        gathered.add(read)
    assert gathered.count == sum(len(read.positions) for read in reads)
    taken = gathered.take()
    assert (gathered.count, gathered.ends, gathered.take().positions) == (0, {}, [])
    return taken


def test_what_is_not_plain_stays_where_it_was():
    read = Read()
    more = Read()
    for at, headers in enumerate([PLAIN, PLAIN, NOT_PLAIN, PLAIN]):
        add(read if at < 1 else more, at, b"k%d" % at, headers=headers)
    out = bundled(read, more)
    assert out.partitions == [BUNDLE, 0, BUNDLE]
    first, last = unpack_bundle(out.values[0]), unpack_bundle(out.values[2])
    assert [first.rows[0][0::3], last.rows[0][0::3]] == [[b"k0", b"k1"], [b"k3"]]
    assert (first.firsts, first.ends) == ({0: 0}, {0: 2})
    assert (out.keys[1], out.positions[1], out.headers[1]) == (b"k2", 2, NOT_PLAIN)
    assert out.ends == more.ends


def test_a_bundle_is_of_one_inbox_and_bounded(monkeypatch):
    read = Read()
    for at in range(5):
        add(read, at, b"k", topic="other" if at % 2 else "in", value=b"x" * 100)
    assert bundled(read).topics == ["in", "other"]
    monkeypatch.setattr(bundle, "PARK_COUNT_MAX", 2)
    assert bundled(read).topics == ["in", "other", "in"]
    monkeypatch.setattr(bundle, "BUNDLE_BYTES_MAX", 1)
    assert sorted(bundled(read).topics) == ["in"] * 3 + ["other"] * 2


def test_each_record_tells_what_its_inbox_adds():
    rules = replace(RULES, few=("other",))
    gathered = Gathered(PlainRules.of_text(rules.text()), shards=1)
    read = Read()
    for topic in rules.topics:
        add(read, 0, b"k", topic=topic)
    gathered.add(read)
    found = [unpack_bundle(value).rows[0][2] for value in gathered.take().values]
    rows = [unpack(b"k", with_due(5_000, packed)) for packed in found]
    assert [(one.origin.topic, one.dialect) for one in rows] == [
        ("in", "headers"),
        ("other", "few"),
    ]


def test_a_partition_that_begins_again_is_another_bundle():
    """It was cut off; what the client still had of before comes first."""
    read = Read()
    for at in (100, 101, 0, 1):
        add(read, at, b"k%d" % at)
    found = [unpack_bundle(value) for value in bundled(read).values]
    assert [(one.firsts, one.ends) for one in found] == [({0: 100}, {0: 102}), ({0: 0}, {0: 2})]


@pytest.mark.parametrize("more", [[], [(names.TARGET_KEY, b"k")], [("a", b"1"), ("b", None)]])
def test_it_is_packed_as_the_sink_packs(more):
    read = Read()
    add(read, 7, b"id", partition=2, headers=[*PLAIN, *more])
    (_, due_ms, packed) = unpack_bundle(bundled(read).values[0]).rows[0]
    kept = [{"key": name, "value": value} for name, value in more if name in "ab"]
    key = b"k" if more and not kept else None
    row = ("t", None, key, b"v", kept, "headers", None, None, None, "in", 2, 7, 1)
    assert (due_ms, packed) == (5_000, pack_columns(row))
    assert place_of(packed) == (2, 7)
    assert msgspec.msgpack.decode(packed)[0] == "t"


def test_its_targets_are_looked_up():
    read, store = Read(), Store()
    add(read, 0, b"a")
    sink = ParkTask(store, 1, True, frozenset(), FixedClock(0))
    sink.park(decoded(Read(ends={("in", 0): 0})))
    sink.park(decoded(bundled(read, shards=SHARDS)))
    assert store.shards[0].wanted == [b"t"]


@given(
    kinds=st.lists(st.sampled_from([PLAIN, PLAIN, PLAIN, NOT_PLAIN]), min_size=1, max_size=30),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    fuses=st.lists(st.integers(0, 12), max_size=4),
    most=st.integers(1, 6),
)
def test_each_record_is_parked_once_whatever_breaks_off(kinds, sizes, fuses, most):
    """Tasks die between two calls, and the next one reads again what any shard has not seen."""
    fuse, patch = [0], pytest.MonkeyPatch()
    store = Store(fuse)
    with patch.context() as within:
        for module in (bundle, park_task):
            within.setattr(module, "PARK_COUNT_MAX", most)
        for left in (*fuses, 10**6):
            fuse[0] = left
            try:
                read_all(store, kinds, sizes)
                break
            except ConnectionError:
                continue
    for number, shard in enumerate(store.shards):
        keys = [b"k%d" % at for at in range(len(kinds))]
        mine = [key for key in keys if crc32(key) % SHARDS == number]
        for partition in (0, 1):
            of_one = [key for key in mine if int(key[1:]) % 2 == partition]
            assert [key for key in shard.parked if int(key[1:]) % 2 == partition] == of_one


def read_all(store, kinds, sizes):
    """A new task: from the lowest position of any shard, in chunks of these sizes."""
    sink = ParkTask(store, 1, False, frozenset(), FixedClock(0))
    starts = [
        min(int(shard.stands.get(f"in/{partition}", 0)) for shard in store.shards)
        for partition in (0, 1)
    ]
    sink.park(decoded(Read(ends={("in", n): at for n, at in enumerate(starts)})))
    left = [n for n in range(len(kinds)) if n // 2 >= starts[n % 2]]
    turn = 0
    while left:
        size = sizes[turn % len(sizes)]
        read, turn = Read(), turn + 1
        for n in left[:size]:
            add(read, n // 2, b"k%d" % n, partition=n % 2, headers=kinds[n])
        left = left[size:]
        sink.park(decoded(bundled(read, shards=SHARDS)))
