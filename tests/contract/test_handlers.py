"""Handlers: done when they succeed, again when they fail, dead at the end.

On topics on Redis, where somebody must deliver what is re-scheduled: here a few lines do, in place
of the service. And on the fake that users test with, whose clock goes on by itself here.
"""

import asyncio
import re
import signal
import subprocess
import threading
from dataclasses import dataclass

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import BaseModel
from servers import COMMAND, until, wait_until

from sendlater import AsyncScheduler, Backoff, Cancelled, Context, Handlers, Topics
from sendlater.clock import SystemClock
from sendlater.errors import BadRequest, StoreUnavailable, Unavailable
from sendlater.model import Record
from sendlater.testing import Fake

SOON = Backoff(min_s=0.01, max_s=0.02, retries=3)


class OnRedis:
    """Topics on Redis."""

    def __init__(self, redis_url, space):
        self.handlers = Handlers(redis_url, space=space)
        self._where = redis_url, space

    def produce(self, record):
        """Put a record on its topic."""
        with Topics(self._where[0], space=self._where[1]) as topics:
            topics.produce(record)

    def records(self, topic):
        """What is on a topic."""
        with Topics(self._where[0], space=self._where[1]) as topics:
            return [
                record
                for p in range(topics.partitions(topic))
                for record in topics.read(topic, p, after_position=0, count_max=1_000)
            ]


class OnFake:
    """The same of a fake."""

    def __init__(self, fake):
        self.handlers = Handlers(fake)
        self.produce, self.records = fake.produce, fake.delivered


@pytest.fixture
def ticking():
    """A fake that delivers by the real clock."""
    fake, stop = Fake(clock=SystemClock()), threading.Event()

    def work():
        while not stop.wait(0.002):
            fake.deliver_due()

    thread = threading.Thread(target=work)
    thread.start()
    yield fake
    stop.set()
    thread.join()


@pytest.fixture(params=["redis", "fake"])
def place(request):
    """Handlers, and a look at their topics."""
    if request.param == "fake":
        return OnFake(request.getfixturevalue("ticking"))
    request.getfixturevalue("deliverer")
    return OnRedis(request.getfixturevalue("redis_url"), request.getfixturevalue("space"))


@pytest.fixture
def handlers(place):
    return place.handlers


def story(handlers, told):
    """Run a coroutine function with the handlers started, closing them at the end."""

    async def run():
        async with handlers:
            await told(handlers)

    asyncio.run(run())


def dead_letters(place):
    return place.records("dead-letters")


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


def test_what_fails_comes_again_and_is_dead_at_the_end(handlers, place):
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
        await until(lambda: len(dead_letters(place)) == 2, "dead letters are there")

    story(handlers, told)
    assert [a for e, a, _ in attempts if e == "later"] == [1, 2, 3]
    assert [a for e, a, _ in attempts if e == "never"] == [1, 2, 3, 4]
    assert all(values == {"who": "me"} for _, _, values in attempts)
    reasons = {dict(r.headers)["event-id"]: dict(r.headers) for r in dead_letters(place)}
    assert reasons[b"never"]["event-error"] == b"ValueError: not today"
    assert reasons[b"false"]["event-error"] == b"the handler returned False"
    assert reasons[b"false"]["event-type"] == b"fail"
    assert reasons[b"false"]["retry-attempt"] == b"3"
    assert re.fullmatch(rb"event:fail:false@\d+", reasons[b"false"]["retry-of"])
    assert reasons[b"false"]["context-who"] == b"me"


def test_what_cannot_be_decoded_is_dead_at_once(handlers, place):
    @handlers.on("typed")
    async def typed(event: Order):
        raise AssertionError("must not be called")

    async def told(app):
        await app.enqueue("typed", b'{"number": "one"}')
        await until(lambda: dead_letters(place), "it is dead")

    story(handlers, told)
    (dead,) = dead_letters(place)
    assert dead.value == b'{"number": "one"}'
    assert b"cannot be decoded" in dict(dead.headers)["event-error"]


