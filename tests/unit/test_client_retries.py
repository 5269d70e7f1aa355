"""Retries by the client, and what handlers may raise: on the fake, whose clock the test moves."""

import asyncio

import pytest

from sendlater import Backoff, Dead, Handlers, NoAttemptsLeft, Record, Retry, Scheduler
from sendlater.errors import BadRequest, BadTime
from sendlater.model import Cancelled
from sendlater.testing import Fake

POLICY = "5s,30s"


@pytest.fixture
def fake():
    return Fake()


def deliver(fake, scheduler):
    scheduler.send_later("orders", b"v", key="k", headers={"tenant": "a"}, delay=0, id="order-17")
    (message,) = fake.delivered("orders")
    return message


def test_a_record_comes_again_until_it_is_dead_and_can_be_redriven(fake):
    with Scheduler(fake) as scheduler:
        message = deliver(fake, scheduler)
        for pause_s, attempt in ((5, b"1"), (30, b"2")):
            sent = scheduler.retry(message, "timeout", POLICY)
            assert sent.due_ms == fake.clock.now_ms() + 1_000 * pause_s
            fake.advance(pause_s)
            message = fake.delivered("orders")[-1]
            assert (message.key, message.value) == (b"k", b"v")
            assert message.header("retry-attempt") == attempt
            assert message.header("retry-origin") == b"orders/0/0"
            assert message.header("tenant") == b"a"
        assert scheduler.retry(message, "no such order", POLICY).topic == "dead-letters"
        (dead,) = fake.delivered("dead-letters")
        assert dead.header("event-type") == b"orders"
        assert dead.header("event-error") == b"no such order"
        assert (dead.key, dead.value) == (b"k", b"v")


def test_the_same_call_twice_is_one_retry(fake):
    with Scheduler(fake) as scheduler:
        message = deliver(fake, scheduler)
        first = scheduler.retry(message, "timeout", POLICY)
        again = scheduler.retry(message, "timeout", Backoff.parse(POLICY))
        assert first.id == again.id
        assert len(fake.pending()) == 1
        assert scheduler.cancel(first.id) is Cancelled.CANCELLED


def test_a_record_from_elsewhere_is_known_by_its_place(fake):
    with Scheduler(fake) as scheduler:
        for _ in range(2):
            fake.produce(Record(topic="orders", key=b"k", value=b"v"))
        one, other = fake.delivered("orders")
        ids = [scheduler.retry(message, "", POLICY).id for message in (one, one, other)]
        assert ids[0] == ids[1] != ids[2]


def test_without_a_policy_it_is_as_it_was(fake):
    with Scheduler(fake) as scheduler:
        message = deliver(fake, scheduler)
        with pytest.raises(NoAttemptsLeft):
            scheduler.retry(message, backoff=Backoff(retries=0))


def test_a_jitter_shortens_by_a_stable_part():
    policy = Backoff.parse("10s jitter 20%")
    pauses = {policy.pause_ms(1, seed=b"%d" % n) for n in range(100)}
    assert 8_000 < min(pauses) < 8_500 < 9_500 < max(pauses) <= 10_000
    assert policy.pause_ms(1, seed=b"a") == policy.pause_ms(1, seed=b"a")


def handle_with(fake, what):
    """A handler gets one event, and raises."""
    app = Handlers(fake)

    @app.on("t", retry="1h")
    async def handle(event: str) -> None:
        raise what

    async def story():
        async with fake.handling(app):
            await app.enqueue("t", "event", delay=0, id="e")
            await fake.run(0)

    asyncio.run(story())


def test_a_handler_may_choose_its_pause(fake):
    handle_with(fake, Retry("busy", after="10m"))
    (waiting,) = fake.pending()
    assert waiting.due_ms == fake.clock.now_ms() + 600_000
    assert dict(waiting.record.headers)["retry-attempt"] == b"1"


def test_a_handler_may_leave_the_pause_to_the_policy(fake):
    handle_with(fake, Retry())
    (waiting,) = fake.pending()
    assert waiting.due_ms == fake.clock.now_ms() + 3_600_000


def test_a_handler_may_give_up_at_once(fake):
    handle_with(fake, Dead("no such order"))
    assert fake.pending() == []
    (dead,) = fake.delivered("dead-letters")
    assert dead.header("event-error") == b"no such order"


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(BadTime, match="after"):
        Retry(after=-1)
    with pytest.raises(BadRequest, match="pauses"):
        Handlers(Fake()).on("t", retry="soon")


def test_what_is_no_record_is_not_retried(fake):
    with Scheduler(fake) as scheduler, pytest.raises(BadRequest, match="a record that was read"):
        scheduler.retry(None, "why", "5s")
