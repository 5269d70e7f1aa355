"""Spans of OpenTelemetry for what tasks do with traced messages: `park TOPIC` and `deliver TOPIC`.

Off unless OTEL_TRACES_EXPORTER names an exporter: tasks run in processes of Spark's, which only
their environment configures. A message is traced if its header `traceparent` says that it is
sampled. Its spans are traces of their own, linked to that one, as it may have ended days ago.
"""

import os
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple

import structlog

from sendlater import __version__
from sendlater.clock import Clock
from sendlater.store.codec import as_text

EXPORTERS = "opentelemetry_traces_exporter"
"""The group of entry points in which packages offer their exporters."""
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"

_log = structlog.get_logger()


class _Traced(NamedTuple):
    topic: str
    id: bytes
    due_ms: int
    from_ms: int
    link: Any


class Spans:
    """The spans of one task: `operation` is park or deliver."""

    def __init__(self, provider: Any, operation: str, clock: Clock) -> None:
        self._tracer = provider.get_tracer("sendlater", __version__)
        self._operation, self._clock = operation, clock
        self._taken: list[_Traced] = []

    def take(
        self,
        ids: Sequence[bytes],
        due_ms: Sequence[int | None],
        topics: Sequence[str | bytes],
        headers: Iterable[Iterable[tuple[str | bytes, bytes | None]]],
    ) -> None:
        """Note the traced schedules of a chunk, in columns; rows without a due time are none."""
        now_ms = self._clock.now_ms()
        for id_, due, topic, pairs in zip(ids, due_ms, topics, headers, strict=True):
            link = None if due is None else _link(pairs)
            if link is not None and due is not None:
                self._taken.append(_Traced(as_text(topic), id_, due, now_ms, link))

    def end(self) -> None:
        """Make the spans of what was taken, now that it is done."""
        from opentelemetry import trace

        now_ms = self._clock.now_ms()
        for one in self._taken:
            parks = self._operation == "park"
            passed = (
                ("sendlater.delay_ms", one.due_ms - now_ms)
                if parks
                else ("sendlater.late_ms", now_ms - one.due_ms)
            )
            self._tracer.start_span(
                f"{self._operation} {one.topic}",
                context=trace.set_span_in_context(trace.INVALID_SPAN),
                kind=trace.SpanKind.CONSUMER if parks else trace.SpanKind.PRODUCER,
                links=[one.link],
                start_time=one.from_ms * 1_000_000,
                attributes={
                    "messaging.system": "sendlater",
                    "messaging.operation.type": "receive" if parks else "send",
                    "messaging.destination.name": one.topic,
                    "messaging.message.id": one.id.decode(errors="replace"),
                    passed[0]: passed[1],
                },
            ).end(now_ms * 1_000_000)
        self._taken.clear()


def spans_of(operation: str, clock: Clock) -> Spans | None:
    """The spans of a task, None where the environment names no exporter that is installed."""
    name = os.environ.get("OTEL_TRACES_EXPORTER", "").strip()
    if name in ("", "none") or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    provider = _provider(name)
    return None if provider is None else Spans(provider, operation, clock)


@cache
def _provider(name: str) -> Any:
    """One for each worker: it has a thread that exports. OTEL_* names its sampler, resource and
    batches, and the exporter reads its own."""
    if name == "otlp":
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        (found,) = entry_points(group=EXPORTERS, name=name)
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(found.load()()))
    except (ImportError, ValueError) as error:
        _log.warning("no spans: the exporter cannot be loaded", exporter=name, cause=str(error))
        return None
    return provider


def _link(headers: Iterable[tuple[str | bytes, bytes | None]]) -> Any:
    """To the span that scheduled a message, None if that is not traced."""
    carrier = {
        name: value.decode(errors="replace")
        for given, value in headers
        if (name := as_text(given)) in (TRACEPARENT, TRACESTATE) and value is not None
    }
    if TRACEPARENT not in carrier:
        return None
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = TraceContextTextMapPropagator().extract(carrier)
    origin = trace.get_current_span(context).get_span_context()
    return trace.Link(origin) if origin.is_valid and origin.trace_flags.sampled else None