def test_no_event_ends_its_worker_or_succeeds_without_running(handlers, place):
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
        headers = [("sendlater-due", b"1" * 5_000), ("retry-original-timestamp", b"9" * 5_000)]
        place.produce(Record(topic="hostile", value=b'"after"', headers=headers))
        await app.enqueue("wrapped", "wrapped")
        await until(lambda: sorted(seen) == ["after", "wrapped"], "the others ran")

    story(handlers, told)
    (dead,) = dead_letters(place)
    assert dict(dead.headers)["event-error"].startswith(b"CancelledError")


def test_what_can_never_be_scheduled_again_is_dead_and_stops_nobody(handlers, place):
    """The first has no room for the headers of a retry, nor of a dead letter; the second's id is
    too long for a retry."""
    seen = []

    @handlers.on("large", retry=SOON)
    async def large(event: bytes):
        seen.append(len(event))
        raise ValueError("not today")

    async def told(app):
        place.produce(Record(topic="large", value=b"x" * 999_950))
        place.produce(Record(topic="large", value=b"2", headers=[("event-id", b"i" * 600)]))
        await app.enqueue("large", b"333")
        await until(lambda: app.tallies()["large"].dead == 3, "all are dead")
        assert app.health() == {}
        await until(lambda: len(dead_letters(place)) == 3, "dead letters are there")

    story(handlers, told)
    assert sorted(seen) == [1, 3, 3, 3, 3, 999_950]
    letters = {len(r.value): dict(r.headers) for r in dead_letters(place)}
    assert letters[1_024]["event-cut"] == b"999950"
    assert b"cannot be retried" in letters[1_024]["event-error"]
    assert letters[1]["event-id"] == b"i" * 600
    assert letters[3]["event-error"] == b"ValueError: not today"


def test_a_timeout_counts_as_failure(handlers, place):
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
    errors = {dict(r.headers)["event-error"] for r in dead_letters(place)}
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


def test_a_retry_keeps_the_expiry_of_its_event(handlers, place):
    seen = []

    @handlers.on("code", retry=Backoff(min_s=0.6, retries=3))
    async def code(event):
        seen.append(event)
        raise ValueError("not today")

    async def told(app):
        sent = await code.enqueue("123456", delay=0, expires_after=0.3)
        assert sent.schedule.expires_ms == sent.due_ms + 300
        await until(lambda: len(dead_letters(place)) == 1, "its retry has expired")

    story(handlers, told)
    assert seen == ["123456"]
    assert dict(dead_letters(place)[0].headers)["sendlater-rejected"] == b"expired"


def test_an_event_is_spread_by_its_id(handlers):
    async def told(app):
        due = [(await app.enqueue("x", 1, delay=100, spread="1h", id=i)).due_ms for i in "aab"]
        assert abs(due[0] - due[1]) < 60_000 < abs(due[0] - due[2])

    story(handlers, told)


def test_removed_and_closed_handlers_finish_what_they_have_begun(handlers, place):
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


def test_a_task_is_its_function_and_enqueues_without_consuming(handlers, place):
    seen = []

    @handlers.on("remind", timeout=5)
    async def remind(event: Order, context: Context) -> str:
        """Remind somebody."""
        seen.append(event)
        return f"{event.number} {context.attempt}"

    assert remind.__doc__ == "Remind somebody."

    async def enqueue():
        sent = await remind.enqueue(Order(7), delay="1ms", id="a")
        waiting = await remind.enqueue(Order(8), delay="15m", id="b")
        assert (sent.id, waiting.topic) == ("event:remind:a", "remind")
        assert await remind.cancel("b") is Cancelled.CANCELLED
        await until(lambda: place.records("remind"), "it has been delivered")
        assert handlers.tallies() == {}
        await handlers.close()

    asyncio.run(enqueue())
    assert seen == []

    async def told(app):
        await until(lambda: seen == [Order(7)], "it is handled once somebody starts")

    story(handlers, told)


def test_a_cancellation_finds_an_event_between_its_attempts(handlers):
    seen = []

    @handlers.on("fail", retry=Backoff(min_s=0.5, retries=5))
    async def fail(event):
        seen.append(event)
        raise ValueError("not today")

    async def told(app):
        await fail.enqueue("x", id="a")
        await until(lambda: app.tallies()["fail"].retried == 1, "it waits for its retry")
        assert await fail.cancel("a") is Cancelled.CANCELLED
        assert await fail.cancel("a") is Cancelled.UNKNOWN
        await fail.enqueue("last", id="b", delay=0.7)
        await until(lambda: "last" in seen, "a later one has come")

    story(handlers, told)
    assert seen.count("x") == 1


