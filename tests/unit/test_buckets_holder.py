"""The task that delivers from bucket 0, with a clock and a partition that the test moves."""

from dataclasses import dataclass, replace

import pytest
from sent_rows import rows_of
from structlog.testing import capture_logs

from sendlater.brokers.group_offsets import Committed, Place
from sendlater.clock import FixedClock
from sendlater.model import Reason, Record, Target
from sendlater.spark.buckets import hold_task
from sendlater.spark.buckets.crash_lookup import ranges
from sendlater.spark.buckets.hold_source import HeldReader
from sendlater.spark.buckets.hold_task import HoldTask
from sendlater.spark.buckets.holding import HeldSlice, Holding, Standing
from sendlater.spark.buckets.record import parse, primer

HOLDING = Holding(
    client={},
    topic="b-00",
    shards=1,
    group="done",
    prepared="prepared",
    run="run1",
    window_ms=2_000,
    rejected_topic="bad",
    record_bytes_max=10_000,
)
WINDOW_MS = 1_000
ROOMY = Target(record_bytes_max=10_000, partitions=2)


@dataclass
class Message:
    """A record as confluent-kafka gives it."""

    at: int
    due_ms: int
    topic: str = "out"
    position: int = -1
    drain: str = ""

    def offset(self):
        return self.at

    def key(self):
        return None if self.drain else b"id"

    def value(self):
        return b"%d" % self.due_ms

    def error(self):
        return None

    def headers(self):
        if self.drain:
            return [("drain", self.drain.encode())]
        position = self.position if self.position >= 0 else self.at
        text = f"{self.due_ms} headers in 0 {position} 1 {self.topic}"
        return [("schedule", text.encode()), ("key", None)]


class Partition:
    """A partition whose reader finds what is there; waiting moves the clock."""

    def __init__(self, clock, messages):
        self.clock, self.messages, self.at = clock, messages, 0
        self.committed = None

    def assign(self, places):
        self.at = places[0].offset

    def poll(self, wait_s):
        got = self.consume(1, 0)
        if not got:
            self.clock.advance(max(1, round(wait_s * 1_000)))
        return got[0] if got else None

    def consume(self, count, _):
        got = [m for m in self.messages if m.at >= self.at][:count]
        if got:
            self.at = got[-1].at + 1
        return got

    def commit(self, *, offsets, asynchronous):
        assert not asynchronous
        self.committed = Standing.of(Committed(offsets[0].offset, offsets[0].metadata))


class Known:
    """Answers about targets: everything is well but `gone`, and `slow` at first."""

    def __init__(self):
        self.asked = 0

    def ask(self, topic):
        pass

    def of(self, topic):
        if topic == b"slow":
            self.asked += 1
            return ROOMY if self.asked > 5 else None
        return Reason.UNKNOWN_TOPIC if topic == b"gone" else ROOMY


def window(messages, *, before=None, now_ms=10_000, end_ms=None, arrived=()):
    """One batch: [(due_ms, topic, when it was yielded)], and where the partition stands then."""
    clock = FixedClock(now_ms)
    partition = Partition(clock, messages)
    held = HeldSlice(0, before or Standing(resume=0), end_ms or now_ms + WINDOW_MS, arrived)
    task = HoldTask(HOLDING, held, clock=clock, answers=Known(), consumer=partition)
    rows = [
        (due_ms, topic, clock.now_ms())
        for batch in task.batches()
        for due_ms, topic in ((row["due_ms"], row["topic"]) for row in rows_of([batch]))
    ]
    return rows, partition.committed


def test_each_goes_out_in_its_millisecond_in_due_order():
    rows, at = window([Message(0, 10_500), Message(1, 10_200), Message(2, 9_000)])

    assert [due_ms for due_ms, _, _ in rows] == [9_000, 10_200, 10_500]
    assert all(0 <= when - max(due_ms, 10_000) <= 1 for due_ms, _, when in rows)
    assert (at.resume, at.read_end) == (3, 3)


def test_what_is_not_yet_due_is_read_again_by_the_next_and_nothing_goes_out_twice():
    messages = [Message(0, 12_500), Message(1, 10_500), Message(2, 11_700)]
    first, at = window(messages)
    assert (at.resume, at.read_end, at.end_ms) == (0, 3, 11_000)

    messages.append(Message(3, 10_900))
    second, later = window(messages, before=at, now_ms=11_300, end_ms=12_300)

    assert [due_ms for due_ms, _, _ in first] == [10_500]
    assert [due_ms for due_ms, _, _ in second] == [10_900, 11_700]
    assert (later.resume, later.read_end) == (0, 4)
    third, end = window(messages, before=later, now_ms=12_400, end_ms=13_000)
    assert [due_ms for due_ms, _, _ in third] == [12_500]
    assert end.resume == 4


