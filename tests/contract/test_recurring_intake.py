"""Recurring schedules from an inbox to the store: real Spark SQL, and the task that parks them."""

import json

import pyarrow as pa
import pytest
from dialects_inputs import SOON, TARGET, schedule
from dialects_model import READ_MS, SETTINGS
from dialects_spark import decode, frame_of

from sendlater.clock import FixedClock
from sendlater.dialects import encode_headers, names, stages
from sendlater.dialects.recurrence import make_plan, read_text
from sendlater.errors import NotSupported
from sendlater.model import DUE_MS_MAX, Record, Schedule
from sendlater.operations.acceptance import inbox_record
from sendlater.spark.intake.park_task import ParkTask
from sendlater.store import Pending

HOUR = 3_600_000
EVERY = (names.EVERY, b"1h")


def parked(spark, redis_url, space, records, chosen=SETTINGS):
    """What is in the store after intake has read these records."""
    frame = frame_of(spark, records)
    for stage in stages(chosen):
        frame = frame.selectExpr(*stage)
    pending = Pending.open(redis_url, space=space, shards=3)
    task = ParkTask(pending, pending.fence(), False, frozenset(), FixedClock(READ_MS))
    task._mark("schedules/1", 0)
    for batch in frame.orderBy("origin_position").toArrow().to_batches():
        task.park(pa.RecordBatch.from_arrays(batch.columns, names=frame.columns))
    task.flush()
    return pending


def only(pending):
    (found,) = pending.list(count_max=9)
    return found


def test_a_record_with_a_plan_is_parked_for_its_first_time(spark, redis_url, space):
    record = schedule(EVERY, TARGET, ("h", b"1"), (names.COUNT, b"3"), (names.EXPIRES_AFTER, b"5m"))
    found = only(parked(spark, redis_url, space, [record]))
    assert (found.id, found.due_ms, found.record.topic) == (b"id", READ_MS + HOUR, "t")
    assert found.record.headers == [("h", b"1")]
    assert found.expiry.ms == 300_000
    assert json.loads(found.plan) == {"every_ms": HOUR, "left": 3, "planned_ms": READ_MS + HOUR}
    assert found.origin.position == 0


def test_cron_and_zone(spark, redis_url, space):
    cron = (names.CRON, b"0 9 * * MON-FRI"), (names.ZONE, b"Europe/Paris")
    found = only(parked(spark, redis_url, space, [schedule(*cron, TARGET)]))
    assert found.due_ms == 1_780_038_000_000, "Friday, 29 May 2026, 09:00 in Paris"


def test_the_newest_record_of_an_id_counts(spark, redis_url, space):
    once = schedule(SOON, TARGET)
    assert only(parked(spark, redis_url, space, [schedule(EVERY, TARGET), once])).plan == ""


def test_a_null_value_cancels_it(spark, redis_url, space):
    records = [schedule(EVERY, TARGET), schedule(EVERY, TARGET, value=None)]
    assert parked(spark, redis_url, space, records).list(count_max=9) == []


def test_a_plan_counts_only_if_its_condition_holds(spark, redis_url, space):
    def sent(value, *headers):
        return schedule(EVERY, TARGET, *headers, value=value)

    absent = (names.IF, b"absent")
    found = only(parked(spark, redis_url, space, [sent(b"1", absent), sent(b"2", absent)]))
    assert (found.record.value, found.due_ms) == (b"1", READ_MS + HOUR)
    assert read_text(found.plan).every_ms == HOUR
    later = [sent(b"3", (names.IF, b"later")), sent(b"4")]
    assert only(parked(spark, redis_url, f"{space}-later", later)).record.value == b"4"


def test_what_the_client_encodes_is_read_whole(spark, redis_url, space):
    """Also a copy of a change: it is due at another time than it is planned."""
    plan = make_plan(now_ms=READ_MS, every_ms=HOUR, count=7, jitter_ms=9)
    record = Record(topic="t", key=b"k", value=b"v", headers=[("h", b"1")])
    encoded = encode_headers(
        record, inbox="schedules", id=b"i", due_ms=READ_MS + 5, plan=plan.text, change="c1"
    )
    pending = parked(spark, redis_url, space, [encoded])
    found = only(pending)
    assert (found.id, found.due_ms, found.record) == (b"i", READ_MS + 5, record)
    assert read_text(found.plan) == plan


def test_a_store_that_has_made_a_change_ignores_its_copy(spark, redis_url, space):
    pending = Pending.open(redis_url, space=space, shards=3)
    shard = pending.shard_of(b"i")
    shard.client.zadd(shard.keys["changes"], {"c1": 1})
    plan = make_plan(now_ms=READ_MS, every_ms=HOUR)
    record = Record(topic="t", value=b"v")
    encoded = encode_headers(
        record, inbox="schedules", id=b"i", due_ms=READ_MS + 5, plan=plan.text, change="c1"
    )
    assert parked(spark, redis_url, space, [encoded]).list(count_max=9) == []


