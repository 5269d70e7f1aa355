"""What becomes of an event that cannot be retried: nothing is tried for ever, nothing is hidden."""

import asyncio
import threading

import pytest
from servers import until
from structlog.testing import capture_logs

from sendlater import Backoff
from sendlater.brokers.broker import Arrived
from sendlater.client.event_codec import JsonCodec
from sendlater.client.event_worker import EventWorker
from sendlater.client.events import alive_again
from sendlater.dialects import encode_headers
from sendlater.errors import BadRequest, StoreUnavailable


@pytest.fixture(autouse=True)
def logs():
    """What was logged, whatever an earlier test has made of the log."""
    with capture_logs() as lines:
        yield lines


class Reader:
    """Gives each record once, and remembers which are done."""

    def __init__(self, *records):
        self.left, self.settled = list(records), []

    def poll(self, count_max, *, timeout_s):
        found, self.left = self.left[:count_max], self.left[count_max:]
        return found

    def unread(self):
        return 0

    def done(self, record):
        self.settled.append(record)

    def close(self):
        pass


class Installation:
    """Takes what a real one takes: ids and sizes are limited, and it may be away for a while."""

    def __init__(self, *, bytes_max=1_000_000, away=0):
        self.bytes_max, self.away, self.sent = bytes_max, away, []

    async def forward(self, schedule):
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away")
        record = encode_headers(schedule.record, inbox="in", id=schedule.id, due_ms=schedule.due_ms)
        size = len(record.value) + sum(len(n) + len(v or b"") for n, v in record.headers)
        if size > self.bytes_max:
            raise BadRequest(f"expected at most {self.bytes_max} bytes, got {size}")
        self.sent.append(schedule)


def event(value=b"1", headers=(), position=1):
    return Arrived("type", 0, position, 1_900_000_000_000, b"k", value, list(headers))


def handled(installation, *records, function=None, reader=None, codec=None, timeout_s=5, then=None):
    """The reader and the tally after these records were handled; by default each fails. `then` is
    called when all are settled."""

    async def fail(event):
        raise ValueError("not today")

    reader = reader or Reader(*records)

    async def story():
        worker = EventWorker(
            "type",
            function or fail,
            reader=reader,
            forward=installation.forward,
            codec=codec or JsonCodec(),
            parallelism=1,
            retry=Backoff(min_s=1, retries=1),
            timeout_s=timeout_s,
            dead_topic="dead",
            now_ms=lambda: 1_900_000_000_000,
        )
        worker.start()
        await until(lambda: len(reader.settled) == len(records), "all are settled", timeout_s=10)
        if then is not None:
            then()
        await worker.stop(drain_s=1)
        return worker.tally

    return reader, asyncio.run(story())


@pytest.mark.parametrize(
    "bad",
    [
        event(headers=[("event-id", b"x" * 600)]),
        event(headers=[("sendlater-id", b"\xff" * 508)]),
        event(value=None),
    ],
    ids=["long id", "long id, not UTF-8", "null"],
)
def test_what_can_never_be_retried_is_dead_at_once_and_stops_nobody(bad):
    installation = Installation()
    reader, tally = handled(installation, bad, event(b"2", position=2))
    dead, retry = installation.sent
    assert (tally.dead, tally.retried, tally.skipped) == (1, 1, 0)
    assert dead.record.topic == "dead"
    assert dead.id == b"dead:type/0/1"
    reason = dict(dead.record.headers)["event-error"].decode()
    assert "cannot be" in reason
    assert dead.record.value == (bad.value or b"")
    assert retry.id.startswith(b"retry:type:type/0/2")
    assert len(reader.settled) == 2


def test_what_is_too_large_for_any_topic_is_cut_and_says_so():
    large = event(b'"' + b"x" * 5_000 + b'"', headers=[("event-id", b"e"), ("h", b"y" * 5_000)])
    installation = Installation(bytes_max=4_096)
    _, tally = handled(installation, large)
    (dead,) = installation.sent
    headers = dict(dead.record.headers)
    assert tally.dead == 1
    assert dead.record.value == large.value[:1_024]
    assert dead.record.key == b"k"
    assert set(headers) == {"event-type", "event-error", "event-id", "event-cut"}
    assert headers["event-cut"] == b"5002"
    assert b"not today" in headers["event-error"]
    assert b"expected at most 4096 bytes" in headers["event-error"]
    arrived = Arrived("dead", 0, 1, 0, b"k", dead.record.value, dead.record.headers)
    assert alive_again(arrived) is None


