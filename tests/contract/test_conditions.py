"""A schedule that is created under a condition, through every door: what is told."""

import asyncio
import json
import uuid

import pytest
from rest_calls import FAR_MS, refused, send
from test_cli_changes import sendlater  # noqa: F401  (a fixture)

from sendlater import AsyncScheduler, ConditionFailed, Moved, Scheduler, State
from sendlater.errors import BadRequest
from sendlater.model import Record, Schedule

HOUR_S = 3_600


@pytest.fixture
def scheduler(installation):
    where, arguments, _ = installation
    with Scheduler(*where, **arguments) as opened:
        yield opened


@pytest.fixture
def topic(installation):
    return installation[2]


@pytest.fixture
def name():
    return uuid.uuid4().hex[:8]


# --- the client, whatever it talks through --------------------------------------------------------


def test_only_the_first_creates_it(scheduler, topic, name):
    first = scheduler.send_later(topic, b"1", delay=HOUR_S, id=name, only_if="absent")
    with pytest.raises(ConditionFailed, match="absent") as failed:
        scheduler.send_later(topic, b"2", delay=2 * HOUR_S, id=name, only_if="absent")
    found = scheduler.get(name)
    assert (found.value, found.due_ms) == (b"1", first.due_ms)
    standing = failed.value.standing
    assert (standing.id, standing.due_ms, standing.state) == (name, first.due_ms, State.PENDING)
    assert standing.version == found.version == first.version != ""
    scheduler.cancel(name)
    scheduler.send_later(topic, b"3", delay=HOUR_S, id=name, only_if="absent")
    assert scheduler.get(name).value == b"3"


def test_what_is_on_the_inbox_already_counts(scheduler, topic, name):
    """The answer waits until intake has read it."""
    scheduler.send_later(topic, b"1", delay=HOUR_S, id=name)
    with pytest.raises(ConditionFailed):
        scheduler.send_later(topic, b"2", delay=HOUR_S, id=name, only_if="absent")
    scheduler.send_later(topic, b"3", delay=2 * HOUR_S, id=name)
    assert scheduler.get(name).value == b"3"


@pytest.mark.parametrize(("only_if", "takes"), [("earlier", 1), ("later", 3)])
def test_the_due_times_are_compared(scheduler, topic, name, only_if, takes):
    at = {n: f"2035-01-01T0{n}:00:00Z" for n in (1, 2, 3)}
    scheduler.send_later(topic, b"2", at=at[2], id=name, only_if=only_if)
    for n in (4 - takes, 2):
        with pytest.raises(ConditionFailed, match=only_if):
            scheduler.send_later(topic, b"no", at=at[n], id=name, only_if=only_if)
    assert scheduler.get(name).value == b"2"
    scheduler.send_later(topic, b"yes", at=at[takes], id=name, only_if=only_if)
    assert scheduler.get(name).value == b"yes"
    assert [one.id for one in scheduler.list(id_prefix=name).items] == [name]


def test_only_the_version_that_was_seen_is_replaced(scheduler, topic, name):
    with pytest.raises(ConditionFailed) as failed:
        scheduler.send_later(topic, b"0", delay=1, id=name, only_if="version=0123456789abcdef")
    assert failed.value.standing is None
    assert scheduler.get(name) is None
    first = scheduler.send_later(topic, b"1", delay=HOUR_S, id=name, only_if="absent")
    seen = scheduler.get(name).version
    assert seen == first.version
    second = scheduler.send_later(topic, b"2", delay=HOUR_S, id=name, only_if=f"version={seen}")
    for stale in (seen, second.version[:8]):
        with pytest.raises(ConditionFailed):
            scheduler.send_later(topic, b"3", delay=HOUR_S, id=name, only_if=f"version={stale}")
    assert scheduler.get(name).value == b"2"
    assert second.reschedule(delay=2 * HOUR_S) is Moved.MOVED
    with pytest.raises(ConditionFailed):
        scheduler.send_later(
            topic, b"3", delay=HOUR_S, id=name, only_if=f"version={second.version}"
        )