REFUSED = [
    ([(names.EVERY, b"40000d")], "expected a first time within 3660 days, got 2"),
    ([EVERY, (names.START, b"2300-01-01T00:00:00Z")], "within 3660 days, got 2300-01-01"),
    ([EVERY, (names.COUNT, b"9" * 30)], "count: expected 1 to "),
    ([(names.CRON, b"0 0 30 2 *")], "day of month"),
    ([(names.EVERY, b"soon")], "sendlater-every: expected a duration"),
    ([(names.EVERY, None)], "sendlater-every: expected a duration"),
    ([EVERY, SOON], "without sendlater-due-ms"),
    ([EVERY, (names.SPREAD, b"1h")], "without sendlater-spread"),
    ([EVERY, (names.EXPIRES, b"2030-01-01T00:00:00Z")], "without sendlater-expires"),
    ([EVERY, (names.CRON, b"0 9 * * *")], "one of every and cron"),
    ([(names.CRON, b"0 0 9 * * *")], "five fields"),
    ([(names.CRON, b"0 9 * * *"), (names.ZONE, b"Nowhere")], "zone"),
    ([(names.CRON, b"0 9 * * *"), (names.ZONE, b"")], "zone"),
    ([(names.PLAN, b"\xff")], "expected a plan"),
    ([(names.PLAN, b'{"every_ms": 1, "planned_ms": 1}')], "expected a plan"),
    ([(names.PLAN, None)], "one of every and cron"),
]
"""Headers, and what is told of them."""


def test_plans_that_cannot_be_meant_are_rejected(spark, redis_url, space):
    records = [
        schedule(*headers, TARGET, ("h", b"1"), key=b"%d" % n)
        for n, (headers, _) in enumerate(REFUSED)
    ]
    good = schedule(EVERY, TARGET, key=b"good")
    pending = parked(spark, redis_url, space, [*records, good])
    found = {one.id: one for one in pending.list(count_max=len(records) + 1)}
    assert pending.counts()["rejected"] == len(records)
    assert found.keys() == {b"schedules-1-%d" % n for n in range(len(records))} | {b"good"}
    for n, (record, (headers, detail)) in enumerate(zip(records, REFUSED, strict=True)):
        rejected = found[b"schedules-1-%d" % n].record
        told = dict(rejected.headers)
        assert detail in told[names.REJECTED_DETAIL].decode(), headers
        assert told[names.REJECTED] == (b"too-far" if "3660 days" in detail else b"bad-plan")
        assert (rejected.topic, rejected.key) == ("rejected", record.key)
        assert rejected.headers[: len(record.headers)] == record.headers
        assert told[names.ORIGIN] == b"schedules/1/%d" % n


def test_an_id_that_leaves_no_room_is_rejected(spark, redis_url, space):
    record = schedule(EVERY, TARGET, key=b"x" * 500)
    told = dict(only(parked(spark, redis_url, space, [record])).record.headers)
    assert "at most 495 bytes" in told[names.REJECTED_DETAIL].decode()


def test_a_due_time_that_cannot_be_read_is_that_of_the_plan(spark, redis_url, space):
    plan = (names.PLAN, make_plan(now_ms=READ_MS, every_ms=HOUR).text.encode())
    given = [b"", b"-1", b"9" * 30, b"%d" % (DUE_MS_MAX + 1), "²".encode(), None]
    records = [
        schedule(plan, (names.DUE_MS, due), TARGET, key=b"%d" % n) for n, due in enumerate(given)
    ]
    found = parked(spark, redis_url, space, records).list(count_max=9)
    assert [one.due_ms for one in found] == [READ_MS + HOUR] * len(given)


def test_the_intervals_of_a_copy_count_from_the_time_of_its_original(spark, redis_url, space):
    told = (names.COPIED, b"plain/0/7"), (names.ORIGIN_TIMESTAMP_MS, b"%d" % (READ_MS - 5_000))
    found = only(parked(spark, redis_url, space, [schedule(*told, EVERY, TARGET, ("h", b"1"))]))
    assert found.due_ms == READ_MS - 5_000 + HOUR
    assert found.record.headers == [("h", b"1")]


def test_buckets_refuse_a_plan(spark):
    chosen = SETTINGS.model_copy(update={"pending": "buckets"})
    for name in names.PLANS:
        (row,) = decode(spark, [schedule((name, b"1h"), TARGET)], chosen)
        assert dict(row["headers"])[names.REJECTED] == b"cannot-recur"
    plan = make_plan(now_ms=0, every_ms=HOUR)
    one = Schedule(id=b"a", due_ms=HOUR, record=Record(topic="t", value=b""), plan=plan.text)
    with pytest.raises(NotSupported, match="recur"):
        inbox_record(one, settings=chosen, inbox="schedules", now_ms=0)


def test_an_envelope_cannot_recur(spark):
    value = b'{"topic":"t","message":"a","countdown":1}'
    record = Record(topic="envelopes", value=value, headers=[EVERY])
    (row,) = decode(spark, [record])
    assert (row["due_ms"], row["change"], row["headers"]) == (READ_MS + 1_000, None, [EVERY])
