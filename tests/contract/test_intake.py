"""Intake's two ends: what is read from partitions, and how it comes into the store."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from ledger import create_topics
from servers import wait_until

from sendlater.brokers.partition_reader import (
    KafkaPartitions,
    PartitionReader,
    Place,
    Read,
    RedisPartitions,
)
from sendlater.clock import FixedClock
from sendlater.dialects import names
from sendlater.dialects.plain import PlainRules
from sendlater.errors import BrokerUnavailable, StoreWentBack
from sendlater.model import DUE_MS_MAX, Record
from sendlater.spark.intake import bundle, inbox_task
from sendlater.spark.intake.inbox_rows import NOTHING, SCHEMA, chunk
from sendlater.spark.intake.inbox_task import InboxTask
from sendlater.spark.intake.park_task import ParkTask
from sendlater.spark.intake.share import InboxShare
from sendlater.spark.pipe import PASS_BYTES
from sendlater.store import Pending
from sendlater.topics import Topics


@pytest.fixture
def pending(redis_url: str, space: str) -> Pending:
    return Pending.open(redis_url, space=space, shards=2)


LATER_MS = 9_000_000_000_000
ALL_PLAIN = PlainRules(topics=("in",), bytes_max=1_000, delay_ms_max=DUE_MS_MAX)
CLOCKS: list[FixedClock] = []
"""Those of a test's pipelines."""


def go_on(seconds: float) -> None:
    """A pause takes no time, but clocks go on."""
    for clock in CLOCKS:
        clock.advance(round(1_000 * seconds))


class Script(PartitionReader):
    """Yields what a test has written down; each entry is one read."""

    def __init__(self, *reads: Read | None) -> None:
        self.reads = list(reads)
        self.known: list[Place] = [("in", 0), ("in", 1)]
        self.begun: dict[Place, int] = {}

    def places(self) -> list[Place]:
        return self.known

    def begin(self, starts: Any) -> None:
        self.begun |= starts

    def end(self) -> None:
        self.begun.clear()

    def read(self, *, count_max: int, timeout_s: float) -> Read | None:
        if self.reads:
            return self.reads.pop(0)
        go_on(timeout_s)
        return None


def schedule(place: Place, at: int, id: bytes = b"a", *, due_ms: int = LATER_MS) -> Read:
    """A record; if nothing else is said, due long after the test."""
    return Read(
        keys=[id],
        values=[b"v"],
        topics=[place[0]],
        partitions=[place[1]],
        positions=[at],
        timestamps_ms=[1],
        headers=[[(names.DUE_MS, b"%d" % due_ms), (names.TARGET_TOPIC, b"t")]],
        ends={place: at + 1},
    )


def several(place: Place, count: int) -> Read:
    """The same so many times, from the beginning."""
    read = Read(ends={place: count})
    for at in range(count):
        one = schedule(place, at, b"%d" % at)
        for name in ("keys", "values", "topics", "partitions", "positions", "timestamps_ms"):
            getattr(read, name).extend(getattr(one, name))
        read.headers += one.headers
    return read


