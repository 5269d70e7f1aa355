"""The service: the only place that wires rooms together, and keeps them running."""

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sendlater.attendants import Attendants
from sendlater.client.brokers import RedisBroker, open_topics
from sendlater.clock import SystemClock
from sendlater.config import Settings, client_options
from sendlater.errors import Fenced, NotSupported, StoreUnavailable, StoreWentBack
from sendlater.local.installation import Installation
from sendlater.pending import Desk, Pending
from sendlater.pending.takeover import Copy, Lease, hold
from sendlater.pipeline.copying import Copier
from sendlater.pipeline.delivery import start_lane
from sendlater.pipeline.draining import drain
from sendlater.pipeline.filling import Filling, reached
from sendlater.pipeline.horizon import Horizon
from sendlater.pipeline.inbox_watch import InboxWatch
from sendlater.pipeline.intake import (
    inbox_records,
    intake_progress,
    start_intake,
    starting_offsets,
)
from sendlater.pipeline.journal import Ends
from sendlater.pipeline.kafka_topics import KafkaTopics
from sendlater.pipeline.own_topics import inbox_ends, own_kafka_topics, own_redis_topics
from sendlater.pipeline.recovery import Recovery, warm_up
from sendlater.pipeline.rescue import Rescue
from sendlater.pipeline.rewriting import bury_surplus, rescue_overtaken
from sendlater.pipeline.session import require_jvm, start_session
from sendlater.pipeline.source import Lane
from sendlater.pipeline.targets import Targets
from sendlater.pipeline.watermark import Inboxes, Watermark
from sendlater.pipeline.workers import Worker

WATCH_S = 0.1
"""Pause between two looks at the queries."""
STORE_WATCH_S = 1.0
"""Pause between two looks at whether the store went back or was taken over."""

_log = structlog.get_logger()


