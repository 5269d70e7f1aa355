"""Recurring schedules on a journal: each occurrence leaves there how far the plan has come."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from dialects_spark import frame_of

from sendlater.clock import FixedClock
from sendlater.config import Inbox, load
from sendlater.dialects import delivered_stages, encode_again, encode_headers, names, stages
from sendlater.dialects.deliver import leaving
from sendlater.dialects.recurrence import extra_occurrence, make_plan, read_text
from sendlater.dialects.rejected import expired_schedule
from sendlater.model import PAUSED_MS, Expiry, Origin, Reason, Record, Schedule
from sendlater.operations.copies import told_in_plan
from sendlater.spark.arrow_rows import to_arrow, unpack_columns
from sendlater.spark.delivery.recurring import advanced, as_sent
from sendlater.spark.delivery.refusal import rejected_schedule
from sendlater.spark.intake.park_task import ParkTask
from sendlater.spark.journal.fill_tasks import FillTask
from sendlater.spark.journal.standing import standing
from sendlater.spark.plans import _read
from sendlater.store import Batch, Move, Pending
from sendlater.store.codec import pack, unpack, with_due

MINUTE = 60_000
JOURNAL = load(
    bootstrap_servers="b:1",
    inboxes=(Inbox(topic="schedules", journal=True),),
    history_topic="history",
    shards=1,
)


def recurring(*, key=b"k", expiry=None, partition=None, tags=(), **words):
    plan = make_plan(now_ms=0, **({"every_ms": MINUTE} | words))
    record = Record(topic="t", key=key, value=b"v", headers=[("h", b"1")], partition=partition)
    origin = Origin(topic="schedules", partition=1, position=0, timestamp_ms=5_000)
    return Schedule(
        id=b"i",
        due_ms=plan.due_ms(b"i"),
        record=record,
        dialect="headers",
        origin=origin,
        expiry=expiry,
        plan=plan.text,
        tags=tags,
    )


def step(schedule):
    """The next occurrence, and the schedule after it."""
    found = advanced(schedule, now_ms=schedule.due_ms, journals=["schedules"])
    return found.occurrence, found.again


KINDS = {
    "plain": {},
    "no key": {"key": None},
    "a partition and jitter": {"partition": 3, "jitter_ms": 999},
    "an expiry": {"expiry": Expiry(5_000, after_due=True)},
    "tags": {"tags": ("a", "order:7")},
    "the last": {"count": 1},
    "cron": {"every_ms": None, "cron": "0 9 * * *", "zone": "Europe/Paris"},
}


def sent(spark, schedules):
    """What Spark sends for due rows."""
    packed = [with_due(one.due_ms, pack(one)) for one in schedules]
    ids, columns = [one.id for one in schedules], unpack_columns(packed)
    rows = as_sent(ids, packed, columns, journals=JOURNAL.journals, history_topic="history")
    frame = to_arrow(*rows)
    frame = spark.createDataFrame(pa.Table.from_batches([frame]))
    for stage in delivered_stages(JOURNAL):
        frame = frame.selectExpr(*stage)
    return [
        Record(
            topic=row.topic,
            partition=row.partition,
            key=raw(row.key),
            value=raw(row.value),
            headers=[(h.key, raw(h.value)) for h in row.headers],
        )
        for row in frame.collect()
    ]


def raw(content):
    return None if content is None else bytes(content)


def test_an_occurrence_leaves_the_schedule_as_it_comes_again(spark):
    steps = [step(recurring(**kind)) for kind in KINDS.values()]
    found = sent(spark, [one for one, _ in steps])
    for n, (one, again) in enumerate(steps):
        target, left, history = found[3 * n : 3 * n + 3]
        expected = leaving(one, ("schedules", "history"))
        assert [target, left, history] == expected
        told = dict(target.headers)
        assert (told[names.SCHEDULE], told[names.ID]) == (b"i", one.id)
        assert not {names.AGAIN, names.PLAN, names.DUE_MS} & set(told)
        assert target.headers == history.headers
        assert (left.topic, left.partition, left.key) == ("schedules", 1, b"i")
        assert left.value == (b"v" if again else None)
        for name in (names.ID, names.DUE, names.ORIGIN):
            assert dict(left.headers)[name] == told[name], "the look-up after a crash finds it"


def test_what_is_refused_or_dead_leaves_it_too(spark):
    one, again = step(recurring(expiry=Expiry(5_000, after_due=True)))
    refused = rejected_schedule(one, Reason.UNKNOWN_TOPIC, "it is", topic="rejected")
    dead = expired_schedule(one, now_ms=10 * MINUTE, topic="dead")
    found = sent(spark, [refused, dead])
    expected = [*leaving(refused, ("schedules", "history")), *leaving(dead, ("schedules",))]
    assert found == expected
    assert [record.topic for record in found] == ["rejected", "schedules", "dead", "schedules"]
    for record, left in (found[:2], found[2:]):
        assert names.AGAIN not in dict(record.headers)
        assert dict(left.headers)[names.PLAN] == again.plan.encode()
        assert dict(record.headers)[names.REJECTED_ID] == one.id


def test_occurrences_are_rejected_under_ids_of_their_own():
    first, again = step(recurring())
    second, _ = step(again)
    told = [rejected_schedule(one, Reason.REFUSED, "", topic="r").id for one in (first, second)]
    assert told == [b"schedules-1-0-60000", b"schedules-1-0-120000"]


def original():
    """The record that somebody wrote."""
    headers = [(names.EVERY, b"1m"), (names.TARGET_TOPIC, b"t"), ("h", b"1")]
    return Record(topic="schedules", key=b"i", value=b"v", headers=headers)


def decoded(frame):
    for stage in stages(JOURNAL):
        frame = frame.selectExpr(*stage)
    return [
        pa.RecordBatch.from_arrays(b.columns, names=frame.columns)
        for b in frame.orderBy("origin_position").toArrow().to_batches()
    ]


def rebuilt(spark, redis_url, space, records):
    """What a store holds that was filled from these records of the journal."""
    pending = Pending.open(redis_url, space=space, shards=1)
    task = FillTask(redis_url=redis_url, space=space, shards=1, owner=pending.fence())
    found = standing(frame_of(spark, records), tasks=1)
    list(task(iter(decoded(found))))
    return pending.list(count_max=9)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "the last"])
def test_a_store_that_was_emptied_goes_on_after_what_was_delivered(
    kind,
    spark,
    redis_url,
    space,
):
    one = recurring(**KINDS[kind], count=5)
    records = [original()]
    for _ in range(3):
        occurrence, one = step(one)
        records.append(leaving(occurrence, ("schedules",))[1])
    # In whatever order they are: two lanes may have written them.
    [found] = rebuilt(spark, redis_url, space, [records[0], records[3], records[1], records[2]])
    assert (found.due_ms, found.plan, found.record) == (one.due_ms, one.plan, one.record)
    assert (found.origin.position, found.expiry, found.tags) == (0, one.expiry, one.tags)
    assert read_text(found.plan).left == 2


def test_a_plan_that_is_over_or_cancelled_stays_so(spark, redis_url, space):
    first, again = step(recurring(count=2))
    last, none = step(again)
    assert none is None
    copy, tombstone = (leaving(one, ("schedules",))[1] for one in (first, last))
    assert not rebuilt(spark, redis_url, space, [original(), copy, tombstone])
    assert not rebuilt(spark, redis_url, f"{space}-late", [original(), tombstone, copy])
    cancelled = Record(topic="schedules", key=b"i", value=None)
    assert not rebuilt(spark, redis_url, f"{space}-cancelled", [original(), cancelled, copy])


def test_a_newer_version_stands_before_the_copy_of_an_older_one(spark, redis_url, space):
    copy = leaving(step(recurring())[0], ("schedules",))[1]
    newer = replace(original(), value=b"newer")
    [found] = rebuilt(spark, redis_url, space, [original(), newer, copy])
    assert (found.record.value, found.origin.position) == (b"newer", 1)


class Store:
    """A store, and an intake that reads the journal."""

    def __init__(self, spark, redis_url, space):
        self.spark = spark
        self.pending = Pending.open(redis_url, space=space, shards=1)
        self.shard = self.pending.shards[0]
        self.owner = self.pending.fence()

    def hold(self, schedule):
        self.shard.park([schedule.id, schedule.due_ms, pack(schedule)])

    def read(self, *records):
        journals = frozenset({"schedules"})
        task = ParkTask(self.pending, self.owner, False, journals, FixedClock(0))
        task._mark("schedules/1", 0)
        for batch in decoded(frame_of(self.spark, list(records))):
            task.park(batch)
        task.flush()

    @property
    def plan(self):
        return read_text(self.pending.get(b"i").plan)

    def is_overtaken(self):
        return bool(self.shard.client.exists(self.shard.keys["overtaken"]))


@pytest.mark.parametrize("tags", [(), ("a", "order:7")])
def test_intake_takes_the_copy_that_has_come_further(tags, spark, redis_url, space):
    one = recurring(tags=tags)
    occurrence, again = step(one)
    copy = leaving(occurrence, ("schedules",))[1]
    filler = replace(original(), key=b"other")

    same = Store(spark, redis_url, f"{space}-same")
    same.hold(again)
    same.read(filler, copy)
    assert (same.pending.get(b"i"), same.is_overtaken()) == (again, False)

    back = Store(spark, redis_url, f"{space}-back")
    back.hold(one)
    back.read(filler, copy)
    assert back.pending.get(b"i").due_ms == again.due_ms, "it was delivered already"
    assert back.pending.get(b"i").origin.position == 0
    assert back.plan == read_text(again.plan)
    tagged = back.pending.list(count_max=9, tag="a")
    assert [one.due_ms for one in tagged] == ([again.due_ms] if tags else [])

    ahead = Store(spark, redis_url, f"{space}-ahead")
    _, third = step(again)
    ahead.hold(third)
    ahead.read(filler, copy)
    assert ahead.pending.get(b"i") == third
    assert ahead.is_overtaken(), "on the journal an older copy is the last"


@pytest.mark.parametrize("words", [{}, {"count": 1}], ids=["one of many", "the last"])
def test_what_a_delivery_has_left_takes_back_an_occurrence_that_still_waits(
    words,
    spark,
    redis_url,
    space,
):
    """It was put back or set aside, delivered, and then the store went back."""
    occurrence, again = step(recurring(**words))
    left = leaving(occurrence, ("schedules",))[1]
    filler = replace(original(), key=b"other")
    store = Store(spark, redis_url, space)
    for one in filter(None, (occurrence, again)):
        store.hold(one)
    newer = replace(occurrence, origin=replace(occurrence.origin, position=9), id=b"i@newer")
    store.hold(newer)
    store.read(filler, left)
    assert store.pending.get(occurrence.id) is None
    assert store.pending.get(b"i") == again
    assert store.pending.get(b"i@newer") == newer


@pytest.mark.parametrize("words", [{}, {"count": 1}], ids=["one of many", "the last"])
@pytest.mark.parametrize("refused_before", [True, False])
def test_what_a_rejection_has_left_takes_it_back_too(
    refused_before,
    words,
    spark,
    redis_url,
    space,
):
    """The store went back to before or after it was refused."""
    occurrence, again = step(recurring(**words))
    refused = rejected_schedule(occurrence, Reason.UNKNOWN_TOPIC, "it is", topic="rejected")
    left = leaving(refused, ("schedules", "history"))[1]
    store = Store(spark, redis_url, space)
    for one in filter(None, (refused if refused_before else occurrence, again)):
        store.hold(one)
    store.read(replace(original(), key=b"other"), left)
    assert store.pending.get(occurrence.id) is None
    assert store.pending.get(refused.id) is None
    assert store.pending.get(b"i") == again


@pytest.mark.parametrize("further", [0, 1, 2])
def test_what_is_claimed_goes_on_where_its_journal_says(redis_url, space, further):
    """A store that went back to where it had claimed it: what it has forgotten is not repeated."""
    pending = Pending.open(redis_url, space=space, shards=1)
    owner, [shard] = pending.fence(), pending.shards
    first = recurring(tags=("a",))
    then = [first, second := step(first)[1], step(second)[1]][further]
    shard.park([b"i", first.due_ms, pack(first)], journal=True)
    batch = Batch(0, pending.open_lane(0, owner=owner), first.due_ms)
    assert shard.claim(batch, owner=owner, now_ms=first.due_ms, count_max=9).ids == [b"i"]
    copy = f"again schedules/1/0 {read_text(then.plan).planned_ms} 0|{then.due_ms}"
    shard.park([b"i", copy, pack(then)], journal=True)
    pending.release_all(owner=owner)
    assert pending.get(b"i").due_ms == then.due_ms
    assert [one.due_ms for one in pending.list(count_max=9, tag="a")] == [then.due_ms]
    shard.park([b"i", "", "schedules/1/0"], journal=True)
    assert pending.counts()["pending"] == 0


def test_a_copy_of_what_was_cancelled_is_buried(spark, redis_url, space):
    store = Store(spark, redis_url, space)
    store.read(replace(original(), key=b"other"), leaving(step(recurring())[0], ("schedules",))[1])
    assert store.pending.get(b"i") is None
    assert store.shard.client.hgetall(store.shard.keys["surplus"]) == {b"i": b"schedules/1/0"}


def test_what_is_written_again_has_its_plan():
    record = encode_again(recurring(count=3))
    assert json.loads(dict(record.headers)[names.PLAN])["left"] == 3


# ---- paused, resumed, triggered ----------------------------------------------------------------


def planned(schedule, plan):
    return replace(schedule, due_ms=plan.due_ms(b"i"), plan=plan.text)


def paused(schedule):
    return planned(schedule, read_text(schedule.plan).pause())


def resumed(schedule, *, now_ms):
    return planned(schedule, read_text(schedule.plan).resume(now_ms))


def test_a_store_that_was_emptied_keeps_a_pause(spark, redis_url, space):
    """Also where an occurrence that was claimed before it leaves its copy after it."""
    occurrence, again = step(recurring(count=5))
    left = leaving(occurrence, ("schedules",))[1]
    off = paused(again)
    [found] = rebuilt(spark, redis_url, space, [original(), encode_again(off), left])
    assert (found.due_ms, found.plan) == (PAUSED_MS, off.plan)
    assert (read_text(found.plan).left, found.origin.position) == (4, 0)
    on = resumed(off, now_ms=again.due_ms - 1)
    assert on.due_ms == again.due_ms
    records = [original(), encode_again(off), left, encode_again(on)]
    [found] = rebuilt(spark, redis_url, f"{space}-on", records)
    assert (found.due_ms, found.plan) == (on.due_ms, on.plan)


def test_intake_takes_a_pause_and_a_resume_that_a_store_has_forgotten(spark, redis_url, space):
    one = recurring(tags=("a",))
    off, filler = paused(one), replace(original(), key=b"other")
    on = resumed(off, now_ms=0)
    stories = {
        "same": (off, off, off, False),
        "back": (one, off, off, False),
        "back-on": (off, on, on, False),
        "ahead": (on, off, on, True),
        "in-flight": (off, one, off, True),
    }
    for name, (stood, copied, expected, overtaken) in stories.items():
        store = Store(spark, redis_url, f"{space}-{name}")
        store.hold(stood)
        store.read(filler, encode_again(copied))
        found = store.pending.get(b"i")
        assert (found.due_ms, found.plan) == (expected.due_ms, expected.plan), name
        assert store.is_overtaken() == overtaken, name


def test_intake_takes_a_new_due_time_that_a_store_has_forgotten(spark, redis_url, space):
    """A move tells of itself in the plan, so that its copy is newer than what stands."""
    one = recurring()
    move = told_in_plan(Move(b"i", one.due_ms + 7_000), one, ["schedules"])
    assert (move.version, move.again) == (one.version, True)
    plan = unpack(b"i", with_due(move.due_ms, move.instead)).plan
    assert read_text(plan).changes == read_text(one.plan).changes + 1
    moved = replace(one, due_ms=move.due_ms, plan=plan)
    for name, stood in {"same": moved, "back": one}.items():
        store = Store(spark, redis_url, f"{space}-{name}")
        store.hold(stood)
        store.read(replace(original(), key=b"other"), encode_again(moved))
        found = store.pending.get(b"i")
        assert (found.due_ms, found.plan) == (move.due_ms, plan), name
        assert not store.is_overtaken(), name


def test_a_time_with_many_digits_is_none():
    """`sendlater-due-ms` of a plan: longer than any time, it would stop intake."""
    for digits in (b"0" * 20 + b"9" * 400, b"1" + b"0" * 30, b"9" * 16):
        told = {names.PLAN: recurring().plan.encode(), names.DUE_MS: digits}
        plan, due_ms = _read(b"i", told, 5_000, 3_660)
        assert due_ms == plan.due_ms(b"i")


def test_an_occurrence_beside_the_plan_has_a_record_of_its_own(spark, redis_url, space):
    whole = recurring(expiry=Expiry(5_000, after_due=True), tags=("a",))
    extra = extra_occurrence(whole, now_ms=MINUTE + 7)
    told = encode_headers(
        extra.record,
        inbox="schedules",
        id=extra.id,
        due_ms=extra.due_ms,
        expiry=extra.expiry,
        tags=extra.tags,
    )
    found = rebuilt(spark, redis_url, space, [original(), told])
    [row] = [one for one in found if one.id == b"i@60007"]
    assert len(found) == 2
    assert (row.due_ms, row.plan, row.tags) == (MINUTE + 7, "", ("a",))
    assert row.record == extra.record
    assert row.expiry == extra.expiry
    copies = leaving(row, ("schedules", "history"))
    assert sent(spark, [row]) == copies
    tombstone = copies[1]
    assert (tombstone.key, tombstone.value) == (b"i@60007", None)
    [left] = rebuilt(spark, redis_url, f"{space}-after", [original(), told, tombstone])
    assert left.id == b"i"


def test_only_ours_are_occurrences_beside_a_plan(spark, redis_url, space):
    """Somebody else's header is dropped, and a record that claims to be one is rejected."""
    forwarded = Record(
        topic="schedules",
        key=b"j",
        value=b"v",
        headers=[(names.SCHEDULE, b"i"), (names.DUE_MS, b"1"), (names.TARGET_TOPIC, b"t")],
    )
    false = replace(forwarded, headers=[(names.PLAN, names.EXTRA), *forwarded.headers])
    found = rebuilt(spark, redis_url, space, [forwarded, replace(false, key=b"k")])
    assert {one.id: one.dialect for one in found} == {b"j": "headers", b"schedules-1-1": "rejected"}
    assert next(one for one in found if one.id == b"j").record.headers == []