def decoded(rows: pa.RecordBatch) -> pa.RecordBatch:
    """As Spark's decoding leaves these rows, as far as the sink looks at them."""
    count = rows.num_rows
    marker = pa.compute.is_null(rows["timestamp"])
    due = pa.compute.if_else(marker, None, LATER_MS)
    columns = {
        "id": rows["key"],
        "due_ms": due,
        "topic": pa.compute.if_else(marker, None, "t"),
        "partition": pa.nulls(count, pa.int32()),
        "key": pa.nulls(count, pa.binary()),
        "value": rows["value"],
        "headers": pa.nulls(count),
        "dialect": ["headers"] * count,
        "expires_ms": pa.nulls(count, pa.int64()),
        "expires_after_ms": pa.nulls(count, pa.int64()),
        "tags": pa.nulls(count, pa.string()),
        "origin_topic": rows["topic"],
        "origin_partition": rows["partition"],
        "origin_position": rows["offset"],
        "origin_timestamp_ms": pa.compute.if_else(marker, None, 1),
        "shard": pa.array([0] * count, pa.int32()),
        "change": pa.nulls(count, pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns)


class Pipeline:
    """A task's source, and its sink, connected by hand."""

    def __init__(
        self,
        pending: Pending,
        *reads: Read | None,
        tasks: int = 1,
        plain: PlainRules = inbox_task.NOTHING_PLAIN,
    ) -> None:
        self.clock = FixedClock(1_000_000)
        CLOCKS.append(self.clock)
        self.pending = pending
        self.reader = Script(*reads)
        self.source = InboxTask(self.reader, pending, InboxShare(0, tasks), self.clock, plain)
        self.sink = ParkTask(pending, pending.owner(), False, frozenset(), self.clock)
        self.chunks = self.source.chunks()

    def step(self, *, parked: bool = True) -> pa.RecordBatch:
        """The next chunk; `parked=False`: it is lost on its way."""
        got = next(self.chunks)
        while got is NOTHING:
            got = next(self.chunks)
        if parked:
            self.sink.park(decoded(got))
        return got

    def idle(self, ms: int) -> None:
        """Nothing comes for so long; raises what the source raises."""
        self.reader.reads += [None]
        self.clock.advance(ms)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    CLOCKS.clear()
    # The task's alone: a thread of py4j, if Spark has run in this process, sleeps too.
    monkeypatch.setattr(inbox_task, "time", SimpleNamespace(sleep=go_on))


def test_every_shard_learns_how_far_a_partition_is_read(pending: Pending) -> None:
    pending.fence()
    line = Pipeline(pending, schedule(("in", 0), 4), Read(ends={("in", 1): 9}))
    line.step(), line.step()
    assert line.reader.begun == {("in", 0): 0, ("in", 1): 0}
    assert [shard.seen() for shard in pending.shards] == [{"in/0": 5}] * 2
    line.step()  # only markers were there: transactions, compaction
    assert [shard.seen() for shard in pending.shards] == [{"in/0": 5, "in/1": 9}] * 2
    assert pending.counts()["pending"] == 1


def test_a_chunk_ends_in_rows_that_make_the_jvm_pass_it_on() -> None:
    rows = chunk(schedule(("in", 0), 4), {("in", 0): 5})
    assert rows.schema == SCHEMA
    assert rows["topic"].to_pylist() == ["in", "in", None, None]
    assert rows["offset"].to_pylist() == [4, 5, None, None]
    assert [len(value or b"") for value in rows["value"].to_pylist()] == [1, 0, PASS_BYTES, 0]


def test_it_goes_on_where_the_store_stands(pending: Pending) -> None:
    pending.fence()
    first = Pipeline(pending, schedule(("in", 0), 4))
    first.step(), first.step()
    again = Pipeline(pending, schedule(("in", 0), 4), schedule(("in", 0), 5, b"b"))
    again.step(), again.step()  # it comes twice
    assert again.reader.begun == {("in", 0): 5, ("in", 1): 0}
    again.step()
    assert pending.counts()["parked"] == 2


def test_of_two_that_read_the_same_only_one_parks(pending: Pending) -> None:
    """A task that was given up, and the one that is in its place."""
    pending.fence()
    old, new = (Pipeline(pending, schedule(("in", 0), 4)) for _ in range(2))
    old.step(), new.step(), new.step()
    with pytest.raises(StoreWentBack):
        old.step()
    assert pending.counts()["parked"] == 1


def test_reading_begins_nowhere_behind_a_shard(pending: Pending) -> None:
    """The store went back between the source's look at it and the sink's."""
    pending.fence()
    line = Pipeline(pending, schedule(("in", 0), 4))
    line.step(), line.step()
    late = Pipeline(pending)
    late.reader.known = [("in", 0)]
    opening = next(late.chunks)
    pending.shards[0].client.delete(*(shard.keys["seen"] for shard in pending.shards))
    with pytest.raises(StoreWentBack, match="is read from 5"):
        late.sink.park(decoded(opening))


def test_what_the_store_has_lost_is_noticed_although_nothing_more_comes(pending: Pending) -> None:
    pending.fence()
    line = Pipeline(pending, schedule(("in", 0), 4), None, None)
    line.step(), line.step()
    line.clock.advance(inbox_task.CHECK_MS)
    line.reader.reads += [schedule(("in", 1), 0)]
    line.step()
    pending.shards[1].client.hdel(pending.shards[1].keys["seen"], "in/0")
    line.clock.advance(inbox_task.CHECK_MS)
    with pytest.raises(StoreWentBack, match="in"):
        line.step()


def test_what_never_arrives_in_the_store_is_noticed(pending: Pending) -> None:
    pending.fence()
    line = Pipeline(pending, schedule(("in", 0), 4))
    line.step()
    line.step(parked=False)
    since_ms = line.clock.elapsed_ms()
    line.reader.reads += [schedule(("in", 1), at, b"%d" % at) for at in range(3)]
    for _ in range(3):
        line.step(parked=False)
    with pytest.raises(StoreWentBack, match="expected"):
        line.step()
    assert line.clock.elapsed_ms() - since_ms > inbox_task.UNPARKED_MS_MAX


def test_when_chunks_arrive_slowly_more_is_read_at_once(
    pending: Pending, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending.fence()
    line, ahead = Pipeline(pending), inbox_task.AHEAD_COUNT_MAX
    line.step()
    line.reader.reads += [schedule(("in", 0), at, b"%d" % at) for at in range(ahead + 1)]
    way = [line.step(parked=False) for _ in range(ahead)]
    unread: list[int] = []

    def pause(_: float) -> None:
        unread.append(len(line.reader.reads))
        if len(unread) == 10:
            line.sink.park(decoded(way[0]))

    monkeypatch.setattr(inbox_task, "time", SimpleNamespace(sleep=pause))
    line.step(parked=False)
    assert unread[:10] == [1] * 10, "it waits for the store"
    assert not line.reader.reads, "one that has arrived is enough"


@pytest.mark.parametrize(
    ("count", "pause_ms"),
    [
        (1, inbox_task.GATHER_MS),
        (2, inbox_task.SPARSE_GATHER_MS),
        (6, inbox_task.SPARSE_GATHER_MS),
        (7, inbox_task.GATHER_MS),
    ],
)
def test_a_chunk_of_few_records_gives_the_next_one_more_time(
    pending: Pending, count: int, pause_ms: int
) -> None:
    pending.fence()
    line = Pipeline(pending)
    line.step()
    line.reader.reads += [several(("in", 0), count), schedule(("in", 0), count)]
    line.step()
    since_ms = line.clock.elapsed_ms()
    line.step()
    assert line.clock.elapsed_ms() - since_ms == pause_ms


def test_what_is_due_later_waits_for_more(pending: Pending) -> None:
    pending.fence()
    line = Pipeline(pending, plain=ALL_PLAIN)
    line.step()
    since_ms = line.clock.elapsed_ms()
    line.reader.reads += [schedule(("in", 0), at, b"%d" % at) for at in range(3)]
    line.step()
    assert line.clock.elapsed_ms() - since_ms == inbox_task.LATER_GATHER_MS
    assert pending.counts()["parked"] == 3
    assert pending.positions() == {"in/0": 3}


def test_what_comes_alone_does_not_wait(pending: Pending) -> None:
    pending.fence()
    line = Pipeline(pending, plain=ALL_PLAIN)
    line.step()
    line.idle(inbox_task.LATER_GATHER_MS)
    line.reader.reads = [schedule(("in", 0), 0)]
    since_ms = line.clock.elapsed_ms()
    line.step()
    assert (line.clock.elapsed_ms(), pending.counts()["parked"]) == (since_ms, 1)


@pytest.mark.parametrize("urgent", ["soon", "past", "not plain", "a full bundle", "many"])
def test_what_cannot_wait_takes_along_what_was_read_before(
    pending: Pending, urgent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending.fence()
    line = Pipeline(pending, plain=ALL_PLAIN)
    line.step()
    due_ms = {"soon": line.clock.now_ms() + inbox_task.SOON_MS, "past": 5}.get(urgent, LATER_MS)
    two = schedule(("in", 0), 1, b"b", due_ms=due_ms)
    if urgent == "not plain":
        assert two.headers[0] is not None
        two.headers[0].append((names.TAGS, b"tag"))
    elif urgent == "a full bundle":
        monkeypatch.setattr(bundle, "PARK_COUNT_MAX", 1)
    elif urgent == "many":
        monkeypatch.setattr(inbox_task, "READ_COUNT_MAX", 4)
    line.reader.reads += [schedule(("in", 0), 0), two, schedule(("in", 0), 2, b"c")]
    since_ms = line.clock.elapsed_ms()
    line.step()
    assert line.clock.elapsed_ms() - since_ms <= 2 * inbox_task.GATHER_MS
    assert pending.positions() == {"in/0": 2}
    assert pending.counts()["parked"] == 2


def test_new_partitions_are_read_while_it_runs(pending: Pending) -> None:
    pending.fence()
    line = Pipeline(pending)
    line.step()
    line.reader.known = [("in", 0), ("in", 1), ("in", 2)]
    line.reader.reads = [schedule(("in", 2), 0)]
    line.clock.advance(inbox_task.METADATA_MS_MAX)
    line.step(), line.step()
    assert line.reader.begun[("in", 2)] == 0
    assert pending.positions()["in/2"] == 1


def test_an_outage_of_the_broker_ends_nothing(pending: Pending) -> None:
    pending.fence()
    line = Pipeline(pending, schedule(("in", 0), 0))
    line.step()

    def away() -> list[Place]:
        raise BrokerUnavailable("away")

    line.reader.places = away  # type: ignore[method-assign]
    line.clock.advance(inbox_task.METADATA_MS_MAX)
    line.step()
    assert pending.positions()["in/0"] == 1


def test_tasks_share_all_partitions() -> None:
    places = [(topic, number) for topic in ("a", "b", "c") for number in range(8)]
    shares = [InboxShare(task, 3) for task in range(3)]
    owners = [[share.task for share in shares if share.has(place)] for place in places]
    assert all(len(one) == 1 for one in owners)
    assert {one for [one] in owners} == {0, 1, 2}


# --- readers ------------------------------------------------------------------------------------


@pytest.fixture(params=["kafka", "redis"])
def inbox(request: Any, topic_name: Any) -> Iterator[tuple[str, PartitionReader, Any]]:
    """A topic of two partitions, its reader, and a function that writes a record."""
    topic = topic_name("in")
    if request.param == "kafka":
        servers = request.getfixturevalue("kafka")
        create_topics(servers, topic, partitions=2)
        producer = Producer({"bootstrap.servers": servers})

        def write(number: int, key: bytes, value: bytes | None, headers: Any) -> None:
            producer.produce(topic, value, key, number, headers=headers)
            producer.flush(10)

        reader: PartitionReader = KafkaPartitions({"bootstrap.servers": servers}, [topic])
    else:
        url, space = request.getfixturevalue("redis_url"), request.getfixturevalue("space")
        topics = Topics(url, space=space)
        topics.create(topic, 2)

        def write(number: int, key: bytes, value: bytes | None, headers: Any) -> None:
            topics.produce(
                Record(topic=topic, key=key, value=value, headers=headers, partition=number)
            )

        reader = RedisPartitions(url, [topic], space=space)
    yield topic, reader, write
    reader.close()


def records(reader: PartitionReader, count: int) -> list[tuple[Any, ...]]:
    """The next records, by partition and position."""
    found: list[tuple[Any, ...]] = []

    def enough() -> bool:
        read = reader.read(count_max=100, timeout_s=0.2)
        if read is not None:
            columns = (read.topics, read.partitions, read.keys, read.values, read.headers)
            found.extend(zip(*columns, read.positions, strict=True))
        return len(found) >= count

    wait_until(enough, f"{count} records")
    return sorted(found, key=lambda row: (row[1], row[5]))


def test_a_reader_gives_what_was_written_byte_for_byte(inbox: Any) -> None:
    topic, reader, write = inbox
    assert sorted(reader.places()) == [(topic, 0), (topic, 1)]
    reader.begin({(topic, 0): 0, (topic, 1): 0})
    headers = [("h", b"\xff"), ("h", b""), ("n", None)]
    write(0, b"\x00k", b"\xff\x00", headers)
    write(1, b"", None, [])
    first, second = records(reader, 2)
    assert first[:5] == (topic, 0, b"\x00k", b"\xff\x00", headers)
    assert (second[:4], second[4] or None) == ((topic, 1, b"", None), None)


def test_a_reader_begins_where_it_is_told(inbox: Any) -> None:
    topic, reader, write = inbox
    reader.begin({(topic, 0): 0})
    for key in (b"a", b"b", b"c"):
        write(0, key, b"v", [])
    read = records(reader, 3)
    reader.begin({(topic, 1): 0})  # later, besides the first
    write(1, b"d", b"v", [])
    assert [row[2] for row in records(reader, 1)] == [b"d"]
    again = type(reader)
    assert [row[2] for row in read] == [b"a", b"b", b"c"]
    assert again in (KafkaPartitions, RedisPartitions)


def test_a_reader_waits_no_longer_than_told(inbox: Any) -> None:
    topic, reader, _ = inbox
    reader.begin({(topic, 0): 0, (topic, 1): 0})
    began = time.monotonic()
    while reader.read(count_max=10, timeout_s=0.05) is not None:
        assert time.monotonic() - began < 30
