"""Conditions in the store and on an inbox: what stands, and which of two comes first."""

import uuid
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_cli_changes import sendlater  # noqa: F401  (a fixture)

from sendlater import ConditionFailed, Scheduler, State
from sendlater.clock import SystemClock
from sendlater.config import Inbox, Settings
from sendlater.dialects.recurrence import make_plan
from sendlater.errors import NotSupported, StoreUnavailable
from sendlater.limits import ACKNOWLEDGED_MS, RESERVED_MS
from sendlater.model import Origin, Record, Schedule
from sendlater.operations.create_if import create_if
from sendlater.operations.handed_over import ACK_S
from sendlater.operations.intake import CATCH_UP_S, Look
from sendlater.operations.local_transport import LocalTransport
from sendlater.operations.queries import Query
from sendlater.operations.schedules import Changed, Operations
from sendlater.operations.transport import Matched
from sendlater.store import Answer, Batch, Move, Pending
from sendlater.store.codec import pack
from sendlater.store.conditional import Reserved, put_if, released

HOUR_S = 3_600


def schedule(due_ms, value=b"v", id=b"a", **more):
    return Schedule(id=id, due_ms=due_ms, record=Record(topic="t", value=value), **more)


def claimed_at(pending, due_ms):
    """The schedule `a`, claimed."""
    pending.put(schedule(due_ms))
    owner = pending.fence()
    batch = Batch(0, pending.open_lane(0, owner=owner), due_ms)
    shard = pending.shard_of(b"a")
    assert shard.claim(batch, owner=owner, now_ms=due_ms, count_max=9).ids == [b"a"]
    return owner, shard, batch


def test_what_is_being_delivered_stands_but_not_in_the_way_of_the_next(pending):
    owner, _, _ = claimed_at(pending, 1_000)
    version = pending.get(b"a").version
    for only_if in ("absent", "earlier", f"version={version}"):
        held, standing = put_if(pending, schedule(500, b"2"), only_if=only_if)
        assert (held, standing.state, standing.due_ms) == (False, State.CLAIMED, 1_000)
    held, standing = put_if(pending, schedule(500, b"2"), only_if="later")
    assert (held, standing.state) == (True, State.CLAIMED)
    assert pending.get(b"a").record.value == b"2"
    # A crash does not put the older one back in its place, nor beside it.
    pending.cancel(b"a")
    pending.release_all(owner=owner)
    assert pending.get(b"a") is None
    assert put_if(pending, schedule(500), only_if="absent") == (True, None)


def test_what_is_set_aside_stands_and_gives_way(pending):
    _, shard, batch = claimed_at(pending, 1_000)
    shard.set_aside(batch, [b"a"])
    version = pending.get(b"a").version
    for only_if in ("absent", "later"):
        held, standing = put_if(pending, schedule(900, b"2"), only_if=only_if)
        assert (held, standing.state) == (False, State.PENDING)
    assert put_if(pending, schedule(900, b"2"), only_if=f"version={version}")[0]
    assert shard.aside(count_max=9) == (0, {})
    assert pending.counts()["pending"] == 1


def test_it_is_counted_and_wakes_the_lane(pending):
    shard = pending.shard_of(b"a")
    pending.put(schedule(5_000, id=b"b"))
    wake = shard.wake()
    assert put_if(pending, schedule(4_000), only_if="absent")[0]
    assert put_if(pending, schedule(3_000), only_if="earlier")[0]
    assert not put_if(pending, schedule(3_000), only_if="earlier")[0]
    assert wake.wait(1_000) or pending.shard_of(b"b") is not shard
    wake.close()
    counts = pending.counts()
    assert (counts["parked"], counts["replaced"], counts["pending"]) == (3, 1, 2)