def test_a_record_that_a_repeated_pass_wrote_twice_goes_out_once():
    rows, at = window([Message(0, 10_500, position=7), Message(1, 10_500, position=7)])
    assert len(rows) == 1
    assert at.resume == 2


def test_what_a_dead_run_had_delivered_goes_out_no_more_nor_does_its_copy():
    messages = [Message(0, 9_000, position=7), Message(1, 9_100), Message(2, 9_000, position=7)]
    rows, at = window(messages, arrived=((0, 1),))
    assert [due_ms for due_ms, _, _ in rows] == [9_100]
    assert at.resume == 3


def test_primers_take_the_way_of_schedules_and_are_not_delivered():
    """Nor do they end the batch: what comes after them is delivered in its millisecond."""
    made = primer(Record(topic="b-00", value=b"x", key=b"primer"), now_ms=9_000)
    assert parse(0, made.key, made.value, made.headers) is not None

    @dataclass
    class Primer(Message):
        def headers(self):
            return made.headers

    rows, at = window([Primer(0, 9_000), Message(1, 10_000), Message(2, 10_900)])
    assert [(due_ms, when) for due_ms, _, when in rows] == [(10_000, 10_000), (10_900, 10_900)]
    assert at.resume == 3


def test_offsets_that_arrived_are_told_as_ranges():
    assert ranges([(1, 5), (0, 3), (1, 4), (1, 7)]) == {"0": [[3, 4]], "1": [[4, 6], [7, 8]]}


def test_a_target_that_is_gone_is_rejected_and_a_slow_answer_delays_only_its_own():
    rows, at = window([Message(0, 10_100, "gone"), Message(1, 10_100, "slow"), Message(2, 10_110)])

    assert {(due_ms, topic) for due_ms, topic, _ in rows} == {
        (10_100, "bad"),
        (10_100, "slow"),
        (10_110, "out"),
    }
    assert next(when for _, topic, when in rows if topic == "out") <= 10_111
    assert at.resume == 3


def test_a_batch_waits_for_an_answer_before_it_ends():
    """Otherwise it would count as delivered, being due by then."""
    rows, at = window([Message(0, 10_990, "slow")])
    assert [topic for _, topic, _ in rows] == ["slow"]
    assert at.end_ms > 11_000


def test_asked_to_end_it_ends_and_says_so():
    rows, at = window([Message(0, 10_000), Message(1, 0, drain="run1"), Message(2, 10_900)])
    assert [due_ms for due_ms, _, _ in rows] == [10_000]
    assert at.drained
    assert at.resume == 2


def test_what_another_run_was_asked_means_nothing():
    rows, at = window([Message(0, 0, drain="run0"), Message(1, 10_900)])
    assert len(rows) == 1
    assert not at.drained


def test_a_partition_is_looked_after_until_the_batch_ends():
    """The other tasks go on until then, so nobody else would deliver what comes late."""
    end_ms = 11_000 + 2 * HOLDING.window_ms
    rows, at = window([Message(0, 10_100), Message(1, end_ms - 100)], end_ms=end_ms)
    assert [due_ms for due_ms, _, _ in rows] == [10_100, end_ms - 100]
    assert end_ms <= at.end_ms <= end_ms + 10


def test_where_a_partition_stands_survives_being_written_down():
    at = Standing(resume=5, read_end=9, end_ms=77, run="r", batch_ms=78, drained=True)
    assert Standing.of(at.noted()) == at
    assert Standing.of(Committed(5, "")) == Standing(resume=5)
    assert Standing.of(replace(at, drained=False).noted()).drained is False


class Never(Known):
    """Some topics are never known for as long as the test likes."""

    def __init__(self, clock, until_ms):
        super().__init__()
        self.clock, self.until_ms = clock, until_ms

    def of(self, topic):
        late = topic.startswith(b"new") and self.clock.now_ms() < self.until_ms[topic]
        return None if late else ROOMY


def task_of(messages, *, before=None, now_ms=10_000, end_ms=None, answers=None):
    clock = FixedClock(now_ms)
    partition = Partition(clock, messages)
    held = HeldSlice(0, before or Standing(resume=0), end_ms or now_ms + WINDOW_MS)
    known = answers(clock) if answers else Known()
    return HoldTask(HOLDING, held, clock=clock, answers=known, consumer=partition), partition


