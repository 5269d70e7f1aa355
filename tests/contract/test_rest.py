"""REST on a real Redis: what can be done with one schedule and with many, and what is told."""

import base64
import json
import re
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from urllib.parse import quote_from_bytes

import pytest
from rest_calls import FAR_MS, ids, refused, send, settings_for
from servers import wait_until

from sendlater.brokers.redis import open_topics
from sendlater.client.event_worker import Tally
from sendlater.errors import BrokerUnavailable, StoreUnavailable
from sendlater.limits import (
    ANSWER_AWAITED_S,
    BODY_BYTES_MAX,
    BULK_IDS_MAX,
    HANDLERS_HEARD_MS,
    ID_BYTES_MAX,
    WAITING_COUNT_MAX,
)
from sendlater.model import DUE_MS_MAX, Record, Schedule
from sendlater.operations.intake import Look
from sendlater.store import Batch
from sendlater.store.at_work import Handling
from sendlater.store.idempotency import IdempotencyKeys
from sendlater.store.recent import Delivery, tell

HOUR_MS = 3_600_000


# --- one schedule ---------------------------------------------------------------------------------


def test_a_schedule_is_shown_as_it_was_given(api):
    made = send(
        api,
        id="a/b ü",
        value={"n": 1.10},
        key="k",
        headers=[["tenant", "a"], ["tenant", None], {"name": "bin", "value_base64": "/w=="}],
        due_ms=FAR_MS,
        partition=3,
    )
    got = api.get("/v1/schedules/a%2Fb%20%C3%BC")
    assert got.status_code == 200
    shown = got.json()
    assert shown["id"] == made["id"] == "a/b ü"
    assert json.loads(shown["value"]) == {"n": 1.1}
    assert shown["due_ms"] == FAR_MS
    assert shown["due_at"] == "2030-03-17T17:46:40.000Z"
    assert shown["headers"] == [
        ["tenant", "a"],
        ["tenant", None],
        {"name": "bin", "value_base64": "/w=="},
    ]
    assert (shown["key"], shown["partition"], shown["state"]) == ("k", 3, "pending")
    assert got.headers["etag"] == f'"{shown["version"]}"'