def test_a_reservation_writes_nothing_and_too_many_are_refused(pending, monkeypatch):
    monkeypatch.setattr("sendlater.store.conditional.CHANGES_COUNT_MAX", 1)
    assert put_if(pending, schedule(1), only_if="absent", reserve_ms=60_000) == (True, None)
    assert pending.get(b"a") is None
    with pytest.raises(Reserved):
        put_if(pending, schedule(2), only_if="later", reserve_ms=60_000)
    other = next(
        n for n in (b"b%d" % i for i in range(99)) if pending.shard_of(n) is pending.shard_of(b"a")
    )
    with pytest.raises(StoreUnavailable, match="behind"):
        put_if(pending, schedule(2, id=other), only_if="absent", reserve_ms=60_000)
    released(pending, b"a")
    assert put_if(pending, schedule(2), only_if="absent")[0]


def test_a_record_on_an_inbox_is_decided_in_its_order(pending):
    """What the same call has written before counts; what does not hold is only counted."""
    shard = pending.shard_of(b"a")
    words = [("absent", 3), ("absent", 1), ("earlier", 4), ("earlier", 2), ("later", 2)]
    words += [("later", 5), ("version=0123456789abcdef", 1), (None, 4), ("later", 6)]
    rows = []
    for n, (word, due_ms) in enumerate(words):
        when = due_ms if word is None else f"if {word}|{due_ms}"
        rows += [b"a", when, pack(schedule(due_ms, b"%d" % n))]
    ends = [("in/0", "", "9")]
    assert shard.park(rows, ends=ends) == 5
    found, counts = pending.get(b"a"), pending.counts()
    assert (found.due_ms, found.record.value) == (6, b"8")
    assert (counts["parked"], counts["unmet"], counts["replaced"]) == (5, 4, 4)
    assert shard.seen() == {"in/0": 9}
    shard.park([b"a", f"if version={found.version}|7", pack(schedule(7))])
    assert pending.get(b"a").due_ms == 7


def test_on_an_inbox_what_is_being_delivered_stands_too(pending):
    owner, shard, _ = claimed_at(pending, 1_000)
    for word in ("absent", "earlier"):
        assert shard.park([b"a", f"if {word}|500", pack(schedule(500))]) == 0
    assert shard.park([b"a", "if later|500", pack(schedule(500))]) == 1
    pending.release_all(owner=owner)
    assert pending.get(b"a").due_ms == 500


def test_on_an_inbox_what_is_set_aside_stands_too(pending):
    _, shard, batch = claimed_at(pending, 1_000)
    shard.set_aside(batch, [b"a"])
    assert shard.park([b"a", "if absent|500", pack(schedule(500))]) == 0
    assert shard.park([b"a", "if earlier|500", pack(schedule(500))]) == 1
    assert shard.aside(count_max=9) == (0, {})


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["absent", "earlier", "later", "version", "stale", "claim", "cancel"]),
        st.integers(1, 5),
    ),
    max_size=12,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_any_order_of_conditions_is_that_of_a_model(redis_url, steps):
    pending = Pending.open(redis_url, space=f"t{uuid.uuid4().hex[:12]}", shards=1)
    owner = pending.fence()
    shard, run = pending.shards[0], pending.open_lane(0, owner=owner)
    stands, claimed, version = None, False, "0" * 16
    for number, (word, due_ms) in enumerate(steps):
        if word == "claim":
            got = shard.claim(Batch(0, run, number), owner=owner, now_ms=due_ms, count_max=9)
            if got.ids:
                stands, claimed = None, True
        elif word == "cancel":
            pending.cancel(b"a")
            stands = None
        else:
            holds = {
                "absent": stands is None and not claimed,
                "earlier": due_ms < stands if stands else not claimed,
                "later": stands is None or due_ms > stands,
                "version": stands is not None and version == pending.get(b"a").version,
                "stale": False,
            }[word]
            only_if = {"version": f"version={version}", "stale": "version=0"}.get(word, word)
            held, _ = put_if(pending, schedule(due_ms, b"%d" % number), only_if=only_if)
            assert held == holds, (word, due_ms, stands, claimed)
            if held:
                stands, version = due_ms, pending.get(b"a").version
        assert pending.counts()["pending"] == (stands is not None)
    for key in pending.client.scan_iter(f"*{pending.space}*"):
        pending.client.delete(key)