def test_what_has_expired_goes_to_its_target_with_all_its_senders_headers():
    """`event-type` is a common name: only beside an error is it ours."""
    own = [("event-type", b"OrderCreated"), ("event-cut", b"1")]
    told = [("sendlater-rejected", b"expired"), ("sendlater-rejected-target", b"orders")]
    again = alive_again(Arrived("dead", 0, 1, 0, b"k", b"v", own + told))
    assert (again.topic, again.headers) == ("orders", own)
    event = [("event-type", b"remind"), ("event-error", b"no")]
    again = alive_again(Arrived("dead", 0, 1, 0, b"k", b"v", told + event))
    assert (again.topic, again.headers) == ("remind", [])
    again = alive_again(Arrived("dead", 0, 1, 0, b"k", b"v", event + told))
    assert (again.topic, again.headers) == ("orders", [])
    assert alive_again(Arrived("dead", 0, 1, 0, b"k", b"v", own)) is None
    unreadable = [("sendlater-rejected-target", b"\xff")]
    assert alive_again(Arrived("dead", 0, 1, 0, b"k", b"v", unreadable)).topic == "\ufffd"


def test_what_even_the_dead_letter_topic_refuses_is_told_counted_and_skipped(logs):
    installation = Installation(bytes_max=10)
    reader, tally = handled(installation, event(b'"large enough"'))
    assert (tally.dead, tally.skipped, len(reader.settled)) == (0, 1, 1)
    assert installation.sent == []
    assert [line["place"] for line in logs if line["log_level"] == "error"] == ["type/0/1"]


def test_an_installation_that_is_away_is_asked_again(monkeypatch):
    monkeypatch.setattr("sendlater.client.event_worker.AGAIN_S", 0.001)
    installation = Installation(away=3)
    _, tally = handled(installation, event())
    assert (tally.retried, tally.error, len(installation.sent)) == (1, "", 1)


class Panic(BaseException):
    """As pyo3's PanicException, gevent's Timeout."""


class Untold(Exception):
    """Its text cannot be told."""

    def __str__(self):
        raise ValueError("no text")


class Half(Exception):
    """Its text is no UTF-8."""

    def __str__(self):
        return "\ud800"


FAILURES = [StopIteration(5), SystemExit(1), Panic("no"), Untold(), Half()]


class Bare:
    """A codec that raises."""

    def __init__(self, failure):
        self.failure = failure

    def encode(self, event):
        raise NotImplementedError

    def decode(self, data, hint):
        if data == b"bad":
            raise self.failure
        return data


class InThread(Bare):
    """A codec that raises in a thread."""

    def encode(self, event, *, topic, headers):
        raise NotImplementedError

    def decode(self, data, hint, *, topic, headers):
        return super().decode(data, hint)


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("failure", FAILURES, ids=lambda one: type(one).__name__)
def test_whatever_a_handler_raises_is_a_failed_attempt(kind, failure):
    def plain(event):
        if event == 1:
            raise failure

    async def not_plain(event):
        plain(event)

    installation, function = Installation(), plain if kind == "plain" else not_plain
    reader, tally = handled(installation, event(), event(b"2", position=2), function=function)
    assert (tally.retried, tally.succeeded, tally.in_flight) == (1, 1, 0)
    assert [record.position for record in reader.settled] == [1, 2]


@pytest.mark.parametrize("codec", [Bare, InThread])
@pytest.mark.parametrize("failure", FAILURES, ids=lambda one: type(one).__name__)
def test_whatever_a_codec_raises_stops_nobody(codec, failure):
    seen = []

    async def note(event):
        seen.append(event)

    records = [event(b"bad"), event(b"good", position=2)]
    _, tally = handled(Installation(), *records, function=note, codec=codec(failure))
    is_answer = isinstance(failure, Exception)
    assert (tally.dead, tally.retried, seen) == (is_answer, not is_answer, [b"good"])


def test_an_event_whose_function_hangs_is_done_when_it_is_scheduled_again():
    """Else commits stop, and with them reading, for as long as its thread hangs."""
    freed, seen = threading.Event(), []

    def hang(event):
        seen.append(event)
        freed.wait(20)

    installation = Installation()
    reader = Reader(event())
    _, tally = handled(
        installation, event(), function=hang, reader=reader, timeout_s=0.05, then=freed.set
    )
    assert (tally.retried, seen, len(installation.sent)) == (1, [1], 1)


def test_what_is_read_is_handled_though_the_rest_cannot_be_counted():
    class Uncounted(Reader):
        def unread(self):
            raise StoreUnavailable("away")

    async def fine(event):
        pass

    _, tally = handled(Installation(), event(), function=fine, reader=Uncounted(event()))
    assert (tally.succeeded, tally.error) == (1, "")


def test_an_id_that_is_no_text_hurts_no_log(logs):
    handled(Installation(), event(headers=[("event-id", b"\xff")]))
    told = [line for line in logs if line["event"] == "event failed"]
    assert [line["id"].encode() for line in told] == [b"\\udcff"]
