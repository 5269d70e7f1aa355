"""Handlers on topics on Redis: done when they succeed, again when they fail, dead at the end.

Somebody must deliver what is re-scheduled: here a few lines do, in place of the service.
"""

import asyncio
import threading
from dataclasses import dataclass

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import BaseModel
from servers import until

from sendlater import Backoff, Context, Handlers, Topics
from sendlater.errors import BadRequest, StoreUnavailable
from sendlater.model import Record

SOON = Backoff(min_s=0.01, max_s=0.02, retries=3)


@pytest.fixture
def handlers(redis_url, space, deliverer):
    return Handlers(redis_url, space=space)


def story(handlers, told):
    """Run a coroutine function with the handlers started, closing them at the end."""

    async def run():
        async with handlers:
            await told(handlers)

    asyncio.run(run())


def dead_letters(redis_url, space):
    with Topics(redis_url, space=space) as topics:
        return [
            record
            for p in range(topics.partitions("dead-letters"))
            for record in topics.read("dead-letters", p, after_position=0, count_max=1_000)
        ]


def test_an_event_reaches_its_handler_with_its_context(handlers):
    seen = []

    @handlers.on("greet")
    async def greet(event, context: Context):
        seen.append((event, context))

    async def told(app):
        sent = await app.enqueue("greet", {"n": 1}, delay=0.05, context={"trace": "é"})
        await until(lambda: seen, "the event is handled")
        event, context = seen[0]
        assert event == {"n": 1}
        assert (context.type, context.attempt, context.values) == ("greet", 1, {"trace": "é"})
        assert context.due_ms == sent.due_ms
        assert event_is(sent.id, context.id)

    def event_is(schedule_id, event_id):
        return schedule_id == f"event:greet:{event_id}"

    story(handlers, told)


class Order(msgspec.Struct):
    number: int


class Invoice(BaseModel):
    number: int


@dataclass
class Parcel:
    number: int


@pytest.mark.parametrize("kind", [Order, Invoice, Parcel])
def test_a_hint_decides_what_an_event_is_decoded_to(handlers, kind):
    seen = []

    async def handle(event):
        seen.append(event)

    handle.__annotations__["event"] = kind
    handlers.on("typed")(handle)

    async def told(app):
        await app.enqueue("typed", kind(number=7))
        await until(lambda: seen, "the event is handled")
        assert seen == [kind(number=7)]

    story(handlers, told)


def test_plain_functions_work_and_bytes_are_bytes(handlers):
    seen = []

    @handlers.on("raw", parallelism=2)
    def raw(event: bytes):
        seen.append((event, threading.current_thread().name))

    async def told(app):
        await app.enqueue("raw", b"\xff\x00")
        await until(lambda: seen, "the event is handled")
        assert seen[0][0] == b"\xff\x00"
        assert seen[0][1] != threading.main_thread().name

    story(handlers, told)


def test_what_fails_comes_again_and_is_dead_at_the_end(handlers, redis_url, space):
    attempts = []

    @handlers.on("fail", retry=SOON)
    async def fail(event, context: Context):
        attempts.append((event, context.attempt, context.values))
        if event == "later" and context.attempt == 3:
            return True
        if event == "false":
            return False
        raise ValueError("not today")

    async def told(app):
        for event in ("later", "never", "false"):
            await app.enqueue("fail", event, id=event, context={"who": "me"})
        await until(lambda: app.tallies()["fail"].dead == 2, "two are dead")
        await until(lambda: app.tallies()["fail"].succeeded == 1, "one has succeeded")
        tally = app.tallies()["fail"]
        assert (tally.succeeded, tally.retried, tally.dead) == (1, 2 + 3 + 3, 2)
        await until(lambda: len(dead_letters(redis_url, space)) == 2, "dead letters are there")

    story(handlers, told)
    assert [a for e, a, _ in attempts if e == "later"] == [1, 2, 3]
    assert [a for e, a, _ in attempts if e == "never"] == [1, 2, 3, 4]
    assert all(values == {"who": "me"} for _, _, values in attempts)
    reasons = {dict(r.headers)["event-id"]: dict(r.headers) for r in dead_letters(redis_url, space)}
    assert reasons[b"never"]["event-error"] == b"ValueError: not today"
    assert reasons[b"false"]["event-error"] == b"the handler returned False"
    assert reasons[b"false"]["event-type"] == b"fail"
    assert reasons[b"false"]["retry-attempt"] == b"3"
    assert reasons[b"false"]["context-who"] == b"me"


