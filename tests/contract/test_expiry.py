"""What has expired is not delivered: it goes to the dead-letter topic, or nowhere."""

from dataclasses import replace
from datetime import timedelta

import pytest
from confluent_kafka import KafkaError
from sent_rows import rows_of

from sendlater import Scheduler
from sendlater.clock import FixedClock
from sendlater.config import Inbox, Settings
from sendlater.dialects import names
from sendlater.dialects.deliver import leaving
from sendlater.errors import BadTime, BrokerUnavailable, NotSupported
from sendlater.limits import CLAIM_COUNT_MAX
from sendlater.model import DUE_MS_MAX, Expiry, Moved, Origin, Record, Schedule, Target
from sendlater.operations.acceptance import inbox_record
from sendlater.service.metrics import StoreMetrics
from sendlater.spark.arrow_rows import to_arrow, unpack_columns
from sendlater.spark.delivery.claim_task import ShardTask
from sendlater.spark.delivery.crash_lookup import CrashLookup
from sendlater.spark.delivery.failed_batch import RecordByRecord
from sendlater.spark.delivery.lane import Lane, ShardSlice
from sendlater.spark.delivery.targets import Targets
from sendlater.spark.delivery.unsettled_rows import UnsettledRows
from sendlater.store import Admin, Pending
from sendlater.store.codec import pack, unpack, with_due
from sendlater.testing import Fake

ORIGIN = Origin(topic="in", partition=1, position=7, timestamp_ms=1_000)


class NeverWoken:
    def wait(self, ms):
        return False


class Here:
    """A store, and a lane whose clock the test moves."""

    def __init__(self, redis_url, space, **settings):
        self.clock = FixedClock(10_000)
        self.pending = Pending.open(redis_url, space=space, shards=1)
        self.shard = self.pending.shards[0]
        self.owner = self.pending.fence()
        self.run = self.pending.open_lane(0, owner=self.owner)
        settings = Settings(space=space, shards=1, **settings)
        self.lane = Lane.from_options(
            Lane.of(
                settings, redis_url=redis_url, owner=self.owner, lane=0, run=self.run
            ).to_options()
        )
        self.lane = replace(self.lane, check_targets=False, filler_rows=0)
        self.batches = 0

    def put(self, id, *, due_ms=10_000, expiry=None, origin=None, topic="out"):
        record = Record(topic=topic, key=b"k", value=b"v", headers=[("h", b"1")])
        schedule = Schedule(
            id=id, due_ms=due_ms, record=record, origin=origin, expiry=expiry, dialect="headers"
        )
        self.pending.put(schedule)

    def task(self, end_ms):
        self.batches += 1
        part = ShardSlice(0, end_ms, self.batches, 0)
        return ShardTask(self.lane, self.shard, NeverWoken(), part, self.clock)

    def deliver(self):
        """The rows of one batch, as Spark gets them."""
        task = self.task(self.clock.now_ms())
        rows = rows_of(task.batches())
        self.shard.settle(task.batch.name)
        return rows


@pytest.fixture
def here(redis_url, space):
    return Here(redis_url, space)


def headers_of(row):
    return {one["key"]: one["value"] for one in row["headers"]}


def ids(rows):
    return [row["id"] for row in rows]


def test_a_schedule_is_delivered_until_its_expiry_and_not_after(here):
    here.put(b"just in time", expiry=Expiry(10_500))
    here.put(b"too late", expiry=Expiry(10_499))
    here.put(b"after its due time", expiry=Expiry(499, after_due=True))
    here.put(b"never expires")
    here.clock.advance(500)

    delivered = {row["id"] for row in here.deliver() if row["topic"] == "out"}
    assert delivered == {b"just in time", b"never expires"}


