"""One client, whatever it talks through: the same promises on Redis alone and on Kafka and Redis.

Nothing here falls due by itself, so that the tests are the same where nobody delivers.
"""

import asyncio
import threading
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from servers import until

from sendlater import AsyncScheduler, Cancelled, Moved, Scheduler, State
from sendlater.errors import BadRequest, BadSettings, BadTime, SendlaterError, Unavailable
from sendlater.store import Batch, Pending

LATER_S = 3_600.0


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
    """An id prefix of this test's own."""
    return uuid.uuid4().hex[:8]


def test_what_is_sent_is_there_to_the_byte(scheduler, topic, name):
    headers = [("a", b"\xff\x00"), ("b", None), ("a", "zwei")]
    at = datetime.now(UTC) + timedelta(hours=1)
    sent = scheduler.send_later(
        topic, b"\x00\xff", key=b"\xfe", headers=headers, at=at, id=name, partition=1
    )
    found = scheduler.get(name)
    assert found is not None
    for schedule in (sent, found):
        assert schedule.id == name
        assert timedelta(0) <= schedule.due_at - at < timedelta(milliseconds=1)
        assert (schedule.topic, schedule.key, schedule.value) == (topic, b"\xfe", b"\x00\xff")
        assert schedule.headers == [("a", b"\xff\x00"), ("b", None), ("a", b"zwei")]
        assert schedule.partition == 1
        assert schedule.state is State.PENDING


def test_an_empty_payload_is_a_payload_and_no_key_is_no_key(scheduler, topic, name):
    scheduler.send_later(topic, b"", delay=LATER_S, id=name)
    scheduler.send_later(topic, "text", key="", delay=LATER_S, id=name + "é")
    found, other = scheduler.get(name), scheduler.get(name + "é")
    assert (found.value, found.key, found.partition, found.headers) == (b"", None, None, [])
    assert (other.value, other.key) == (b"text", b"")


def test_the_same_id_again_replaces(scheduler, topic, name):
    scheduler.send_later(topic, b"1", delay=LATER_S, id=name)
    scheduler.send_later(topic, b"2", delay=2 * LATER_S, id=name)
    page = scheduler.list(id_prefix=name)
    assert [(s.value, s.due_ms) for s in page.items] == [(b"2", scheduler.get(name).due_ms)]


def test_a_cancellation_says_what_it_did(scheduler, topic, name):
    scheduler.send_later(topic, b"1", delay=LATER_S, id=name)
    assert scheduler.cancel(name) is Cancelled.CANCELLED
    assert scheduler.get(name) is None
    assert scheduler.cancel(name) is Cancelled.UNKNOWN
    scheduler.send_later(topic, b"2", delay=LATER_S, id=name)
    assert scheduler.get(name).value == b"2"


def test_a_reschedule_moves_to_and_fro(scheduler, topic, name):
    handle = scheduler.send_later(topic, b"1", delay=LATER_S, id=name)
    for hours in (48, 1, 24):
        at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=hours)
        assert handle.reschedule(at=at) is Moved.MOVED
        assert handle.due_at == at
        assert scheduler.get(name).due_at == at
        assert scheduler.get(name).value == b"1"
    assert scheduler.reschedule(name, delay=timedelta(days=2)) is Moved.MOVED
    assert scheduler.reschedule(name + "-nobody", delay=1) is Moved.UNKNOWN
    assert handle.cancel() is Cancelled.CANCELLED


def test_deliver_now_makes_it_due(scheduler, topic, name):
    handle = scheduler.send_later(topic, b"1", delay=LATER_S, id=name)
    assert handle.deliver_now() is Moved.MOVED
    found = scheduler.get(name)
    assert found is None or found.due_at <= datetime.now(UTC)
    assert scheduler.deliver_now(name + "-nobody") is Moved.UNKNOWN


