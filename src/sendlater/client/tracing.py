"""Spans of OpenTelemetry: scheduling and handling, linked by `traceparent`, which travels as a
header. Off until `instrument` is called.

Format of the headers: W3C Trace Context. Names of the attributes: OpenTelemetry's conventions for
messaging, and `sendlater.*` for what these do not have.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sendlater.client.etf1_records import header
from sendlater.client.events import Context
from sendlater.errors import MissingTool
from sendlater.model import Schedule

TRACEPARENT = "traceparent"
_tracers: list[Any] = []
"""The tracer, if there is one."""


def instrument(tracer_provider: Any = None) -> None:
    """Make spans from now on, with this provider or the one that OpenTelemetry knows.

    Each schedule gets the headers `traceparent` and `tracestate` of its span, unless it has a
    `traceparent` of its own. Raises MissingTool without the extra `otel`.
    """
    try:
        from opentelemetry import trace
    except ModuleNotFoundError as error:
        raise MissingTool("OpenTelemetry: pip install 'sendlater[otel]'") from error
    from sendlater import __version__

    _tracers[:] = [trace.get_tracer("sendlater", __version__, tracer_provider)]


def uninstrument() -> None:
    """Make no more spans."""
    _tracers.clear()


@contextmanager
def scheduling(schedule: Schedule, *, now_ms: int) -> Iterator[Schedule]:
    """A span `schedule TOPIC` around the block; the schedule to send, with its headers."""
    attributes: dict[str, str | int] = {
        "messaging.message.id": schedule.id.decode(errors="replace"),
        "sendlater.delay_ms": schedule.due_ms - now_ms,
    }
    with _sending(schedule.record.topic, attributes) as stamp:
        yield stamp(schedule)


@contextmanager
def scheduling_many() -> Iterator[Callable[[Schedule], Schedule]]:
    """One span for many schedules, and what gives each its headers."""
    with _sending("many", {}) as stamp:
        yield stamp


@contextmanager
def handling(context: Context, *, now_ms: int) -> Iterator[Callable[[str], None]]:
    """A span `handle TYPE`, linked to the one that scheduled the event: the handler runs much
    later, in a trace of its own. What it yields tells the span why the handler failed."""
    if not _tracers:
        yield lambda _: None
        return
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {n: v.decode(errors="replace") for n, v in context.record.headers if v is not None}
    origin = trace.get_current_span(TraceContextTextMapPropagator().extract(carrier))
    linked = origin.get_span_context()
    attributes: dict[str, str | int] = {
        "messaging.system": "sendlater",
        "messaging.operation.type": "process",
        "messaging.destination.name": context.type,
        "messaging.message.id": context.id,
        "sendlater.attempt": context.attempt,
    }
    if context.due_ms is not None:
        attributes["sendlater.late_ms"] = now_ms - context.due_ms
    with _tracers[0].start_as_current_span(
        f"handle {context.type}",
        context=trace.set_span_in_context(trace.INVALID_SPAN),
        kind=trace.SpanKind.CONSUMER,
        links=[trace.Link(linked)] if linked.is_valid else [],
        attributes=attributes,
    ) as span:

        def failed(why: str) -> None:
            if why:
                span.set_status(trace.Status(trace.StatusCode.ERROR, why))

        yield failed


@contextmanager
def _sending(
    topic: str, attributes: dict[str, str | int]
) -> Iterator[Callable[[Schedule], Schedule]]:
    if not _tracers:
        yield lambda schedule: schedule
        return
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    common = {
        "messaging.system": "sendlater",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
    }
    with _tracers[0].start_as_current_span(
        f"schedule {topic}", kind=trace.SpanKind.PRODUCER, attributes=common | attributes
    ):
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        ours = [(name, value.encode()) for name, value in carrier.items()]

        def stamp(schedule: Schedule) -> Schedule:
            record = schedule.record
            if header(record.headers, TRACEPARENT) is not None:
                return schedule
            return replace(schedule, record=replace(record, headers=[*record.headers, *ours]))

        yield stamp