def test_a_created_schedule_can_be_changed_as_any_other(scheduler, topic, name):
    made = scheduler.send_later(
        topic,
        b"\xff",
        key=b"k",
        headers=[("a", None), ("a", b"\xfe")],
        delay=HOUR_S,
        expires_after="1m",
        id=name,
        partition=1,
        only_if="absent",
    )
    found = scheduler.get(name)
    assert (found.value, found.key, found.partition) == (b"\xff", b"k", 1)
    assert (found.headers, found.expires_at) == ([("a", None), ("a", b"\xfe")], made.expires_at)
    assert made.reschedule(delay=2 * HOUR_S) is Moved.MOVED
    scheduler.send_later(topic, b"new", delay=HOUR_S, id=name)
    assert scheduler.get(name).value == b"new"
    assert scheduler.cancel(name) == "cancelled"


def test_a_condition_that_nobody_would_answer_is_refused(scheduler, topic, name):
    for only_if in ("", "always", "version=", "version=a b", "absent\n", "ABSENT", 1):
        with pytest.raises(BadRequest, match="only_if: expected absent"):
            scheduler.send_later(topic, b"1", delay=HOUR_S, id=name, only_if=only_if)
    with pytest.raises(BadRequest, match="wait=True"):
        scheduler.send_later(topic, b"1", delay=1, id=name, only_if="absent", wait=False)
    with pytest.raises(BadRequest, match="one of many"):
        scheduler.send_many(
            [{"topic": topic, "value": b"1", "delay": 1, "id": name, "only_if": "absent"}]
        )
    with pytest.raises(BadRequest):
        scheduler.send_later(topic, b"1", delay="99999d", id=name, only_if="absent")
    with pytest.raises(BadRequest):
        scheduler.send_later(topic, b"x" * 2_000_000, delay=1, id=name, only_if="absent")
    assert scheduler.get(name) is None


def test_of_many_at_once_one_creates_it(installation, name):
    """Asyncio has the same call; on_sent hears of what was created."""
    where, arguments, topic = installation
    heard = []

    async def race():
        async with AsyncScheduler(*where, **arguments) as scheduler:
            calls = [
                scheduler.send_later(
                    topic,
                    b"%d" % n,
                    delay=HOUR_S + n,
                    id=name,
                    only_if="absent",
                    on_sent=lambda error, sent: heard.append((error, sent.value)),
                )
                for n in range(8)
            ]
            done = await asyncio.gather(*calls, return_exceptions=True)
            (won,) = [one for one in done if not isinstance(one, ConditionFailed)]
            assert (await scheduler.get(name)).value == won.value
            assert heard == [(None, won.value)]

    asyncio.run(race())


# --- REST -----------------------------------------------------------------------------------------


def test_http_says_it_in_its_own_words_too(api):
    made = send(api, id="a", due_ms=FAR_MS, only_if="absent")
    answer = api.post(
        "/v1/schedules",
        json={"topic": "t", "value": "2", "due_ms": FAR_MS, "id": "a"},
        headers={"If-None-Match": "*"},
    )
    problem = refused(answer, 412, "absent")
    stands = {"id": "a", "version": made["version"], "due_ms": FAR_MS, "state": "pending"}
    assert problem["standing"] == stands
    assert answer.headers["etag"] == f'"{made["version"]}"'

    def replace(etag, id="a"):
        body = {"topic": "t", "value": "2", "due_ms": FAR_MS, "id": id}
        return api.post("/v1/schedules", json=body, headers={"If-Match": etag})

    replaced = replace(answer.headers["etag"])
    assert replaced.status_code == 201
    assert replaced.headers["etag"] == f'"{replaced.json()["version"]}"'
    described = api.get("/openapi.json").json()["paths"]
    assert "ETag" in described["/v1/schedules"]["post"]["responses"]["201"]["headers"]
    assert "ETag" in described["/v1/schedules/{id}"]["get"]["responses"]["200"]["headers"]
    assert api.get("/v1/schedules/a").json()["version"] == replaced.json()["version"]
    refused(replace(answer.headers["etag"]), 412, "version")
    problem = refused(replace('"0123456789abcdef"', id="nobody"), 412, "nothing has this id")
    assert "standing" not in problem