def test_handlers_connect_when_they_start_not_when_they_are_imported(redis_url, space):
    nowhere = Handlers("redis://127.0.0.1:1/0", space=space)

    @nowhere.on("t")
    def handle(event):
        return event + 1

    assert handle(1) == 2
    with pytest.raises(Unavailable):
        asyncio.run(nowhere.start())
    asyncio.run(nowhere.close())


def test_a_worker_runs_what_a_module_names_and_drains(redis_url, space, deliverer, tmp_path):
    (tmp_path / "billing.py").write_text(
        f"""
import asyncio
from sendlater import Handlers

app = Handlers({redis_url!r}, space={space!r})

@app.on("bill", parallelism=8)
async def bill(event):
    open(f"begun-{{event}}", "w").close()
    while not __import__("os").path.exists("go"):
        await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.01)
    open(f"ended-{{event}}", "w").close()
"""
    )
    command = [COMMAND, "worker", "billing:app", "--concurrency", "2", "--health", "127.0.0.1:0"]
    worker = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert "is ready: bill" in next(line for line in worker.stderr if "worker is" in line)

        async def send():
            app = Handlers(redis_url, space=space)
            for n in range(4):
                await app.enqueue("bill", n)
            await app.close()

        asyncio.run(send())
        wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 2, "two have begun")
        worker.send_signal(signal.SIGTERM)
        assert "finishing" in next(line for line in worker.stderr if "stopping" in line)
        (tmp_path / "go").touch()
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.stderr.close()
    begun = {path.name[6:] for path in tmp_path.glob("begun-*")}
    # The others may begin between the word "stopping" and the stop.
    assert {path.name[6:] for path in tmp_path.glob("ended-*")} == begun


def test_a_worker_starts_again_when_its_program_changes(redis_url, space, deliverer, tmp_path):
    program = f"""
from sendlater import Handlers

app = Handlers({redis_url!r}, space={space!r})

@app.on("TYPE")
def handle(event):
    open(f"TYPE-{{event}}", "w").close()
"""
    (tmp_path / "shop.py").write_text(program.replace("TYPE", "first"))
    command = [COMMAND, "worker", "shop:app", "--reload"]
    worker = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert "is ready: first" in next(line for line in worker.stderr if "worker is" in line)
        (tmp_path / "shop.py").write_text(program.replace("TYPE", "second"))
        assert "is ready: second" in next(line for line in worker.stderr if "worker is" in line)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.stderr.close()


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


def test_a_worker_ends_though_a_plain_function_hangs(redis_url, space, deliverer, tmp_path):
    """Python would wait for its thread; the event is given to others."""
    (tmp_path / "stuck.py").write_text(
        f"""
import threading
from sendlater import Handlers

app = Handlers({redis_url!r}, space={space!r}, drain_s=0.1)

@app.on("hang")
def hang(event):
    open("begun", "w").close()
    threading.Event().wait()
"""
    )
    command = [COMMAND, "worker", "stuck:app"]
    worker = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert "is ready: hang" in next(line for line in worker.stderr if "worker is" in line)

        async def send():
            async with AsyncScheduler(redis_url, space=space) as scheduler:
                await scheduler.send_later("hang", b"1", delay=0)

        asyncio.run(send())
        wait_until((tmp_path / "begun").exists, "it has begun")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
        assert "has not ended in time" in worker.stderr.read()
    finally:
        worker.kill()
        worker.wait()


def test_handlers_start_once_and_refuse_what_is_no_text(redis_url, space):
    app = Handlers(redis_url, space=space)

    @app.on("t")
    def handle(event):
        return event

    async def story():
        async with app:
            with pytest.raises(BadRequest, match="not started: close them first"):
                await app.start()
            with pytest.raises(BadRequest, match="id: expected text, got 17"):
                await app.enqueue("t", 1, id=17)
            with pytest.raises(BadRequest, match="context: expected text, got 'order': 17"):
                await app.enqueue("t", 1, context={"order": 17})
            with pytest.raises(BadRequest, match="topic: expected text, got 17"):
                await app.enqueue(17, 1)
        await app.start()
        await app.close()

    asyncio.run(story())
