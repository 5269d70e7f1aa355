"""Tags through every door; what they cost those that have none; where they are kept."""

import json
from dataclasses import replace

import pytest
from redis_commands import counted
from rest_calls import FAR_MS, ids, refused, send
from tag_index import index_meant, index_of
from test_cli_changes import scheduler, sendlater  # noqa: F401

from sendlater import NotSupported, Scheduler, Topics
from sendlater.cli.send_request import SendRequest
from sendlater.config import Settings
from sendlater.dialects import encode_again, names
from sendlater.errors import BadRequest
from sendlater.model import Moved, Origin, Record, Schedule
from sendlater.operations.acceptance import inbox_record
from sendlater.store import Admin, Batch, Filter, Move
from sendlater.store.codec import LIMITED_MS, pack
from sendlater.store.conditional import put_if

HOUR_MS = 3_600_000


def test_every_client_selects_by_a_tag(installation):
    where, arguments, topic = installation
    with Scheduler(*where, **arguments) as client:
        for name, tags in {
            "a": ["order-17", "mail"],
            "b": ["order-17"],
            "c": ["mail"],
            "d": None,
        }.items():
            client.send_later(topic, name, delay="1h", id=f"tags-{name}", tags=tags)

        def those(tag):
            return sorted(one.id.removeprefix("tags-") for one in client.iter(tag=tag))

        assert those("order-17") == ["a", "b"]
        assert those("mail") == ["a", "c"]
        assert those("order") == []
        assert client.get("tags-a").tags == ("order-17", "mail")
        assert client.get("tags-d").tags == ()

        assert client.get("tags-b").reschedule(delay="2h") is Moved.MOVED
        assert [one.id for one in client.iter(tag="order-17")] == ["tags-a", "tags-b"]
        client.send_later(topic, "a", delay="1h", id="tags-a", tags=["mail", "new"])
        assert those("order-17") == ["b"], "a new version has its own tags"
        assert those("new") == ["a"]

        assert client.cancel_matching(tag="mail", dry_run=True).matched == 2
        assert client.cancel_matching(tag="mail", topic="other").matched == 0
        told = client.cancel_matching(tag="mail", id_prefix="tags-")
        assert (told.matched, told.cancelled) == (2, 2)
        assert those("mail") == those("new") == []
        assert client.get("tags-a") is None
        client.cancel_many(["tags-b", "tags-d"])
        assert those("order-17") == []
        with pytest.raises(BadRequest, match="tag"):
            client.send_later(topic, "a", delay="1h", tags=["a,b"])
        with pytest.raises(BadRequest, match="tag"):
            client.list(tag="")


def test_the_copy_of_a_change_on_the_inbox_has_the_tags(kafka_installation):
    """A store that has gone back reads it there."""
    (kafka,), arguments, topic = kafka_installation
    with Scheduler(kafka, **arguments) as client:
        client.send_later(topic, "a", delay="1h", id="moved", tags=["order-18", "mail"])
        client.reschedule("moved", delay="2h")
        ends = client.broker.ends(client.inbox)
        assert sum(ends.values()) >= 2
        assert client.get("moved").tags == ("order-18", "mail")
        assert client.cancel_matching(tag="order-18").cancelled == 1


# ---- REST --------------------------------------------------------------------------------------


def test_rest_takes_shows_and_selects_by_tags(api, pending):
    made = send(api, id="a", delay="1h", tags=["order-17", "mail", "mail"])
    send(api, id="b", due_ms=FAR_MS, tags=["order-17"])
    send(api, id="c", delay="1h")
    assert made["tags"] == ["order-17", "mail"]
    assert api.get("/v1/schedules/a").json()["tags"] == ["order-17", "mail"]
    assert "tags" not in api.get("/v1/schedules/c").json()
    assert ids(api.get("/v1/schedules?tag=order-17")) == ["a", "b"]
    assert ids(api.get("/v1/schedules?tag=order-17&order=last")) == ["b", "a"]
    assert ids(api.get("/v1/schedules?tag=order-17&limit=1")) == ["a"]
    assert ids(api.get("/v1/schedules?tag=mail&due_to=%2B30m")) == []

    counted = api.post("/v1/schedules:cancel", json={"tag": "order-17", "dry_run": True})
    assert counted.json()["matched"] == 2
    moved = api.post("/v1/schedules:reschedule", json={"tag": "order-17", "shift": "1h"}).json()
    assert moved["changed"] == 2
    assert pending.get(b"b").due_ms == FAR_MS + HOUR_MS
    assert index_of(pending) == index_meant(pending)
    done = api.post("/v1/schedules:cancel", json={"tag": "order-17"}).json()
    assert done["answers"] == {"cancelled": 2}
    assert index_of(pending) == {}
    assert api.post(f"/v1/audit/{done['audit_id']}:undo").json()["changed"] == 2
    assert ids(api.get("/v1/schedules?tag=mail")) == ["a"], "an undo gives them back"
    now = api.post("/v1/schedules:deliver-now", json={"tag": "mail"}).json()
    assert now["changed"] == 1