def test_the_dead_letter_says_when_it_was_due_and_when_it_expired(here):
    here.put(b"code", expiry=Expiry(1_000, after_due=True), origin=ORIGIN)
    here.clock.advance(1_001)

    (dead,) = here.deliver()
    assert (dead["topic"], dead["key"], dead["value"]) == ("dead-letters", b"k", b"v")
    told = headers_of(dead)
    assert told["h"] == b"1"
    assert told[names.REJECTED] == b"expired"
    assert told[names.EXPIRY] == b"11000"
    assert told[names.REJECTED_TARGET] == b"out"
    assert told[names.REJECTED_ID] == b"code"
    assert told[names.ORIGIN] == b"in/1/7"
    assert dead["due_ms"] == 10_000
    assert told[names.REJECTED_DETAIL] == (
        b"expected delivery until 1970-01-01T00:00:11.000+00:00, "
        b"got 1970-01-01T00:00:11.001+00:00; due 1970-01-01T00:00:10.000+00:00"
    )
    assert here.deliver() == []
    assert Admin(here.pending).tally()["expired:out"] == 1
    assert here.pending.counts()["claimed"] == 0


def test_expired_schedules_can_be_dropped(redis_url, space):
    here = Here(redis_url, space, expired="drop")
    here.put(b"code", expiry=Expiry(10_000))
    here.put(b"other")
    here.clock.advance(1)

    assert ids(here.deliver()) == [b"other"]
    assert here.pending.counts()["pending"] == 0
    assert Admin(here.pending).tally()["expired:out"] == 1


def test_what_is_dropped_leaves_its_journal_too(redis_url, space):
    journal = Inbox(topic="in", journal=True)
    here = Here(redis_url, space, expired="drop", inboxes=(journal,), bootstrap_servers="nobody:1")
    here.put(b"code", expiry=Expiry(10_000), origin=ORIGIN)
    here.put(b"not of the journal", expiry=Expiry(10_000), origin=replace(ORIGIN, topic="plain"))
    here.clock.advance(1)

    (tombstone,) = here.deliver()
    assert (tombstone["topic"], tombstone["partition"]) == ("in", 1)
    assert (tombstone["key"], tombstone["value"]) == (b"code", None)
    assert tombstone["headers"][0] == {"key": names.ORIGIN, "value": b"in/1/7"}


def test_what_is_claimed_again_after_its_expiry_is_not_delivered(here):
    """A task that is tried again, or a batch that is released after an outage of its broker."""
    here.put(b"code", expiry=Expiry(10_500))
    task = here.task(10_000)
    assert ids(rows_of(task.batches())) == [b"code"]
    here.clock.advance(501)
    again = ShardTask(here.lane, here.shard, NeverWoken(), ShardSlice(0, 10_000, 1, 0), here.clock)
    assert list(again.batches()) == []
    (dead,) = here.deliver()
    assert headers_of(dead)[names.REJECTED] == b"expired"


def test_a_newer_version_lives_although_the_older_one_has_expired(here):
    here.put(b"code", expiry=Expiry(10_000))
    task = here.task(10_000)
    got = here.shard.attempt(task.batch, owner=here.owner, attempt=task.attempt)
    got = here.shard.claim(
        task.batch, owner=here.owner, now_ms=10_000, count_max=9, attempt=task.attempt
    )
    here.put(b"code", due_ms=20_000)
    here.clock.advance(1)
    assert list(task._arrow(got)) == []
    assert [s.due_ms for s in here.pending.list(count_max=9)] == [20_000]


def test_thousands_expire_at_once(here):
    count = 3 * CLAIM_COUNT_MAX
    for n in range(count):
        here.put(b"%d" % n, expiry=Expiry(10_000))
    here.clock.advance(1)
    rows = here.deliver() + here.deliver()
    assert {headers_of(row)[names.REJECTED_ID] for row in rows} == {b"%d" % n for n in range(count)}
    assert len(rows) == count


def test_the_receiver_is_told_the_expiry_but_not_the_control_headers(here):
    """The same for Spark and for what is sent record by record."""
    here.put(b"code", expiry=Expiry(1_000, after_due=True))
    before = here.pending.get(b"code")
    (row,) = here.deliver()
    assert row["dialect"] == "headers"
    assert headers_of(row) == {"h": b"1", names.EXPIRY: b"11000"}
    assert dict(leaving(before)[0].headers)[names.EXPIRY] == b"11000"


