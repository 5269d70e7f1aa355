"""Recurring schedules in the store: an occurrence is delivered, the schedule comes again."""

import json
from dataclasses import replace

import pytest
from sent_rows import rows_of

from sendlater.clock import FixedClock
from sendlater.config import Settings
from sendlater.dialects import names
from sendlater.dialects.recurrence import make_plan, read_text
from sendlater.errors import Fenced
from sendlater.limits import MISSED_LATE_MS_MAX
from sendlater.model import Expiry, Record, Schedule, State, Target
from sendlater.spark.delivery.claim_task import ShardTask
from sendlater.spark.delivery.failed_batch import RecordByRecord
from sendlater.spark.delivery.lane import Lane, ShardSlice
from sendlater.spark.delivery.targets import Targets
from sendlater.store import Pending
from sendlater.store.codec import pack, unpack, with_due
from sendlater.store.scripts import LaneEnded

MINUTE = 60_000


class NeverWoken:
    def wait(self, ms):
        return False


class Here:
    """A store, and a lane whose clock the test moves. It begins at 0 s; plans count from there."""

    def __init__(self, redis_url, space):
        self.clock = FixedClock(MINUTE)
        self.pending = Pending.open(redis_url, space=space, shards=1)
        self.shard = self.pending.shards[0]
        self.batches = 0
        self.settings = Settings(space=space, shards=1)
        self.redis_url = redis_url
        self.start()

    def start(self):
        """What a start of the service does: what was claimed comes back."""
        self.owner = self.pending.fence()
        self.pending.release_all(owner=self.owner)
        run = self.pending.open_lane(0, owner=self.owner)
        lane = Lane.of(self.settings, redis_url=self.redis_url, owner=self.owner, lane=0, run=run)
        self.lane = replace(lane, check_targets=False, filler_rows=0)

    def put(self, id=b"i", *, expiry=None, now_ms=0, **words):
        plan = make_plan(now_ms=now_ms, **({"every_ms": MINUTE} | words))
        record = Record(topic="out", key=b"k", value=b"v", headers=[("h", b"1")])
        schedule = Schedule(
            id=id,
            due_ms=plan.due_ms(id),
            record=record,
            expiry=expiry,
            plan=plan.text,
            dialect="headers",
        )
        self.pending.put(schedule)
        return schedule

    def task(self, number=None):
        self.batches += number is None
        part = ShardSlice(0, self.clock.now_ms(), number or self.batches, 0)
        return ShardTask(self.lane, self.shard, NeverWoken(), part, self.clock)

    def claim(self, task):
        """What a task claims, before it does anything with it."""
        self.shard.attempt(task.batch, owner=self.owner, attempt=task.attempt)
        return self.shard.claim(
            task.batch,
            owner=self.owner,
            now_ms=self.clock.now_ms(),
            count_max=99,
            attempt=task.attempt,
        )

    def deliver(self, *, settled=True):
        """The rows of one batch, as Spark gets them."""
        task = self.task()
        rows = rows_of(task.batches())
        if settled:
            self.shard.settle(task.batch.name)
        return rows

    def standing(self):
        """Ids and due times of what is pending."""
        return [(one.id, one.due_ms) for one in self.pending.list(count_max=99)]


def ids(rows):
    return [row["id"] for row in rows]


@pytest.fixture
def here(redis_url, space):
    return Here(redis_url, space)


def test_it_comes_again_at_its_planned_times(here):
    here.put()
    for n in range(1, 5):
        (row,) = here.deliver()
        assert (row["id"], row["due_ms"]) == (b"i@%d" % (n * MINUTE), n * MINUTE)
        assert here.standing() == [(b"i", (n + 1) * MINUTE)]
        here.clock.advance(MINUTE + (100 if n == 1 else 0))  # late once: the grid stays


def test_an_occurrence_is_the_record_without_its_plan(here):
    here.put()
    (row,) = here.deliver()
    assert (row["topic"], row["key"], row["value"], row["dialect"]) == (
        "out",
        b"k",
        b"v",
        "headers",
    )
    assert row["headers"] == [
        {"key": "h", "value": b"1"},
        {"key": names.SCHEDULE, "value": b"i"},
    ]


def test_the_store_keeps_a_plan(here):
    sent = here.put(expiry=Expiry(5_000, after_due=True))
    found = here.pending.get(b"i")
    assert found == sent
    assert json.loads(found.plan) == {"every_ms": MINUTE, "planned_ms": MINUTE}
    assert unpack(b"i", with_due(sent.due_ms, pack(sent))) == sent


def test_others_of_the_same_claim_are_delivered_beside_it(here):
    here.put(b"again")
    record = Record(topic="out", value=b"v")
    here.pending.put(Schedule(id=b"once", due_ms=MINUTE, record=record))
    here.pending.put(
        Schedule(id=b"expires", due_ms=MINUTE, record=record, expiry=Expiry(2 * MINUTE))
    )
    assert sorted(ids(here.deliver())) == [b"again@60000", b"expires", b"once"]
    assert here.standing() == [(b"again", 2 * MINUTE)]