# --- what cannot be answered ----------------------------------------------------------------------


class Broker:
    """An inbox of one partition, and intake that has read it before anybody asks."""

    def __init__(self, pending, *, journal):
        self.pending, self.journal, self.sent = pending, journal, []

    def ends(self, topic):
        return {0: len(self.sent)}

    def send(self, record, *, on_done):
        self.sent.append(record)
        at, told = len(self.sent), dict(record.headers)
        origin = Origin(topic="in", partition=0, position=at - 1, timestamp_ms=1)
        change = told.get("sendlater-change", b"unknown").decode()
        row = [record.key, f"{change}|", ""]
        if record.value is not None:
            read = schedule(int(told["sendlater-due-ms"]), record.value, origin=origin)
            row = [record.key, f"{change}|{read.due_ms}", pack(read)]
        for shard in self.pending.shards:
            ends = [("in/0", str(at - 1 or ""), str(at))]
            mine = row if shard is self.pending.shard_of(record.key) else []
            shard.park(mine, ends=ends, journal=self.journal)
        on_done(None, 0, at - 1)

    def flush(self):
        pass


def operations_of(pending, *, journal=True, **more):
    inboxes = (Inbox(topic="in", journal=journal),)
    settings = Settings(bootstrap_servers="kafka:1", inboxes=inboxes, **more)
    return Operations(settings, pending=pending, broker=Broker(pending, journal=journal))


@pytest.mark.parametrize("journal", [True, False])
def test_the_inbox_gets_a_record_without_a_condition(pending, journal):
    """In the partition of what it replaces; the id is reserved only until intake has read it."""
    operations = operations_of(pending, journal=journal)
    at_ms = SystemClock().now_ms() + HOUR_S * 1_000
    made = create_if(operations, schedule(at_ms), only_if="absent")
    again = create_if(operations, schedule(at_ms + 1, b"2"), only_if=f"version={made.version}")
    assert pending.get(b"a").version == again.version
    with pytest.raises(ConditionFailed):
        create_if(operations, schedule(at_ms, b"3"), only_if="absent")
    first, second = operations.broker.sent
    assert [first.partition, second.partition] == [None, 0]
    for record in (first, second):
        assert (record.topic, record.key) == ("in", b"a")
        assert not {"sendlater-if", "sendlater-change"} & set(dict(record.headers))
    assert not any(pending.client.exists(shard.keys["changes"]) for shard in pending.shards)
    counts = pending.counts()
    assert (counts["parked"], counts["replaced"], counts["pending"]) == (2, 1, 1)


def test_what_is_written_again_goes_where_it_was_read(pending):
    """An undo does so: on another partition it could come before its cancellation."""
    operations = operations_of(pending, journal=False)
    at_ms = SystemClock().now_ms() + HOUR_S * 1_000
    origin = Origin(topic="in", partition=3, position=7, timestamp_ms=1)
    restored, new = schedule(at_ms, origin=origin), schedule(at_ms, id=b"new")
    elsewhere = schedule(at_ms, id=b"else", origin=replace(origin, topic="gone"))
    assert operations.write([restored, new, elsewhere]) == [None] * 3
    told = [(record.topic, record.partition) for record in operations.broker.sent]
    assert told == [("in", 3), ("in", None), ("in", None)]


