"""The queries of a service: how each is started, ended, and started again."""

import os
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.brokers.redis import RedisBroker
from sendlater.config import Settings
from sendlater.errors import Fenced, StoreUnavailable
from sendlater.local.installation import Installation
from sendlater.redis_client import with_nodes
from sendlater.service.sidecars import Sidecars
from sendlater.service.supervision import Worker
from sendlater.spark.delivery.arrived import LANDED_MS
from sendlater.spark.delivery.burst_linger import BurstLinger
from sendlater.spark.delivery.crash_lookup import CrashLookup
from sendlater.spark.delivery.failed_batch import RecordByRecord
from sendlater.spark.delivery.lane import Lane
from sendlater.spark.delivery.lane_producer import close_producer, linger_of
from sendlater.spark.delivery.query import start_lane
from sendlater.spark.delivery.targets import Targets
from sendlater.spark.intake.query import start_intake
from sendlater.spark.intake.recreated_inboxes import InboxWatch
from sendlater.spark.intake.watermark import Watermark
from sendlater.spark.journal.copy_inboxes import Copier
from sendlater.spark.journal.horizon import Horizon
from sendlater.spark.journal.rebuild import Filling
from sendlater.spark.kafka_sink import producer_options
from sendlater.store import Pending
from sendlater.store.lease import Lease
from sendlater.store.rebuild import hold
from sendlater.store.succession import lanes_of
from sendlater.store.unsettled import goes_to

_log = structlog.get_logger()


def forget_dead(directory: Path) -> None:
    """Remove the checkpoints of processes that are no more: each directory is named by one."""
    for one in directory.glob("*"):
        alive = one.name.isdecimal() and Path("/proc", one.name).exists()
        if not alive or one.name == str(os.getpid()):
            shutil.rmtree(one, ignore_errors=True)