def test_what_cannot_be_decoded_is_dead_at_once(handlers, redis_url, space):
    @handlers.on("typed")
    async def typed(event: Order):
        raise AssertionError("must not be called")

    async def told(app):
        await app.enqueue("typed", b'{"number": "one"}')
        await until(lambda: dead_letters(redis_url, space), "it is dead")

    story(handlers, told)
    (dead,) = dead_letters(redis_url, space)
    assert dead.value == b'{"number": "one"}'
    assert b"cannot be decoded" in dict(dead.headers)["event-error"]


def test_no_event_ends_its_worker_or_succeeds_without_running(handlers, redis_url, space):
    seen = []

    @handlers.on("hostile", retry=Backoff(min_s=0.01, retries=1))
    async def hostile(event):
        if event == "cancelled":
            raise asyncio.CancelledError
        seen.append(event)

    async def inner(event):
        seen.append(event)

    @handlers.on("wrapped")
    def wrapped(event):
        return inner(event)

    async def told(app):
        await app.enqueue("hostile", "cancelled")
        await until(lambda: app.tallies()["hostile"].dead == 1, "its reason is told")
        with Topics(redis_url, space=space) as topics:
            headers = [("sendlater-due", b"1" * 5_000), ("retry-original-timestamp", b"9" * 5_000)]
            topics.produce(Record(topic="hostile", value=b'"after"', headers=headers))
        await app.enqueue("wrapped", "wrapped")
        await until(lambda: sorted(seen) == ["after", "wrapped"], "the others ran")

    story(handlers, told)
    (dead,) = dead_letters(redis_url, space)
    assert dict(dead.headers)["event-error"].startswith(b"CancelledError")


def test_a_timeout_counts_as_failure(handlers, redis_url, space):
    freed = threading.Event()
    running = []

    @handlers.on("stuck", retry=Backoff(min_s=0.01, retries=1), timeout=0.05)
    async def stuck(event):
        await asyncio.Event().wait()

    @handlers.on("stuck-thread", retry=Backoff(min_s=0.01, retries=1), timeout=0.05)
    def stuck_thread(event):
        running.append(1)
        freed.wait(20)

    async def told(app):
        await app.enqueue("stuck", 1)
        await app.enqueue("stuck-thread", 1)
        await until(lambda: app.tallies()["stuck"].dead == 1, "the coroutine's event is dead")
        await until(lambda: app.tallies()["stuck-thread"].retried == 1, "its first attempt is over")
        # The thread still holds the only place, so its retry waits.
        assert len(running) == 1
        freed.set()
        await until(lambda: len(running) == 2, "the retry has begun")

    story(handlers, told)
    errors = {dict(r.headers)["event-error"] for r in dead_letters(redis_url, space)}
    assert b"not finished within 0.05 s" in errors


def test_no_more_run_at_once_than_may_and_a_slow_type_blocks_no_other(handlers):
    running, most, done = 0, 0, []
    gate = None

    @handlers.on("slow", parallelism=3)
    async def slow(event):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    @handlers.on("quick")
    async def quick(event):
        done.append(event)

    async def told(app):
        nonlocal gate
        gate = asyncio.Event()
        for n in range(10):
            await app.enqueue("slow", n)
        await until(lambda: running == 3, "the slow type is full")
        for n in range(10):
            await app.enqueue("quick", n)
        await until(lambda: len(done) == 10, "the quick type is through")
        tally = app.tallies()["slow"]
        assert (tally.in_flight, tally.succeeded) == (3, 0)
        await until(lambda: app.tallies()["slow"].ready == 7, "the others are counted")
        gate.set()
        await until(lambda: app.tallies()["slow"].succeeded == 10, "the slow type is through")

    story(handlers, told)
    assert most == 3