def test_an_id_that_somebody_else_creates_waits_for_that(pending, monkeypatch):
    operations = operations_of(pending, journal=False)
    one = schedule(SystemClock().now_ms() + HOUR_S * 1_000)
    assert put_if(pending, one, only_if="absent", reserve_ms=60_000) == (True, None)
    monkeypatch.setattr("sendlater.operations.intake.CATCH_UP_S", 0.05)
    with pytest.raises(StoreUnavailable, match="somebody else"):
        create_if(operations, one, only_if="absent")
    released(pending, one.id)
    assert create_if(operations, one, only_if="absent").due_ms == one.due_ms
    # Who died while creating holds the id up for a minute, not for ever.
    other = replace(one, id=b"b")
    shard = pending.shard_of(other.id)
    shard.client.zadd(shard.keys["changes"], {b"new b": SystemClock().now_ms() - RESERVED_MS - 1})
    create_if(operations, other, only_if="absent")


@pytest.mark.parametrize("only_if", ["version", "earlier", "absent", "later"])
@pytest.mark.parametrize("near", [True, False])
def test_what_is_about_to_be_delivered_is_not_replaced_under_a_condition(pending, only_if, near):
    """It may be claimed before the record of the new version has been read."""
    operations = operations_of(pending, journal=False)
    near_ms = operations.settings.margin_ms + ACKNOWLEDGED_MS
    due_ms = SystemClock().now_ms() + (near_ms if near else near_ms + 60_000)
    stands = create_if(operations, schedule(due_ms), only_if="absent")
    if only_if == "later":
        with pytest.raises(ConditionFailed):
            create_if(operations, schedule(due_ms - 1), only_if=only_if)
    new = schedule(due_ms + (1 if only_if == "later" else -1), b"new")
    only_if = f"version={stands.version}" if only_if == "version" else only_if
    if only_if == "later" or not (near or only_if == "absent"):
        create_if(operations, new, only_if=only_if)
        assert len(operations.broker.sent) == 2
        return
    with pytest.raises(ConditionFailed) as told:
        create_if(operations, new, only_if=only_if)
    assert told.value.standing.state is (State.CLAIMED if near else State.PENDING)
    assert len(operations.broker.sent) == 1


def creating(pending, monkeypatch):
    """An installation where `a` stands, due in an hour, and somebody replaces it under a condition:
    has decided so already, and puts the record on the inbox when intake is asked a second time."""
    operations = operations_of(pending, journal=False)
    first = schedule(SystemClock().now_ms() + HOUR_S * 1_000)
    first = create_if(operations, first, only_if="absent")
    second, asked = (
        replace(first, due_ms=first.due_ms + 1, record=Record(topic="t", value=b"2")),
        [],
    )
    only_if = f"version={first.version}"
    assert put_if(pending, second, only_if=only_if, reserve_ms=RESERVED_MS)[0]

    def catch_up():
        asked.append(pending.get(b"a").record.value)
        if len(asked) == 2:
            operations.deliver([replace(operations.checked(second), partition=0)])
            released(pending, b"a")
        return Look(pending.servers(), {})

    monkeypatch.setattr(operations.intake, "catch_up", catch_up)
    return operations, first, asked


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (lambda here, version: here.cancel(b"a"), Answer.CANCELLED),
        (lambda here, version: here.cancel(b"a", version=version), Answer.CHANGED),
        (lambda here, version: here.move(b"a", due_ms=1), Answer.MOVED),
        (lambda here, version: here.move(b"a", due_ms=1, version=version), Answer.CHANGED),
        (lambda here, version: here.deliver_now(b"a"), Answer.MOVED),
        (lambda here, version: here.deliver_now(b"a", version=version), Answer.CHANGED),
    ],
)
def test_of_a_replacement_and_a_change_at_once_one_comes_first(
    pending, monkeypatch, change, answer
):
    """Not both of them have seen the same version, and both succeed."""
    operations, first, asked = creating(pending, monkeypatch)
    changed = change(operations, first.version)
    assert (asked, changed.answer) == ([b"v", b"v"], answer)
    assert changed.before.record.value == b"2"
    left = pending.get(b"a")
    assert (None if left is None else left.record.value) == (
        None if answer is Answer.CANCELLED else b"2"
    )


