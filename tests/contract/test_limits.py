"""A topic with a limit gets no more than that; what waits for it stays what it was: pending."""

from collections import Counter
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from greenlet import getcurrent, greenlet
from redis_commands import counted
from sent_rows import rows_of

from sendlater.brokers.open import open_broker
from sendlater.clock import FixedClock
from sendlater.config import Settings
from sendlater.dialects import names
from sendlater.limits import LATE_BUCKETS_MS
from sendlater.model import Cancelled, Expiry, Record, Schedule, State
from sendlater.operations.schedules import Operations
from sendlater.server.audited import Audited
from sendlater.server.bulk_changes import Bulk, Plan
from sendlater.server.json_shapes import show
from sendlater.server.live_statistics import Watch
from sendlater.spark.delivery.claim_task import ShardTask
from sendlater.spark.delivery.lane import Lane, ShardSlice
from sendlater.store import Admin, Filter, Move, Pending
from sendlater.store.audit import AuditTrail
from sendlater.store.timeline import due_ms_of_share
from sendlater.store.waiting import unlimit, waiting

START_MS = 1_000_000
SMS = {"sms": {"per_second": 50, "burst": 10}}


class Turns:
    """Tasks at once, in simulated time: who waits lets the others go on."""

    def __init__(self, clock):
        self.clock, self.hub = clock, getcurrent()

    def wait(self, ms):
        me = getcurrent()
        if me is self.hub:
            self.clock.advance(max(1, round(ms)))
            return False
        me.goes_on_ms = self.clock.now_ms() + max(1, round(ms))
        self.hub.switch()
        return False

    def run(self, bodies):
        waiting = [greenlet(body) for body in bodies]
        for one in waiting:
            one.goes_on_ms = self.clock.now_ms()
        while waiting:
            one = min(waiting, key=lambda one: one.goes_on_ms)
            self.clock.advance(max(0, one.goes_on_ms - self.clock.now_ms()))
            one.switch()
            waiting = [one for one in waiting if not one.dead]


class Here:
    """A store with two shards, and lanes whose clock the test moves."""

    def __init__(self, redis_url, space, monkeypatch, limits=SMS, **settings):
        self.clock = FixedClock(START_MS)
        self.turns = Turns(self.clock)
        monkeypatch.setattr(
            "sendlater.spark.delivery.claim_task.time",
            SimpleNamespace(sleep=lambda s: self.turns.wait(1_000 * s)),
        )
        self.url, self.settings = (
            redis_url,
            Settings(space=space, shards=2, limits=limits, **settings),
        )
        self.pending = Pending.open(redis_url, space=space, shards=2)
        self.batches = 0
        self.take_over()

    def take_over(self):
        self.owner = self.pending.fence()
        self.pending.release_all(owner=self.owner)
        unlimit(self.pending, sorted(self.settings.limits), owner=self.owner)
        self.run = self.pending.open_lane(0, owner=self.owner)
        lane = Lane.of(self.settings, redis_url=self.url, owner=self.owner, lane=0, run=self.run)
        lane = Lane.from_options(lane.to_options())
        self.lane = replace(lane, check_targets=False, filler_rows=0)

    def put(self, id, topic="sms", *, due_ms=START_MS, caller=None, expiry=None, value=b"v"):
        headers = [("h", None), (names.CALLER_SERVICE, caller.encode())] if caller else []
        record = Record(topic=topic, key=b"k", value=value, headers=headers)
        self.pending.put(
            Schedule(id=id, due_ms=due_ms, record=record, expiry=expiry, dialect="headers")
        )

    def deliver(self, for_ms, *, settle=True, shards=(0, 1)):
        """Rows of a batch of so long on each shard, with when each left."""
        self.batches += 1
        end_ms, left = self.clock.now_ms() + for_ms, []
        tasks = [self.task(number, end_ms, for_ms) for number in shards]

        def run(task):
            for batch in task.batches():
                left.extend((self.clock.now_ms(), row) for row in rows_of([batch]))

        self.turns.run([partial(run, task) for task in tasks])
        for task in tasks if settle else ():
            task.shard.settle(task.batch.name)
        return left

    def task(self, number, end_ms, for_ms):
        part = ShardSlice(number, end_ms, self.batches, for_ms)
        return ShardTask(self.lane, self.pending.shards[number], self.turns, part, self.clock)


@pytest.fixture
def make(redis_url, space, monkeypatch):
    return lambda *args, **named: Here(redis_url, space, monkeypatch, *args, **named)


