"""Handlers: functions that are called when events are due, and again after a failure."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Self

from sendlater.client.async_scheduler import AsyncScheduled, AsyncScheduler
from sendlater.client.backoff import Backoff
from sendlater.client.event_codec import Codec, JsonCodec, RecordCodec, encoded, shape_of
from sendlater.client.event_worker import PARALLELISM_MAX, EventWorker, Tally
from sendlater.client.events import Context, as_event, checked_context, event_id, retry_id
from sendlater.client.handler_report import HandlerReport
from sendlater.client.task import Answer, Event, More, Task
from sendlater.client.tracing import scheduling
from sendlater.errors import BadRequest
from sendlater.model import Cancelled, Headers, Schedule
from sendlater.operations.arguments import Delay, Instant, new_id, plan_send, to_id

if TYPE_CHECKING:  # loaded when they are used: importing handlers must not be slow
    from prometheus_client import CollectorRegistry

    from sendlater.brokers.group_reader import GroupReader
    from sendlater.config import Settings
    from sendlater.topics import Topics
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
    codec: Codec | RecordCodec


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
        codec: Codec | RecordCodec | None = None,
        dead_topic: str | None = None,
        drain_s: float = DRAIN_S,
        **arguments: Any,
    ) -> None:
        """Does not connect: `start` and the first `enqueue` do, so that importing a module with
        handlers needs no servers. `dead_topic` defaults to the one in the settings.
        """
        self.group = group
        self._where, self._arguments = where, arguments
        self._codec: Codec | RecordCodec = codec or JsonCodec()
        self._drain_s = drain_s
        self._dead_topic = dead_topic
        self._wanted: dict[str, _Wanted] = {}
        self._running: dict[str, EventWorker] = {}
        self._started = False
        self._parallelism: int | None = None
        self._scheduler: AsyncScheduler | None = None
        self._topics: Topics | None = None
        self._report: HandlerReport | None = None
        self._opening = threading.Lock()

    @property
    def scheduler(self) -> AsyncScheduler:
        """The client that events go through; connects, if nothing has yet, which blocks.

        Raises BadSettings, NotSupported over HTTP, Unavailable.
        """
        with self._opening:
            if self._scheduler is None:
                where = self._where
                if where is None and not self._arguments:
                    from sendlater.config import load

                    where = load()  # SENDLATER_URL is for clients: handlers read topics
                self._scheduler = AsyncScheduler(where, **self._arguments)
            return self._scheduler

    @property
    def dead_topic(self) -> str:
        """The topic of events that have failed for the last time."""
        return self._dead_topic or self.scheduler.sync.settings.dead_topic

    def on(
        self,
        type_: str,
        *,
        parallelism: int = 1,
        retry: Backoff | str = RETRY,
        timeout: float = TIMEOUT_S,
        codec: Codec | RecordCodec | None = None,
    ) -> Callable[[Callable[Concatenate[Event, More], Answer]], Task[Event, More, Answer]]:
        """Add a handler for an event type: `def f(event)` or `async def f(event, context)`.

        At most `parallelism` calls run at once in this process. `timeout` is in seconds; a function
        that is not async cannot be interrupted, and counts against `parallelism` until it returns.
        The event is decoded to the type hint of `event` by `codec`, or that of all types. `retry`
        may be text, "5s,30s,5m" ([grammar](docs/retry.md)). What comes back is a Task: the
        function, with `enqueue` and `cancel` for events of this type.
        Raises BadRequest for a type that has a handler already.
        """
        if not 1 <= parallelism <= PARALLELISM_MAX:
            raise BadRequest(f"parallelism: expected 1 to {PARALLELISM_MAX}, got {parallelism}")
        if timeout <= 0:
            raise BadRequest(f"timeout: expected seconds above 0, got {timeout}")
        policy = Backoff.parse(retry) if isinstance(retry, str) else retry
        if type_ in self._wanted:
            raise BadRequest(f"{type_}: expected one handler for a type, got another")

        def add(
            function: Callable[Concatenate[Event, More], Answer],
        ) -> Task[Event, More, Answer]:
            shape_of(function)
            self._wanted[type_] = _Wanted(
                function, parallelism, policy, timeout, codec or self._codec
            )
            if self._started:
                self._start(type_)
            return Task(self, type_, function)

        return add

    async def enqueue(
        self,
        type_: str,
        event: Any,
        *,
        delay: Delay | None = None,
        at: Instant | None = None,
        spread: Delay | None = None,
        expires: Instant | None = None,
        expires_after: Delay | None = None,
        tags: Iterable[str] | None = None,
        id: str | None = None,
        key: bytes | str | None = None,
        context: Mapping[str, str] | None = None,
    ) -> AsyncScheduled:
        """Have an event handled after `delay` (timedelta, seconds, "15m"), at `at`, or else at
        once. Starts nothing: a process that only enqueues handles no events.

        A new event of the same type and id replaces it, also while it waits for a retry. `context`
        is passed to the handler. `spread`, `expires`, `expires_after` and `tags` as in
        Scheduler.send_later; a retry keeps the expiry, and has no tags. Raises BadTime, BadRequest,
        Unavailable.
        """
        scheduler = await self._connected()
        codec = self._wanted[type_].codec if type_ in self._wanted else self._codec
        headers: Headers = []
        name = new_id() if id is None else id
        to_id(name)
        checked_context(context or {})
        planned = plan_send(
            type_,
            await encoded(codec, event, topic=type_, headers=headers),
            headers=headers,
            now_ms=scheduler.sync.now_ms(),
            key=key,
            delay=0 if delay is None and at is None else delay,
            at=at,
            spread=spread,
            expires=expires,
            expires_after=expires_after,
            tags=tags,
            id=event_id(type_, name).decode(errors="surrogateescape"),
        )
        schedule = as_event(planned, type_=type_, id=name, context=dict(context or {}))
        if id is not None:
            await scheduler.forget(retry_id(type_, name))
        with scheduling(schedule, now_ms=scheduler.sync.now_ms()) as schedule:
            await scheduler.submit(schedule)
        return AsyncScheduled(scheduler, schedule)  # type: ignore[arg-type]

    async def cancel(self, type_: str, id: str) -> Cancelled:
        """Cancel an event that waits, for its first attempt or for the next one.

        Answers as Scheduler.cancel does; `delivering` also if it is on its way to a handler.
        """
        scheduler = await self._connected()
        names = [one(type_, id).decode(errors="surrogateescape") for one in (event_id, retry_id)]
        answers = (await scheduler.cancel_many(names)).values()
        told = (Cancelled.CANCELLED, Cancelled.DELIVERING)
        return next((one for one in told if one in answers), Cancelled.UNKNOWN)

    async def start(self, *, parallelism: int | None = None) -> None:
        """Connect and start handling; creates missing topics if the settings allow it.

        `parallelism` replaces that of every type. Raises BadRequest, BadSettings, Unavailable.
        """
        if self._started:
            raise BadRequest("expected handlers that are not started: close them first")
        if parallelism is not None and not 1 <= parallelism <= PARALLELISM_MAX:
            raise BadRequest(f"parallelism: expected 1 to {PARALLELISM_MAX}, got {parallelism}")
        self._parallelism = parallelism
        await self._connected()
        if self._settings.create_topics:
            for topic in (*self._wanted, self.dead_topic):
                await self._create(topic)
        self._started = True
        for type_ in self._wanted:
            self._start(type_)
        if self._report is None:
            self._report = HandlerReport(self.scheduler.sync, self.tallies, group=self.group)
            self._report.start()

    async def run(self) -> None:
        """Handle events until the task is cancelled, then wait for running handlers."""
        async with self:
            await asyncio.Event().wait()

    async def remove(self, type_: str) -> None:
        """Stop handling this type: running handlers finish, other events stay on the topic."""
        self._wanted.pop(type_, None)
        await self._stop(type_)

    async def _stop(self, type_: str) -> None:
        handling = self._running.pop(type_, None)
        if handling is not None:
            await handling.stop(drain_s=self._drain_s)

    async def close(self) -> None:
        """Stop handling and disconnect. The handlers stay: `start` goes on with them."""
        report, self._report = self._report, None
        if report is not None:
            await report.stop()
        await asyncio.gather(*(self._stop(type_) for type_ in list(self._running)))
        self._started = False
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            await scheduler.close()
        if self._topics is not None:
            self._topics.close()
            self._topics = None

    @contextmanager
    def instead(self, where: Any) -> Iterator[None]:
        """Use another installation inside the block, as a test does with a fake. Raises
        BadRequest for handlers that are connected."""
        if self._scheduler is not None:
            raise BadRequest("expected handlers that are not connected: close them first")
        before, self._where, self._arguments = (self._where, self._arguments), where, {}
        try:
            yield
        finally:
            self._where, self._arguments = before

    def tallies(self) -> dict[str, Tally]:
        """Counts by event type."""
        return {type_: handling.tally for type_, handling in self._running.items()}

    def health(self) -> dict[str, str]:
        """Event types that cannot be handled at the moment, and why; empty if there are none."""
        return {type_: tally.error for type_, tally in self.tallies().items() if tally.error}

    def metrics(self, registry: "CollectorRegistry") -> None:
        """Add the tallies to a Prometheus registry."""
        from sendlater.client.handler_metrics import Tallies

        registry.register(Tallies(self.tallies))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _connected(self) -> AsyncScheduler:
        if self._scheduler is not None:
            return self._scheduler
        return await asyncio.to_thread(lambda: self.scheduler)

    @property
    def _settings(self) -> "Settings":
        return self.scheduler.sync.settings

    def _start(self, type_: str) -> None:
        wanted = self._wanted[type_]
        handling = EventWorker(
            type_,
            wanted.function,
            reader=self._reader(type_, wanted.timeout_s),
            forward=self._forward,
            codec=wanted.codec,
            parallelism=self._parallelism or wanted.parallelism,
            retry=wanted.retry,
            timeout_s=wanted.timeout_s,
            dead_topic=self.dead_topic,
            now_ms=self.scheduler.sync.now_ms,
        )
        self._running[type_] = handling
        handling.start()

    async def _forward(self, schedule: Schedule) -> None:
        await self.scheduler.submit(schedule)

    def _reader(self, type_: str, timeout_s: float) -> "GroupReader":
        # One group per type: adding or removing a handler does not rebalance the other types.
        group = f"{self.group}.{type_}"
        if hasattr(self._where, "open_reader"):
            reader: GroupReader = self._where.open_reader(type_, group=group)
            return reader
        from sendlater.brokers.client_options import client_options
        from sendlater.brokers.group_reader import KafkaGroupReader, RedisGroupReader

        if not self._settings.on_kafka:
            if self._topics is None:
                from sendlater.brokers.redis import open_topics

                self._topics = open_topics(self.scheduler.sync.redis_url, self._settings)
            return RedisGroupReader(self._topics, topic=type_, group=group, timeout_s=timeout_s)
        return KafkaGroupReader(client_options(self._settings), topic=type_, group=group)

    async def _create(self, topic: str) -> None:
        broker = self.scheduler.sync.broker
        with ThreadPoolExecutor(1) as thread:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(
                thread, lambda: broker.ensure(topic, partitions=self._settings.topic_partitions)
            )
