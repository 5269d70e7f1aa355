"""REST on a real Redis: what can be done with one schedule."""

import base64
import json
import time

import pytest
from rest_calls import FAR_MS, ids, refused, send

from sendlater.limits import (
    BODY_BYTES_MAX,
)
from sendlater.model import Record, Schedule
from sendlater.store import Batch


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


def test_a_wrong_method_is_told_the_right_ones(api):
    allowed = {"/v1/schedules": "GET, POST", "/v1/schedules:cancel": "POST", "/v1/stats": "GET"}
    for path, methods in allowed.items():
        answer = api.put(path)
        refused(answer, 405, "")
        assert answer.headers["allow"] == methods
