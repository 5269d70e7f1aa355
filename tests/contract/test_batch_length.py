"""How long the batches of a lane are (ADR 21), which lane claims at once, and how long a task
pauses (ADR 29)."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendlater.clock import FixedClock
from sendlater.limits import LANES_MAX, PARK_COUNT_MAX
from sendlater.model import Record, Schedule
from sendlater.spark.delivery import claim_task, due_source
from sendlater.spark.delivery.claim_task import ShardTask
from sendlater.spark.delivery.due_source import DueReader
from sendlater.spark.delivery.lane import LEAD_MS, Lane, ShardSlice, leads_in_ms
from sendlater.store import Batch, Pending
from sendlater.store.codec import pack


def row(id: bytes, due_ms: int) -> list[object]:
    record = Record(topic="t", value=b"v")
    return [id, due_ms, pack(Schedule(id=id, due_ms=due_ms, record=record, dialect="headers"))]


@pytest.fixture
def pending(redis_url: str, space: str) -> Pending:
    return Pending.open(redis_url, space=space, shards=1)


def lane_of(pending, owner, redis_url, space, *, lane=0):
    return Lane(
        redis_url=redis_url,
        space=space,
        shards=1,
        owner=owner,
        lane=lane,
        lanes=2,
        run=pending.open_lane(lane, owner=owner),
        window_ms=2_000,
        idle_window_ms=10_000,
        poll_ms=2,
        standby_poll_ms=20,
        claim_count=10,
        check_targets=False,
    )


@pytest.mark.parametrize(
    ("soon", "pause_ms", "lead_ms", "apart_ms"),
    [
        (20, 100, 200, 1_000),
        (8, 100, 200, 3_000),
        (20, 500, 2_500, 3_000),
        (20, 60_000, 10_000, 5_000),
        (0, 100, 200, 5_000),
    ],
)
def test_batches_are_longer_on_a_slow_machine_and_while_little_is_due(
    pending, owner, shard, redis_url, space, monkeypatch, soon, pause_ms, lead_ms, apart_ms
):
    """Else the pauses between them would take all the time, and those of both lanes the same."""
    monkeypatch.setattr(due_source, "RISK_COUNT", 2)
    for number in range(soon):
        shard.park(row(b"soon-%d" % number, 1))
    ends_ms = []
    for lane in (0, 1):
        reader = DueReader(lane_of(pending, owner, redis_url, space, lane=lane))
        ends_ms.append(set())
        for now_ms in range(10_000_000, 10_060_000, 500):
            reader._clock = FixedClock(now_ms)
            start = {"batch": 10, "from_ms": 0, "end_ms": now_ms - pause_ms}
            end_ms = reader.latestOffset(start, None)["end_ms"]
            assert lead_ms <= end_ms - now_ms <= 20_200
            ends_ms[lane].add(end_ms)
    assert min(abs(one - two) for one in ends_ms[0] for two in ends_ms[1]) == apart_ms


def test_a_batch_is_short_if_the_last_one_had_many_rows(pending, owner, shard, redis_url, space):
    """What is due at once is never seen as pending."""
    own = lane_of(pending, owner, redis_url, space)
    start = {"batch": 10, "from_ms": 10_000_000, "end_ms": 10_001_000}
    reader = DueReader(own, clock=FixedClock(10_001_100))
    alone = reader.latestOffset(start, None)
    batch = Batch(own.lane, own.run, start["end_ms"], start["batch"])
    shard.attempt(batch, owner=owner, attempt="one")
    for first in range(0, due_source.RISK_COUNT, PARK_COUNT_MAX):
        numbers = range(first, first + PARK_COUNT_MAX)
        shard.park([part for n in numbers for part in row(b"now-%d" % n, 1)])
        got = shard.claim(batch, owner=owner, now_ms=9, count_max=PARK_COUNT_MAX, attempt="one")
        assert len(got.ids) == PARK_COUNT_MAX
    after_many = reader.latestOffset(start, None)
    assert after_many["end_ms"] - 10_001_100 <= own.window_ms + LEAD_MS
    assert alone["end_ms"] > after_many["end_ms"]


def test_a_clock_that_is_put_back_makes_no_long_batch(pending, owner, redis_url, space):
    clock = FixedClock(10_000_000)
    own = lane_of(pending, owner, redis_url, space)
    reader = DueReader(own, clock=clock)
    before = reader.latestOffset(reader.initialOffset(), None)
    clock = reader._clock = FixedClock(10_000_000 - 3_600_000)
    after = reader.latestOffset(before, None)
    assert after["end_ms"] < before["end_ms"]
    assert after["end_ms"] - clock.now_ms() <= 12_200
    assert after["batch"] == before["batch"] + 1
    [part] = reader.partitions(before, after)
    # And one that is put back while a task runs.
    part = ShardSlice(0, before["end_ms"], 9, part.length_ms)
    task = ShardTask(own, pending.shards[0], pending.shards[0].wake(), part, clock)
    assert task.ends_at - clock.elapsed_ms() <= part.length_ms


@pytest.mark.parametrize(("left_ms", "pauses_s"), [(5_600, []), (5_000, [0.02])])
def test_who_leads_is_decided_when_a_lane_is_woken(
    pending, owner, shard, redis_url, space, monkeypatch, left_ms, pauses_s
):
    """Whoever led when its wait began may have ended its batch, and nobody would claim at once."""
    clock, slept = FixedClock(10_000_000), []

    class Woken:
        def wait(self, timeout_ms):
            assert timeout_ms > 600
            clock.advance(600)
            return True

    monkeypatch.setattr(claim_task, "time", SimpleNamespace(sleep=slept.append))
    part = ShardSlice(0, clock.now_ms() + left_ms, 1, 20_000)
    task = ShardTask(lane_of(pending, owner, redis_url, space), shard, Woken(), part, clock)
    task._wait(None, clock.now_ms())
    assert slept == pauses_s


@pytest.mark.parametrize(
    ("left_ms", "waits_ms"), [(2_060, 20), (1_507, 7), (1_501, 1), (1_500, 2), (501, 2), (500, 20)]
)
def test_who_only_watches_claims_at_the_moment_it_leads(
    pending, owner, shard, redis_url, space, left_ms, waits_ms
):
    """Else nobody claims for the rest of its pause, once in each window."""
    clock, waited = FixedClock(10_000_000), []
    wake = SimpleNamespace(wait=waited.append)
    part = ShardSlice(0, clock.now_ms() + left_ms, 1, 20_000)
    task = ShardTask(lane_of(pending, owner, redis_url, space), shard, wake, part, clock)
    task._wait(clock.now_ms() + 1, clock.now_ms())
    assert waited == [waits_ms]


@given(
    now_ms=st.integers(10**12, 10**12 + 200_000),
    lanes=st.integers(2, LANES_MAX),
    window_ms=st.integers(500, 60_000),
)
def test_a_lane_knows_to_the_millisecond_when_it_leads(now_ms, lanes, window_ms):
    at = partial(leads_in_ms, end_ms=10**12 + 300_000, lanes=lanes, window_ms=window_ms)
    if in_ms := at(now_ms):
        assert at(now_ms + in_ms) == 0
        assert at(now_ms + in_ms - 1) == 1
    else:
        assert at(now_ms + window_ms // lanes) > 0, "its share of a window is over by then"


@pytest.mark.parametrize(
    ("count", "took_ms", "pauses_ms"), [(20, 0, 2), (20, 6, 3), (20, 40, 4), (2, 40, 2)]
)
def test_where_claims_take_long_and_find_many_the_pauses_are_longer(
    pending, owner, shard, redis_url, space, count, took_ms, pauses_ms
):
    """Only the first claim has been made, so it counts a fourth (ADR 29, 45)."""
    clock, waited = FixedClock(10_000_000), []

    class Waits:
        def wait(self, timeout_ms):
            waited.append(timeout_ms)
            clock.advance(2_000)
            return False

    for number in range(count):
        shard.park(row(b"due-%d" % number, 1))
    shard.park(row(b"next", clock.now_ms() + 1))
    lane = replace(lane_of(pending, owner, redis_url, space), claim_count=1_000)
    part = ShardSlice(0, clock.now_ms() + 1_400, 1, 20_000)
    claims = ShardTask(lane, shard, Waits(), part, clock).batches()
    next(claims)
    clock.advance(took_ms)  # Spark takes its time for the rows
    assert list(claims)
    assert waited[0] == pauses_ms
