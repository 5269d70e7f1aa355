"""Recurring schedules through every door: the client, REST, the command line, the fake."""

import json

import pytest
from ledger import Reader
from servers import wait_until
from test_cli_changes import scheduler, sendlater  # noqa: F401

from sendlater import Scheduler
from sendlater.cli.send_request import SendRequest
from sendlater.clock import SystemClock
from sendlater.config import Settings
from sendlater.dialects import names
from sendlater.dialects.recurrence import read_text
from sendlater.model import Cancelled, Moved
from sendlater.store import Batch
from sendlater.testing import Fake

NINE = {"cron": "0 9 * * MON-FRI", "zone": "Europe/Paris", "start": "2035-01-01T00:00:00Z"}
FIRST_MS = 2_051_251_200_000
"""Monday, 1 January 2035, 09:00 in Paris."""
HOUR_MS = 3_600_000


def test_every_client_sends_lists_moves_and_cancels_a_recurring_schedule(installation):
    where, arguments, topic = installation
    with Scheduler(*where, **arguments) as client:
        sent = client.send_later(topic, "a", **NINE, count=5, missed="none", id="nine")
        assert sent.due_ms == FIRST_MS
        found = client.get("nine")
        expected = {
            "cron": "0 9 * * MON-FRI",
            "zone": "Europe/Paris",
            "left": 5,
            "missed": "none",
            "planned_ms": FIRST_MS,
        }
        assert (found.due_ms, found.plan) == (FIRST_MS, expected)
        listed = [one for one in client.iter(id_prefix="nine") if one.id == "nine"]
        assert [one.plan for one in listed] == [expected]
        assert found.headers == []

        assert found.reschedule(at="2035-01-01T10:00:00Z") is Moved.MOVED
        moved = client.get("nine")
        assert (moved.due_ms, moved.plan["planned_ms"]) == (FIRST_MS + 2 * HOUR_MS, FIRST_MS)

        client.send_later(topic, "a", every="1h", start="2035-01-01T00:00:00Z", id="nine")
        assert client.get("nine").plan["every_ms"] == HOUR_MS
        assert client.cancel("nine") is Cancelled.CANCELLED
        assert client.get("nine") is None
        assert client.send_later(topic, "a", delay="1h", id="nine").plan is None
        client.cancel("nine")


def test_the_copy_of_a_change_on_the_inbox_has_the_plan(kafka_installation):
    """A store that has gone back reads it there."""
    (kafka,), arguments, topic = kafka_installation
    with Scheduler(kafka, **arguments) as client, Reader(kafka, client.inbox) as reader:
        sent = client.send_later(topic, "a", **NINE, id="moved")
        assert sent.reschedule(at="2035-01-01T10:00:00Z") is Moved.MOVED

        def copies():
            told = [dict(m.headers() or ()) for m in reader.messages if m.key() == b"moved"]
            return [headers for headers in told if names.CHANGE in headers]

        [copy] = wait_until(copies, "the copy is on the inbox")
        assert read_text(copy[names.PLAN]).planned_ms == FIRST_MS
        assert copy[names.DUE_MS] == b"%d" % (FIRST_MS + 2 * HOUR_MS)
        client.cancel("moved")


def test_a_change_of_one_that_is_being_delivered_ends_it(pending, redis_url, space):
    """Claimed, but not yet put back: still it is cancelled, and so it stays."""
    with Scheduler(redis_url, space=space, shards=2) as client:
        client.send_later("t", "v", every="1h", start="2035-01-01T00:00:00Z", id="i")
        client.deliver_now("i")
        owner = pending.fence()
        run = pending.open_lane(0, owner=owner)
        now_ms = SystemClock().now_ms()
        shard, batch = pending.shard_of(b"i"), Batch(0, run, now_ms + 1_000)
        shard.attempt(batch, owner=owner, attempt="a")
        got = shard.claim(batch, owner=owner, now_ms=now_ms, count_max=9, attempt="a")
        assert got.ids == [b"i"]
        assert client.cancel("i") is Cancelled.CANCELLED
        pending.release_all(owner=owner)
        assert client.get("i") is None


