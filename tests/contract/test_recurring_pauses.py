"""Recurring schedules are paused, resumed and triggered, through every door."""

import asyncio
import json

import pytest
from ledger import Reader
from servers import wait_until
from test_cli_changes import scheduler, sendlater  # noqa: F401

from sendlater import AsyncScheduler, BadRequest, Cancelled, Moved, Paused, Scheduler
from sendlater.clock import SystemClock
from sendlater.dialects import names
from sendlater.dialects.recurrence import read_text
from sendlater.model import DUE_MS_MAX, PAUSED_MS
from sendlater.operations import recurring
from sendlater.store import Batch
from sendlater.testing import Fake

FAR = {"every": "1h", "start": "2035-01-01T00:00:00Z"}
FAR_MS = 2_051_222_400_000
HOUR_MS = 3_600_000


def test_every_client_pauses_and_resumes(installation):
    where, arguments, topic = installation
    with Scheduler(*where, **arguments) as client:
        client.send_later(topic, "a", **FAR, count=5, tags=["t1"], id="p")
        before = client.get("p")
        assert client.pause("p") is Paused.PAUSED
        assert before.pause() is Paused.UNCHANGED
        paused = client.get("p")
        assert (paused.due_ms, paused.plan["paused"]) == (PAUSED_MS, True)
        assert (paused.plan["left"], paused.tags) == (5, ("t1",))
        assert paused.version != before.version
        [listed] = [one for one in client.iter(tag="t1") if one.id == "p"]
        assert listed.plan == paused.plan
        assert client.reschedule("p", delay="1h") is Moved.PAUSED
        assert client.deliver_now("p") is Moved.PAUSED
        assert client.get("p").version == paused.version

        assert client.resume("p") is Paused.RESUMED
        assert before.resume() is Paused.UNCHANGED
        resumed = client.get("p")
        assert resumed.due_ms == resumed.plan["planned_ms"] == FAR_MS
        assert resumed.plan["left"] == 5
        assert "paused" not in resumed.plan
        assert resumed.reschedule(at="2036-01-01T00:00:00Z") is Moved.MOVED

        assert client.pause("p") is Paused.PAUSED
        assert client.cancel("p") is Cancelled.CANCELLED
        assert client.get("p") is None
        assert client.resume("p") is client.pause("p") is Paused.UNKNOWN


def test_a_paused_one_is_replaced_and_selected_by_its_tag(installation):
    where, arguments, topic = installation
    with Scheduler(*where, **arguments) as client:
        client.send_later(topic, "a", **FAR, tags=["t2"], id="q")
        assert client.pause("q") is Paused.PAUSED
        client.send_later(topic, "b", **FAR, tags=["t2"], id="q")
        assert client.get("q").due_ms == FAR_MS
        assert client.pause("q") is Paused.PAUSED
        done = client.cancel_matching(tag="t2")
        assert (done.matched, done.cancelled) == (1, 1)
        assert client.get("q") is None


def test_one_that_is_resumed_in_time_misses_nothing(installation):
    where, arguments, topic = installation
    with Scheduler(*where, **arguments) as client:
        sent = client.send_later(topic, "a", every="1h", count=3, missed="all", id="m")
        assert client.pause("m") is Paused.PAUSED
        assert client.resume("m") is Paused.RESUMED
        assert client.get("m").due_ms == sent.due_ms
        assert client.get("m").plan["left"] == 3
        client.cancel("m")


def test_a_trigger_does_not_disturb_the_plan(installation):
    where, arguments, topic = installation
    with Scheduler(*where, **arguments) as client:
        sent = client.send_later(
            topic, "a", **FAR, count=5, key="k", headers={"h": "1"}, tags=["t3"], id="x"
        )
        before = client.get("x")
        extra = sent.trigger()
        of, at, planned = extra.id.rpartition("@")
        assert (of, at, planned.isdigit()) == ("x", "@", True)
        assert abs(extra.due_ms - int(planned)) <= 1
        assert (extra.value, extra.topic, extra.tags) == (b"a", topic, ("t3",))
        assert client.get("x").version == before.version
        assert client.pause("x") is Paused.PAUSED
        version = client.get("x").version
        assert client.trigger("x").plan is None
        assert client.get("x").version == version
        client.cancel("x")
        assert client.trigger("x") is None