class Service:
    """One running sendlater. `start`, then `watch` until stopped, then `stop`."""

    def __init__(
        self,
        settings: Settings,
        installation: Installation,
        *,
        etf1: Mapping[str, str] | None = None,
    ) -> None:
        """`etf1`: the environment of an etf1 scheduler, whose surface is served too."""
        self.settings = settings
        self.installation = installation
        self.owner = 0
        self._spark: SparkSession | None = None
        self._targets: Targets | None = None
        self._workers: list[Worker] = []
        self._scratch = settings.data_dir / "checkpoints" / settings.space
        self._checkpoint = 0
        self._seen: dict[str, int] = {}
        self._partitions: dict[str, int] = {}
        self._inbox_watch: InboxWatch | None = None
        self._topics: KafkaTopics | None = None
        self._broker: RedisBroker | None = None
        self._recovery: Recovery | None = None
        self._filling: Filling | None = None
        self._horizon: Horizon | None = None
        self._copier: Copier | None = None
        self._lease: Lease | None = None
        self._watermark: Watermark | None = None
        self._etf1 = etf1
        self._lost = False
        self.pending = Pending.open(
            installation.redis_url, space=settings.space, shards=settings.shards
        )
        self._attendants = Attendants(settings, self.pending, redis_url=installation.redis_url)

    def start(
        self,
        *,
        stop: threading.Event | None = None,
        on_standby: Callable[[], None] = lambda: None,
    ) -> bool:
        """Get ready, wait until no other service is active, take over: every query is started, and
        intake is past its first batch.

        False when `stop` was set before that; `on_standby` is called when there is a wait.
        Raises Unavailable when Redis, Kafka or a tool is missing, Fenced when overtaken already.
        """
        stop = stop or threading.Event()
        if not self._get_ready(stop, on_standby):
            return False
        for number in range(self.settings.lanes):
            worker = Worker(f"lane-{number}", lambda: None, lane=number)  # type: ignore[arg-type,return-value]
            worker.start = lambda worker=worker: self._start_lane(worker)  # type: ignore[misc]
            self._workers.append(worker)
        if any(inbox.copy_to for inbox in self.settings.inboxes):
            self._workers.append(Worker("copying", self._start_copying))
        self._workers.append(Worker("intake", self._start_intake))
        if not self._take_over(stop):
            return False
        self._attendants.start()
        self._workers[-1].await_first_batch(stop)
        return True

    def rebuild(self) -> None:
        """Fill the store from its journals and end; nothing is delivered.

        Raises what `start` raises, NotSupported where there is no journal.
        """
        if not self.settings.journals:
            raise NotSupported("rebuild needs an inbox with journal = true: others are not kept")
        self._get_ready(threading.Event(), lambda: None)
        self.owner = self.pending.fence()
        Copy(self.pending, owner=self.owner).forget()
        self._fill(threading.Event())
        self.close()

    def is_active(self) -> bool:
        """Whether some service is active on the space."""
        return bool(self._new_lease().holder())

    def _get_ready(self, stop: threading.Event, on_standby: Callable[[], None]) -> bool:
        """Topics, Spark, lease; False when `stop` was set before the lease was ours."""
        settings = self.settings
        self.pending.require_layout()
        if settings.on_kafka:
            self._topics = KafkaTopics(client_options(settings))
            self._inbox_watch = InboxWatch(self._topics, settings, self.pending)
            self._partitions = own_kafka_topics(
                self._topics, settings, liveness=self._etf1 is not None
            )
        else:
            topics = open_topics(self.installation.redis_url, settings)
            self._partitions = own_redis_topics(topics, settings)
            self._broker = RedisBroker(topics)
        if self._etf1 is not None:
            self._attendants.answer_as_etf1(self._etf1)
        self._spark = start_session(
            settings, java_home=self.installation.java_home, jars=self.installation.jars
        )
        return self._stand_by(stop, on_standby)

    def _stand_by(self, stop: threading.Event, on_standby: Callable[[], None]) -> bool:
        """Until the lease is ours; False when `stop` was set before."""

        def waiting() -> None:
            self._warm_up()
            on_standby()

        self._lease = self._new_lease()
        return self._lease.wait(stop, by_force=not self.settings.stands_by, waiting=waiting)

    def _warm_up(self) -> None:
        if self._topics is not None and self._spark is not None:
            warm_up(self._spark, self.settings, self._topics)

    def _new_lease(self) -> Lease:
        return Lease(
            self.installation.redis_url,
            space=self.settings.space,
            lease_ms=self.settings.lease_ms,
            works=lambda: None if self._spark is None else require_jvm(self._spark),
        )

    def _take_over(self, stop: threading.Event) -> bool:
        """Fence, fill the store, start every query; False when `stop` was set before.

        Begins anew when the store goes back or away meanwhile. Raises Fenced.
        """
        while True:
            try:
                return self._take_over_once(stop)
            except (StoreWentBack, StoreUnavailable) as error:
                _log.warning("the store went away during a start", cause=str(error))
            self._end_queries()
            if stop.wait(STORE_WATCH_S):
                return False

    def _take_over_once(self, stop: threading.Event) -> bool:
        """Nothing is delivered before intake has read what was on the journals when this began, and
        what is on the inboxes: a newer version or a cancellation may be among it."""
        self.owner = self.pending.fence(above=self.owner)
        shutil.rmtree(self._scratch, ignore_errors=True)
        ends = self._fill(stop)
        # All start at once, as each takes seconds; lanes find nothing before intake has caught up.
        self.pending.arm(owner=self.owner)
        hold(self.pending, owner=self.owner)
        for worker in reversed(self._workers):
            worker.begin()
        if not self._caught_up(ends, stop):
            return False
        if self._filling is not None and self.settings.horizon_ms is not None:
            assert self._spark is not None
            copy = Copy(self.pending, owner=self.owner)
            self._horizon = Horizon(self._spark, self.settings, copy, planter=self._filling.planter)
            self._horizon.start()
        self._watermark = self._new_watermark()
        self._watermark.start()
        return True

    def _new_watermark(self) -> Watermark:
        settings, copier, intake = self.settings, self._copier, self._workers[-1]
        ends = partial(inbox_ends, self._topics, self._broker)
        return Watermark(
            self.pending,
            Inboxes(
                ends=partial(ends, [inbox.topic for inbox in settings.taken_in]),
                copied_ends=partial(ends, [i.topic for i in settings.inboxes if i.copy_to]),
                copied=copier.copied if copier is not None else dict,
                progress=partial(intake_progress, intake),
                begins=lambda: not intake.failed and intake_progress(intake) is None,
            ),
            owner=self.owner,
            margin_ms=settings.margin_ms,
            hold_ms_max=settings.hold_ms_max,
        )

    def _fill(self, stop: threading.Event) -> Ends:
        """Settle or release what was left behind, fill the store; the ends intake must reach."""
        settings = self.settings
        if self._topics is not None:
            assert self._spark is not None
            self._recovery = Recovery(self._spark, settings, self.pending, self._topics)
            if any(shard.batches() for shard in self.pending.shards):
                stop.wait(settings.recovery_pause_ms / 1_000)
            self._recovery.settle(owner=self.owner)
        self.pending.release_all(owner=self.owner)
        if self._topics is None:
            return {}
        assert self._spark is not None
        self._targets = Targets(self.pending, self._topics, settings, owner=self.owner)
        self._targets.start()
        url = self.installation.redis_url
        self._filling = Filling(
            self._spark, settings, self.pending, self._topics, redis_url=url, owner=self.owner
        )
        return self._filling.fill()

    def _caught_up(self, ends: Ends, stop: threading.Event) -> bool:
        """Wait until intake has read up to `ends`; False when `stop` was set before.

        Not for ever for one that fails, as in a full store: only delivery makes room there."""
        intake, since_s = self._workers[-1], time.monotonic()
        while True:
            waited_ms = 1_000 * (time.monotonic() - since_s)
            if intake.failed and waited_ms > self.settings.hold_ms_max:
                _log.error("deliveries do not wait for intake, which fails", waited_ms=waited_ms)
                return True
            query = intake.query
            progress = query.lastProgress if isinstance(query, StreamingQuery) else None
            if reached(ends, seen=self.pending.positions(), progress=progress):
                return True
            if stop.wait(WATCH_S):
                return False
            if self._store_is_lost():
                raise StoreWentBack("it was lost before intake had caught up")
            self._look_after(intake, time.monotonic())

    def _take_over_again(self, stop: threading.Event) -> None:
        """The store has lost what it knew: end everything that works from it, and begin anew."""
        self._lost = True
        self._end_queries()
        # What lanes have handed to the producer must be on its topics before these are read.
        stop.wait(self.settings.recovery_pause_ms / 1_000)
        self._take_over(stop)
        self._lost = False

    def _end_queries(self) -> None:
        for part in (self._targets, self._horizon, self._watermark):
            if part is not None:
                part.stop()
        self._targets = self._horizon = self._watermark = None
        for worker in self._workers:
            if worker.query is not None and worker.query.isActive:
                worker.query.stop()
            worker.query = None

    def _next_checkpoint(self, name: str) -> Path:
        """Checkpoints are scratch: what must survive is in the store."""
        self._checkpoint += 1
        return self._scratch / f"{self.owner}-{self._checkpoint}-{name}"

    def _start_lane(self, worker: Worker) -> StreamingQuery:
        settings, spark = self.settings, self._spark
        assert worker.lane is not None
        assert spark is not None
        if self._recovery is not None:
            self._recovery.settle(owner=self.owner, lane=worker.lane)
        if worker.refused and self._targets is not None:
            worker.refused = False
            Rescue(settings, self.pending, self._targets, owner=self.owner).deliver(worker.lane)
        worker.run = self.pending.open_lane(worker.lane, owner=self.owner)
        self._look_for_restart()
        url = self.installation.redis_url
        lane = Lane.of(settings, redis_url=url, owner=self.owner, lane=worker.lane, run=worker.run)
        checkpoint = self._next_checkpoint(worker.name)
        return start_lane(spark, settings, lane=lane, checkpoint=checkpoint)

    def _look_for_restart(self) -> None:
        """A server that was started anew may have lost its last moments: claims, and what intake
        had read. Nothing is claimed before that is read again, nor by a run older than a server.

        Positions do not tell: what is lost may have come and gone between two looks at them."""
        if self.pending.is_armed(owner=self.owner):
            return
        _log.warning("the store was started anew: deliveries wait for intake")
        self.pending.arm(owner=self.owner)
        if self._watermark is not None:
            self._watermark.begin_anew(pause_ms=self.settings.recovery_pause_ms)
        hold(self.pending, owner=self.owner)
        self._read_again()

    def _start_intake(self) -> StreamingQuery:
        spark = self._spark
        assert spark is not None
        self._workers[-1].run = run = self.pending.open_intake(owner=self.owner)
        if self._inbox_watch is not None:
            self._partitions = self._inbox_watch.begin(owner=self.owner)
        self._seen = self.pending.positions()
        starts = starting_offsets(self.settings, self._seen, self._partitions)
        redis_url = self.installation.redis_url
        return start_intake(
            inbox_records(spark, self.settings, redis_url=redis_url, starts=starts),
            self.settings,
            redis_url=redis_url,
            owner=self.owner,
            run=run,
            checkpoint=self._next_checkpoint("intake"),
        )

    def _start_copying(self) -> StreamingQuery:
        assert self._spark is not None
        if self._copier is None:
            assert self._topics is not None
            self._copier = Copier(self._spark, self.settings, self._topics)
        return self._copier.start(self._next_checkpoint("copying"))

    def watch(self, stop: threading.Event) -> None:
        """Keep every query running until `stop` is set. Raises Fenced when overtaken."""
        store_s = 0.0
        while not stop.wait(WATCH_S):
            now_s = time.monotonic()
            for worker in () if self._lost else self._workers:
                self._look_after(worker, now_s)
            if now_s - store_s >= STORE_WATCH_S:
                store_s = now_s
                self._look_after_store(stop)

    def _look_after(self, worker: Worker, now_s: float) -> None:
        worker.look_after(
            now_s,
            delay_s_max=self.settings.restart_delay_ms_max / 1000,
            ended=self._require_owner,
        )

    def _require_owner(self) -> None:
        try:
            standing = self.pending.owner()
        except StoreUnavailable:
            return
        if standing > self.owner:
            raise Fenced(
                f"a newer service (owner {standing}) has taken over space "
                f"{self.settings.space!r}; this one (owner {self.owner}) stops"
            )

    def _look_after_store(self, stop: threading.Event) -> None:
        """Notice a takeover, and a store that came back empty or older than it was."""
        self._require_owner()
        settings = self.settings
        try:
            self._beat()
            self._commit_copies()
            if self._lost or self._store_is_lost():
                self._take_over_again(stop)
                return
            if settings.journals:
                rescue_overtaken(settings, self.pending)
                bury_surplus(settings, self.pending)
            anew = self._inbox_watch.made_anew() if self._inbox_watch is not None else set()
            self._lost = not anew.isdisjoint(settings.journals)
            seen = self.pending.positions()
        except Exception as error:
            if isinstance(error, Fenced):
                # Either a newer owner is there, or the store has forgotten this one once more.
                self._require_owner()
            _log.warning("the store is not usable", cause=str(error)[:500])
            return
        back = [source for source, at in self._seen.items() if seen.get(source, 0) < at]
        self._seen = seen
        if back or anew:
            _log.error("intake begins anew", store_went_back=back, made_anew=sorted(anew))
            self._read_again()

    def _read_again(self) -> None:
        """Have intake begin anew where the store stands."""
        intake = self._workers[-1]
        if intake.query is not None:
            intake.query.stop()
            intake.query, intake.next_s = None, 0.0

    def _beat(self) -> None:
        """Tell the page that this service lives, and which of its queries run."""
        running = {f"worker:{w.name}": int(w.query is not None) for w in self._workers}
        Desk(self.pending).note({"beat-ms": SystemClock().now_ms(), **running})

    def _commit_copies(self) -> None:
        if self._copier is not None:
            [copying] = [worker for worker in self._workers if worker.name == "copying"]
            if isinstance(copying.query, StreamingQuery):
                self._copier.commit(copying.query)

    def _store_is_lost(self) -> bool:
        """Whether it has forgotten its owner, or is no copy of the journals (any more)."""
        # One shard of several may have come back without it.
        forgotten = min(self.pending.owners()) < self.owner
        if not forgotten and (self._filling is None or self._filling.is_copy()):
            return False
        _log.error("the store has lost what it knew" if forgotten else "the store is to be rebuilt")
        return True

    def stop(self) -> None:
        """Gracefully: lanes end their batch early, everything claimed is delivered and settled."""
        try:
            for worker in self._workers if self.owner else ():
                if worker.lane is None and worker.query is not None:
                    worker.query.stop()
            self._commit_copies()
            if self.owner:
                within_s = self.settings.stop_timeout_ms / 1_000
                drain(self.pending, self._workers, owner=self.owner, within_s=within_s)
        except Exception as error:
            # Whatever it is, a stop goes on: what is not settled is released at the next start.
            _log.warning("stopped without settling", cause=str(error))
        self.close()

    def close(self) -> None:
        """At once: queries and Spark end, nothing is settled."""
        self._end_queries()
        self._attendants.close()
        if self._lease is not None:
            self._lease.release()
        if self._spark is not None:
            self._spark.stop()
        shutil.rmtree(self._scratch, ignore_errors=True)