def test_a_change_of_many_leaves_what_somebody_replaces_or_comes_back_to_it(pending, monkeypatch):
    operations, first, asked = creating(pending, monkeypatch)
    assert operations.cancel_many([(b"a", first.version)], [first]) == [Answer.RESERVED]
    moves = [Move(b"a", 1, first.version)]
    assert operations.move_many(moves) == [(Answer.RESERVED, None)]
    assert pending.get(b"a").due_ms == first.due_ms
    client = LocalTransport.__new__(LocalTransport)
    client.operations, client.pending = operations, pending
    assert client.cancel_matching(Query(), dry_run=False) == Matched(1, 0)
    del asked[:]
    assert client.cancel_many([b"a"]) == ["cancelled"]
    assert (asked, pending.get(b"a")) == ([b"v", b"v"], None)


@pytest.mark.parametrize("change", ["cancel", "pause", "resume"])
def test_of_what_changes_all_the_time_the_client_is_told(pending, monkeypatch, change):
    client = LocalTransport.__new__(LocalTransport)
    client.operations, client.pending = operations_of(pending), pending
    plan = make_plan(now_ms=0, every_ms=60_000)
    plan = plan.pause() if change == "resume" else plan
    get, versions = pending.get, count()

    def replaced(id):
        """Somebody replaces it behind each look."""
        found = get(id)
        one = schedule(SystemClock().now_ms() + 10_000, b"%d" % next(versions))
        pending.put(replace(one, plan=plan.text))
        return found

    replaced(b"a")
    monkeypatch.setattr(pending, "get", replaced)
    monkeypatch.setattr("sendlater.operations.recurring.CLAIMED_S", 0.05)
    with pytest.raises(StoreUnavailable, match="changes all the time: try again"):
        getattr(client, change)(b"a")


def test_of_what_moves_all_the_time_the_client_is_told():
    """As a recurring schedule on a journal, of which exactly one version is moved."""
    client, changed = LocalTransport.__new__(LocalTransport), Changed(Answer.CHANGED)
    client.operations = SimpleNamespace(
        move=lambda *_, **__: changed, deliver_now=lambda _: changed
    )
    for change in (lambda: client.reschedule(b"a", due_ms=1), lambda: client.deliver_now(b"a")):
        with pytest.raises(StoreUnavailable, match="changes all the time: try again"):
            change()


def test_a_change_does_not_wait_for_ever_for_who_died_while_creating(pending, monkeypatch):
    operations, first, _ = creating(pending, monkeypatch)
    monkeypatch.setattr(operations.intake, "catch_up", lambda: Look(pending.servers(), {}))
    monkeypatch.setattr("sendlater.operations.intake.CATCH_UP_S", 0.05)
    for change in (operations.cancel, operations.deliver_now):
        with pytest.raises(StoreUnavailable, match="somebody else"):
            change(b"a")
    assert pending.get(b"a").version == first.version
    shard = pending.shard_of(b"a")
    shard.client.zadd(shard.keys["changes"], {b"new a": SystemClock().now_ms() - RESERVED_MS - 1})
    assert operations.cancel(b"a").answer is Answer.CANCELLED


def test_an_id_is_reserved_for_as_long_as_its_record_may_take():
    assert RESERVED_MS >= (ACK_S + CATCH_UP_S) * 1_000


def test_with_a_horizon_nobody_knows_what_stands(pending):
    at_ms = SystemClock().now_ms() + 1_000
    with pytest.raises(NotSupported, match="horizon"):
        create_if(operations_of(pending, horizon="1h"), schedule(at_ms), only_if="absent")
    assert pending.get(b"a") is None


def test_in_buckets_nobody_knows_either(tmp_path):
    settings = Settings(bootstrap_servers="127.0.0.1:1", pending="buckets", data_dir=tmp_path)
    with Scheduler(settings) as scheduler, pytest.raises(NotSupported, match="Kafka alone"):
        scheduler.send_later("t", b"v", delay=9, id="a", only_if="absent")