def test_it_ends_after_its_count(here):
    here.put(count=2)
    delivered = []
    for _ in range(4):
        delivered += ids(here.deliver())
        here.clock.advance(MINUTE)
    assert delivered == [b"i@60000", b"i@120000"]
    assert here.standing() == []


def test_a_crash_before_the_script_releases_the_schedule_unchanged(here):
    sent = here.put()
    here.claim(here.task())
    assert here.standing() == []
    here.start()
    assert here.pending.get(b"i") == sent
    assert ids(here.deliver()) == [b"i@60000"]


def test_a_crash_after_the_script_releases_the_occurrence_alone(here):
    here.put()
    assert ids(here.deliver(settled=False)) == [b"i@60000"]
    assert here.standing() == [(b"i", 2 * MINUTE)]
    here.start()
    assert here.standing() == [(b"i@60000", MINUTE), (b"i", 2 * MINUTE)]
    again = here.deliver()
    assert ids(again) == [b"i@60000"], "an ordinary row, which the look-up at the target settles"
    assert here.standing() == [(b"i", 2 * MINUTE)]


def test_nobody_claims_the_next_one_before_this_one_is_on_its_way(here):
    """On a journal a later one tells how far the plan has come."""
    here.put(missed="all")
    here.clock.advance(2 * MINUTE)
    batches = here.task().batches()
    assert ids(rows_of([next(batches)])) == [b"i@60000"]
    assert here.standing() == []
    assert ids(rows_of(batches)) == [b"i@120000", b"i@180000"]
    assert here.standing() == [(b"i", 4 * MINUTE)]


def test_a_crash_on_the_way_releases_both(here):
    here.put()
    next(here.task().batches())
    here.start()
    assert here.standing() == [(b"i@60000", MINUTE), (b"i", 2 * MINUTE)]


def test_a_second_attempt_renews_what_the_first_has_not(here):
    here.put()
    next(here.task().batches())
    second = here.task(number=here.batches)
    assert ids(rows_of(second.batches())) == [b"i@60000"]
    assert here.standing() == [(b"i", 2 * MINUTE)]


@pytest.mark.parametrize("again", [False, True])
def test_what_is_cancelled_or_written_again_on_the_way_does_not_come_again(here, again):
    here.put()
    batches = here.task().batches()
    next(batches)
    if again:
        here.pending.put(
            Schedule(id=b"i", due_ms=9 * MINUTE, record=Record(topic="out", value=b""))
        )
    else:
        here.shard.park([b"i", "", ""])
    assert rows_of(batches) == []
    assert here.standing() == ([(b"i", 9 * MINUTE)] if again else [])


def test_a_second_attempt_finds_what_the_first_has_left(here):
    """Spark tries the task again: before the script has run, and after."""
    here.put()
    first = here.task()
    here.claim(first)
    second = here.task(number=here.batches)
    assert ids(rows_of(second.batches())) == [b"i@60000"]
    third = here.task(number=here.batches)
    assert ids(rows_of(third.batches())) == [b"i@60000"], "the batch is closed"
    assert here.standing() == [(b"i", 2 * MINUTE)]


def test_a_task_that_another_one_has_followed_is_refused(here):
    here.put()
    first = here.task()
    got = here.claim(first)
    second = here.task(number=here.batches)
    here.shard.attempt(second.batch, owner=here.owner, attempt=second.attempt)
    with pytest.raises(LaneEnded):
        list(first._arrow(got))
    assert here.standing() == []
    assert ids(rows_of(second.batches())) == [b"i@60000"]


def test_a_task_of_an_older_service_is_refused(here):
    here.put()
    task = here.task()
    got = here.claim(task)
    here.pending.fence()
    with pytest.raises(Fenced):
        list(task._arrow(got))
    assert here.standing() == []


def test_a_newer_version_changes_the_future(here):
    here.put()
    task = here.task()
    got = here.claim(task)
    here.put(every_ms=10 * MINUTE, now_ms=MINUTE)
    assert rows_of(task._arrow(got)) == []
    assert here.standing() == [(b"i", 11 * MINUTE)]
    here.shard.settle(task.batch.name)


def test_a_cancellation_ends_it_even_in_the_moment_of_delivery(here):
    here.put()
    task = here.task()
    got = here.claim(task)
    here.shard.park([b"i", "", ""])
    assert rows_of(task._arrow(got)) == []
    assert here.standing() == []
    here.start()
    assert here.standing() == []


def test_a_cancellation_while_an_occurrence_is_delivered_ends_it(here):
    here.put()
    task = here.task()
    assert len(rows_of(task.batches())) == 1
    assert here.pending.cancel(b"i").value == "cancelled"
    here.shard.settle(task.batch.name)
    here.start()
    assert here.standing() == []


def test_it_is_one_pending_schedule_while_an_occurrence_is_delivered(here):
    here.put()
    here.deliver(settled=False)
    found = here.pending.get(b"i")
    assert (found.state, found.due_ms) == (State.PENDING, 2 * MINUTE)


