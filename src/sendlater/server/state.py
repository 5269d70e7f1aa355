"""State shared by all requests of one process."""

import asyncio
from functools import partial

from sendlater.brokers.open import open_broker
from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.errors import BrokerUnavailable
from sendlater.limits import FOLLOWERS_COUNT_MAX, READERS_COUNT_MAX, WAITING_COUNT_MAX
from sendlater.model import Schedule
from sendlater.operations.handed_over import ACK_S
from sendlater.operations.schedules import Operations
from sendlater.server.audited import Audited
from sendlater.server.auth import Identity, Role, Tokens
from sendlater.server.batch_writer import LoopWaker, Writer
from sendlater.server.bulk_changes import Bulk
from sendlater.server.live_statistics import Watch
from sendlater.server.topic_records import Records
from sendlater.server.turns import Turns
from sendlater.server.undoing import Undoing
from sendlater.service.metrics import StoreMetrics, intake_lag
from sendlater.store import Pending
from sendlater.store.audit import AuditTrail
from sendlater.store.idempotency import IdempotencyKeys


class ServerState:
    """Connections, tokens, and the threads of writer and watch. Call `start` in the event loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        redis_url: str,
        clock: Clock | None = None,
        starting: bool = False,
    ) -> None:
        """`starting`: its service has just been started. Raises Unavailable, or BadSettings if the
        tokens cannot be read."""
        self.settings = settings
        self.clock = clock or SystemClock()
        self.tokens = Tokens(settings.http_tokens)
        self.pending = Pending.open(redis_url, space=settings.space, shards=settings.shards)
        self.pending.require_layout()
        self.broker = open_broker(settings, redis_url=redis_url)
        self.operations = Operations(
            settings, pending=self.pending, broker=self.broker, clock=self.clock
        )
        trail = AuditTrail(self.pending)
        self.audited = Audited(trail, clock=self.clock, undo_hours=settings.undo_hours)
        self.idempotency = IdempotencyKeys(self.pending)
        self.bulk = Bulk(self.operations, self.audited, clock=self.clock)
        self.undoing = Undoing(self.operations, self.audited, clock=self.clock)
        self.records = Records(settings, self.operations.admin, redis_url=redis_url)
        lag = intake_lag(settings, redis_url=redis_url, pending=self.pending, broker=self.broker)
        dead_topic = settings.dead_topic
        self.metrics = StoreMetrics(self.pending, lag=lag, dead_topic=dead_topic, clock=self.clock)
        self.watch = Watch(
            self.operations.admin,
            lag=lag,
            dead_topic=dead_topic,
            clock=self.clock,
            limits=settings.limits,
            starting=starting,
        )
        self.listeners = 0
        """Open pages with live updates."""
        self.waiting = Turns(WAITING_COUNT_MAX, what="wait for intake")
        """For every call that may wait until intake has read the inboxes."""
        self.readers = Turns(READERS_COUNT_MAX, what="search topics")
        self.followers = Turns(FOLLOWERS_COUNT_MAX, what="wait for records of topics")
        self.stopping = False
        self._readiness: asyncio.Future[None] | None = None
        self._writer: Writer | None = None
        self._waker: LoopWaker | None = None

    def start(self) -> None:
        """Start the threads; call it in the event loop that serves."""
        self._waker = LoopWaker(asyncio.get_running_loop())
        self._writer = Writer(self.operations)
        self.watch.start()

    def stop(self) -> None:
        """Write the schedules still waiting, then end the threads."""
        self.stopping = True
        self.watch.stop()
        if self._writer is not None:
            self._writer.close()
        self.broker.close()

    def ready(self) -> "asyncio.Future[None]":
        """Done once store and broker have answered; raises Unavailable if they do not."""
        if self._readiness is None or self._readiness.done():

            def ask() -> None:
                self.pending.counts()
                self.broker.ends(self.operations.inbox)

            self._readiness = asyncio.ensure_future(asyncio.to_thread(ask))
            # Nobody may be waiting any more when it fails.
            self._readiness.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._readiness

    async def written(self, schedule: Schedule) -> None:
        """Wait until a schedule is safe. Raises BadRequest, BadTime, and Unavailable: after ACK_S,
        when it may still be written."""
        assert self._writer is not None, "started"
        assert self._waker is not None, "started"
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done = partial(self._waker.ring, future)
        if self.operations.ready():
            self.operations.send(schedule, done=done)
        else:
            self.operations.checked(schedule)
            self._writer.put(schedule, done=done)
        try:
            async with asyncio.timeout(ACK_S):
                await future
        except TimeoutError as error:
            raise BrokerUnavailable(f"no acknowledgement within {ACK_S:g} s") from error

    def shows_payload(self, who: Identity) -> bool:
        """Whether `who` may see payloads, keys and headers."""
        return who.role >= Role[self.settings.http_payload_role.upper()]