@pytest.mark.parametrize("dialect", ["", "headers", "envelope"])
@pytest.mark.parametrize(
    "expiry", [None, Expiry(0), Expiry(2**53 - 1), Expiry(0, True), Expiry(2**53 - 1, True)]
)
def test_the_store_keeps_every_expiry(dialect, expiry):
    record = Record(topic="out", value=b"v")
    one = Schedule(id=b"i", due_ms=5, record=record, dialect=dialect, expiry=expiry)
    packed = b"\xcf" + (5).to_bytes(8, "big") + pack(one)
    assert unpack(b"i", packed) == one
    assert to_arrow([b"i"], unpack_columns([packed])).to_pylist()[0]["dialect"] == dialect


def test_a_metric_counts_them_by_topic(here):
    here.put(b"code", expiry=Expiry(10_000))
    here.clock.advance(1)
    here.deliver()
    metrics = StoreMetrics(here.pending, lag=dict)
    samples = [sample for metric in metrics.collect() for sample in metric.samples]
    assert [s.value for s in samples if s.name == "sendlater_expired_total"] == [1.0]


# ---- the doors ---------------------------------------------------------------------------------


def test_every_client_sends_and_shows_an_expiry(installation):
    where, arguments, topic = installation
    with Scheduler(*where, **arguments) as scheduler:
        after = scheduler.send_later(topic, "a", delay="1h", expires_after=timedelta(minutes=10))
        at = scheduler.send_later(topic, "a", delay="1h", expires="2035-01-31T17:00:00Z")
        never = scheduler.send_later(topic, "a", delay="1h")

        found = scheduler.get(after.id)
        assert found.expires_at == after.due_at + timedelta(minutes=10)
        assert scheduler.get(at.id).expires_at.isoformat() == "2035-01-31T17:00:00+00:00"
        assert scheduler.get(never.id).expires_at is None

        assert found.reschedule(delay="2h") is Moved.MOVED
        assert scheduler.get(at.id).reschedule(delay="2h") is Moved.MOVED
        assert scheduler.get(after.id).expires_at == found.due_at + timedelta(minutes=10)
        assert scheduler.get(at.id).expires_at.isoformat() == "2035-01-31T17:00:00+00:00"
        scheduler.cancel_many([after.id, at.id, never.id])


@pytest.mark.parametrize(
    "wrong",
    [
        {"expires": "2020-01-01T00:00:00Z"},
        {"expires": "tomorrow"},
        {"expires": "+1m", "expires_after": 5},
        {"expires_after": -1},
        {"expires_after": timedelta(seconds=-1)},
        {"expires_after": "soon"},
        {"expires_after": float("inf")},
    ],
)
def test_an_expiry_that_cannot_be_meant_is_refused_at_once(wrong):
    with Fake().scheduler() as scheduler, pytest.raises(BadTime, match="expires"):
        scheduler.send_later("t", "a", delay="1h", **wrong)


def test_time_buckets_refuse_an_expiry_at_once():
    one = Schedule(
        id=b"a", due_ms=1, record=Record(topic="t", value=b""), expiry=Expiry(1, after_due=True)
    )
    settings = Settings(pending="buckets", bootstrap_servers="nobody:1")
    with pytest.raises(NotSupported, match="buckets"):
        inbox_record(one, settings=settings, inbox="in", now_ms=0)


def test_the_fake_does_not_deliver_what_has_expired():
    fake = Fake()
    with fake.scheduler() as scheduler:
        scheduler.send_later("t", "code", delay=60, expires_after=10, id="late")
        scheduler.send_later("t", "code", delay=60, expires_after=20, id="in time")
        fake.clock.advance(75_000)
        fake.deliver_due()
        assert [r.header(names.ID) for r in fake.delivered("t")] == [b"in time"]
        (dead,) = fake.delivered("dead-letters")
        assert dead.header(names.REJECTED) == b"expired"
        assert dead.header(names.REJECTED_ID) == b"late"