def test_the_same_type_and_id_replaces_also_between_attempts(handlers):
    seen = []

    @handlers.on("update", retry=Backoff(min_s=0.3, retries=2))
    async def update(event):
        seen.append(event)
        return event != "bad"

    async def told(app):
        await app.enqueue("update", "first", id="a", delay=0.3)
        await app.enqueue("update", "bad", id="a")
        await until(lambda: app.tallies()["update"].retried, "the bad one waits for its retry")
        await app.enqueue("update", "good", id="a", delay=0.01)
        await app.enqueue("update", "last", id="b", delay=0.7)
        await until(lambda: "last" in seen, "later ones have come")

    story(handlers, told)
    assert seen == ["bad", "good", "last"]


def test_removed_and_closed_handlers_finish_what_they_have_begun(handlers, redis_url, space):
    begun, ended = [], []
    gate = None

    @handlers.on("work", parallelism=2)
    async def work(event):
        begun.append(event)
        await gate.wait()
        ended.append(event)

    async def told(app):
        nonlocal gate
        gate = asyncio.Event()
        await app.enqueue("work", 1)
        await app.enqueue("work", 2)
        await until(lambda: begun, "one has begun")
        removing = asyncio.create_task(app.remove("work"))
        await until(lambda: app.tallies() == {}, "it is being removed")
        assert not ended
        gate.set()
        await removing
        assert sorted(ended) == sorted(begun)
        assert "work" not in app.tallies()

        @app.on("work")
        async def again(event):
            ended.append(event)

        await app.enqueue("work", 3)
        await until(lambda: sorted(ended) == [1, 2, 3], "the new handler goes on")

    story(handlers, told)


def test_when_the_store_is_away_nothing_is_lost(handlers, monkeypatch):
    calls = []

    @handlers.on("fail", retry=SOON)
    async def fail(event, context: Context):
        calls.append(context.attempt)
        return context.attempt == 2

    async def told(app):
        forward = app.scheduler.submit
        away = True

        async def submit(schedule):
            if away and schedule.id.startswith(b"retry:"):
                raise StoreUnavailable("away")
            await forward(schedule)

        monkeypatch.setattr(app.scheduler, "submit", submit)
        await app.enqueue("fail", 1)
        await until(lambda: "away" in app.health().get("fail", ""), "health tells")
        assert app.tallies()["fail"].retried == 0
        away = False
        await until(lambda: app.tallies()["fail"].succeeded == 1, "it came again")
        assert app.health() == {}

    story(handlers, told)
    assert calls == [1, 2]


def test_metrics_tell_per_type(handlers):
    registry = CollectorRegistry()
    handlers.metrics(registry)

    @handlers.on("count")
    async def count(event):
        return event

    async def told(app):
        await app.enqueue("count", True)
        await until(lambda: app.tallies()["count"].succeeded == 1, "handled")
        text = generate_latest(registry).decode()
        assert 'sendlater_handler_events_total{outcome="succeeded",type="count"} 1.0' in text
        assert 'sendlater_handler_in_flight{type="count"}' in text

    story(handlers, told)


def test_wrong_registrations_are_refused(redis_url, space):
    app = Handlers(redis_url, space=space)
    with pytest.raises(BadRequest):
        app.on("t", parallelism=0)
    with pytest.raises(BadRequest):
        app.on("t", timeout=0)
    with pytest.raises(TypeError):
        app.on("t")(lambda: None)
    app.on("t")(lambda event: None)
    with pytest.raises(BadRequest):
        app.on("t")
    asyncio.run(app.close())