def test_a_list_comes_in_pages_in_due_order(scheduler, topic, name):
    began = datetime.now(UTC) + timedelta(days=30)
    ats = {f"{name}-{n}": began + timedelta(seconds=n // 2) for n in range(25)}
    scheduler.send_many(
        {"topic": topic, "value": i, "at": at, "id": i} for i, at in reversed(ats.items())
    )
    found, cursor = [], None
    while True:
        page = scheduler.list(id_prefix=name, limit=10, cursor=cursor)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    assert sorted(ats) == sorted(s.id for s in found)
    assert [(s.due_ms, s.id) for s in found] == sorted((s.due_ms, s.id) for s in found)

    some = scheduler.list(
        id_prefix=name,
        due_from=began + timedelta(seconds=3),
        due_to=began + timedelta(seconds=5),
    )
    assert [s.id for s in some.items] == [f"{name}-{n}" for n in (6, 7, 8, 9)]
    assert not scheduler.list(id_prefix=name, topic="another").items
    assert len(scheduler.list(id_prefix=name, topic=topic).items) == 25


def test_times_may_be_text_and_all_pages_come_as_one(scheduler, topic, name):
    scheduler.send_later(topic, b"1", delay="2h30m", id=f"{name}-delay")
    scheduler.send_later(topic, b"1", at="2030-01-31T12:00:00Z", id=f"{name}-at")
    found = list(scheduler.iter(id_prefix=name, due_from="+1h", due_to="2031-01-01T00:00:00Z"))
    assert [s.id for s in found] == [f"{name}-delay", f"{name}-at"]
    assert found[1].due_at == datetime(2030, 1, 31, 12, tzinfo=UTC)
    assert not list(scheduler.iter(id_prefix=name, due_from="+3h", due_to="+4h"))
    for wrong in ({"at": "tomorrow"}, {"delay": "soon"}):
        with pytest.raises(BadTime):
            scheduler.send_later(topic, b"1", **wrong)


def test_a_list_longer_than_a_page_is_walked_to_its_end(scheduler, topic, name, monkeypatch):
    monkeypatch.setattr("sendlater.client.scheduler.PAGE_COUNT_MAX", 7)
    ids = [f"{name}-{n:02}" for n in range(25)]
    scheduler.send_many({"topic": topic, "value": "1", "delay": 9_000, "id": i} for i in ids)
    assert [s.id for s in scheduler.iter(id_prefix=name)] == ids


def test_many_are_cancelled_with_an_answer_for_each(scheduler, topic, name):
    ids = [f"{name}-{n}" for n in range(5)]
    scheduler.send_many({"topic": topic, "value": "1", "delay": 9_000, "id": i} for i in ids)
    wanted = [ids[3], f"{name}-nobody", ids[1], ids[3]]
    assert scheduler.cancel_many(wanted) == {
        ids[3]: Cancelled.CANCELLED,
        f"{name}-nobody": Cancelled.UNKNOWN,
        ids[1]: Cancelled.CANCELLED,
    }
    assert [s.id for s in scheduler.iter(id_prefix=name)] == [ids[0], ids[2], ids[4]]
    assert scheduler.cancel_many([]) == {}


def test_all_that_match_are_cancelled(scheduler, topic, name):
    for n, delay in enumerate((1_000, 2_000, 3_000)):
        scheduler.send_later(topic, b"1", delay=delay, id=f"{name}-{n}")
    told = scheduler.cancel_matching(id_prefix=name, due_to="+40m", dry_run=True)
    assert (told.matched, told.cancelled) == (2, 0)
    assert len(list(scheduler.iter(id_prefix=name))) == 3
    told = scheduler.cancel_matching(id_prefix=name, topic=topic, due_from="+5m", due_to="+40m")
    assert (told.matched, told.cancelled) == (2, 2)
    assert [s.id for s in scheduler.iter(id_prefix=name)] == [f"{name}-2"]
    assert scheduler.cancel_matching(id_prefix=f"{name}-nobody").matched == 0
    whose = [("CALLER_SERVICE", f"é-{name}"), ("CALLER_SERVICE", name), (name, f"é-{name}")]
    for n, header in enumerate(whose):
        scheduler.send_later(topic, b"1", delay=9_000, id=f"{name}-c{n}", headers=[header])
    told = scheduler.cancel_matching(caller=f"é-{name}")
    assert (told.matched, told.cancelled) == (1, 1)
    assert scheduler.get(f"{name}-c0") is None
    assert scheduler.get(f"{name}-c2") is not None


@pytest.mark.parametrize("wrong", [{}, {"all": True, "id_prefix": "a"}])
def test_everything_is_cancelled_only_if_it_is_said(scheduler, wrong):
    with pytest.raises(BadRequest, match="either all=True or a filter"):
        scheduler.cancel_matching(**wrong, dry_run=True)
    assert scheduler.cancel_matching(all=True, dry_run=True).cancelled == 0


@pytest.mark.parametrize("empty", ["id_prefix", "topic", "tag", "caller", "due_from"])
def test_an_empty_part_of_a_filter_selects_no_more_than_was_meant(scheduler, empty):
    """As of a variable that is not set."""
    with pytest.raises(BadRequest, match=f"{empty}: expected text that is not empty, got ''"):
        scheduler.cancel_matching(**{"due_to": "+1h", empty: ""}, dry_run=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": "no such name"},
        {"id": " "},
        {"id": "x" * 513},
        {"value": b"x" * 1_000_001},
        {"partition": -1},
        {"delay": timedelta(days=4_000)},
    ],
)
def test_what_would_be_rejected_is_refused_at_once(scheduler, topic, name, wrong):
    message = {"topic": topic, "value": b"1", "delay": LATER_S, "id": name} | wrong
    with pytest.raises(BadRequest):
        scheduler.send_later(**message)
    assert not scheduler.list(id_prefix=name).items


def test_many_bad_ones_do_not_stop_those_before(scheduler, topic, name):
    good = [{"topic": topic, "value": b"1", "delay": LATER_S, "id": f"{name}{n}"} for n in range(5)]
    with pytest.raises(BadTime):
        scheduler.send_many([*good, {"topic": topic, "value": b"1", "id": name}])
    assert len(scheduler.list(id_prefix=name).items) == 5
    assert scheduler.send_many([]) == 0


def test_headers_of_schedulers_are_dropped_whatever_the_transport(scheduler, topic, name):
    headers = [("scheduler-epoch", b"1"), ("sendlater-due", b"2"), ("mine", b"3")]
    scheduler.send_later(topic, b"v", id=name, delay=3_600, headers=headers)
    kept = scheduler.get(name).headers
    assert [pair for pair in kept if pair[0] == "mine"] == [("mine", b"3")]
    assert not [pair for pair in kept if pair in headers[:2]]


@pytest.mark.parametrize(
    ("header", "instead"),
    [
        ("sendlater-if", "only_if"),
        ("sendlater-delay", "delay"),
        ("sendlater-expires-after", "expires_after"),
        ("sendlater-every", "every"),
        ("sendlater-tags", "tags"),
        ("sendlater-retry", "retry"),
    ],
)
def test_a_header_that_would_do_nothing_is_refused(scheduler, topic, name, header, instead):
    """It tells intake what to do, on a record of an inbox; this is none."""
    message = {"topic": topic, "value": b"v", "id": name, "delay": 3_600}
    with pytest.raises(BadRequest, match=f"expected {instead}.* in place of {header}"):
        scheduler.send_later(**message, headers={"mine": b"1", header: b"absent"})
    with pytest.raises(BadRequest, match=header):
        scheduler.send_many([message | {"headers": [(header, b"absent")]}])
    assert scheduler.get(name) is None


def test_without_waiting_somebody_is_told(scheduler, topic, name):
    told = []
    for n in range(20):
        scheduler.send_later(
            topic,
            b"1",
            delay=LATER_S,
            id=f"{name}{n}",
            wait=False,
            on_sent=lambda error, schedule: told.append((error, schedule.id)),
        )
    scheduler.flush()
    assert sorted(told) == sorted((None, f"{name}{n}") for n in range(20))
    assert len(scheduler.list(id_prefix=name).items) == 20


def test_a_retry_counts_its_attempts(scheduler, topic, name):
    first = scheduler.send_later(topic, b"1", delay=LATER_S, id=name, headers={"a": "1"})
    again = scheduler.retry(first.schedule.record, id=name)
    assert timedelta(seconds=3) < again.due_at - datetime.now(UTC) <= timedelta(seconds=5)
    assert dict(again.headers)["retry-attempt"] == b"1"
    assert again.cancel() in (Cancelled.CANCELLED, Cancelled.UNKNOWN)


def test_threads_may_share_a_client(scheduler, topic, name):
    def work(number):
        for n in range(10):
            scheduler.send_later(topic, b"1", delay=LATER_S, id=f"{name}-{number}-{n}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(scheduler.list(id_prefix=name).items) == 80


def test_the_asyncio_client_does_the_same(installation, name):
    where, arguments, topic = installation

    async def story():
        async with AsyncScheduler(*where, **arguments) as scheduler:
            handles = await asyncio.gather(
                *(
                    scheduler.send_later(topic, "1", delay=LATER_S, id=f"{name}{n}")
                    for n in range(20)
                )
            )
            assert [h.id for h in handles] == [f"{name}{n}" for n in range(20)]
            told = []
            await scheduler.send_later(
                topic,
                "1",
                delay=LATER_S,
                id=f"{name}0",
                wait=False,
                on_sent=lambda error, sent: told.append((error, sent.id)),
            )
            await until(lambda: told == [(None, f"{name}0")], "it was told of")
            assert (await scheduler.get(f"{name}3")).value == b"1"
            assert await handles[3].cancel() is Cancelled.CANCELLED
            assert await handles[4].reschedule(delay=2 * LATER_S) is Moved.MOVED
            assert handles[4].due_ms > handles[5].due_ms + 1_000
            assert await handles[5].deliver_now() is Moved.MOVED

            async def messages():
                for n in range(20, 25):
                    yield {"topic": topic, "value": b"1", "delay": LATER_S, "id": f"{name}{n}"}

            assert await scheduler.send_many(messages()) == 5
            await scheduler.flush()
            later = datetime.now(UTC) + timedelta(minutes=1)
            page = await scheduler.list(id_prefix=name, due_from=later, limit=1_000)
            assert len(page.items) == 23
            walked = [one.id async for one in scheduler.iter(id_prefix=name, due_from="+1m")]
            assert walked == [one.id for one in page.items]
            assert await scheduler.cancel_many([walked[0]]) == {walked[0]: Cancelled.CANCELLED}
            told = await scheduler.cancel_matching(id_prefix=name, due_from="+1m", dry_run=True)
            assert told.matched == 22
            assert await scheduler.reschedule(name, delay=1) is Moved.UNKNOWN
            assert await scheduler.deliver_now(name) is Moved.UNKNOWN
            assert await scheduler.cancel(name) is Cancelled.UNKNOWN
            with pytest.raises(BadTime):
                await scheduler.send_later(topic, b"1")

    asyncio.run(story())


def test_sends_that_are_given_up_hurt_no_other(installation, name):
    """Cancelled or out of time, and with callbacks that raise: those after them are accepted."""
    where, arguments, topic = installation

    def raising(error, sent):
        raise ValueError("not my day")

    async def story():
        async with AsyncScheduler(*where, **arguments) as scheduler:
            message = {"topic": topic, "value": b"1", "delay": LATER_S}
            given_up = [
                asyncio.create_task(scheduler.send_later(**message, id=f"{name}-{n}"))
                for n in range(40)
            ]
            await asyncio.wait(given_up, timeout=0)  # they have begun
            for task in given_up:
                task.cancel()
            with suppress(TimeoutError):  # the fake accepts at once
                async with asyncio.timeout(0):
                    await scheduler.send_later(**message, id=f"{name}-late")
            scheduler.sync.send_later(**message, id=f"{name}-0", wait=False, on_sent=raising)
            await asyncio.gather(*given_up, return_exceptions=True)
            kept = [scheduler.send_later(**message, id=f"{name}+{n}") for n in range(20)]
            await asyncio.gather(*kept)
            await scheduler.flush()
            found = await scheduler.list(id_prefix=f"{name}+", limit=100)
            assert len(found.items) == 20

    asyncio.run(story())


def test_what_a_lane_has_taken_is_too_late(redis_installation, redis_url):
    where, arguments, topic = redis_installation
    with Scheduler(*where, **arguments) as scheduler:
        scheduler.send_later(topic, b"1", at=datetime(2001, 1, 1, tzinfo=UTC), id="taken")
        pending = Pending.open(redis_url, space=arguments["space"], shards=2)
        owner = pending.fence()
        batch = Batch(0, pending.open_lane(0, owner=owner), 1)
        for shard in pending.shards:
            shard.claim(batch, owner=owner, now_ms=2**52, count_max=1_000)
        assert scheduler.get("taken").state is State.CLAIMED
        assert scheduler.cancel("taken") is Cancelled.DELIVERING
        assert scheduler.reschedule("taken", delay=9) is Moved.DELIVERING
        assert scheduler.deliver_now("taken") is Moved.DELIVERING


def test_an_installation_that_is_not_there_says_so(tmp_path):
    with pytest.raises(Unavailable):
        Scheduler("redis://127.0.0.1:1/0")
    with pytest.raises(Unavailable, match="sendlater serve"):
        Scheduler(data_dir=tmp_path)
    for wrong in (
        lambda: Scheduler("redis://127.0.0.1:1/0", token="t"),
        lambda: Scheduler("http://127.0.0.1:1", space="s"),
        lambda: Scheduler("redis://127.0.0.1:1", nonsense=1),
    ):
        with pytest.raises(BadSettings):
            wrong()


def test_answers_wait_for_intake_and_say_when_it_does_not_run(redis_url, space, monkeypatch):
    """A record on the inbox that nobody reads: what the store says may be out of date."""
    monkeypatch.setattr("sendlater.operations.intake.CATCH_UP_S", 0.05)
    with Scheduler(redis_url, space=space) as scheduler:
        scheduler.broker.create(scheduler.inbox, partitions=1)
        scheduler.send_later("t", b"1", delay=LATER_S, id="a")
        assert scheduler.get("a").value == b"1"
        scheduler.broker.send(scheduler._transport.operations.checked(scheduler.get("a").schedule))
        scheduler.broker.flush()
        with pytest.raises(SendlaterError, match="service"):
            scheduler.cancel("a")
        # Behind what stands there, in the same order as it was asked for.
        scheduler.send_later("t", b"2", delay=LATER_S, id="a")
        assert scheduler.pending.get(b"a").record.value == b"1"
        with pytest.raises(SendlaterError, match="service"):
            scheduler.get("a")
