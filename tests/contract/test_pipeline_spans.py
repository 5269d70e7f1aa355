"""Spans of parking and delivering, as an exporter sees them; and nothing where none is named."""

import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sent_rows import rows_of
from structlog.testing import capture_logs

from sendlater.clock import FixedClock
from sendlater.spark import spans
from sendlater.spark.delivery.claim_task import ShardTask
from sendlater.spark.delivery.lane import Lane, ShardSlice
from sendlater.spark.intake.park_task import ParkTask
from sendlater.spark.spans import Spans, spans_of
from sendlater.store import Pending

NOW_MS = 5_000_000
DUE_MS = NOW_MS + 60_000
TRACE, SPAN = "a" * 32, "b" * 16
TRACED = [{"key": "traceparent", "value": f"00-{TRACE}-{SPAN}-01".encode()}]
NOT_SAMPLED = [{"key": "traceparent", "value": f"00-{TRACE}-{SPAN}-00".encode()}]
BROKEN = [{"key": "traceparent", "value": b"\xff"}, {"key": "traceparent", "value": None}]


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def rows(*headers):
    """What decoding leaves of records with these headers, between two markers."""
    due = [None, *[DUE_MS] * len(headers), None]
    there = [one is not None for one in due]
    of = range(len(due))
    return pa.RecordBatch.from_pydict(
        {
            "id": [b"id-%d" % n if there[n] else None for n in of],
            "due_ms": due,
            "topic": ["orders" if one else None for one in there],
            "partition": pa.nulls(len(due), pa.int32()),
            "key": pa.nulls(len(due), pa.binary()),
            "value": [b"v" if one else None for one in there],
            "headers": [None, *headers, None],
            "dialect": ["headers"] * len(due),
            "expires_ms": pa.nulls(len(due), pa.int64()),
            "expires_after_ms": pa.nulls(len(due), pa.int64()),
            "tags": pa.nulls(len(due), pa.string()),
            "origin_topic": ["in"] * len(due),
            "origin_partition": [0] * len(due),
            "origin_position": [0, *range(len(headers)), len(headers)],
            "origin_timestamp_ms": [1 if one else None for one in there],
            "shard": [0] * len(due),
            "change": pa.nulls(len(due), pa.string()),
        }
    )


def lane(redis_url, space, owner, run):
    return Lane(
        redis_url=redis_url,
        space=space,
        shards=1,
        owner=owner,
        lane=0,
        lanes=1,
        run=run,
        window_ms=2_000,
        idle_window_ms=2_000,
        poll_ms=2,
        standby_poll_ms=2,
        claim_count=100,
        check_targets=False,
    )


@pytest.fixture
def through(redis_url, space):
    """Parks rows and delivers them 50 ms late, with these providers of spans."""

    def go(batch, provider):
        pending, clock = Pending.open(redis_url, space=space, shards=1), FixedClock(NOW_MS)
        owner = pending.fence()
        run = pending.open_lane(0, owner=owner)
        park = ParkTask(pending, owner, False, frozenset(), clock)
        park.spans = provider and Spans(provider, "park", clock)
        park.park(batch)
        clock.advance(DUE_MS + 50 - NOW_MS)
        shard = pending.shards[0]
        part = ShardSlice(0, clock.now_ms(), 1, 2_000)
        task = ShardTask(lane(redis_url, space, owner, run), shard, shard.wake(), part, clock)
        task.spans = provider and Spans(provider, "deliver", clock)
        delivered = [row["id"] for row in rows_of(task.batches())]
        pending.client.close()
        return delivered

    return go


def test_parking_and_delivering_are_linked_to_scheduling(through, provider, exporter):
    assert len(through(rows(TRACED, None, NOT_SAMPLED, BROKEN), provider)) == 4
    park, deliver = exporter.get_finished_spans()
    assert (park.name, deliver.name) == ("park orders", "deliver orders")
    for span in (park, deliver):
        (link,) = span.links
        assert f"{link.context.trace_id:032x}/{link.context.span_id:016x}" == f"{TRACE}/{SPAN}"
        assert span.parent is None
        assert span.attributes["messaging.message.id"] == "id-1"
    assert park.attributes["sendlater.delay_ms"] == DUE_MS - NOW_MS
    assert deliver.attributes["sendlater.late_ms"] == 50
    assert park.end_time // 1_000_000 == NOW_MS
    assert deliver.end_time == (DUE_MS + 50) * 1_000_000


def test_without_them_rows_are_the_same(through):
    assert through(rows(TRACED), None) == [b"id-1"]


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_they_are_off_unless_the_environment_names_an_exporter(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert spans_of("park", FixedClock(0)) is None


def test_the_environment_names_an_exporter(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "late")
    spans._provider.cache_clear()
    provider = spans._provider("console")
    (processor,) = provider._active_span_processor._span_processors
    assert isinstance(processor.span_exporter, ConsoleSpanExporter)
    assert provider.resource.attributes["service.name"] == "late"
    assert spans_of("park", FixedClock(0)) is not None
    provider.shutdown()
    spans._provider.cache_clear()


def test_an_exporter_that_is_missing_stops_nothing(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "nobody-has-this")
    with capture_logs() as logs:
        assert spans_of("deliver", FixedClock(0)) is None
    assert logs[0]["exporter"] == "nobody-has-this"