def test_every_client_spreads_by_the_same_amount(installation):
    where, arguments, topic = installation
    with Scheduler(*where, **arguments) as scheduler:
        at = "2035-01-31T17:00:00Z"
        sent = scheduler.send_later(topic, "a", at=at, spread="1h", id="customer-17")
        assert sent.due_at.isoformat() == "2035-01-31T17:09:50.096000+00:00"
        assert scheduler.get("customer-17").due_at == sent.due_at
        scheduler.cancel("customer-17")


@pytest.mark.parametrize("spread", [-1, "soon", float("nan"), "1e9", 10**400])
def test_a_spread_that_cannot_be_meant_is_refused_at_once(spread):
    with Fake().scheduler() as scheduler, pytest.raises(BadTime, match="spread"):
        scheduler.send_later("t", "a", delay="1h", spread=spread)


# ---- after a failure ---------------------------------------------------------------------------


def test_a_failed_batch_leaves_what_has_expired_to_the_next_claim(here, monkeypatch):
    """An outage made the batch fail: what it could still send is sent record by record."""
    here.put(b"code", expiry=Expiry(10_500))
    here.put(b"letter")
    list(here.task(10_000).batches())
    here.clock.advance(501)
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
    assert sent == [b"letter"]
    here.pending.release_all(owner=here.owner)
    assert headers_of(here.deliver()[0])[names.REJECTED] == b"expired"


def test_what_may_have_arrived_is_looked_up_before_its_lane_starts(here, monkeypatch):
    """An acknowledgement that comes too late: sent again, it would come twice."""
    here.put(b"slow")
    here.put(b"good")
    list(here.task(10_000).batches())
    slow = KafkaError(KafkaError._MSG_TIMED_OUT)

    def send(self, records):
        return {name: slow if name == b"slow" else None for name in records}

    monkeypatch.setattr(RecordByRecord, "_send", send)
    monkeypatch.setattr(Targets, "known", lambda self, topic: Target(1_000_000, 1))
    settings = Settings(bootstrap_servers="nobody:1")
    targets = Targets(here.pending, None, settings, owner=here.owner, clock=here.clock)
    failed = RecordByRecord(settings, here.pending, targets, owner=here.owner, clock=here.clock)
    with pytest.raises(BrokerUnavailable, match="1 deliveries may have arrived"):
        failed.deliver(0)
    assert here.pending.get(b"good") is None
    assert here.pending.get(b"slow") is not None


@pytest.mark.parametrize(
    ("expired", "topics"), [("dead-letter", ["out", "dead-letters"]), ("drop", ["out"])]
)
def test_the_look_up_after_a_crash_delivers_no_expired_row_either(expired, topics):
    """One whose tombstone is written already: nobody else would deliver it."""
    packed = []
    for expiry in (None, Expiry(1_000)):
        record = Record(topic="out", value=b"v")
        one = Schedule(id=b"i", due_ms=5, record=record, origin=ORIGIN, expiry=expiry)
        packed.append(with_due(5, pack(one)))
    lookup = CrashLookup(None, Settings(expired=expired), None, None)
    standing = lookup._standing(UnsettledRows([b"i"] * 2, packed))
    assert [standing.schedule(n).record.topic for n in range(len(standing))] == topics
    assert [target for target, _ in standing.topics] == topics
    last = lookup._standing(UnsettledRows([b"i"], packed[1:]))
    assert [target for target, _ in last.topics] == topics[1:]
    if not len(last):
        lookup._send(last, owed=False)  # without Spark: there is nothing to send


def test_an_expiry_far_away_stays_a_number_that_everybody_can_read(here):
    here.put(b"code", expiry=Expiry(2**53 - 1, after_due=True))
    assert here.pending.get(b"code").expires_ms == DUE_MS_MAX
    (row,) = here.deliver()
    assert headers_of(row)[names.EXPIRY] == b"%d" % DUE_MS_MAX