def test_rescheduling_moves_only_the_next_occurrence(here):
    here.put()
    assert here.pending.move(b"i", due_ms=MINUTE + 5_000)
    assert here.deliver() == []
    here.clock.advance(5_000)
    (row,) = here.deliver()
    assert (row["id"], row["due_ms"]) == (b"i@60000", MINUTE + 5_000)
    assert here.standing() == [(b"i", 2 * MINUTE)]


def test_jitter_moves_each_occurrence_but_not_the_plan(here):
    here.put(jitter_ms=30_000)
    dues = []
    for n in range(1, 6):
        ((_, due_ms),) = here.standing()
        here.clock.advance(due_ms - here.clock.now_ms())
        (row,) = here.deliver()
        assert row["id"] == b"i@%d" % (n * MINUTE)
        dues.append(row["due_ms"] - n * MINUTE)
    assert all(0 <= due < 30_000 for due in dues)
    assert len(set(dues)) > 2


def after_an_outage(here, missed, ms):
    here.put(missed=missed)
    here.clock.advance(ms)
    return [ids(here.deliver()) for _ in range(3)], here.standing()


def test_one_missed_occurrence_is_delivered_by_default(here):
    rows, standing = after_an_outage(here, None, 3 * MINUTE + 1)
    assert rows == [[b"i@60000"], [], []]
    assert standing == [(b"i", 5 * MINUTE)]


def test_missed_occurrences_can_be_left_out(here):
    rows, standing = after_an_outage(here, "none", 3 * MINUTE + 1)
    assert rows == [[], [], []]
    assert standing == [(b"i", 5 * MINUTE)]
    assert here.pending.counts()["claimed"] == 0


def test_an_occurrence_that_is_a_little_late_is_not_missed(here):
    rows, _ = after_an_outage(here, "none", MISSED_LATE_MS_MAX)
    assert rows[0] == [b"i@60000"]


def test_all_missed_occurrences_can_be_delivered(here):
    rows, standing = after_an_outage(here, "all", 3 * MINUTE + 1)
    assert [one for some in rows for one in some] == [b"i@%d" % (n * MINUTE) for n in range(1, 5)]
    assert standing == [(b"i", 5 * MINUTE)]


def test_each_occurrence_has_its_own_expiry(here):
    here.put(expiry=Expiry(1_000, after_due=True))
    here.clock.advance(1_001)
    rows = [row for _ in range(2) for row in here.deliver()]
    assert [row["topic"] for row in rows] == ["dead-letters"]
    here.clock.advance(MINUTE - 1_001)
    assert [row["topic"] for row in here.deliver()] == ["out"]


def test_a_plan_that_can_no_longer_be_read_is_delivered_once_more(here):
    """Its time zone has gone from this host, say."""
    plan = make_plan(now_ms=0, cron="* * * * *").text.replace("*", "?")
    record = Record(topic="out", value=b"v")
    here.pending.put(Schedule(id=b"i", due_ms=MINUTE, record=record, plan=plan))
    assert ids(here.deliver()) == [b"i"]
    assert here.standing() == []


def test_a_failed_batch_leaves_what_recurs_to_the_next_claim(here, monkeypatch):
    """Sent record by record it would go out with its plan, and never come again."""
    here.put()
    record = Record(topic="out", value=b"v")
    here.pending.put(Schedule(id=b"once", due_ms=MINUTE, record=record))
    here.claim(here.task())
    sent = []

    def send(self, records):
        sent.extend(records)
        return dict.fromkeys(records)

    monkeypatch.setattr(RecordByRecord, "_send", send)
    monkeypatch.setattr(Targets, "known", lambda self, topic: Target(1_000_000, 1))
    settings = Settings(bootstrap_servers="nobody:1")
    targets = Targets(here.pending, None, settings, owner=here.owner, clock=here.clock)
    failed = RecordByRecord(settings, here.pending, targets, owner=here.owner, clock=here.clock)
    assert failed.deliver(0) == 1
    assert sent == [b"once"]
    here.start()
    assert ids(here.deliver()) == [b"i@60000"]


def test_tasks_that_wait_for_something_later_are_woken(here):
    here.put(every_ms=1_000, now_ms=MINUTE - 1_000)
    record = Record(topic="out", value=b"v")
    here.pending.put(Schedule(id=b"later", due_ms=MINUTE + 5_000, record=record))
    wake = here.shard.wake()
    wake.wait(1)
    assert not wake.wait(1)
    here.deliver()
    assert wake.wait(1_000)


def test_a_target_that_is_not_known_yet_holds_up_the_occurrence_alone(here):
    here.put()
    here.lane = replace(here.lane, check_targets=True)
    assert here.deliver() == []
    assert here.standing() == [(b"i", 2 * MINUTE)]
    _, rows = here.shard.aside(count_max=9)
    assert list(rows) == [b"i@60000"]


def test_many_recur_in_one_claim(here):
    for n in range(1_500):
        here.put(b"%d" % n)
    rows = here.deliver()
    assert {row["id"] for row in rows} == {b"%d@60000" % n for n in range(1_500)}
    assert len(rows) == 1_500
    assert here.pending.counts()["pending"] == 1_500
    assert read_text(here.pending.get(b"7").plan).planned_ms == 2 * MINUTE