@pytest.fixture
def here(make):
    return make()


def ids(rows):
    return [row["id"] for _, row in rows]


def headers_of(row):
    return {one["key"]: one["value"] for one in row["headers"]}


def test_the_rate_holds_and_nothing_is_lost_or_doubled(here):
    for n in range(600):
        here.put(b"%d" % n)
    rows = here.deliver(8_000)
    took_s = (rows[-1][0] - START_MS) / 1_000
    assert 8 * 50 * 0.95 <= len(rows) <= took_s * 50 + 10
    rows += here.deliver(6_000)
    assert sorted(ids(rows)) == sorted(b"%d" % n for n in range(600))
    for at, _ in rows:
        within = sum(at <= other < at + 1_000 for other, _ in rows)
        assert within <= 50 + 10, (at, within)


def late_ms(rows, topic):
    return sorted(at - row["due_ms"] for at, row in rows if row["topic"] == topic)


def test_others_are_on_time_while_a_topic_waits(make):
    worst = []
    for limits in ({}, SMS):
        here = make(limits)
        for n in range(300 if limits else 0):
            here.put(b"sms-%d" % n, due_ms=START_MS - 5_000)
        for n in range(40):
            here.put(b"mail-%d" % n, "mail", due_ms=START_MS + 50 * n)
        mails = late_ms(here.deliver(3_000), "mail")
        assert len(mails) == 40
        worst.append(mails[-1])
        here.deliver(6_000)
    assert worst[1] <= worst[0] + 60


def test_callers_share_by_weight_while_more_waits_than_may_go(make):
    weights = {"a": 4, "b": 3, "c": 2}
    here = make({"sms": {"per_second": 100, "burst": 1, "weights": weights}})
    for n in range(2_000):
        caller = "abcd"[n % 4]
        here.put(b"%d" % n, caller=caller)
    got = Counter(headers_of(row)[names.CALLER_SERVICE] for _, row in here.deliver(10_000))
    total = sum(got.values())
    assert 950 <= total <= 1_001
    for caller, weight in {**weights, "d": 1}.items():
        assert abs(got[caller.encode()] / total - weight / 10) <= 0.01 * weight, got
    assert waiting(here.pending, "sms")["d"] == 500 - got[b"d"]


def test_a_caller_alone_gets_all_of_it_and_one_who_comes_later_does_not_wait_for_the_first(make):
    here = make({"sms": {"per_second": 20, "burst": 1}})
    for n in range(400):
        here.put(b"%d" % n, caller="first")
    assert 38 <= len(here.deliver(2_000)) <= 41
    here.put(b"urgent", caller="second", due_ms=here.clock.now_ms())
    assert b"urgent" in ids(here.deliver(500))