def test_a_bulk_change_says_how_many_no_filter_sees(api, pending):
    """Beyond the horizon of a journal they are on Kafka alone."""
    send(api, id="a", delay="1h", tags=["order-17"])
    chosen = {"tag": "order-17", "dry_run": True}
    assert "later" not in api.post("/v1/schedules:cancel", json=chosen).json()
    pending.shards[0].mark("state", {"later": 5, "later_since": 2})
    assert api.post("/v1/schedules:cancel", json=chosen).json()["later"] == 7
    assert api.post("/v1/schedules:cancel", json={"tag": "order-17"}).json()["later"] == 7


def test_rest_refuses_what_is_no_tag(api):
    body = {"topic": "t", "value": "v", "delay": "1h"}
    for tags in (["a b"], [""], ["x" * 65], [str(n) for n in range(9)]):
        refused(api.post("/v1/schedules", json={**body, "tags": tags}), 422, "expected")
    refused(api.post("/v1/schedules", json={**body, "tags": "order-17"}), 400, "")
    refused(api.get("/v1/schedules?tag=a,b"), 422, "tag: expected")
    refused(api.post("/v1/schedules:cancel", json={"tag": "a b"}), 422, "tag: expected")
    refused(api.post("/v1/schedules:cancel", json={"tag": ""}), 422, "not empty")


# ---- the command line --------------------------------------------------------------------------


def test_the_command_line_selects_by_tags(sendlater, scheduler, redis_url, space):  # noqa: F811
    sendlater("send", "t", "v", "--delay", "1h", "--tag", "order-17", "--tag", "mail")
    sendlater("send", "t", "v", "--delay", "1h", "--tag", "a,b", code=2)
    line = {"topic": "t", "value": "v", "delay": "1h", "tags": ["mail"]}
    SendRequest.parse(json.dumps(line).encode()).send(scheduler)
    scheduler.flush()
    with Topics(redis_url, space=space) as topics:
        inbox = [
            r for n in range(4) for r in topics.read("schedules", n, after_position=0, count_max=9)
        ]
    sent = sorted(dict(record.headers)[names.TAGS] for record in inbox)
    assert sent == [b"mail", b"order-17,mail"]


def test_the_command_line_lists_and_cancels_by_a_tag(sendlater, scheduler):  # noqa: F811
    scheduler.send_later("t", "v", delay="1h", id="a", tags=["order-17", "mail"])
    scheduler.send_later("t", "v", delay="2h", id="b", tags=["mail"])
    listed = [json.loads(one) for one in sendlater("list", "--tag", "mail", "--json")]
    assert [(one["id"], one["tags"]) for one in listed] == [
        ("a", ["order-17", "mail"]),
        ("b", ["mail"]),
    ]
    assert sendlater("cancel", "--tag", "order-17", "--yes") == ["1 matched, 1 cancelled"]
    assert [one.id for one in scheduler.iter()] == ["b"]
    sendlater("list", "--tag", "a b", code=2)


# ---- the store ---------------------------------------------------------------------------------


def one(name, *tags, due_ms=FAR_MS):
    return Schedule(id=name, due_ms=due_ms, record=Record(topic="t", value=b"v"), tags=tags)


def row(schedule):
    return [schedule.id, schedule.due_ms, pack(schedule)]


@pytest.fixture
def commands(pending):
    """How many commands Redis has run since the last call."""
    with counted(pending.client, pending.space) as count:
        yield lambda: count().total()