def test_what_comes_once_is_told_so(installation):
    where, arguments, topic = installation
    with Scheduler(*where, **arguments) as client:
        client.send_later(topic, "a", delay="1h", id="once")
        for deed in (client.pause, client.resume, client.trigger):
            with pytest.raises(BadRequest, match="comes once"):
                deed("once")
        client.cancel("once")


def test_a_triggered_occurrence_arrives_through_the_inbox(kafka_installation):
    (kafka,), arguments, topic = kafka_installation
    with Scheduler(kafka, **arguments) as client, Reader(kafka, topic) as reader:
        client.send_later(topic, "v", **FAR, key="k", headers={"h": "1"}, id="arrives")
        extra = client.trigger("arrives")

        def arrived():
            return [m for m in reader.messages if dict(m.headers()).get(names.ID) == _id(extra)]

        [message] = wait_until(arrived, "it arrives")
        told = dict(message.headers())
        assert (message.key(), message.value(), told["h"]) == (b"k", b"v", b"1")
        assert told[names.SCHEDULE] == b"arrives"
        assert told[names.DUE] == b"%d" % extra.due_ms
        assert names.PLAN not in told
        assert client.get("arrives").due_ms == FAR_MS
        client.cancel("arrives")


def test_the_copy_of_a_pause_on_the_inbox_has_the_plan(kafka_installation):
    """A store that has gone back reads it there."""
    (kafka,), arguments, _ = kafka_installation
    with Scheduler(kafka, **arguments) as client, Reader(kafka, client.inbox) as reader:
        client.send_later("t", "a", **FAR, id="copied")
        assert client.pause("copied") is Paused.PAUSED
        assert client.resume("copied") is Paused.RESUMED

        def copies():
            told = [dict(m.headers() or ()) for m in reader.messages if m.key() == b"copied"]
            found = [headers for headers in told if names.CHANGE in headers]
            return found if len(found) == 2 else None

        paused, resumed = wait_until(copies, "the copies are on the inbox")
        assert read_text(paused[names.PLAN]).paused
        assert paused[names.DUE_MS] == b"%d" % PAUSED_MS
        assert not read_text(resumed[names.PLAN]).paused
        assert resumed[names.DUE_MS] == b"%d" % FAR_MS
        client.cancel("copied")


def test_a_pause_waits_for_one_that_is_being_claimed(pending, redis_url, space, monkeypatch):
    monkeypatch.setattr(recurring, "CLAIMED_S", 0.05)
    with Scheduler(redis_url, space=space, shards=2) as client:
        client.send_later("t", "v", **FAR, id="i")
        client.deliver_now("i")
        owner = pending.fence()
        run = pending.open_lane(0, owner=owner)
        now_ms = SystemClock().now_ms()
        shard, batch = pending.shard_of(b"i"), Batch(0, run, now_ms + 1_000)
        shard.attempt(batch, owner=owner, attempt="a")
        got = shard.claim(batch, owner=owner, now_ms=now_ms, count_max=9, attempt="a")
        assert got.ids == [b"i"]
        assert client.pause("i") is Paused.DELIVERING
        assert client.trigger("i").id.startswith("i@"), "its plan is known"
        pending.release_all(owner=owner)
        assert client.pause("i") is Paused.PAUSED
        shard.attempt(batch, owner=owner, attempt="b")
        got = shard.claim(batch, owner=owner, now_ms=DUE_MS_MAX, count_max=9, attempt="b")
        assert b"i" in got.ids, "only its due time keeps it"