def test_one_that_comes_once_is_still_too_late_to_cancel(pending, redis_url, space):
    with Scheduler(redis_url, space=space, shards=2) as client:
        client.send_later("t", "v", delay=0, id="i")
        owner = pending.fence()
        run = pending.open_lane(0, owner=owner)
        now_ms = SystemClock().now_ms()
        shard, batch = pending.shard_of(b"i"), Batch(0, run, now_ms + 1_000)
        shard.attempt(batch, owner=owner, attempt="a")
        shard.claim(batch, owner=owner, now_ms=now_ms, count_max=9, attempt="a")
        assert client.cancel("i") is Cancelled.DELIVERING


# ---- REST --------------------------------------------------------------------------------------


def test_rest_takes_and_shows_a_plan(api):
    body = {"topic": "t", "value": "v", "id": "i", **NINE, "jitter": "5m", "count": 2.0}
    made = api.post("/v1/schedules", json=body)
    assert made.status_code == 201, made.text
    shown = api.get("/v1/schedules/i").json()
    assert shown["plan"] == {
        "cron": "0 9 * * MON-FRI",
        "zone": "Europe/Paris",
        "left": 2,
        "jitter_ms": 300_000,
        "planned_ms": FIRST_MS,
    }
    assert FIRST_MS <= shown["due_ms"] < FIRST_MS + 300_000
    assert shown["headers"] == []
    (item,) = api.get("/v1/schedules").json()["items"]
    assert item["plan"] == shown["plan"]
    assert api.delete("/v1/schedules/i").json()["answer"] == "cancelled"


@pytest.mark.parametrize(
    ("words", "detail"),
    [
        ({"every": "15m", "delay": "1h"}, "without delay"),
        ({"every": "15m", "cron": "* * * * *"}, "one of every and cron"),
        ({"every": "soon"}, "every"),
        ({"every": 0.1}, "at least 1 s"),
        ({"cron": "0 9 * *"}, "five fields"),
        ({"cron": "0 0 30 2 *"}, "day of month"),
        ({"every": "40000d"}, "within 3660 days"),
        ({"zone": "Europe/Paris"}, "one of every and cron"),
        ({"cron": "0 9 * * *", "zone": ""}, "zone: expected a name of the IANA time zones"),
        ({"every": "15m", "count": 1.5}, "count"),
        ({"every": "15m", "expires": "+5h"}, "without expires"),
    ],
)
def test_rest_refuses_what_cannot_be_meant(api, words, detail):
    got = api.post("/v1/schedules", json={"topic": "t", "value": "v", **words})
    assert got.status_code == 422, got.text
    assert detail in got.json()["detail"]


def test_rest_shows_the_next_times(api):
    asked = {**NINE, "count": 3}
    told = api.get("/v1/next", params=asked).json()
    assert told["times_ms"] == [FIRST_MS + n * 24 * HOUR_MS for n in range(3)]
    assert told["times"][0] == "2035-01-01T09:00:00.000+01:00"
    assert told["notes"] == [None] * 3
    assert api.get("/v1/next", params={"cron": "0 9 * *"}).status_code == 422
    assert api.get("/v1/next").status_code == 422
    assert api.get("/v1/next", params={**asked, "count": 101}).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "word", "expected"),
    [
        ("get", "/v1/next?cron=*+*+*+*+*&zon=Europe/Paris", "zon", "one of count, cron, end"),
        ("get", "/v1/schedules?tagg=order-17", "tagg", "one of caller, cursor, due_from"),
        ("get", "/v1/stats?since=1", "since", "no query parameter"),
        ("post", "/v1/schedules?dry_run=true", "dry_run", "no query parameter"),
        ("post", "/v1/schedules:cancel?dry_run=true", "dry_run", "no query parameter"),
        ("delete", "/v1/schedules/an-id?if=absent", "if", "one of id"),
    ],
)
def test_rest_refuses_a_query_parameter_that_it_does_not_know(api, method, path, word, expected):
    """It would answer about more than was asked for."""
    body = {"json": {"topic": "t", "value": "v", "delay": 60}} if method == "post" else {}
    got = getattr(api, method)(path, **body)
    assert got.status_code == 400, got.text
    assert f"expected {expected}" in got.json()["detail"]
    assert got.json()["detail"].endswith(f"got {word!r}")


# ---- the command line --------------------------------------------------------------------------