class Queries:
    """Lanes, copying and intake, and what they share."""

    def __init__(
        self,
        settings: Settings,
        installation: Installation,
        *,
        etf1: Mapping[str, str] | None = None,
    ) -> None:
        """`etf1`: the environment of an etf1 scheduler, whose interface is served too."""
        self.settings = settings
        self.installation = installation
        self.owner = 0
        self._is_heir = False
        """Whether `owner` is the number of the next owner, which another service hands over to."""
        self._spark: SparkSession | None = None
        self._targets: Targets | None = None
        self._workers: list[Worker] = []
        # Two services may share a directory while one hands over to the other.
        self._scratch = settings.data_dir / "checkpoints" / settings.space / str(os.getpid())
        self._checkpoint = 0
        self._seen: dict[str, int] = {}
        self._inbox_watch: InboxWatch | None = None
        self._topics: KafkaTopics | None = None
        self._broker: RedisBroker | None = None
        self._crash_lookup: CrashLookup | None = None
        self._filling: Filling | None = None
        self._horizon: Horizon | None = None
        self._copier: Copier | None = None
        self._lease: Lease | None = None
        self._watermark: Watermark | None = None
        self._asks = self._asked = self._inherited = False
        """Whether we ask for the space when warm; have been its heir; have got it so."""
        self._estate: threading.Event | None = None
        """Ends the thread that settles what other owners have left, while there is one."""
        self._kept: threading.Event | None = None
        """The same for the thread that settles what was kept."""
        self._etf1 = etf1
        self._lost = False
        self._lanes_error: Exception | None = None
        """What ended the thread that looks after the lanes."""
        self._lanes_lock = threading.Lock()
        """Held while lanes are started again: all queries must not end meanwhile."""
        self._intake_lock = threading.Lock()
        """Held while intake is started or ended: a lane that starts may have it read again."""
        self.pending = Pending.open(
            installation.redis_url, space=settings.space, shards=settings.shards
        )
        linger_ms = int(producer_options(settings)["kafka.linger.ms"])
        self._burst_linger = BurstLinger(self.pending.shards[0], linger_ms=linger_ms)
        self._sidecars = Sidecars(settings, self.pending, redis_url=installation.redis_url)

    @property
    def _redis_url(self) -> str:
        """For tasks, whose processes are new: of a cluster with the nodes that it has now."""
        return with_nodes(self.installation.redis_url, self.pending.clients[0])

    def _become(self, owner: int) -> None:
        """Take a number, and with it lanes that the owner before it does not have."""
        self.owner = owner
        lanes = iter(lanes_of(owner))
        for worker in self._workers:
            if worker.lane is not None:
                self._end_producer(worker)
                worker.lane = next(lanes)

    def _end_queries(self) -> None:
        for over in (self._estate, self._kept):
            if over is not None:
                over.set()
        self._estate = self._kept = None
        for part in (self._targets, self._horizon, self._watermark):
            if part is not None:
                part.stop()
        self._targets = self._horizon = self._watermark = None
        self._burst_linger.stop()
        for worker in self._workers:
            if worker.query is not None and worker.query.isActive:
                worker.query.stop()
            worker.query = None

    def _end_intake(self) -> None:
        """And copying."""
        for worker in self._workers:
            if worker.lane is None and worker.query is not None:
                worker.query.stop()

    def _next_checkpoint(self, name: str) -> Path:
        """Checkpoints are temporary: what must survive is in the store."""
        self._checkpoint += 1
        return self._scratch / f"{self.owner}-{self._checkpoint}-{name}"

    def _start_lane(self, worker: Worker) -> StreamingQuery:
        settings, spark = self.settings, self._spark
        assert worker.lane is not None
        assert spark is not None
        self._look_for_restart()
        self._end_producer(worker)
        if self._crash_lookup is not None:
            self._crash_lookup.settle(owner=self.owner, lane=worker.lane, waits=worker.waits)
            worker.waits = ()
        if worker.refused and self._targets is not None:
            worker.refused = False
            RecordByRecord(settings, self.pending, self._targets, owner=self.owner).deliver(
                worker.lane
            )
        worker.run = self.pending.open_lane(worker.lane, owner=self.owner, looked_up=True)
        self._look_for_restart()
        lane = Lane.of(
            settings,
            redis_url=self._redis_url,
            owner=self.owner,
            lane=worker.lane,
            run=worker.run,
            inherits=self._is_heir,
        )
        checkpoint = self._next_checkpoint(worker.name)
        if settings.on_kafka and not settings.spark_master:
            # A name that this process has not used yet: an emptied store begins anew with runs.
            worker.producer = f"{worker.name}-{self._checkpoint}"
        query = start_lane(
            spark, settings, lane=lane, checkpoint=checkpoint, producer=worker.producer
        )
        if worker.producer:
            linger = linger_of(spark, settings, of=worker.producer)
            self._burst_linger.take(worker.name, linger)
        return query

    def _end_producer(self, worker: Worker) -> None:
        """What the last run of a lane has not sent, it sends no more: else it might arrive after
        its look-up."""
        if worker.producer and self._spark is not None:
            close_producer(self._spark, self.settings, of=worker.producer)
            worker.producer = ""
            # What brokers have taken is readable then, also if one of them has just been given up.
            pause_ms = self.settings.recovery_pause_ms if worker.waits else LANDED_MS
            time.sleep(pause_ms / 1_000)

    def _end_blocked_lanes(self) -> None:
        """A topic that was deleted, or takes nothing for the moment, blocks the producer of a lane
        that delivers to it for half a minute, and whatever else the lane has claimed: it is ended,
        and starts again with another, before the next lane is ended."""
        if self._targets is None:
            return
        deleted, silent = self._targets.deleted(), self._targets.silent()
        if self.settings.spark_master:
            silent = set()  # the producers of executors go on, as `_end_producer` cannot end them
        topics = deleted | silent
        for worker in self._workers if topics else ():
            blocked = worker.lane is not None and goes_to(self.pending, worker.lane, topics)
            if blocked and isinstance(worker.query, StreamingQuery) and worker.query.isActive:
                told = "a topic was deleted or takes nothing: its lane starts again"
                _log.warning(told, query=worker.name, topics=sorted(topics)[:10])
                worker.query.stop()
                self._targets.hold(deleted)
                worker.query, worker.next_s, worker.refused = None, 0.0, True
                worker.waits = silent
                self._look_after(worker, time.monotonic())
                if not worker.runs:
                    return  # the others deliver what they can meanwhile

    def _look_for_restart(self) -> None:
        """A restarted server may have lost its last moments: claims, and what intake had read.
        Nothing is claimed before that is read again, nor by a run from before the restart.

        Positions do not show it: what is lost may have come and gone between two looks at them.
        A lane's start looks twice: what it settles and releases, and what it may claim, must be
        after the mark."""
        if self.pending.is_armed(owner=self.owner):
            return
        _log.warning("the store was restarted: deliveries wait for intake")
        self.pending.arm(owner=self.owner)
        if self._is_heir:
            return  # what the space's owner must do about it, the owner does
        if self._watermark is not None:
            self._watermark.begin_anew(pause_ms=self.settings.recovery_pause_ms)
        hold(self.pending, owner=self.owner)
        self._read_again()

    def _start_intake(self) -> StreamingQuery:
        spark = self._spark
        assert spark is not None
        first = not self._workers[-1].run
        self._workers[-1].run = run = self.pending.open_intake(owner=self.owner)
        if self._inbox_watch is not None and not self._is_heir:
            self._inbox_watch.begin(owner=self.owner)
        self._seen = self.pending.positions()
        return start_intake(
            spark,
            self.settings,
            redis_url=self._redis_url,
            owner=self.owner,
            run=run,
            checkpoint=self._next_checkpoint("intake"),
            warm_up=first,
            heir=self._is_heir,
        )

    def _read_again(self) -> None:
        """Start intake again from the store's positions."""
        intake = self._workers[-1]
        with self._intake_lock:
            if intake.query is not None:
                intake.query.stop()
                intake.query, intake.next_s = None, 0.0

    def _start_copying(self) -> StreamingQuery:
        assert self._spark is not None
        if self._copier is None:
            assert self._topics is not None
            self._copier = Copier(self._spark, self.settings, self._topics)
        return self._copier.start(self._next_checkpoint("copying"))

    def _commit_copies(self) -> None:
        if self._copier is not None:
            [copying] = [worker for worker in self._workers if worker.name == "copying"]
            if isinstance(copying.query, StreamingQuery):
                self._copier.commit(copying.query)
                self.pending.tell_copied(self._copier.copied())

    def _look_after(self, worker: Worker, now_s: float) -> None:
        with self._intake_lock if worker.name == "intake" else nullcontext():
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