def test_http_tells_no_version_of_what_does_not_stand_any_more(api, monkeypatch):
    """It was created, and has been cancelled or delivered before the answer was made."""
    gone = Schedule(id=b"a", due_ms=FAR_MS, record=Record(topic="t", value=b"v"))
    monkeypatch.setattr("sendlater.server.routes.schedules.create_if", lambda *_, **__: gone)
    body = {"topic": "t", "value": "v", "due_ms": FAR_MS, "id": "a", "only_if": "absent"}
    answer = api.post("/v1/schedules", json=body)
    assert (answer.status_code, answer.json().get("version")) == (201, None)
    assert "etag" not in answer.headers


def test_a_condition_that_http_cannot_mean_is_refused(api):
    body = {"topic": "t", "value": "v", "delay": 9, "id": "a"}
    for headers in ({"If-None-Match": '"x"'}, {"If-Match": "*"}, {"If-Match": "x"}):
        refused(api.post("/v1/schedules", json=body, headers=headers), 422, "expected")
    both = {"If-None-Match": "*", "If-Match": '"0123456789abcdef"'}
    refused(api.post("/v1/schedules", json=body, headers=both), 422, "one condition")
    refused(api.post("/v1/schedules", json=body | {"only_if": "sometimes"}), 422, "absent")
    lines = json.dumps(body | {"only_if": "absent"}).encode()
    kind = {"content-type": "application/x-ndjson"}
    refused(api.post("/v1/schedules", content=lines, headers=kind), 422, "one line of many")
    many = kind | {"If-None-Match": "*"}
    refused(api.post("/v1/schedules", content=json.dumps(body), headers=many), 422, "many")
    assert api.get("/v1/schedules/a").status_code == 404


def test_a_request_that_is_repeated_with_its_key_has_created_it(api):
    body = {"topic": "t", "value": "v", "delay": 900, "id": "a", "only_if": "absent"}
    key = {"Idempotency-Key": "k1"}
    first, again = (api.post("/v1/schedules", json=body, headers=key) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.headers["etag"] == first.headers["etag"]
    assert again.headers["idempotency-replayed"] == "true"
    refused(api.post("/v1/schedules", json=body), 412, "absent")
    other = key | {"If-Match": first.headers["etag"]}
    plain = {name: told for name, told in body.items() if name != "only_if"}
    refused(api.post("/v1/schedules", json=body, headers=other), 422, "another request")
    again = api.post("/v1/schedules", json=plain, headers=other | {"Idempotency-Key": "k2"})
    assert again.status_code == 201
    without = api.post("/v1/schedules", json=plain, headers={"Idempotency-Key": "k2"})
    refused(without, 422, "another request")


# --- the command line -----------------------------------------------------------------------------


def test_the_shell_learns_it_from_the_exit_code(sendlater, redis_url, space):  # noqa: F811
    words = ("t", "v", "--delay", "1h", "--id", "a", "--only-if")
    assert sendlater("send", *words, "absent") == ["a"]
    sendlater("send", *words, "absent", code=6)
    (told,) = map(json.loads, sendlater("send", *words, "absent", "--json", code=6))
    assert (told["standing"]["id"], told["standing"]["state"]) == ("a", "pending")
    assert told["standing"]["version"] in told["error"]
    words_of_b = [*words[:-2], "b", "--only-if", "version=0", "--json"]
    (told,) = map(json.loads, sendlater("send", *words_of_b, code=6))
    assert told["standing"] is None
    sendlater("send", *words, "later")
    sendlater("send", *words, "perhaps", code=2)
    with Scheduler(redis_url, space=space) as scheduler:
        version = scheduler.get("a").version
    sendlater("send", *words, f"version={version}")
    sendlater("send", *words, f"version={version}", code=6)
    sendlater("send", "--jsonl", "-", "--only-if", "absent", code=2)


# --- the store ------------------------------------------------------------------------------------