def test_the_command_line_sends_and_shows_a_plan(sendlater, scheduler, tmp_path):  # noqa: F811
    scheduler.send_later("t", "v", every="15m", id="j")
    (shown,) = sendlater("list", "--json")
    assert json.loads(shown)["plan"]["every_ms"] == 900_000
    flags = [part for word, value in NINE.items() for part in (f"--{word}", value)]
    (told,) = sendlater("send", "t", "v", *flags, "--count", "3", "--id", "i", "--json")
    assert json.loads(told) == {"id": "i", "due_ms": FIRST_MS}
    path = tmp_path / "lines.jsonl"
    path.write_text('{"topic": "t", "value": "v", "every": 900}')
    assert sendlater("send", "--jsonl", str(path)) == ["1"]
    sendlater("send", "t", "v", "--every", "15m", "--delay", "5", code=2)
    sendlater("send", "--jsonl", str(path), "--every", "15m", code=2)
    sendlater("send", "t", "v", "--cron", "@daily", code=2)


def test_a_line_of_json_has_the_words_of_a_plan():
    words = {**NINE, "end": "2036-01-01T00:00:00Z", "count": 3, "jitter": "5m", "missed": "all"}
    line = json.dumps({"topic": "t", "value": "v", "id": "i", **words})
    schedule, record = SendRequest.parse(line.encode())._planned(Settings(), inbox="in")
    plan = read_text(schedule.plan)
    assert plan.planned_ms == FIRST_MS
    assert (plan.left, plan.jitter_ms, plan.missed) == (3, 300_000, "all")
    assert dict(record.headers)[names.PLAN] == schedule.plan.encode()


def test_the_command_line_shows_the_next_times(sendlater):  # noqa: F811
    told = sendlater("next", NINE["cron"], "--zone", NINE["zone"], "--start", NINE["start"])
    assert len(told) == 10
    assert told[:2] == ["2035-01-01T09:00:00.000+01:00", "2035-01-02T09:00:00.000+01:00"]
    sendlater("next", "0 9 * *", code=2)


# ---- the fake ----------------------------------------------------------------------------------


def due_of(fake, topic):
    return [(r.header(names.ID), int(r.header(names.DUE))) for r in fake.delivered(topic)]


def test_the_fake_delivers_each_occurrence_at_its_time():
    fake = Fake()
    now_ms = fake.clock.now_ms()
    with fake.scheduler() as client:
        client.send_later("t", "v", every="15m", count=3, id="i")
        fake.advance("16m")
        assert [one.plan["left"] for one in client.list().items] == [2]
        fake.advance("2h")
        planned = [now_ms + n * 900_000 for n in (1, 2, 3)]
        assert due_of(fake, "t") == [(b"i@%d" % at, at) for at in planned]
        assert fake.delivered("t")[0].header(names.SCHEDULE) == b"i"
        assert client.list().items == []


def test_a_plan_is_a_part_of_a_version_in_the_fake():
    fake = Fake()
    with fake.scheduler() as client:
        versions = set()
        for words in ({"every": "15m"}, {"every": "15m", "count": 3}, {"delay": "15m"}):
            client.send_later("t", "v", id="i", **words)
            versions.add(client.get("i").version)
        assert len(versions) == 3
        client.send_later("t", "v", id="i", every="15m")
        before = client.get("i").version
        fake.advance("16m")
        assert client.get("i").version != before


def test_the_fake_misses_what_nobody_delivered_in_time():
    fake = Fake()
    with fake.scheduler() as client:
        for missed in ("one", "none", "all"):
            client.send_later(missed, "v", every="15m", missed=missed, id=missed)
        fake.clock.advance(3 * 900_000 + 1)
        fake.deliver_due()
        counts = {missed: len(fake.delivered(missed)) for missed in ("one", "none", "all")}
        assert counts == {"one": 1, "none": 0, "all": 3}
        fake.advance("15m")
        assert [len(fake.delivered(m)) for m in ("one", "none", "all")] == [2, 1, 4]


def test_undo_brings_a_recurring_schedule_back_with_its_plan(api):
    api.post("/v1/schedules", json={"topic": "t", "value": "v", "id": "i", **NINE})
    before = api.get("/v1/schedules/i").json()
    done = api.post("/v1/schedules:cancel", json={"ids": ["i"]}).json()
    assert api.get("/v1/schedules/i").status_code == 404
    assert api.post(f"/v1/audit/{done['audit_id']}:undo").status_code == 200
    assert api.get("/v1/schedules/i").json()["plan"] == before["plan"]


def test_forget_ends_it(redis_url, space):
    with Scheduler(redis_url, space=space) as client:
        client.send_later("t", "v", every="1h", id="i")
        client._transport.forget(b"i")
        assert client.get("i") is None
