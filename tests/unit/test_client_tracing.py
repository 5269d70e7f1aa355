"""Spans of scheduling and handling, as an exporter sees them."""

import asyncio
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sendlater import Backoff, Handlers, StoreUnavailable, instrument
from sendlater.client.tracing import uninstrument


@pytest.fixture
def exporter():
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrument(provider)
    yield exporter
    uninstrument()


def parent_of(span):
    """The `traceparent` of a span, by W3C's format; its flags are OpenTelemetry's."""
    context = span.get_span_context()
    flags = int(context.trace_flags)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}".encode()


def test_handling_is_linked_to_scheduling(exporter, sendlater_fake):
    app, current = Handlers(sendlater_fake), []

    @app.on("remind", retry=Backoff(min_s=60, retries=2))
    def remind(event):
        current.append(trace.get_current_span().get_span_context().span_id)
        if len(current) == 1:
            raise ValueError("not today")

    async def story():
        async with app:
            await remind.enqueue(17, delay="1h", id="a")
            await sendlater_fake.run("2h")

    asyncio.run(story())
    schedule, first, second = exporter.get_finished_spans()
    assert [one.name for one in (schedule, first, second)] == [
        "schedule remind",
        "handle remind",
        "handle remind",
    ]
    assert schedule.attributes["sendlater.delay_ms"] == 3_600_000
    assert schedule.attributes["messaging.message.id"] == "event:remind:a"
    for number, handle in enumerate((first, second), 1):
        (link,) = handle.links
        assert link.context.span_id == schedule.get_span_context().span_id
        assert handle.parent is None
        assert handle.attributes["sendlater.attempt"] == number
        assert handle.attributes["sendlater.late_ms"] == 0
    assert not first.status.is_ok
    assert first.status.description == "ValueError: not today"
    assert second.status.is_ok
    # In the handler's thread too, so that its own spans are children.
    assert current == [one.get_span_context().span_id for one in (first, second)]
    (record, again) = sendlater_fake.delivered("remind")
    assert record.header("traceparent") == again.header("traceparent") == parent_of(schedule)


def test_every_way_to_send_has_a_span(exporter, sendlater_fake):
    with sendlater_fake.scheduler() as scheduler:
        scheduler.send_later("t", b"1", delay=1, id="one")
        scheduler.send_later("t", b"1", delay=1, id="aside", wait=False)
        scheduler.send_many({"topic": "t", "value": b"1", "delay": 1} for _ in range(3))
        scheduler.retry(scheduler.get("one").schedule.record)

    async def story():
        async with sendlater_fake.async_scheduler() as scheduler:
            await scheduler.send_later("t", b"1", delay=1)

    asyncio.run(story())
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == [
        "schedule t",
        "schedule t",
        "schedule many",
        "schedule t",
        "schedule t",
    ]
    found = [dict(one.record.headers)["traceparent"] for one in sendlater_fake.pending()]
    one, aside, many, _, async_ = map(parent_of, spans)
    # A retry is the same message: it keeps the trace that it came with.
    assert sorted(found) == sorted([one, one, aside, many, many, many, async_])


def test_a_traceparent_of_the_caller_stays(exporter, sendlater_fake):
    mine = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
    with sendlater_fake.scheduler() as scheduler:
        sent = scheduler.send_later("t", b"1", delay=1, headers={"traceparent": mine})
        assert scheduler.get(sent.id).headers == [("traceparent", mine)]


def test_an_error_is_the_spans_too(exporter, sendlater_fake):
    with (
        pytest.raises(StoreUnavailable),
        sendlater_fake.scheduler() as scheduler,
        sendlater_fake.away(),
    ):
        scheduler.send_later("t", b"1", delay=1)
    (span,) = exporter.get_finished_spans()
    assert not span.status.is_ok


def test_without_it_nothing_is_loaded_and_nothing_added(sendlater_fake):
    with sendlater_fake.scheduler() as scheduler:
        sent = scheduler.send_later("t", b"1", delay=1)
        assert sent.headers == scheduler.get(sent.id).headers == []
    code = "import sys; from sendlater import Handlers, Scheduler; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "opentelemetry" not in done.stdout


def test_without_the_extra_it_is_told():
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from sendlater import instrument; instrument()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'sendlater[otel]'" in done.stderr