def test_what_was_replaced_meanwhile_is_paused_as_it_is_now(redis_url, space, monkeypatch):
    with Scheduler(redis_url, space=space) as client:
        client.send_later("t", "old", **FAR, id="i")
        stale = client._transport.pending.get(b"i")
        client.send_later("t", "new", **FAR, id="i")
        looks = [stale]
        get = client._transport.pending.get
        monkeypatch.setattr(
            client._transport.pending, "get", lambda i: looks.pop() if looks else get(i)
        )
        assert client.pause("i") is Paused.PAUSED
        assert client.get("i").value == b"new"


def _id(scheduled):
    return scheduled.id.encode()


def test_the_async_client_has_the_same_words():
    async def act():
        fake = Fake()
        async with AsyncScheduler(fake) as client:
            sent = await client.send_later("t", "v", every="1h", id="i")
            assert await client.pause("i") is Paused.PAUSED
            assert await sent.pause() is Paused.UNCHANGED
            assert await client.resume("i") is Paused.RESUMED
            assert await sent.resume() is Paused.UNCHANGED
            first = await client.trigger("i")
            assert await first.cancel() is Cancelled.UNKNOWN, "it is delivered"
            fake.clock.advance(2)
            assert (await sent.trigger()).id != first.id
            assert await client.trigger("nobody") is None
        assert {record.header(names.SCHEDULE) for record in fake.delivered("t")} == {b"i"}

    asyncio.run(act())


# ---- the fake ----------------------------------------------------------------------------------


def test_the_fake_delivers_nothing_until_it_is_resumed():
    fake = Fake()
    with fake.scheduler() as client:
        client.send_later("t", "v", every="15m", count=4, missed="all", id="i")
        fake.advance("16m")
        client.pause("i")
        fake.advance("2h")
        assert len(fake.delivered("t")) == 1
        assert client.resume("i") is Paused.RESUMED
        assert client.get("i").plan["left"] == 3
        assert len(fake.delivered("t")) == 1, "what was missed is not delivered"
        fake.advance("14m")
        assert len(fake.delivered("t")) == 2
        planned = [int(r.header(names.DUE)) for r in fake.delivered("t")]
        assert (planned[1] - planned[0]) % 900_000 == 0


def test_a_plan_that_is_over_while_paused_ends():
    fake = Fake()
    with fake.scheduler() as client:
        client.send_later("t", "v", every="15m", end="+1h", id="i")
        client.pause("i")
        fake.advance("2h")
        assert client.resume("i") is Paused.ENDED
        assert client.get("i") is None
        assert fake.delivered("t") == []


def test_the_fake_delivers_a_triggered_one_at_once():
    fake = Fake()
    with fake.scheduler() as client:
        client.send_later("t", "v", every="15m", expires_after="1m", count=2, id="i")
        client.pause("i")
        extra = client.trigger("i")
        [record] = fake.delivered("t")
        assert record.header(names.ID) == extra.id.encode()
        assert record.header(names.SCHEDULE) == b"i"
        assert record.header(names.EXPIRY) == b"%d" % (extra.due_ms + 60_000)
        assert client.get("i").plan["left"] == 2


# ---- REST --------------------------------------------------------------------------------------


def test_rest_pauses_resumes_and_triggers(api):
    api.post("/v1/schedules", json={"topic": "t", "value": "v", "id": "i", **FAR})
    first = api.get("/v1/schedules/i").headers["etag"]
    paused = api.post("/v1/schedules/i:pause", headers={"If-Match": first})
    assert paused.json() == {
        "answer": "paused",
        "due_ms": PAUSED_MS,
        "due_at": "9999-01-01T00:00:00.000Z",
    }
    assert api.get("/v1/schedules/i").headers["etag"] == paused.headers["etag"]
    assert api.post("/v1/schedules/i:pause").json()["answer"] == "unchanged"
    assert api.patch("/v1/schedules/i", json={"delay": 5}).json()["answer"] == "paused"
    stale = api.post("/v1/schedules/i:resume", headers={"If-Match": first})
    assert stale.status_code == 412, stale.text
    told = api.post("/v1/schedules/i:trigger").json()
    assert told["answer"] == "triggered"
    assert told["schedule"]["id"].startswith("i@")
    assert api.get("/v1/schedules/i").headers["etag"] == paused.headers["etag"]
    assert api.get("/v1/histogram").json()["last_due_ms"] == told["schedule"]["due_ms"]
    assert api.post("/v1/schedules/i:resume").json()["due_ms"] == FAR_MS
    trail = [(one["action"], one["can_undo"]) for one in api.get("/v1/audit").json()["items"]]
    assert trail == [("resume", False), ("trigger", False), ("pause", False)]
    for deed in ("pause", "resume", "trigger"):
        assert api.post(f"/v1/schedules/nobody:{deed}").json() == {"answer": "unknown"}


