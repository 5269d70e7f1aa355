"""What is asked for once: the first with an id counts, also when it has been delivered since."""

import uuid

import pytest
from dialects_spark import decode
from test_conditions_store import claimed_at, schedule
from test_retries import DELIVERED, SETTINGS, failed

from sendlater import Scheduler
from sendlater.brokers.broker import Arrived
from sendlater.client.retries import again_or_dead
from sendlater.config import Inbox
from sendlater.dialects import names
from sendlater.errors import BadRequest
from sendlater.model import Record
from sendlater.store import Batch, shard
from sendlater.store.codec import pack
from sendlater.testing import Fake

HOUR_S = 3_600


def once(pending, due_ms, value=b"v", id=b"a"):
    """How many schedules it has become: 0 or 1."""
    row = pack(schedule(due_ms, value, id=id))
    return pending.shard_of(id).park([id, f"if once|{due_ms}", row])


def test_the_first_counts_through_every_door(installation):
    where, arguments, topic = installation
    name = uuid.uuid4().hex[:8]
    with Scheduler(*where, **arguments) as scheduler:
        for value in (b"1", b"2"):
            scheduler.send_later(topic, value, delay=HOUR_S, id=name, only_if="once")
        assert scheduler.get(name).value == b"1"
        scheduler.cancel(name)
        scheduler.send_later(topic, b"3", delay=HOUR_S, id=name, only_if="once")
        assert scheduler.get(name) is None
        scheduler.send_later(topic, b"4", delay=HOUR_S, id=name)
        scheduler.send_later(topic, b"5", delay=HOUR_S, id=name, only_if="once")
        assert scheduler.get(name).value == b"4"


def test_the_same_retry_twice_is_one_through_every_door(installation):
    where, arguments, topic = installation
    name = uuid.uuid4().hex[:8].encode()
    headers = [
        (names.DELIVERED_TO, topic.encode()),
        (names.ID, name),
        (names.DUE, b"1780000000000"),
    ]
    message = Arrived(topic, 0, 5, 0, None, b"v", headers)
    with Scheduler(*where, **arguments) as scheduler:
        first = scheduler.retry(message, "no answer", "1h")
        scheduler.retry(message, "no answer", "2h")
        assert scheduler.get(first.id).due_ms == first.due_ms
        scheduler.cancel(first.id)
        scheduler.retry(message, "no answer", "1h")
        assert scheduler.get(first.id) is None


BAD = [
    {"delay": "20000d"},
    {"topic": "a b"},
    {"id": "x" * 513},
    {"id": " "},
    {"partition": -1},
    {"value": b"v" * 1_000_001},
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: next(iter(bad)))
def test_what_intake_would_reject_is_refused(installation, bad):
    where, arguments, topic = installation
    given = {"topic": topic, "value": b"v", "delay": 1, "id": "bad"} | bad
    with Scheduler(*where, **arguments) as scheduler:
        with pytest.raises(BadRequest):
            scheduler.send_later(**given, only_if="once")
        assert scheduler.get("bad") is None


def test_a_retry_with_an_id_of_its_own_is_refused(installation):
    where, arguments, topic = installation
    with Scheduler(*where, **arguments) as scheduler:
        for wrong in ({"policy": "5s", "id": "mine"}, {"policy": 5}, {"policy": "20000d"}):
            with pytest.raises(BadRequest):
                scheduler.retry(Record(topic=topic, value=b"v"), "e", **wrong)


def test_a_fake_forgets_it_too():
    fake = Fake()
    with fake.scheduler() as scheduler:
        for wait, count in (("59m", 1), ("2m", 2)):
            scheduler.send_later("t", b"v", delay=1, id="a", only_if="once")
            fake.advance(wait)
            scheduler.send_later("t", b"v", delay=1, id="a", only_if="once")
            fake.advance("2s")
            assert len(fake.delivered("t")) == count


def test_what_is_being_delivered_or_set_aside_is_known(pending):
    _, at, batch = claimed_at(pending, 1_000)
    assert once(pending, 2_000) == 0
    at.set_aside(batch, [b"a"])
    assert once(pending, 2_000) == 0


def test_it_is_known_for_a_time_after_it_was_due(pending, monkeypatch):
    assert once(pending, 1_000) == 1
    pending.cancel(b"a")
    assert once(pending, 1_000) == 0
    monkeypatch.setattr(shard, "ONCE_KEPT_MS", 0)
    assert once(pending, 1_000, id=b"b") == 1
    pending.cancel(b"b")
    assert once(pending, 1_000, id=b"b") == 1


def test_so_many_are_known_and_no_more(pending, monkeypatch):
    monkeypatch.setattr(shard, "ONCE_COUNT_MAX", 3)
    [home] = {pending.shard_of(b"a")}
    ids = [b"a", *(one for n in range(99) if pending.shard_of(one := b"%d" % n) is home)][:5]
    for n, one in enumerate(ids):
        assert once(pending, 4_000_000_000_000 - n, id=one) == 1
        assert home.client.zcard(home.keys["once"]) <= 3
        pending.cancel(one)
    known = [once(pending, 1, id=one) == 0 for one in ids]
    assert (known[0], known[-1]) == (True, False), "what is due first is forgotten first"


def test_it_is_delivered_once(pending):
    owner = pending.fence()
    at, run = pending.shard_of(b"a"), pending.open_lane(0, owner=owner)
    assert once(pending, 1_000) == 1
    batch = Batch(0, run, 1_000)
    assert at.claim(batch, owner=owner, now_ms=1_000, count_max=9).ids == [b"a"]
    assert once(pending, 1_000) == 0
    pending.settle(batch)
    assert once(pending, 1_000) == 0
    assert pending.counts()["pending"] == 0


def test_a_retry_is_asked_for_once_where_a_store_remembers(spark):
    """Not in buckets, nor with a horizon; a condition of its own comes first."""
    journal = Inbox(topic="journal", journal=True)
    inbox = Inbox(topic="schedules", copy_to="journal")
    horizon = {"inboxes": (inbox, journal), "horizon": "1h", "bootstrap_servers": "kafka:1"}
    records = [failed("5s"), failed("none"), failed("5s", (names.IF, b"later"))]
    records.append(failed("5s", (names.IF, b"once")))
    found = {
        "remembers": [row["change"] for row in decode(spark, records)],
        "buckets": [
            row["change"]
            for row in decode(
                spark, records[:2], SETTINGS.model_copy(update={"pending": "buckets"})
            )
        ],
        "horizon": [
            row["change"]
            for row in decode(
                spark, [*records[:2], records[3]], SETTINGS.model_copy(update=horizon)
            )
        ],
    }
    assert found == {
        "remembers": ["if once", "if once", "if later", "if once"],
        "buckets": [None, None],
        "horizon": [None, None, None],
    }


def test_a_dead_letter_has_the_same_id_through_both_doors(spark):
    (row,) = decode(spark, [failed("none")])
    message = Arrived("orders", 0, 5, 0, b"k", b"v", DELIVERED)
    made = again_or_dead(message, "x", "none", dead_topic=lambda: "dead-letters", now_ms=1)
    assert row["id"] == made.id
    assert (row["topic"], made.record.topic) == ("dead-letters", "dead-letters")
