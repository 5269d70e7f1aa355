"""Handlers: functions that are called when events are due, and again after a failure."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sendlater.brokers.client_options import client_options
from sendlater.brokers.group_reader import GroupReader, KafkaGroupReader, RedisGroupReader
from sendlater.brokers.redis import open_topics
from sendlater.client.async_scheduler import AsyncScheduled, AsyncScheduler
from sendlater.client.backoff import Backoff
from sendlater.client.event_codec import Codec, JsonCodec, shape_of
from sendlater.client.event_worker import PARALLELISM_MAX, EventWorker, Tally
from sendlater.client.events import Context, as_event, event_id, retry_id
from sendlater.client.scheduler import now_ms
from sendlater.errors import BadRequest
from sendlater.model import Schedule
from sendlater.operations.arguments import Delay, new_id, plan_send

F = TypeVar("F", bound=Callable[..., Any])
DRAIN_S = 30.0
"""How long `close` and `remove` wait for running handlers."""
TIMEOUT_S = 60.0
"""How long a handler may take."""
RETRY = Backoff(retries=10, jitter=0.2)
"""Ten retries, after 5 s and then twice as long each time: about an hour and a half in all."""

__all__ = ["Context", "Handlers"]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The arguments of `on`, kept until `start`."""

    function: Callable[..., Any]
    parallelism: int
    retry: Backoff
    timeout_s: float