def test_a_repeated_trigger_is_one(api):
    api.post("/v1/schedules", json={"topic": "t", "value": "v", "id": "i", **FAR})
    key = {"Idempotency-Key": "k"}
    first, second = (api.post("/v1/schedules/i:trigger", headers=key).json() for _ in range(2))
    assert first == second
    assert [one["id"] for one in api.get("/v1/schedules").json()["items"]] == [
        first["schedule"]["id"],
        "i",
    ]


def test_rest_tells_what_comes_once(api):
    api.post("/v1/schedules", json={"topic": "t", "value": "v", "id": "i", "delay": 60})
    for deed in ("pause", "resume", "trigger"):
        got = api.post(f"/v1/schedules/i:{deed}")
        assert (got.status_code, "comes once" in got.json()["detail"]) == (422, True)


def test_undo_brings_back_what_was_paused(api):
    api.post("/v1/schedules", json={"topic": "t", "value": "v", "id": "i", **FAR})
    api.post("/v1/schedules/i:pause")
    before = api.get("/v1/schedules/i").json()
    done = api.post("/v1/schedules:cancel", json={"ids": ["i"]}).json()
    assert api.post(f"/v1/audit/{done['audit_id']}:undo").json()["changed"] == 1
    assert api.get("/v1/schedules/i").json()["plan"] == before["plan"]


def test_a_bulk_change_leaves_what_is_paused(api):
    api.post("/v1/schedules", json={"topic": "t", "value": "v", "id": "i", **FAR})
    api.post("/v1/schedules/i:pause")
    told = api.post("/v1/schedules:reschedule", json={"ids": ["i"], "delay": 60}).json()
    assert (told["changed"], told["answers"]) == (0, {"paused": 1})
    assert api.get("/v1/schedules/i").json()["due_ms"] == PAUSED_MS


# ---- the command line --------------------------------------------------------------------------


@pytest.mark.parametrize("shift", ["1h", "-1h"])
def test_what_is_paused_does_not_stop_a_shift_of_the_others(api, shift):
    for n in range(2):
        api.post("/v1/schedules", json={"topic": "t", "value": "v", "id": f"{n}", "delay": "5h"})
    api.post("/v1/schedules", json={"topic": "t", "value": "v", "id": "i", **FAR})
    api.post("/v1/schedules/i:pause")
    told = api.post("/v1/schedules:reschedule", json={"topic": "t", "shift": shift}).json()
    assert told["changed"] == 2, told
    assert api.get("/v1/schedules/i").json()["due_ms"] == PAUSED_MS


def test_the_command_line_pauses_resumes_and_triggers(sendlater, scheduler):  # noqa: F811
    scheduler.send_later("t", "v", every="15m", id="i")
    assert sendlater("pause", "i")[0].split() == ["i", "paused"]
    assert sendlater("pause", "i")[0].split() == ["i", "unchanged"]
    (shown,) = sendlater("list", "--json")
    assert json.loads(shown)["plan"]["paused"] is True
    (told,) = sendlater("trigger", "i")
    assert told.split()[1].startswith("i@")
    assert json.loads(sendlater("resume", "i", "--json")[0]) == {"i": "resumed"}
    for deed in ("pause", "resume", "trigger"):
        assert sendlater(deed, "nobody", code=3)[0].split() == ["nobody", "unknown"]
        sendlater(deed, code=2)
    scheduler.send_later("t", "v", delay=60, id="once")
    sendlater("pause", "once", code=2)