def test_a_batch_ends_even_if_there_is_a_new_unknown_target_all_the_time():
    """Each is looked up for a second; what is due after the end waits for the next batch."""
    messages = [Message(n, 10_100 + 500 * n, f"new{n}") for n in range(100)]
    until_ms = {b"new%d" % n: 11_100 + 500 * n for n in range(100)}
    task, partition = task_of(messages, answers=lambda clock: Never(clock, until_ms))
    rows = [row["due_ms"] for row in rows_of(task.batches())]

    end_ms = partition.committed.end_ms
    assert end_ms <= 11_000 + hold_task.OVERTIME_MS_MAX + 100
    assert rows == [m.due_ms for m in messages if m.due_ms <= end_ms]


def test_what_waits_for_its_target_still_counts_as_held():
    until_ms = {b"new0": 99_999}
    task, _ = task_of([Message(0, 9_000, "new0")], answers=lambda clock: Never(clock, until_ms))
    task._read(0)
    held = task.held_bytes
    assert held > 0
    assert task._due(10_000) == []
    assert task.held_bytes == held
    task.clock.advance(90_000)
    assert len(task._due(100_000)) == 1
    assert task.held_bytes == 0


@pytest.mark.parametrize("ends", ["by itself", "when asked", "when full"])
def test_with_a_clock_set_back_no_batch_ends_before_the_last_one_did(monkeypatch, ends):
    """Else what was read since, and is due before that end, would count as delivered."""
    if ends == "when full":
        monkeypatch.setattr(hold_task, "WHOLE_BATCH_COUNT_MAX", 1)
    before = Standing(resume=0, read_end=1, end_ms=12_000)
    messages = [Message(0, 11_000), Message(1, 11_800), Message(2, 13_000)]
    if ends == "when asked":
        messages.append(Message(3, 0, drain="run1"))
    rows, at = window(messages, before=before, now_ms=10_000, end_ms=10_001)
    assert [due_ms for due_ms, _, _ in rows] == [11_800]
    assert at.end_ms >= 12_000
    assert (at.resume, at.read_end) == (2, len(messages))


def test_a_partition_that_was_asked_to_end_stays_so_for_this_run():
    """The others may be asked only in the next batch; the driver wants all of them."""
    for run, drained in (("run1", True), ("run0", False)):
        before = Standing(resume=0, run=run, drained=True)
        assert window([], before=before)[1].drained is drained


class Group:
    """What a consumer group has committed."""

    def __init__(self, committed=None):
        self.known = dict(committed or {})

    def firsts(self, places):
        return dict.fromkeys(places, 0)

    def committed(self, places):
        return {place: self.known[place] for place in places if place in self.known}

    def commit(self, ends):
        self.known |= ends


def test_a_run_that_may_deliver_no_longer_looks_like_one_that_was_stopped():
    """It may be killed before its first batch counts: then there is something to look up."""
    place = Place("b-00", 0)
    stopped = Standing(resume=5, read_end=9, end_ms=77, run="run0", batch_ms=78, drained=True)
    done = Group({place: stopped.noted()})
    reader = HeldReader(HOLDING, clock=FixedClock(10_000))
    reader._groups = (done, Group())

    start = reader.initialOffset()
    assert reader.latestOffset(start, None) != start
    assert Standing.of(done.known[place]) == replace(stopped, drained=False)


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"soon headers in 0 1 1 out",
        b"1 headers in 0 1",
        b"1 plain in 0 1 1 out",
        b"1 headers in 0 1 1 out x",
        b"1 headers in 0 1 1 out 4294967296",
        b"99999999999999999999 headers in 0 1 1 out",
        b"1 headers in 0 1 1 \xff",
    ],
)
def test_a_malformed_record_is_passed_over_and_told_once(monkeypatch, told):
    """Whoever wrote it: it must not stop delivery for ever."""
    monkeypatch.setattr(hold_task, "_told_unreadable", set())

    @dataclass
    class Foreign(Message):
        def headers(self):
            return [("schedule", told), ("key", None)]

    with capture_logs() as logged:
        rows, at = window([Foreign(0, 1), Foreign(1, 1), Message(2, 10_100)])
    assert [due_ms for due_ms, _, _ in rows] == [10_100]
    assert at.resume == 3
    assert [(one["log_level"], one["offset"]) for one in logged] == [("error", 0)]
