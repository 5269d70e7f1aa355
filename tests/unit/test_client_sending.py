"""What a caller does to a send (cancels it, raises in its callback) is nobody else's trouble."""

import asyncio
import threading
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError
from servers import until, wait_until
from structlog.testing import capture_logs

from sendlater import AsyncScheduler, Record, Scheduler
from sendlater.brokers import kafka as brokers
from sendlater.brokers.kafka import KafkaBroker
from sendlater.config import load
from sendlater.errors import BadRequest, BrokerUnavailable
from sendlater.limits import REPORTER
from sendlater.model import Schedule
from sendlater.operations.refused import Refused
from sendlater.operations.schedules import Operations

IN_MEMORY = {"test.mock.num.brokers": "1", "log_level": "0"}
"""librdkafka's own broker, inside the producer."""
NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": "50", "log_level": "0"}


@pytest.fixture(autouse=True)
def logs():
    """What was logged, whatever an earlier test has made of the log."""
    with capture_logs() as lines:
        yield lines


class Slow:
    """A transport whose acknowledgements come when the test says so, in one thread."""

    def __init__(self):
        self.reports = []

    def now_ms(self):
        return 1_900_000_000_000

    def ready(self):
        return True

    def send(self, schedule, *, done):
        self.reports.append(done)

    def flush(self):
        while self.reports:
            self.reports.pop(0)(None)

    def close(self):
        self.flush()


@pytest.fixture
def slow(monkeypatch):
    transport = Slow()
    monkeypatch.setattr("sendlater.client.scheduler.open_transport", lambda *_, **__: transport)
    return transport


def test_a_cancelled_send_does_not_hurt_the_thread_of_reports(slow):
    async def story():
        async with AsyncScheduler() as scheduler:
            given_up = asyncio.create_task(scheduler.send_later("t", b"1", delay=9))
            await until(lambda: slow.reports, "it is under way")
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            slow.flush()  # raised InvalidStateError, where the next report should be waited for

    asyncio.run(story())


def test_an_error_of_a_callback_is_logged_and_hurts_nobody(slow, logs):
    told = []

    def on_sent(error, scheduled):
        told.append(error)
        raise ValueError("not my day")

    with Scheduler() as scheduler:
        scheduler.send_later("t", b"1", delay=9, wait=False, on_sent=on_sent)
        scheduler.send_later("t", b"2", delay=9, wait=False, on_sent=lambda e, _: told.append(e))
        scheduler.flush()
    assert told == [None, None]
    assert [line["event"] for line in logs] == ["on_sent raised an error"]


def test_a_callback_that_raises_is_called_once_where_sending_blocks(slow):
    told = []

    def on_sent(error, scheduled):
        told.append(error)
        raise ValueError("not my day")

    slow.ready = lambda: False
    slow.send = lambda schedule, *, done: done(None)
    with Scheduler() as scheduler:
        scheduler.send_later("t", b"1", delay=9, wait=False, on_sent=on_sent)
    assert told == [None]


def test_reports_go_on_whatever_one_of_them_does():
    """A cancelled future raised here, and the only thread that polls ended."""
    cancelled, told = Future(), threading.Event()
    cancelled.cancel()
    with KafkaBroker(IN_MEMORY) as broker:
        broker.send(Record(topic="t", value=b"1"), on_done=lambda *_: cancelled.set_result(None))
        broker.send(Record(topic="t", value=b"2"), on_done=lambda *_: told.set())
        assert told.wait(20)
        wait_until(lambda: broker._open_bytes == 0, "nothing is open")
        assert broker._poller.is_alive()


def test_what_fails_in_send_many_is_told_to_its_caller_whoever_else_flushes():
    with KafkaBroker(NOWHERE) as broker:
        settings = load(bootstrap_servers="127.0.0.1:1")
        operations = Operations(settings, pending=None, broker=broker)

        def messages():
            now_ms = operations.clock.now_ms()
            yield Schedule(id=b"i", due_ms=now_ms, record=Record(topic="t", value=b"1"))
            wait_until(lambda: not len(broker._silent) or _flushed(broker), "another has flushed")

        with pytest.raises(BrokerUnavailable, match="1 records not acknowledged"):
            operations.send_many(messages())


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([], None),
        ([BadRequest], BadRequest),
        ([BadRequest, BrokerUnavailable], BrokerUnavailable),
        ([BrokerUnavailable, BadRequest], BrokerUnavailable),
    ],
)
def test_what_is_worth_another_try_is_told_as_that(kinds, expected):
    refused = Refused()
    for kind in kinds:
        refused.add(kind(kind.__name__))
    if expected is None:
        refused.tell()
        return
    told = f"{len(kinds)} records not acknowledged: {kinds[0].__name__}"
    with pytest.raises(expected, match=told):
        refused.tell()


def _flushed(broker):
    try:
        broker.flush()
    except BrokerUnavailable:
        return True
    return not len(broker._silent)


def test_what_kafka_will_never_take_is_the_callers_error():
    small = {**IN_MEMORY, "message.max.bytes": "1000"}
    told = []
    with KafkaBroker(small) as broker:
        with pytest.raises(BadRequest, match="too large"):
            broker.send(Record(topic="t", value=b"x" * 2_000), on_done=lambda *_: None)
        assert broker._open_bytes == 0
        report = broker._teller(lambda error, *_: told.append(error), 0)
        for code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._MSG_TIMED_OUT):
            report(KafkaError(code), _Message())
    assert [type(error) for error in told] == [BadRequest, BrokerUnavailable]


class _Message:
    """What a report is about."""

    def partition(self):
        return 0

    def offset(self):
        return 0


def test_a_queue_full_by_bytes_has_no_room(monkeypatch):
    """`send` would wait in the caller's thread, which may be an event loop."""
    monkeypatch.setattr(brokers, "QUEUE_KIB_MAX", 8)
    with KafkaBroker({**NOWHERE, "message.timeout.ms": "60000"}) as broker:
        assert broker.has_room()
        broker.send(Record(topic="t", value=b"x" * 5_000), on_done=lambda *_: None)
        assert not broker.has_room()
        broker._told.purge()
        wait_until(broker.has_room, "its report has come")


def test_who_would_wait_for_an_acknowledgement_where_all_are_heard_is_told(slow):
    """In `on_sent` on Kafka: all other threads would wait as long, in vain."""
    told = []

    def in_on_sent():
        with pytest.raises(BadRequest) as refused:
            scheduler.send_later("t", b"1", delay=60)
        told.append(str(refused.value))
        scheduler.send_later("t", b"1", delay=60, wait=False)

    with Scheduler() as scheduler:
        poll = threading.Thread(target=in_on_sent, name=REPORTER)
        poll.start()
        poll.join()
        assert told == ["expected wait=False within on_sent: all acknowledgements wait for it"]
        assert len(slow.reports) == 1
