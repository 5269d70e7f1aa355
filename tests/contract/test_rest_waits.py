"""REST on a real Redis: lines of many, requests that are repeated, and requests that wait."""

import json
import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from rest_calls import FAR_MS, HOUR_MS, refused, send
from servers import wait_until

from sendlater.errors import StoreUnavailable
from sendlater.limits import (
    ANSWER_AWAITED_S,
    WAITING_COUNT_MAX,
)
from sendlater.operations.intake import Look
from sendlater.store.idempotency import IdempotencyKeys


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


def test_a_request_of_many_threads_is_answered_each_with_its_own(api, pending):
    """The writer gathers requests of many; each must get its own answer."""

    def one(number):
        body = {"topic": "t", "value": "v", "id": f"n{number}", "delay": 3_600}
        return api.post("/v1/schedules", json=body).json()["id"]

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(one, range(300))) == [f"n{n}" for n in range(300)]
    assert pending.counts()["pending"] == 300