def test_a_json_value_is_delivered_as_it_was_written(api, pending):
    """Numbers keep every digit: nobody reads and writes them again on the way."""
    body = b'{"topic": "t", "id": "x", "delay": "1h", "value": {"n": 1.000000000000000000001}}'
    answer = api.post("/v1/schedules", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 201
    assert pending.get(b"x").record.value == b'{"n": 1.000000000000000000001}'


def test_bytes_that_are_no_text_come_and_go_as_base64(api):
    raw = bytes(range(256))
    packed = base64.b64encode(raw).decode()
    answer = api.post(
        "/v1/schedules",
        json={"topic": "t", "id": "x", "value_base64": packed, "key_base64": "gA==", "delay": 60},
    )
    assert answer.status_code == 201
    shown = api.get("/v1/schedules/x").json()
    assert (shown["value_base64"], shown["key_base64"]) == (packed, "gA==")


def test_an_id_that_is_no_text_can_be_asked_for(api, pending):
    record = Record(topic="t", value=b"v")
    pending.put(Schedule(id=b"\xff/\x00", due_ms=FAR_MS, record=record))
    shown = api.get("/v1/schedules/%FF%2F%00").json()
    assert base64.b64decode(shown["id_base64"]) == b"\xff/\x00"
    assert api.delete("/v1/schedules/%FF%2F%00").json() == {"answer": "cancelled"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "exactly one of due_at, due_ms and delay"),
        ({"delay": 1, "due_ms": 5}, "exactly one of due_at, due_ms and delay"),
        ({"delay": "soon"}, "expected a duration"),
        ({"delay": -1}, "delay: expected zero or more"),
        ({"due_at": "2030-01-01T00:00:00"}, "with a zone"),
        ({"due_ms": -1}, "zero or more"),
        ({"due_ms": 2**53}, "expected a time"),
        ({"delay": "99999d"}, "within 3660 days, got one 99,999.0 days away"),
        ({"delay": 1, "topic": "no spaces"}, "expected a topic name"),
        ({"delay": 1, "id": ""}, "id: expected text"),
        ({"delay": 1, "id": "x" * 513}, "at most 512 bytes"),
        ({"delay": 1, "value": None}, "on an inbox that cancels"),
        ({"delay": 1, "value_base64": "eA=="}, "exactly one of value and value_base64"),
        ({"delay": 1, "key": "a", "key_base64": "eA=="}, "one of key and key_base64"),
        ({"delay": 1, "headers": [["", "x"]]}, "names that are not empty"),
        ({"delay": 1, "partition": -1}, "partition of zero or more"),
        ({"delay": 1e308}, "expected seconds, up to"),
        ({"due_ms": 1.5}, "due_ms: expected a whole number"),
        ({"delay": 1, "value": "x" * 1_000_001}, "expected at most 1000000 bytes"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(api, given, words):
    body = {"topic": "t", "value": "v", **given}
    refused(api.post("/v1/schedules", json=body), 422, words)


def test_what_is_not_of_the_documented_shape_is_refused(api):
    json_type = {"content-type": "application/json"}
    refused(api.post("/v1/schedules", content=b"{", headers=json_type), 400, "expected JSON")
    unknown = {"topic": "t", "value": "v", "delay": 1, "nonsense": 1}
    refused(api.post("/v1/schedules", json=unknown), 400, "unknown field")
    refused(api.post("/v1/schedules:cancel"), 400, "expected JSON")
    xml = {"content-type": "text/xml"}
    refused(api.post("/v1/schedules", content=b"<a/>", headers=xml), 415, "got text/xml")
    large = {**json_type, "content-length": str(BODY_BYTES_MAX + 1)}
    refused(api.post("/v1/schedules", content=b"x", headers=large), 413, "expected a body of")
    refused(api.get("/v1/nothing"), 404, "Not Found")
    refused(api.get("/nothing"), 404, "Not Found")
    shown = api.get("/nothing", headers={"accept": "text/html"})
    assert shown.status_code == 404
    assert "There is no page here" in shown.text
    refused(api.put("/v1/schedules"), 405, "Method Not Allowed")


def test_a_past_time_means_now(api):
    before_ms = time.time_ns() // 1_000_000
    assert send(api, due_at="2001-01-01T00:00:00Z")["due_ms"] >= before_ms


def test_an_id_that_no_path_can_carry_is_in_the_query(api):
    """Clients take `.` and `..` for steps: `/v1/schedules/..` is sent as `/v1/`."""
    for name in (".", "..", "plain"):
        first = send(api, id=name, delay="1h")
        at = f"/v1/schedules/{{}}?id={name}"
        assert api.get(at.format("")).json()["id"] == first["id"] == name
        assert api.patch(at.format(""), json={"delay": "2h"}).json()["answer"] == "moved"
        assert api.post(at.format(":deliver-now")).json()["answer"] == "moved"
        assert api.delete(at.format("")).json()["answer"] == "cancelled"
    made = api.post("/v1/schedules", json={"topic": "t", "value": "v", "id": "..", "delay": "1h"})
    assert api.get(made.headers["location"]).json()["id"] == ".."
    assert api.get("/v1/schedules/plain?id=..").status_code == 404, "the path goes first"
    refused(api.get("/v1/schedules/"), 404, "expected an id")


def test_the_audit_trail_tells_of_one_schedule_what_changed_it(api):
    """Alone, or with many others: selected by a filter, or as one of more ids than it lists."""
    for n in range(8):
        send(api, id=f"many-{n}", delay="1h")
    send(api, id="apart", delay="1h")

    def told(name):
        return [one["action"] for one in api.get(f"/v1/audit?id={name}").json()["items"]]

    api.patch("/v1/schedules/many-7", json={"delay": "2h"})
    api.post("/v1/schedules:reschedule", json={"id_prefix": "many-", "shift": "1h"})
    named = {"ids": [f"many-{n}" for n in range(8)] + ["apart-not"]}
    api.post("/v1/schedules:cancel", json={**named, "dry_run": True})
    api.post("/v1/schedules:cancel", json=named)
    assert told("many-7") == ["cancel", "shift", "reschedule"]
    assert told("many-0") == ["cancel", "shift"]
    cancelled, shifted, *_ = api.get("/v1/audit").json()["items"]
    api.post(f"/v1/audit/{cancelled['id']}:undo")
    api.patch("/v1/schedules/many-0", json={"delay": "4h"})
    api.post(f"/v1/audit/{shifted['id']}:undo")
    assert told("many-7") == ["undo", "undo", "cancel", "shift", "reschedule"]
    assert told("many-0") == ["reschedule", "undo", "cancel", "shift"], "changed since: stays"
    assert told("many-") == told("apart") == told("apart-not") == []


def test_answers_to_changes_are_true(api, pending):
    send(api, id="a", delay="1h")
    moved = api.patch("/v1/schedules/a", json={"due_ms": FAR_MS})
    assert moved.json() == {
        "answer": "moved",
        "due_ms": FAR_MS,
        "due_at": "2030-03-17T17:46:40.000Z",
    }
    assert api.get("/v1/schedules/a").json()["due_ms"] == FAR_MS
    assert api.delete("/v1/schedules/a").json() == {"answer": "cancelled"}
    assert api.delete("/v1/schedules/a").json() == {"answer": "unknown"}
    assert api.patch("/v1/schedules/a", json={"delay": 1}).json() == {"answer": "unknown"}
    refused(api.get("/v1/schedules/a"), 404, "neither pending nor on its way")
    send(api, id="b", delay="1h")
    assert api.post("/v1/schedules/b:deliver-now").json()["answer"] == "moved"
    owner = pending.fence()
    batch = Batch(lane=0, run=pending.open_lane(0, owner=owner), end_ms=FAR_MS)
    pending.shard_of(b"b").claim(batch, owner=owner, now_ms=FAR_MS, count_max=5)
    assert api.post("/v1/schedules/b:deliver-now").json() == {"answer": "delivering"}
    assert api.delete("/v1/schedules/b").json() == {"answer": "delivering"}
    assert api.get("/v1/schedules/b").json()["state"] == "claimed"
    assert ids(api.get("/v1/schedules?state=claimed")) == ["b"]


def test_a_change_can_be_made_only_to_the_version_that_was_read(api):
    send(api, id="a", delay="1h")
    tag = api.get("/v1/schedules/a").headers["etag"]
    assert api.get("/v1/schedules/a", headers={"If-None-Match": tag}).status_code == 304
    moved = api.patch("/v1/schedules/a", json={"delay": "2h"}, headers={"If-Match": tag})
    assert moved.json()["answer"] == "moved"
    part = {"If-Match": moved.headers["etag"][:2] + '"'}
    refused(api.delete("/v1/schedules/a", headers=part), 412, "changed since")
    stale = {"If-Match": tag}
    refused(api.patch("/v1/schedules/a", json={"delay": 1}, headers=stale), 412, "changed since")
    refused(api.delete("/v1/schedules/a", headers=stale), 412, "changed since")
    refused(api.post("/v1/schedules/a:deliver-now", headers=stale), 412, "changed since")
    fresh = {"If-Match": moved.headers["etag"]}
    assert api.delete("/v1/schedules/a", headers=fresh).json() == {"answer": "cancelled"}


def test_a_repeated_request_with_its_key_is_answered_once(api, pending):
    key = {"Idempotency-Key": "k1"}
    body = {"topic": "t", "value": "v", "delay": "1h"}
    first = api.post("/v1/schedules", json=body, headers=key)
    again = api.post("/v1/schedules", json=body, headers=key)
    assert again.status_code == 201
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    assert pending.counts()["pending"] == 1
    other = {**body, "value": "w"}
    refused(api.post("/v1/schedules", json=other, headers=key), 422, "used before with another")
    refused(api.post("/v1/schedules", json={}, headers={"Idempotency-Key": "k2"}), 400, "topic")
    mended = api.post("/v1/schedules", json=body, headers={"Idempotency-Key": "k2"})
    assert mended.status_code == 201, "a key whose request was refused is free again"


# --- many -----------------------------------------------------------------------------------------


def test_many_come_as_lines_and_bad_ones_are_told_by_number(api, pending):
    lines = [
        json.dumps({"topic": "t", "value": "v", "id": f"n{n}", "delay": 60 + n}) for n in range(3)
    ]
    lines[1] = '{"topic": "t"}'
    content = "\n".join([*lines, "", "no json"]).encode()
    got = api.post(
        "/v1/schedules", content=content, headers={"content-type": "application/x-ndjson"}
    )
    assert got.status_code == 200
    told = got.json()
    assert told["accepted"] == 2
    assert told["ids"] == ["n0", None, "n2", None]
    assert [one["line"] for one in told["refused"]] == [2, 4]
    kind = {"content-type": "application/x-ndjson"}
    none = refused(api.post("/v1/schedules", content=b"{}\n1", headers=kind), 422, "every line")
    assert [one["line"] for one in none["refused"]] == [1, 2]
    assert pending.counts()["pending"] == 2


def test_lines_that_an_outage_refused_can_be_sent_again(api, pending, monkeypatch):
    operations = api.app.server_state.operations
    lines = b"".join(
        json.dumps({"topic": "t", "value": "v", "id": f"n{n}", "delay": 60}).encode() + b"\n"
        for n in range(2)
    )
    asked = {"content-type": "application/x-ndjson", "Idempotency-Key": "again"}
    away, write = StoreUnavailable("it does not answer"), operations.write

    def post():
        return api.post("/v1/schedules", content=lines, headers=asked)

    with monkeypatch.context() as patched:
        patched.setattr(operations, "write", lambda _schedules: [away, away])
        refused(post(), 503, "does not answer")
        patched.setattr(operations, "write", lambda some: [*write(some[:1]), away])
        told = post().json()
        assert told["accepted"] == 1
        assert told["refused"] == [{"line": 2, "status": 503, "detail": "it does not answer"}]
    assert post().json()["accepted"] == 2
    assert pending.counts()["pending"] == 2


def test_lines_sent_again_after_an_outage_in_the_middle_double_nothing(api, pending, monkeypatch):
    """Their ids come from the key and the line, and what was accepted is not written again."""
    operations, written = api.app.server_state.operations, []
    body = b'{"topic": "t", "value": "v", "delay": 60}\n' * 3
    asked = {"content-type": "application/x-ndjson", "Idempotency-Key": "again"}
    write = operations.write

    def failing(some):
        written.append([one.id.decode() for one in some])
        return [*write(some[:1]), *(StoreUnavailable("away") for _ in some[1:])]

    with monkeypatch.context() as patched:
        patched.setattr(operations, "write", failing)
        told = [api.post("/v1/schedules", content=body, headers=asked).json() for _ in range(3)]
    assert [one["accepted"] for one in told] == [1, 2, 3]
    assert [[one["line"] for one in each["refused"]] for each in told] == [[2, 3], [3], []]
    first, second, third = told[-1]["ids"]
    assert written == [[first, second, third], [second, third], [third]]
    assert len({first, second, third}) == pending.counts()["pending"] == 3
    assert pending.counts()["replaced"] == 0


def test_a_key_outlives_a_crash_between_writing_and_answering(api, pending, monkeypatch):
    """The second attempt writes the same schedule for the same time: it takes its own place."""
    key = {"Idempotency-Key": "k1"}
    body = {"topic": "t", "value": "v", "delay": "1h"}
    with monkeypatch.context() as patched:
        patched.setattr(IdempotencyKeys, "keep", lambda *_: None)
        first = api.post("/v1/schedules", json=body, headers=key).json()
    refused(api.post("/v1/schedules", json=body, headers=key), 409, "still running")
    two_minutes_later(pending)
    again = api.post("/v1/schedules", json=body, headers=key).json()
    assert (again["id"], again["due_ms"]) == (first["id"], first["due_ms"])
    assert pending.counts()["pending"] == 1
    replayed = api.post("/v1/schedules", json=body, headers=key)
    assert replayed.headers["idempotency-replayed"] == "true"


def two_minutes_later(pending):
    for name in pending.client.scan_iter(f"{pending.space}:*"):
        if 0 < pending.client.ttl(name) <= ANSWER_AWAITED_S:
            pending.client.delete(name)


def test_a_shift_whose_answer_was_lost_in_a_crash_is_not_made_twice(api, pending, monkeypatch):
    send(api, id="a", due_ms=FAR_MS)
    asked = {"json": {"shift": "1h", "ids": ["a"]}, "headers": {"Idempotency-Key": "k1"}}
    with monkeypatch.context() as patched:
        patched.setattr(IdempotencyKeys, "keep", lambda *_: None)
        assert api.post("/v1/schedules:reschedule", **asked).json()["changed"] == 1
    two_minutes_later(pending)
    told = refused(api.post("/v1/schedules:reschedule", **asked), 503, "an earlier attempt")
    assert api.get("/v1/schedules/a").json()["due_ms"] == FAR_MS + HOUR_MS
    assert told["audit_id"] == api.get("/v1/audit").json()["items"][0]["id"]


def test_requests_that_wait_for_intake_hold_up_nobody_else(api, monkeypatch):
    """They have threads of their own, and one that finds none of them free is told to come back."""
    state = api.app.server_state
    going_on, begun = threading.Event(), threading.Semaphore(0)

    def stands_still():
        begun.release()
        assert going_on.wait(60)
        return Look(state.operations.pending.servers(), {})

    monkeypatch.setattr(state.operations.intake, "catch_up", stands_still)
    monkeypatch.setattr("sendlater.server.turns.TURN_S_MAX", 0.1)
    script = re.search(r'"(/static/[^"]+)"', api.get("/").text)[1]
    with ThreadPoolExecutor(100) as threads:
        waiting = [threads.submit(api.delete, f"/v1/schedules/n{n}") for n in range(80)]
        try:
            for _ in range(WAITING_COUNT_MAX):
                assert begun.acquire(timeout=30)
            others = ("/", script, "/metrics", "/healthz", "/readyz", "/v1/stats")
            asked = {path: threads.submit(api.get, path) for path in (*others, "/v1/records")}
            for path, one in asked.items():
                assert one.result(30).status_code == 200, path
            refusals = 80 - WAITING_COUNT_MAX  # the fastest wait, not the first
            wait_until(lambda: sum(map(Future.done, waiting)) == refusals, "the others are refused")
            late = [one.result() for one in waiting if one.done()]
        finally:
            going_on.set()
        refused(late[0], 503, "other requests wait for intake")
        assert late[0].headers["retry-after"]
        answers = [one.result(30).status_code for one in waiting]
    assert (answers.count(200), answers.count(503)) == (WAITING_COUNT_MAX, 80 - WAITING_COUNT_MAX)


def test_a_broker_that_says_nothing_holds_a_request_only_so_long(api, monkeypatch):
    """It would otherwise wait as long as Kafka's own client does: five minutes."""
    operations = api.app.server_state.operations
    monkeypatch.setattr(operations, "ready", lambda: True)
    monkeypatch.setattr(operations, "send", lambda _schedule, done: None)
    monkeypatch.setattr("sendlater.server.state.ACK_S", 0.1)
    body = {"topic": "t", "value": "v", "delay": 60}
    refused(api.post("/v1/schedules", json=body), 503, "no acknowledgement within 0.1 s")


def test_readiness_is_told_although_the_broker_says_nothing(api, monkeypatch):
    """However many ask meanwhile, one thread looks."""
    going_on, looks = threading.Event(), []
    broker = api.app.server_state.broker
    monkeypatch.setattr(broker, "ends", lambda _: looks.append(1) or going_on.wait(60))
    monkeypatch.setattr("sendlater.server.routes.health.READY_S_MAX", 0.1)
    try:
        for _ in range(5):
            refused(api.get("/readyz"), 503, "no answer of store and broker")
        assert len(looks) == 1
    finally:
        going_on.set()


def test_what_is_on_its_way_passes_the_same_filters(api, pending):
    for n in range(4):
        send(api, id=f"{'ab'[n % 2]}{n}", topic=["even", "odd"][n % 2], delay=0)
    owner = pending.fence()
    batch = Batch(lane=0, run=pending.open_lane(0, owner=owner), end_ms=FAR_MS)
    for shard in pending.shards:
        shard.claim(batch, owner=owner, now_ms=FAR_MS, count_max=5)
    claimed = {"state": "claimed"}
    assert sorted(ids(api.get("/v1/schedules", params=claimed))) == ["a0", "a2", "b1", "b3"]
    assert sorted(ids(api.get("/v1/schedules", params=claimed | {"topic": "odd"}))) == ["b1", "b3"]
    assert ids(api.get("/v1/schedules", params=claimed | {"id_prefix": "a2"})) == ["a2"]
    assert ids(api.get("/v1/schedules", params=claimed | {"due_from": "+1h"})) == []
    assert ids(api.get("/v1/schedules?state=claimed&due_from=+1h")) == []


def test_a_wrong_method_is_told_the_right_ones(api):
    allowed = {"/v1/schedules": "GET, POST", "/v1/schedules:cancel": "POST", "/v1/stats": "GET"}
    for path, methods in allowed.items():
        answer = api.put(path)
        refused(answer, 405, "")
        assert answer.headers["allow"] == methods


def test_pages_show_each_once_with_every_filter(api, pending):
    for n in range(25):
        topic = "even" if n % 2 == 0 else "odd"
        send(api, id=f"{'ab'[n % 2]}{n:02}", topic=topic, due_ms=FAR_MS + n * 1000)
    found, query = [], {"limit": 7}
    while True:
        page = api.get("/v1/schedules", params=query)
        found += ids(page)
        if page.json()["next_cursor"] is None:
            break
        query["cursor"] = page.json()["next_cursor"]
    assert found == [f"{'ab'[n % 2]}{n:02}" for n in range(25)]
    assert len(ids(api.get("/v1/schedules", params={"topic": "odd"}))) == 12
    assert len(ids(api.get("/v1/schedules", params={"id_prefix": "a"}))) == 13
    within = {"due_from": "2030-03-17T17:46:42Z", "due_to": "2030-03-17T17:46:45Z"}
    assert ids(api.get("/v1/schedules", params=within)) == ["a02", "b03", "a04"]
    refused(api.get("/v1/schedules", params={"limit": 1001}), 400, "limit")
    refused(api.get("/v1/schedules", params={"cursor": "x"}), 422, "cursor: expected one")
    refused(api.get("/v1/schedules", params={"due_from": "noon"}), 422, "expected an RFC 3339")
    backwards = {"due_from": "+2h", "due_to": "+1h"}
    refused(api.get("/v1/schedules", params=backwards), 422, "before due_to, got +2h and +1h")


def test_a_caller_selects_and_the_last_come_first_if_asked(api, pending):
    for n in range(12):
        headers = [["CALLER_SERVICE", "shop" if n % 3 else "shopping"]] if n % 2 else []
        send(api, id=f"n{n:02}", due_ms=FAR_MS + n, headers=headers)
    shop = ["n01", "n05", "n07", "n11"]
    assert ids(api.get("/v1/schedules", params={"caller": "shop"})) == shop
    last = api.get("/v1/schedules", params={"caller": "shop", "order": "last", "limit": 3})
    assert ids(last) == shop[:0:-1]
    cursor = last.json()["next_cursor"]
    rest = api.get(
        "/v1/schedules", params={"caller": "shop", "order": "last", "cursor": cursor}
    ).json()
    assert ([one["id"] for one in rest["items"]], rest["next_cursor"]) == (["n01"], None)
    cancelled = api.post("/v1/schedules:cancel", json={"caller": "shop"}).json()
    assert cancelled["changed"] == 4
    assert pending.counts()["pending"] == 8
    refused(api.get("/v1/schedules", params={"order": "middle"}), 400, "order")


def test_a_bulk_change_is_counted_first_then_made_then_undone(api, pending):
    for n in range(20):
        send(api, id=f"n{n:02}", topic="ab"[n % 2], due_ms=FAR_MS + n)
    dry = api.post("/v1/schedules:cancel", json={"topic": "a", "dry_run": True}).json()
    assert (dry["matched"], dry["changed"], dry["audit_id"]) == (10, 0, None)
    assert pending.counts()["pending"] == 20
    done = api.post("/v1/schedules:cancel", json={"topic": "a"}).json()
    assert done["answers"] == {"cancelled": 10}
    assert pending.counts()["pending"] == 10
    (entry,) = api.get("/v1/audit").json()["items"][:1]
    assert (entry["action"], entry["count"], entry["who"]) == ("cancel", 10, "local")
    assert entry["what"] == {"topic": "a"}
    assert entry["can_undo"]
    back = api.post(f"/v1/audit/{entry['id']}:undo").json()
    assert back["answers"] == {"restored": 10}
    assert api.get("/v1/schedules/n00").json()["due_ms"] == FAR_MS
    refused(api.post(f"/v1/audit/{entry['id']}:undo"), 404, "undone already")


def test_a_spike_can_be_shifted_spread_and_put_back(api):
    for n in range(10):
        send(api, id=f"n{n}", due_ms=FAR_MS)
    shifted = api.post("/v1/schedules:reschedule", json={"shift": "2h", "all": True}).json()
    assert shifted["answers"] == {"moved": 10}
    due = [one["due_ms"] for one in api.get("/v1/schedules").json()["items"]]
    assert due == [FAR_MS + 2 * HOUR_MS] * 10
    spread = api.post("/v1/schedules:reschedule", json={"spread": 100, "id_prefix": "n"}).json()
    due = [one["due_ms"] for one in api.get("/v1/schedules").json()["items"]]
    assert due == [FAR_MS + 2 * HOUR_MS + n * 10_000 for n in range(10)]
    undone = api.post(f"/v1/audit/{spread['audit_id']}:undo").json()
    assert undone["answers"] == {"moved": 10}
    api.patch("/v1/schedules/n0", json={"due_ms": FAR_MS + 5})
    undone = api.post(f"/v1/audit/{shifted['audit_id']}:undo").json()
    assert undone["answers"] == {"changed": 1, "moved": 9}, "what was changed since stays"


def test_a_selection_too_large_to_change_is_counted_all_the_same(api, monkeypatch):
    monkeypatch.setattr("sendlater.server.bulk_changes.BULK_COUNT_MAX", 3)
    for n in range(5):
        send(api, id=f"n{n}", due_ms=FAR_MS + n)
    within = {"due_from": "2030-03-17T17:46:40Z"}
    dry = api.post("/v1/schedules:cancel", json={**within, "dry_run": True}).json()
    assert dry["matched"] == 5
    refused(api.post("/v1/schedules:cancel", json=within), 422, "at most 3, got 5")
    refused(api.post("/v1/schedules:cancel", json={"id_prefix": "n"}), 422, "got 4 or more")
    assert len(ids(api.get("/v1/schedules"))) == 5


def test_bulk_by_ids_and_bulk_refusals(api):
    send(api, id="a", delay="1h")
    got = api.post("/v1/schedules:deliver-now", json={"ids": ["a", "zz"]}).json()
    assert got["answers"] == {"unknown": 1, "moved": 1}
    both = {"ids": ["a"], "topic": "t"}
    refused(api.post("/v1/schedules:cancel", json=both), 422, "expected one of ids")
    fewer = {"ids": ["a"], "versions": []}
    refused(api.post("/v1/schedules:cancel", json=fewer), 422, "for each of the 1 ids")
    refused(api.post("/v1/schedules:cancel", json={"all": True, "versions": ["x"]}), 422, "0 ids")
    many = {"ids": ["a"] * (BULK_IDS_MAX + 1)}
    refused(api.post("/v1/schedules:cancel", json=many), 422, "at most")
    refused(api.post("/v1/schedules:reschedule", json={}), 422, "exactly one of shift")
    wrong = {"ids": ["a"], "shift": "soon"}
    refused(api.post("/v1/schedules:reschedule", json=wrong), 422, "with or without a sign")


def test_what_was_replaced_since_it_was_seen_stays(api):
    """Of those that are named with the version they had; without one, any is meant."""
    for name in "abc":
        send(api, id=name, due_ms=FAR_MS)
    seen = {one["id"]: one["version"] for one in api.get("/v1/schedules").json()["items"]}
    for name in "bc":
        send(api, id=name, due_ms=FAR_MS, value="newer")
    wanted = {"ids": ["a", "b", "c", "zz"], "versions": [seen["a"], seen["b"], "", "any"]}
    dry = api.post("/v1/schedules:cancel", json={**wanted, "dry_run": True}).json()
    assert (dry["matched"], dry["changed"]) == (4, 0)
    done = api.post("/v1/schedules:cancel", json=wanted).json()
    assert done["answers"] == {"cancelled": 2, "changed": 1, "unknown": 1}
    assert ids(api.get("/v1/schedules")) == ["b"]
    assert api.get("/v1/audit").json()["items"][0]["what"] == {"ids": wanted["ids"]}


@pytest.mark.parametrize("chosen", [{"id_prefix": "n"}, {"all": True}, {"ids": ["n0", "n1"]}])
def test_a_dry_run_refuses_what_the_change_would(api, chosen):
    """What recurs and is paused keeps its place, and is no reason."""
    for n in range(2):
        send(api, id=f"n{n}", due_ms=FAR_MS + n)
    send(api, id="n-every", every="1h")
    api.post("/v1/schedules/n-every:pause")
    for given in ({"shift": "3660d"}, {"spread": "3660d"}, {"due_ms": FAR_MS * 10}):
        told = [
            refused(
                api.post("/v1/schedules:reschedule", json={**chosen, **given, "dry_run": dry}),
                422,
                "within",
            )
            for dry in (True, False)
        ]
        assert told[0]["detail"] == told[1]["detail"]
    near = {**chosen, "shift": "1h", "dry_run": True}
    assert api.post("/v1/schedules:reschedule", json=near).status_code == 200


@pytest.mark.parametrize("chosen", [{"id_prefix": "n"}, {"all": True}, {"topic": "t"}])
def test_a_dry_run_tells_what_is_paused_and_stays(api, chosen):
    send(api, id="n0", topic="t", due_ms=FAR_MS)
    send(api, id="n-every", topic="t", every="1h")
    api.post("/v1/schedules/n-every:pause")
    given = {**chosen, "shift": "1h"}
    dry = api.post("/v1/schedules:reschedule", json={**given, "dry_run": True}).json()
    assert (dry["matched"], dry["answers"]) == (2, {"paused": 1})
    done = api.post("/v1/schedules:reschedule", json=given).json()
    assert done["answers"] == {"moved": 1, "paused": 1}
    assert (
        api.post("/v1/schedules:cancel", json={**chosen, "dry_run": True}).json()["answers"] == {}
    )
    assert api.post("/v1/schedules:cancel", json=chosen).json()["changed"] == 2


@pytest.mark.parametrize("deed", ["cancel", "deliver-now", "reschedule"])
def test_an_empty_filter_selects_nothing_and_everything_must_be_meant(api, deed):
    """A field left empty by mistake must not cancel or deliver all there is."""
    for n in range(3):
        send(api, id=f"n{n}", due_ms=FAR_MS)
    path, more = f"/v1/schedules:{deed}", {"shift": "1h"} if deed == "reschedule" else {}
    for empty in ({}, {"topic": ""}, {"id_prefix": None}, {"all": False}, {"dry_run": True}):
        refused(api.post(path, json=more | empty), 422, '"all": true')
    refused(api.post(path, json={**more, "all": True, "topic": "orders"}), 422, "expected one of")
    assert {one["due_ms"] for one in api.get("/v1/schedules").json()["items"]} == {FAR_MS}
    assert api.get("/v1/audit").json()["items"] == []
    assert api.post(path, json={**more, "all": True}).json()["changed"] == 3
    assert api.get("/v1/audit").json()["items"][0]["what"] == {**more, "all": True}


def test_a_bulk_change_that_stops_in_the_middle_leaves_its_entry_and_its_undo(
    api, pending, monkeypatch
):
    """Its entry is there before the first change, and a chunk can be undone from before it is
    changed: this one fails after the store has changed it."""
    for n in range(10):
        send(api, id=f"n{n}", topic="t", due_ms=FAR_MS + n)
    operations = api.app.server_state.operations
    really, entries = operations.cancel_many, []

    def fails(ids, before, **more):
        answers = really(ids, before, **more)
        entries.append(api.get("/v1/audit").json()["items"][0])
        if len(entries) == 4:
            raise BrokerUnavailable("the inbox is away")
        return answers

    monkeypatch.setattr("sendlater.server.bulk_changes.PARK_COUNT_MAX", 2)
    with monkeypatch.context() as patched:
        patched.setattr(operations, "cancel_many", fails)
        asked = {"json": {"topic": "t"}, "headers": {"Idempotency-Key": "once"}}
        stopped = api.post("/v1/schedules:cancel", **asked)
        told = refused(stopped, 503, "stopped after 6 of 10")
        again = api.post("/v1/schedules:cancel", **asked)
    assert {(one["state"], one["can_undo"]) for one in entries} == {("begun", True)}
    assert (again.status_code, again.json()) == (503, told), "a repeated one changes no more"
    assert again.headers["idempotency-replayed"] == "true"
    (entry,) = api.get("/v1/audit").json()["items"]
    assert entry["id"] == told["audit_id"]
    assert (entry["state"], entry["count"], entry["can_undo"]) == ("failed", 6, True)
    assert pending.counts()["pending"] == 2

    write = operations.write
    with monkeypatch.context() as patched:
        patched.setattr(operations, "write", lambda some: [*write(some[:1]), StoreUnavailable("")])
        refused(api.post(f"/v1/audit/{entry['id']}:undo"), 503, "")
    assert pending.counts()["pending"] == 3
    assert api.post(f"/v1/audit/{entry['id']}:undo").json()["answers"] == {"restored": 7}
    assert ids(api.get("/v1/schedules")) == [f"n{n}" for n in range(10)]
    last, first, bulk = api.get("/v1/audit").json()["items"]
    assert [(one["state"], one["count"]) for one in (last, first)] == [("done", 7), ("failed", 1)]
    assert not bulk["can_undo"]


def test_an_undo_does_not_schedule_again_what_was_being_delivered(api, pending):
    for n in range(3):
        send(api, id=f"n{n}", due_ms=FAR_MS + n)
    found = [pending.get(b"n%d" % n) for n in range(3)]
    api.app.server_state.operations.admin.all = lambda *_, **__: iter(found)
    pending.cancel(b"n1")
    done = api.post("/v1/schedules:cancel", json={"id_prefix": "n"}).json()
    assert done["answers"] == {"cancelled": 2, "unknown": 1}
    assert api.post(f"/v1/audit/{done['audit_id']}:undo").json()["answers"] == {"restored": 2}


def test_a_single_change_is_audited_and_can_be_undone(api):
    send(api, id="a", due_ms=FAR_MS, key="k", headers=[["h", "1"]])
    before = api.get("/v1/schedules/a").json()
    api.patch("/v1/schedules/a", json={"due_ms": FAR_MS + 1})
    api.delete("/v1/schedules/a")
    cancel, move = api.get("/v1/audit").json()["items"]
    assert (cancel["action"], move["action"]) == ("cancel", "reschedule")
    assert api.post(f"/v1/audit/{cancel['id']}:undo").json()["answers"] == {"restored": 1}
    assert api.post(f"/v1/audit/{move['id']}:undo").json()["answers"] == {"moved": 1}
    assert api.get("/v1/schedules/a").json() == before


def test_a_request_of_many_threads_is_answered_each_with_its_own(api, pending):
    """The writer gathers requests of many; each must get its own answer."""

    def one(number):
        body = {"topic": "t", "value": "v", "id": f"n{number}", "delay": 3_600}
        return api.post("/v1/schedules", json=body).json()["id"]

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(one, range(300))) == [f"n{n}" for n in range(300)]
    assert pending.counts()["pending"] == 300


# --- numbers --------------------------------------------------------------------------------------


def test_what_workers_tell_is_summed_by_group_and_event_type(api, pending):
    """On Redis each counts what is ready for its whole group. Who is silent is forgotten."""
    now_ms = time.time_ns() // 1_000_000
    ours = asdict(Tally(taken=9, succeeded=5, retried=2, dead=1, ready=3, in_flight=1, seconds=2.5))
    handling = Handling(pending)
    for worker, group, heard_ms in (
        ("a", "g", now_ms),
        ("b", "g", now_ms),
        ("c", "h", now_ms),
        ("d", "g", now_ms - 2 * HANDLERS_HEARD_MS),
    ):
        handling.tell(worker, group, {"orders": ours | {"error": worker}}, now_ms=heard_ms)
    told = api.get("/v1/running").json()
    assert told["services"] == {"active": None, "standby": [], "handovers": []}
    both, one = told["handlers"]
    assert (both["group"], both["type"], both["workers"], both["ready"]) == ("g", "orders", 2, 3)
    assert (both["in_flight"], both["succeeded"], both["seconds"]) == (2, 10, 5.0)
    assert both["errors"] == ["a", "b"]
    assert (one["group"], one["workers"], one["dead"]) == ("h", 1, 1)
    handling.forget("a", "b")
    assert [one["group"] for one in api.get("/v1/running").json()["handlers"]] == ["h"]


def test_numbers_are_true(api):
    for n in range(10):
        send(api, due_ms=FAR_MS + n, topic="ab"[n % 2])
    send(api, delay="30s")
    stats = api.get("/v1/stats").json()
    assert (stats["pending"], stats["due"]["1m"], stats["overdue"]) == (11, 1, 0)
    assert stats["why"] == ["No service has run on this store yet: nothing is delivered."]
    whole = api.get("/v1/histogram", params={"buckets": 2}).json()
    assert (whole["counts"], whole["recurring"], whole["held"]) == ([1, 10], [0, 0], [0, 0])
    spike = {"due_from": str(FAR_MS // 1000), "due_to": str(FAR_MS / 1000 + 0.01), "buckets": 10}
    narrow = api.get("/v1/histogram", params=spike).json()
    assert narrow["counts"] == [1] * 10
    assert narrow["topics"] == {"a": [1, 0] * 5, "b": [0, 1] * 5}
    assert (narrow["estimated"], narrow["sampled"]) == ([False] * 10, False)
    hours = {"due_from": "7199.5", "due_to": "14401", "buckets": 2, "round": "true"}
    edges = api.get("/v1/histogram", params=hours).json()["edges_ms"]
    assert edges == [n * 7_200_000 for n in range(4)], "more than an hour each, so two"
    assert "sendlater_pending 11.0" in api.get("/metrics").text
    assert api.get("/healthz").text == "ok\n"
    assert api.get("/readyz").text == "ready\n"


def test_rejected_records_are_found_and_sent_again(api, pending, redis_url, space):
    headers = [("sendlater-rejected", b"no-time"), ("sendlater-rejected-target", b"orders")]
    with open_topics(redis_url, settings_for(redis_url, space)) as topics:
        for n in range(3):
            value = b"value %d" % n
            topics.produce(Record(topic="rejected", key=b"k", value=value, headers=headers))
    listed = api.get("/v1/records", params={"search": "value 1"}).json()["items"]
    assert [(one["value"], one["reason"]) for one in listed] == [("value 1", "no-time")]
    places = [listed[0]["place"], "0/1", f"9/{2**63}"]
    body = {"topic": "rejected", "places": places, "delay": "1h"}
    told = api.post("/v1/records:redrive", json=body).json()
    assert told["redriven"] == 1
    assert [one["place"] for one in told["skipped"]] == places[1:]
    (again,) = pending.list(count_max=9)
    assert (again.record.topic, again.record.key, again.record.value) == (
        "orders",
        b"k",
        b"value 1",
    )
    assert again.record.headers == []


def test_what_was_rejected_of_a_schedule_is_found_by_its_id(api, redis_url, space):
    """By its key if it never was one, else by its own header: its key may be another one's id."""
    why = ("sendlater-rejected", b"no-time")
    with open_topics(redis_url, settings_for(redis_url, space)) as topics:
        topics.produce(Record(topic="rejected", key=b"k", value=b"1", headers=[why]))
        was = [why, ("sendlater-rejected-id", b"\xffk")]
        topics.produce(Record(topic="rejected", key=b"k", value=b"2", headers=was))
        topics.produce(Record(topic="rejected", key=b"kk", value=b"3", headers=[why]))
    for named, values in (("k", ["1"]), ("%FFk", ["2"]), ("x", [])):
        items = api.get(f"/v1/records?id={named}").json()["items"]
        assert [one["value"] for one in items] == values
    assert "or rejected" in refused(api.get("/v1/schedules/k"), 404, "unknown")["detail"]


def test_a_dead_event_is_sent_to_its_handlers_with_all_attempts_before_it(
    api, pending, redis_url, space
):
    headers = [("context-who", b"me"), ("retry-attempt", b"3"), ("event-id", b"7")]
    told = [("event-type", b"remind"), ("event-error", b"ValueError: no"), ("sendlater-id", b"x")]
    with open_topics(redis_url, settings_for(redis_url, space)) as topics:
        topics.create("dead-letters", 1)
        topics.produce(Record(topic="dead-letters", value=b"e", headers=headers + told))
    (dead,) = api.get("/v1/records", params={"topic": "dead-letters"}).json()["items"]
    assert (dead["event_type"], dead["event_error"]) == ("remind", "ValueError: no")
    body = {"topic": "dead-letters", "places": [dead["place"]]}
    assert api.post("/v1/records:redrive", json=body).json() == {"redriven": 1, "skipped": []}
    (again,) = pending.list(count_max=9)
    assert (again.record.topic, again.record.value) == ("remind", b"e")
    assert again.record.headers == [("context-who", b"me"), ("event-id", b"7")]


def test_the_versions_and_the_deliveries_of_one_are_found(api, redis_url, space):
    with open_topics(redis_url, settings_for(redis_url, space)) as topics:
        for n in range(3):
            topics.produce(Record(topic="schedules", key=b"k1", value=b"%d" % n))
            topics.produce(Record(topic="schedules", key=b"k10", value=b"another"))
            named = [("sendlater-id", b"k1")]
            topics.produce(Record(topic="orders", value=b"%d" % n, headers=named))
    versions = api.get("/v1/records", params={"topic": "schedules", "key": "k1"}).json()["items"]
    assert [one["value"] for one in versions] == ["2", "1", "0"]
    asked = {"topic": "orders", "id": "k1", "since_ms": versions[0]["at_ms"]}
    assert len(api.get("/v1/records", params={**asked, "since_ms": 0}).json()["items"]) == 3
    late = {**asked, "since_ms": versions[0]["at_ms"] + HOUR_MS}
    assert api.get("/v1/records", params=late).json()["items"] == []
    refused(api.get("/v1/records", params={"since_ms": 1}), 422, "expected one of search, key")
    refused(api.get("/v1/records", params={**asked, "key": "k1"}), 422, "expected one of")


def test_the_versions_of_an_id_that_is_no_text_are_those_of_nobody_else(api, redis_url, space):
    with open_topics(redis_url, settings_for(redis_url, space)) as topics:
        for key in (b"\xff", b"\xfe", "\ufffd".encode(), b"a b+c", b""):
            named = [("sendlater-id", key)]
            topics.produce(Record(topic="schedules", key=key, value=b"of " + key, headers=named))
    asked = {"%FF": b"\xff", "%EF%BF%BD": "\ufffd".encode(), "a+b%2Bc": b"a b+c"}
    for name, key in asked.items():
        for query in (f"key={name}", f"id={name}&since_ms=0"):
            items = api.get(f"/v1/records?topic=schedules&{query}").json()["items"]
            assert [one["value_bytes"] for one in items] == [len(b"of " + key)], query


def test_a_topic_is_followed_call_by_call(api, redis_url, space):
    refused(api.get("/v1/records:follow", params={"topic": "t"}), 404, "no topic t")
    with open_topics(redis_url, settings_for(redis_url, space)) as topics:
        topics.create("t", 2)
        for n in range(5):
            topics.produce(Record(topic="t", value=b"%d" % n, partition=n % 2))
        seen, query = [], {"topic": "t", "from_start": True, "limit": 2}
        while len(seen) < 5:
            told = api.get("/v1/records:follow", params=query).json()
            assert len(told["items"]) <= 2
            seen += [one["value"] for one in told["items"]]
            query["cursor"] = told["cursor"]
        assert sorted(seen) == ["0", "1", "2", "3", "4"]
        told = api.get("/v1/records:follow", params={"topic": "t"}).json()
        assert told["items"] == [], "without a cursor: what comes from now on"
        topics.produce(Record(topic="t", value=b"new", partition=1))
        query["cursor"] = told["cursor"]
        (new,) = api.get("/v1/records:follow", params=query).json()["items"]
        assert new["value"] == "new"
    refused(api.get("/v1/records:follow?topic=t&cursor=x"), 400, "cursor")


def test_the_deliveries_of_the_longest_id_are_found_and_of_no_other(api, pending):
    longest = b"L" * ID_BYTES_MAX
    ids_told = [longest, b"a", b"ab", b"\xff"]
    tell(pending.shards[0], {}, [Delivery(one, "orders", 10, 20, 6) for one in ids_told])
    for search in (longest.decode(), f"{longest.decode()}@{DUE_MS_MAX}"):
        for path in ("/v1/deliveries", "/v1/records"):
            assert api.get(path, params={"search": search}).status_code == 200
    refused(api.get("/v1/records", params={"search": search + "x"}), 400, "search")
    for one in ids_told:
        found = api.get(f"/v1/deliveries?id={quote_from_bytes(one)}&limit=1").json()["items"]
        assert [(item["late_ms"], item["held_ms"]) for item in found] == [(4, 6)], one
    assert api.get("/v1/deliveries?id=b").json()["items"] == []