def test_a_plain_schedule_costs_no_command_more_where_others_have_tags(pending, commands):
    """But one that is replaced or cancelled through an inbox is looked up, once a call."""
    shard = pending.shards[0]
    owner = pending.fence()
    run = pending.open_lane(0, owner=owner)

    def steps(number):
        plain = [one(b"%d" % n, due_ms=n) for n in range(20)]
        batch = Batch(0, run, 1_000 + number)
        yield "park", 0, lambda: shard.park([part for s in plain for part in row(s)])
        yield "replace", 1, lambda: shard.park([part for s in plain for part in row(s)])
        yield "cancel on the inbox", 1, lambda: shard.park([b"0", "", ""])
        yield "tombstone", 0, lambda: shard.park([b"0", "", b"inbox/0/1"])
        claims = lambda: shard.claim(batch, owner=owner, now_ms=50, count_max=100)  # noqa: E731
        yield "claim", 0, claims
        yield "aside", 0, lambda: shard.set_aside(batch, [b"1"])
        yield "release", 0, lambda: shard.release(batch.name, owner=owner)
        yield "put", 0, lambda: put_if(pending, one(b"p"), only_if="absent")
        yield "move", 0, lambda: pending.move(b"p", due_ms=FAR_MS + 1)
        yield "cancel", 0, lambda: pending.cancel(b"p")
        yield "claim again", 0, claims
        yield "settle", 0, lambda: shard.settle(batch.name)

    def costs(number):
        found = []
        for name, more, step in steps(number):
            step()
            commands()
            found.append((name, more))
        return found

    assert costs(0)  # every script is known now
    taken = {}
    for tagged in (False, True):
        if tagged:
            assert not pending.client.hexists(shard.keys["state"], "tagged")
            for each in pending.shards:
                each.park(row(one(b"tagged-%d" % each.number, "order-17", "mail")))
        commands()
        for name, more, step in steps(1 + tagged):
            step()
            # The set-aside row of the step before is part of the same history each time.
            taken.setdefault(name, []).append((commands(), more))
    for name, [(without, _), (with_tags, more)] in taken.items():
        assert with_tags - without <= more, (name, without, with_tags)


def test_what_has_a_tag_is_found_among_many_by_reading_nothing_else(pending, commands):
    for n in range(3_000):
        pending.put(one(b"%d" % n, *(("order-17",) if n % 1_000 == 0 else ("mail",))))
    admin = Admin(pending)
    commands()
    page = admin.page(Filter(tag="order-17", topic="t"), count_max=100)
    assert commands() < 50
    assert (sorted(s.id for s in page.schedules), page.after) == ([b"0", b"1000", b"2000"], None)
    assert admin.count(tag="mail") == 2_997
    assert Filter(tag="mail").is_range
    assert commands() < 10
    found = [s.id for s in admin.all(Filter(tag="mail"), count_max=10_000)]
    assert len(set(found)) == len(found) == 2_997


def test_the_horizon_of_a_journal_takes_tags_along(pending):
    """A new version beyond it leaves the store, and the index."""
    shard = pending.shards[0]
    shard.park(row(one(b"a", "order-17", due_ms=10)), journal=True)
    shard.mark("state", {"horizon": 100, "planned": 100})
    shard.park(row(one(b"a", "order-17", due_ms=200)), journal=True)
    assert index_of(pending) == index_meant(pending) == {}


def test_a_copy_on_a_journal_names_the_tags():
    origin = Origin(topic="journal", partition=0, position=7, timestamp_ms=1)
    copy = encode_again(replace(one(b"a", "order-17", "mail"), origin=origin))
    assert dict(copy.headers)[names.TAGS] == b"order-17,mail"


def test_buckets_refuse_tags_at_once():
    settings = Settings(pending="buckets", bootstrap_servers="nobody:9092")
    with pytest.raises(NotSupported, match="without tags"):
        inbox_record(one(b"a", "mail"), settings=settings, inbox="schedules", now_ms=FAR_MS)


def test_the_copy_of_a_move_is_read_while_the_schedule_waits_for_a_limit(pending):
    shard, moved_ms = pending.shard_of(b"a"), FAR_MS + HOUR_MS
    record = Record(topic="t", value=b"v")
    place = Origin(topic="s", partition=0, position=0, timestamp_ms=0)
    one = Schedule(id=b"a", due_ms=FAR_MS, record=record, tags=("mail",), origin=place)
    shard.park([b"a", FAR_MS, pack(one)], ends=[("s/0", "", "1")], journal=True)
    Admin(pending).move(Move(b"a", moved_ms, change="c"))
    shard.client.zadd(shard.keys["due"], {b"a": LIMITED_MS + moved_ms})
    copy = replace(one, due_ms=moved_ms, origin=replace(place, position=1))
    shard.park([b"a", f"c|{moved_ms}", pack(copy)], ends=[("s/0", "1", "2")], journal=True)
    assert index_of(pending) == index_meant(pending) != {}
