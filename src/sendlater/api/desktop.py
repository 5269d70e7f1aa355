"""What all requests of one process share."""

import asyncio
from functools import partial

from anyio import CapacityLimiter

from sendlater.api.access import Identity, Role, Tokens
from sendlater.api.bulk import Bulk
from sendlater.api.records import Records
from sendlater.api.watch import Watch
from sendlater.api.writer import Bell, Writer
from sendlater.client.brokers import open_broker
from sendlater.client.office import Office
from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.limits import FOLLOWERS_COUNT_MAX
from sendlater.metrics import StoreMetrics, intake_lag
from sendlater.model import Schedule
from sendlater.pending import Pending
from sendlater.pending.papers import Papers


class Desktop:
    """Connections, the writer's thread, the watch's thread, tokens. `start` it in the loop."""

    def __init__(self, settings: Settings, *, redis_url: str, clock: Clock | None = None) -> None:
        """Raises Unavailable, or BadSettings for tokens that cannot be read."""
        self.settings = settings
        self.clock = clock or SystemClock()
        self.tokens = Tokens(settings.http_tokens)
        self.pending = Pending.open(redis_url, space=settings.space, shards=settings.shards)
        self.pending.require_layout()
        self.broker = open_broker(settings, redis_url=redis_url)
        self.office = Office(settings, pending=self.pending, broker=self.broker, clock=self.clock)
        self.papers = Papers(self.pending)
        self.bulk = Bulk(self.office, self.papers, clock=self.clock, undo_hours=settings.undo_hours)
        self.records = Records(settings, redis_url=redis_url)
        lag = intake_lag(settings, redis_url=redis_url, pending=self.pending, broker=self.broker)
        dead_topic = settings.dead_topic
        self.metrics = StoreMetrics(self.pending, lag=lag, dead_topic=dead_topic, clock=self.clock)
        self.watch = Watch(self.office.desk, lag=lag, dead_topic=dead_topic, clock=self.clock)
        self.listeners = 0
        """Pages that are updated live."""
        self.followers = CapacityLimiter(FOLLOWERS_COUNT_MAX)
        """Requests that wait for records of a topic; more take turns."""
        self.stopping = False
        self._writer: Writer | None = None
        self._bell: Bell | None = None

    def start(self) -> None:
        """Begin; called in the event loop that serves."""
        self._bell = Bell(asyncio.get_running_loop())
        self._writer = Writer(self.office)
        self.watch.start()

    def stop(self) -> None:
        """End the threads, once what was handed over has been written."""
        self.stopping = True
        self.watch.stop()
        if self._writer is not None:
            self._writer.close()
        self.broker.close()

    async def written(self, schedule: Schedule) -> None:
        """Wait until a schedule is safe. Raises BadRequest, BadTime, Unavailable."""
        assert self._writer is not None, "started"
        assert self._bell is not None, "started"
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done = partial(self._bell.ring, future)
        if self.office.ready():
            self.office.send(schedule, done=done)
        else:
            self.office.checked(schedule)
            self._writer.put(schedule, done=done)
        await future

    def shows_payload(self, who: Identity) -> bool:
        """Whether somebody is shown payloads, keys and headers."""
        return who.role >= Role[self.settings.http_payload_role.upper()]
