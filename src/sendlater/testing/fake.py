"""An installation in memory, whose clock moves only when the test moves it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from sendlater.brokers.broker import Arrived
from sendlater.client.async_scheduler import AsyncScheduler
from sendlater.client.handlers import Handlers
from sendlater.client.scheduler import Scheduler
from sendlater.clock import FixedClock, SystemClock
from sendlater.config import Settings
from sendlater.errors import BadRequest, StoreUnavailable
from sendlater.model import Schedule
from sendlater.operations.arguments import Delay, due_ms
from sendlater.testing.fake_topics import FakeReader, FakeTopics
from sendlater.testing.fake_transport import FakeTransport

HANDLED_S = 10.0
"""How long handlers may take, by the real clock, for what is due at one instant."""


class Fake:
    """Where a Scheduler, an AsyncScheduler or Handlers connect to: `Scheduler(fake)`.

    The rules are those of a real installation: what it would refuse is refused, ids replace, what
    is due is delivered. All clients of one Fake share schedules and topics. What it has not:
    Kafka, partitions (a topic has one), `delivering`, duplicates and lateness.
    """

    def __init__(self, *, clock: FixedClock | SystemClock | None = None, **settings: Any) -> None:
        """The clock begins at the real time; a SystemClock goes on by itself, and `deliver_due`
        looks at it. `settings` are limits such as max_payload_bytes; the environment is not
        asked."""
        self.clock = clock or FixedClock(SystemClock().now_ms())
        unknown = settings.keys() - Settings.model_fields.keys()
        if unknown:
            raise BadRequest(f"expected settings, got {', '.join(sorted(unknown))}")
        self.settings = Settings.model_construct(create_topics=False, **settings)
        self._topics = FakeTopics()
        self._away = ""
        self._transport = FakeTransport(
            self.settings,
            clock=self.clock,
            topics=self._topics,
            require_there=self._require_there,
        )

    def scheduler(self) -> Scheduler:
        """A client."""
        return Scheduler(self)

    def async_scheduler(self) -> AsyncScheduler:
        """A client for asyncio."""
        return AsyncScheduler(self)

    # --- what became of it ----------------------------------------------------------------------

    def pending(self) -> list[Schedule]:
        """What waits, in due order."""
        waiting = list(self._transport.pending.values())  # in one step: a client may send meanwhile
        return sorted(waiting, key=lambda one: (one.due_ms, one.id))

    def delivered(self, topic: str) -> list[Arrived]:
        """What has been delivered to a topic, oldest first."""
        return self._topics.records(topic)

    def produce(self, record: Any) -> None:
        """Put a Record on its topic, as another program would."""
        self._topics.append(record, at_ms=self.clock.now_ms())

    # --- time -----------------------------------------------------------------------------------

    def advance(self, by: Delay) -> None:
        """Move the clock, and deliver what falls due, each at its own instant."""
        clock, until_ms = self._movable(), self._until_ms(by)
        while (next_ms := self._next_ms(until_ms)) is not None:
            clock.advance(next_ms - clock.now_ms())
            self.deliver_due()
        clock.advance(until_ms - clock.now_ms())

    async def run(self, by: Delay = 0) -> None:
        """As `advance`, and wait at each instant until handlers have handled what is there. So an
        event that fails is tried again at its time. Raises TimeoutError after HANDLED_S."""
        clock, until_ms = self._movable(), self._until_ms(by)
        await self._handled()
        while (next_ms := self._next_ms(until_ms)) is not None:
            clock.advance(next_ms - clock.now_ms())
            self.deliver_due()
            await self._handled()
        clock.advance(until_ms - clock.now_ms())

    def deliver_due(self) -> None:
        """Deliver what is due by the clock."""
        self._transport.deliver_due()

    # --- handlers and outages -------------------------------------------------------------------

    @asynccontextmanager
    async def handling(self, app: Handlers) -> AsyncIterator[Handlers]:
        """Run handlers on this installation, whatever they are meant to connect to."""
        with app.instead(self):
            async with app:
                yield app

    @contextmanager
    def away(self, why: str = "away") -> Iterator[None]:
        """Inside the block every call raises StoreUnavailable."""
        self._away = why
        try:
            yield
        finally:
            self._away = ""

    def open_transport(self) -> FakeTransport:
        """For Scheduler: see operations.transport.Opens."""
        self._require_there()
        return self._transport

    def open_reader(self, topic: str, *, group: str) -> FakeReader:
        """For Handlers: a reader of a topic."""
        return self._topics.reader(topic, group=group)

    def __repr__(self) -> str:
        return f"<Fake: {len(self._transport.pending)} pending>"

    def _movable(self) -> FixedClock:
        if isinstance(self.clock, SystemClock):
            raise BadRequest("expected a clock that can be moved, got the system's")
        return self.clock

    def _until_ms(self, by: Delay) -> int:
        return due_ms(delay=by, at=None, now_ms=self.clock.now_ms())

    def _next_ms(self, until_ms: int) -> int | None:
        dues = (one.due_ms for one in list(self._transport.pending.values()))
        return min((due for due in dues if due <= until_ms), default=None)

    def _require_there(self) -> None:
        if self._away:
            raise StoreUnavailable(self._away)

    async def _handled(self) -> None:
        done = await asyncio.to_thread(self._topics.wait, self._topics.idle, timeout_s=HANDLED_S)
        if not done:
            raise TimeoutError(f"events are not handled within {HANDLED_S:g} s")