def test_what_waits_is_pending_for_everybody(here):
    """Found, listed in due order, counted, cancelled, moved and replaced under its id."""
    for n in range(200):
        here.put(b"%03d" % n, due_ms=START_MS + n // 50)
    here.put(b"later", "mail", due_ms=START_MS + 100_000)
    here.clock.advance(10)
    gone = set(ids(here.deliver(100)))
    pending, admin = here.pending, Admin(here.pending)
    left = [b"%03d" % n for n in range(200) if b"%03d" % n not in gone]
    assert pending.counts()["pending"] == len(left) + 1
    assert pending.counts()["limited"] == len(left)
    one = pending.get(left[-1])
    assert (one.due_ms, one.state) == (START_MS + 3, State.PENDING)
    listed = admin.page(Filter(), count_max=500).schedules
    assert {s.id: s.held_since_ms for s in listed if s.held_since_ms} == dict.fromkeys(
        left, START_MS + 10
    )
    found = admin.get_many([left[-1], b"later"])
    assert [s.held_since_ms for s in (one, *found)] == [START_MS + 10, START_MS + 10, None]
    assert [show(s).get("held_since_ms") for s in found] == [START_MS + 10, None]

    assert [s.id for s in pending.list(count_max=500)] == [*left, b"later"]
    paged, after = [], None
    while True:
        page = admin.page(Filter(topic="sms"), count_max=7, after=after)
        paged += [s.id for s in page.schedules]
        after = page.after
        if after is None:
            break
    assert paged == left
    back = admin.page(Filter(), count_max=3, backwards=True).schedules
    assert [s.id for s in back] == [b"later", *left[:-3:-1]]
    assert admin.count(to_ms=START_MS + 50, limited=True) == len(left)
    assert admin.count(to_ms=START_MS + 50) == 0
    assert pending.oldest_due_ms() == admin.last_due_ms() == START_MS + 100_000

    assert admin.cancel(left[0], version="0" * 16).value == "changed"
    assert pending.cancel(left[0]) is Cancelled.CANCELLED
    assert admin.move(Move(left[1], START_MS + 200_000, one.version))[0].value == "changed"
    assert pending.move(left[1], due_ms=START_MS + 200_000)
    here.put(left[2], "mail")
    here.put(left[3], due_ms=START_MS + 200_000)
    rows = here.deliver(6_000)
    assert sorted(ids(rows)) == left[2:3] + left[4:]
    assert [row["topic"] for _, row in rows if row["id"] == left[2]] == ["mail"]
    assert waiting(pending, "sms") == {}


def test_what_expires_while_it_waits_is_dead_and_costs_the_others_nothing(here):
    for n in range(300):
        here.put(b"otp-%d" % n, expiry=Expiry(1_000, after_due=True))
    first = here.deliver(1_500)
    sent = [row for _, row in first if row["topic"] == "sms"]
    for n in range(40):
        here.put(b"new-%d" % n, due_ms=here.clock.now_ms())
    rows = here.deliver(1_500)
    topics = Counter(row["topic"] for _, row in first + rows)
    assert topics["dead-letters"] == 300 - len(sent)
    assert all(at <= START_MS + 1_100 for at, row in first if row["topic"] == "sms")
    assert len([one for one in ids(rows) if one.startswith(b"new")]) == 40


def test_deliver_now_passes_the_limit(here):
    for n in range(200):
        here.put(b"%03d" % n)
    here.deliver(100)
    here.pending.move(b"150", due_ms=here.clock.now_ms())
    Admin(here.pending).move(Move(b"199", here.clock.now_ms(), at_once=True))
    assert b"199" in (got := ids(here.deliver(60)))
    assert b"150" not in got
    here.put(b"199")
    Admin(here.pending).move(Move(b"199", here.clock.now_ms(), at_once=True))
    here.put(b"199")
    assert b"199" not in ids(here.deliver(60)), "a new version is as any other"


def test_a_crash_gives_no_tokens_back(here):
    """What was claimed may have arrived: what comes twice costs twice."""
    for n in range(400):
        here.put(b"%d" % n)
    rows = here.deliver(2_000, settle=False)
    since = here.clock.now_ms()
    here.take_over()
    assert here.pending.counts()["claimed"] == 0
    again = here.deliver(2_000)
    assert again
    assert min(at for at, _ in again) >= since
    assert len(again) <= 2 * 50 + 10
    everything = rows + again
    for at, _ in everything:
        assert sum(at <= other < at + 1_000 for other, _ in everything) <= 60
    assert len(set(ids(again + here.deliver(8_000)))) == 400


def test_a_limit_that_is_no_more_lets_go_what_waited(here):
    for n in range(1_300):
        here.put(b"%d" % n, caller="abc"[n % 3])
    here.put(b"mail", "mail")
    gone = here.deliver(100)
    here.settings = Settings(space=here.settings.space, shards=2)
    here.take_over()
    assert here.pending.counts()["limited"] == 0
    assert len(gone) + len(here.deliver(100)) == 1_301
    for shard in here.pending.shards:
        assert not shard.client.exists(shard.keys["limits"])


def test_held_and_late_are_two_numbers(here):
    for n in range(110):
        here.put(b"%d" % n)
    here.put(b"mail", "mail")
    here.deliver(3_000)
    tally = Admin(here.pending).tally()
    assert sum(tally[f"late:{edge}"] for edge in LATE_BUCKETS_MS if edge <= 100) == 111, tally
    # A limit begins without a burst: 20 ms more for each than for the one before it.
    assert 115_000 <= tally["limited-ms:sms"] <= 125_000
    told = {one.id: one for one in Admin(here.pending).recent(count_max=200)}
    assert max(one.at_ms - one.due_ms - one.held_ms for one in told.values()) <= 100
    assert max(one.held_ms for one in told.values()) > 1_000
    assert told[b"mail"].held_ms == 0


@pytest.mark.parametrize("per_second", [0.5, 3, 700])
def test_shards_take_turns_however_fast_or_slow(make, per_second):
    here = make({"sms": {"per_second": per_second, "burst": 1}})
    for n in range(max(40, int(25 * per_second))):
        here.put(b"%d" % n)
    for_s = 3 if per_second > 100 else 20
    rows = here.deliver(for_s * 1_000)
    assert for_s * per_second * 0.95 - 1 <= len(rows) <= for_s * per_second + 1
    counts = Counter(here.pending.shard_of(one).number for one in ids(rows))
    assert abs(counts[0] - counts[1]) <= max(2, 0.1 * len(rows)), counts


def test_a_plain_row_costs_no_command_more(make):
    """Commands within a claim of many rows: without limits as ever, with those of others one."""

    def commands(here):
        for n in range(500):
            here.put(b"%d" % n, "mail")
        task, shard = here.task(0, START_MS, 0), here.pending.shards[0]
        shard.attempt(task.batch, owner=here.owner, attempt=task.attempt)
        with counted(shard.client, shard.space) as count:
            got = shard.claim(
                task.batch,
                owner=here.owner,
                now_ms=START_MS,
                count_max=1_000,
                attempt=task.attempt,
                limits=task.waiting.given(),
            )
            made = count()
        assert len(got.ids) > 200
        shard.settle(task.batch.name)
        return made

    bare = commands(make({}))
    limited = commands(make({f"t{n}": {"per_second": 1} for n in range(5)}))
    assert "EXISTS" not in bare
    assert limited - bare == {"EXISTS": 1}, "whether anything waits"


def test_callers_and_topics_may_have_any_name(make):
    here = make({"sms": {"per_second": 1_000, "burst": 10}, "x": {"per_second": 1_000}})
    for n, caller in enumerate(
        [":", "", "virtual", "tokens", "\xff", "a:b", *map(str, range(150))]
    ):
        here.put(b"%d" % n, caller=caller, value=b"CALLER_SERVICE" * 9)
        here.put(b"x%d" % n, "x", caller=caller, value=None)
    assert len(here.deliver(2_000)) == 2 * 156
    assert waiting(here.pending, "sms") == {}


def test_deliver_now_passes_the_limit_through_every_door(here):
    """REST, client and command line all call this."""
    for n in range(200):
        here.put(b"%03d" % n)
    here.deliver(100)
    broker = open_broker(here.settings, redis_url=here.url)
    operations = Operations(here.settings, pending=here.pending, broker=broker, clock=here.clock)
    changed = operations.deliver_now(b"199")
    assert changed.after.due_ms == here.clock.now_ms()
    assert here.pending.get(b"199").version == changed.after.version
    assert b"199" in ids(here.deliver(60))
    audited = Audited(AuditTrail(here.pending), clock=here.clock, undo_hours=1)
    bulk = Bulk(operations, audited, clock=here.clock)
    how = {"what": {}, "audit_id": "once"}
    counted = bulk.run("me", Plan("deliver-now"), Filter(to_ms=START_MS), dry_run=True, **how)
    everything = Filter(topic="sms", to_ms=START_MS)
    done = bulk.run("me", Plan("deliver-now"), everything, dry_run=False, **how)
    assert counted["matched"] == done["changed"] > 150
    assert len(here.deliver(100)) >= done["changed"]


def test_the_page_says_what_waits_for_which_limit(make):
    here = make({"sms": {"per_second": 10, "burst": 1}, "mail": {"per_second": 1}})
    for n in range(60):
        here.put(b"%d" % n, caller="ab"[n % 3 % 2])
    here.deliver(1_000)
    left = here.pending.counts()["limited"]
    here.put(b"next", due_ms=10**13)
    assert due_ms_of_share(here.pending, 0.9) == 10**13, "what waits is due"
    watch = Watch(
        Admin(here.pending),
        lag=dict,
        dead_topic="",
        clock=here.clock,
        limits=here.settings.limits,
    )
    stats = watch.stats()
    assert stats["limited"] == left
    assert stats["overdue"] == 0
    callers = stats["limits"]["sms"]["waiting"]
    assert set(callers) == {"a", "b"}
    assert sum(callers.values()) == left
    assert stats["limits"]["mail"] == {"per_second": 1, "waiting": {}}
    assert f"{left} wait for the limit of sms, 10 a second: the last in 5 s." in stats["why"]
    now_ms = here.clock.now_ms()
    edges = [now_ms + ms for ms in (-1_000, 0, 500, 2_500, 60_000, 90_000)]
    assert watch.let_go(edges, now_ms=now_ms) == [0, 5, 20, left - 25, 0]