class Handlers:
    """Event types and their handlers, in one process of a group of any size.

    An event type is a topic. Each event is handled at least once. It is done when its handler
    returns anything but False. After an error, a timeout or False it is scheduled again after a
    pause; after the last retry it goes to the dead-letter topic, with the reason. `where` and the
    other arguments: see Scheduler. Not over REST: Kafka or Redis must be reachable.
    """

    def __init__(
        self,
        where: Any = None,
        *,
        group: str = "handlers",
        codec: Codec | None = None,
        dead_topic: str | None = None,
        drain_s: float = DRAIN_S,
        **arguments: Any,
    ) -> None:
        """Connects, but reads nothing yet. `dead_topic` defaults to the one in the settings.

        Raises the same errors as Scheduler.
        """
        self.scheduler = AsyncScheduler(where, **arguments)
        self.group = group
        self.dead_topic = dead_topic or self.scheduler.sync.settings.dead_topic
        self._codec = codec or JsonCodec()
        self._drain_s = drain_s
        self._wanted: dict[str, _Wanted] = {}
        self._running: dict[str, EventWorker] = {}
        self._started = False
        self._settings = self.scheduler.sync.settings
        redis_url = self.scheduler.sync.redis_url
        self._topics = None if self._settings.on_kafka else open_topics(redis_url, self._settings)

    def on(
        self,
        type_: str,
        *,
        parallelism: int = 1,
        retry: Backoff = RETRY,
        timeout: float = TIMEOUT_S,
    ) -> Callable[[F], F]:
        """Add a handler for an event type: `def f(event)` or `async def f(event, context)`.

        At most `parallelism` calls run at once in this process. `timeout` is in seconds; a function
        that is not async cannot be interrupted, and counts against `parallelism` until it returns.
        The event is decoded to the type hint of `event`. Raises BadRequest for a type that has a
        handler already.
        """
        if not 1 <= parallelism <= PARALLELISM_MAX:
            raise BadRequest(f"parallelism: expected 1 to {PARALLELISM_MAX}, got {parallelism}")
        if timeout <= 0:
            raise BadRequest(f"timeout: expected seconds above 0, got {timeout}")
        if type_ in self._wanted:
            raise BadRequest(f"{type_}: expected one handler for a type, got another")

        def add(function: F) -> F:
            shape_of(function)
            self._wanted[type_] = _Wanted(function, parallelism, retry, timeout)
            if self._started:
                self._start(type_)
            return function

        return add

    async def enqueue(
        self,
        type_: str,
        event: Any,
        *,
        delay: Delay | None = None,
        at: datetime | None = None,
        id: str | None = None,
        key: bytes | str | None = None,
        context: Mapping[str, str] | None = None,
    ) -> AsyncScheduled:
        """Have an event handled after `delay` (timedelta, or seconds), at `at`, or else at once.

        A new event of the same type and id replaces it, also while it waits for a retry. `context`
        is passed to the handler. Raises BadTime, BadRequest, Unavailable.
        """
        planned = plan_send(
            type_,
            self._codec.encode(event),
            now_ms=now_ms(),
            key=key,
            delay=0 if delay is None and at is None else delay,
            at=at,
        )
        name = new_id() if id is None else id
        schedule = as_event(planned, type_=type_, id=name, context=dict(context or {}))
        if id is not None:
            await self.scheduler.forget(retry_id(type_, name))
        await self.scheduler.submit(schedule)
        return AsyncScheduled(self.scheduler, schedule)  # type: ignore[arg-type]

    async def cancel(self, type_: str, id: str) -> Any:
        """Cancel an event that waits for its first attempt; see Scheduler.cancel."""
        return await self.scheduler.cancel(event_id(type_, id).decode(errors="surrogateescape"))

    async def start(self) -> None:
        """Start handling; creates missing topics if the settings allow it."""
        if self._settings.create_topics:
            for topic in (*self._wanted, self.dead_topic):
                await self._create(topic)
        self._started = True
        for type_ in self._wanted:
            self._start(type_)

    async def run(self) -> None:
        """Handle events until the task is cancelled, then wait for running handlers."""
        async with self:
            await asyncio.Event().wait()

    async def remove(self, type_: str) -> None:
        """Stop handling this type: running handlers finish, other events stay on the topic."""
        self._wanted.pop(type_, None)
        handling = self._running.pop(type_, None)
        if handling is not None:
            await handling.stop(drain_s=self._drain_s)

    async def close(self) -> None:
        """Remove every handler and disconnect."""
        await asyncio.gather(*(self.remove(type_) for type_ in list(self._running)))
        await self.scheduler.close()
        if self._topics is not None:
            self._topics.close()

    def tallies(self) -> dict[str, Tally]:
        """Counts by event type."""
        return {type_: handling.tally for type_, handling in self._running.items()}

    def health(self) -> dict[str, str]:
        """Event types that cannot be handled at the moment, and why; empty if there are none."""
        return {type_: tally.error for type_, tally in self.tallies().items() if tally.error}

    def metrics(self, registry: CollectorRegistry) -> None:
        """Add the tallies to a Prometheus registry."""
        registry.register(_Tallies(self))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _start(self, type_: str) -> None:
        wanted = self._wanted[type_]
        handling = EventWorker(
            type_,
            wanted.function,
            reader=self._reader(type_, wanted.timeout_s),
            forward=self._forward,
            codec=self._codec,
            parallelism=wanted.parallelism,
            retry=wanted.retry,
            timeout_s=wanted.timeout_s,
            dead_topic=self.dead_topic,
        )
        self._running[type_] = handling
        handling.start()

    async def _forward(self, schedule: Schedule) -> None:
        await self.scheduler.submit(schedule)

    def _reader(self, type_: str, timeout_s: float) -> GroupReader:
        # One group per type: adding or removing a handler does not rebalance the other types.
        group = f"{self.group}.{type_}"
        if self._topics is not None:
            return RedisGroupReader(self._topics, topic=type_, group=group, timeout_s=timeout_s)
        return KafkaGroupReader(client_options(self._settings), topic=type_, group=group)

    async def _create(self, topic: str) -> None:
        broker = self.scheduler.sync.broker
        with ThreadPoolExecutor(1) as thread:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(
                thread, lambda: broker.ensure(topic, partitions=self._settings.topic_partitions)
            )


class _Tallies(Collector):
    """The tallies as Prometheus metrics."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    def collect(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "sendlater_handler_events", "Events by outcome.", labels=["type", "outcome"]
        )
        seconds = CounterMetricFamily(
            "sendlater_handler_seconds", "Time spent in handlers.", labels=["type"]
        )
        ready = GaugeMetricFamily(
            "sendlater_handler_ready", "Events whose handling has not begun.", labels=["type"]
        )
        in_flight = GaugeMetricFamily(
            "sendlater_handler_in_flight", "Events being handled.", labels=["type"]
        )
        for type_, tally in self._handlers.tallies().items():
            for outcome in ("taken", "succeeded", "retried", "dead", "skipped"):
                events.add_metric([type_, outcome], getattr(tally, outcome))
            seconds.add_metric([type_], tally.seconds)
            ready.add_metric([type_], tally.ready)
            in_flight.add_metric([type_], tally.in_flight)
        yield from (events, seconds, ready, in_flight)
