"""The service: the only place that wires rooms together, and keeps them running."""

import json
import shutil
import threading
import time
from pathlib import Path

import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sendlater.canary import Canary
from sendlater.client.brokers import open_broker, open_topics
from sendlater.clock import SystemClock
from sendlater.config import Settings, client_options
from sendlater.errors import Fenced
from sendlater.local.installation import Installation
from sendlater.metrics import MetricsServer, StoreMetrics, intake_lag
from sendlater.pending import Batch, Desk, Pending
from sendlater.pipeline.delivery import start_lane
from sendlater.pipeline.intake import inbox_records, start_intake, starting_offsets
from sendlater.pipeline.kafka_topics import KafkaTopics
from sendlater.pipeline.own_topics import own_topics
from sendlater.pipeline.session import start_session
from sendlater.pipeline.source import Lane
from sendlater.pipeline.targets import Targets
from sendlater.pipeline.workers import Worker

WATCH_S = 0.1
"""Pause between two looks at the queries."""
STORE_WATCH_S = 1.0
"""Pause between two looks at whether the store went back or was taken over."""

_log = structlog.get_logger()


class Service:
    """One running sendlater. `start`, then `watch` until stopped, then `stop`."""

    def __init__(self, settings: Settings, installation: Installation) -> None:
        self.settings = settings
        self.installation = installation
        self.owner = 0
        self._spark: SparkSession | None = None
        self._targets: Targets | None = None
        self._metrics: MetricsServer | None = None
        self._canary: Canary | None = None
        self._workers: list[Worker] = []
        self._scratch = settings.data_dir / "checkpoints" / settings.space
        self._checkpoint = 0
        self._seen: dict[str, int] = {}
        self.pending = Pending.open(
            installation.redis_url, space=settings.space, shards=settings.shards
        )

    # --- starting -------------------------------------------------------------------------------

    def start(self) -> None:
        """Fence, release, go: returns when every query has been started.

        Raises Unavailable when Redis, Kafka or a tool is missing, Fenced when overtaken already.
        """
        settings = self.settings
        self.pending.require_layout()
        partitions = self._own_topics()
        spark = start_session(
            settings, java_home=self.installation.java_home, jars=self.installation.jars
        )
        self._spark = spark
        # The fence comes last, so that an older service delivers until this one can.
        self.owner = self.pending.fence()
        shutil.rmtree(self._scratch, ignore_errors=True)
        self.pending.release_all(owner=self.owner)
        if settings.on_kafka:
            topics = KafkaTopics(client_options(settings))
            self._targets = Targets(self.pending, topics, settings, owner=self.owner)
            self._targets.start()
        for number in range(settings.lanes):
            worker = Worker(f"lane-{number}", lambda: None, lane=number)  # type: ignore[arg-type,return-value]
            worker.start = lambda worker=worker: self._start_lane(spark, worker)  # type: ignore[misc]
            self._workers.append(worker)
        self._workers.append(Worker("intake", lambda: self._start_intake(spark, partitions)))
        for worker in self._workers:
            worker.begin()
        if settings.metrics_addr:
            self._metrics = self._serve_metrics()
            _log.info("metrics are served", port=self._metrics.port)
        if settings.canary_topic:
            self._canary = Canary(settings, redis_url=self.installation.redis_url)
            self._canary.start()

    def _serve_metrics(self) -> MetricsServer:
        settings, redis_url = self.settings, self.installation.redis_url
        broker = open_broker(settings, redis_url=redis_url)
        lag = intake_lag(settings, redis_url=redis_url, pending=self.pending, broker=broker)
        return MetricsServer(settings.metrics_addr, StoreMetrics(self.pending, lag=lag))

    def _own_topics(self) -> dict[str, int]:
        """Partition counts of the inboxes, created where missing and allowed."""
        settings = self.settings
        inboxes = [inbox.topic for inbox in settings.inboxes]
        if not settings.on_kafka:
            topics = open_topics(self.installation.redis_url, settings)
            for topic in (*inboxes, settings.rejected_topic):
                if not topics.exists(topic):
                    topics.create(topic)
            return {topic: topics.partitions(topic) for topic in inboxes}
        return own_topics(settings)

    def _next_checkpoint(self, name: str) -> Path:
        """Checkpoints are scratch: what must survive is in the store."""
        self._checkpoint += 1
        return self._scratch / f"{self.owner}-{self._checkpoint}-{name}"

    def _start_lane(self, spark: SparkSession, worker: Worker) -> StreamingQuery:
        settings = self.settings
        assert worker.lane is not None
        worker.run = self.pending.open_lane(worker.lane, owner=self.owner)
        lane = Lane(
            redis_url=self.installation.redis_url,
            space=settings.space,
            shards=settings.shards,
            owner=self.owner,
            lane=worker.lane,
            lanes=settings.lanes,
            run=worker.run,
            window_ms=settings.window_ms,
            idle_window_ms=settings.idle_window_ms,
            poll_ms=settings.poll_ms,
            standby_poll_ms=settings.standby_poll_ms,
            claim_count=settings.claim_count,
            check_targets=settings.on_kafka,
        )
        checkpoint = self._next_checkpoint(worker.name)
        return start_lane(spark, settings, lane=lane, checkpoint=checkpoint)

    def _start_intake(self, spark: SparkSession, partitions: dict[str, int]) -> StreamingQuery:
        run = self.pending.open_intake(owner=self.owner)
        self._seen = self.pending.positions()
        starts = starting_offsets(self.settings, self._seen, partitions)
        redis_url = self.installation.redis_url
        return start_intake(
            inbox_records(spark, self.settings, redis_url=redis_url, starts=starts),
            self.settings,
            redis_url=redis_url,
            owner=self.owner,
            run=run,
            checkpoint=self._next_checkpoint("intake"),
        )

    # --- running --------------------------------------------------------------------------------

    def watch(self, stop: threading.Event) -> None:
        """Keep every query running until `stop` is set. Raises Fenced when overtaken."""
        store_s, delay_s_max = 0.0, self.settings.restart_delay_ms_max / 1_000
        while not stop.wait(WATCH_S):
            now_s = time.monotonic()
            for worker in self._workers:
                worker.look_after(now_s, delay_s_max=delay_s_max, ended=self._require_owner)
            if now_s - store_s >= STORE_WATCH_S:
                store_s = now_s
                self._look_after_store()

    def _require_owner(self) -> None:
        try:
            standing = self.pending.owner()
        except Exception:
            return
        if standing != self.owner:
            raise Fenced(
                f"a newer service (owner {standing}) has taken over space "
                f"{self.settings.space!r}; this one (owner {self.owner}) stops"
            )

    def _look_after_store(self) -> None:
        """Notice a takeover, and a store that came back older than it was."""
        self._require_owner()
        try:
            self._beat()
            seen = self.pending.positions()
        except Exception as error:
            _log.warning("the store does not answer", cause=str(error))
            return
        back = [source for source, at in self._seen.items() if seen.get(source, 0) < at]
        self._seen = seen
        if back:
            _log.error("the store came back older than it was; reading again", inboxes=back)
            intake = self._workers[-1]
            if intake.query is not None:
                intake.query.stop()
                intake.query, intake.next_s = None, 0.0

    def _beat(self) -> None:
        """Tell the page that this service lives, and which of its queries run."""
        running = {f"worker:{w.name}": int(w.query is not None) for w in self._workers}
        Desk(self.pending).note({"beat-ms": SystemClock().now_ms(), **running})

    # --- stopping -------------------------------------------------------------------------------

    def stop(self) -> None:
        """Gracefully: lanes end their batch early, everything claimed is delivered and settled."""
        try:
            self._drain()
        except Exception as error:
            # Whatever it is, a stop goes on: what is not settled is released at the next start.
            _log.warning("stopped without settling", cause=str(error))
        self.close()

    def _drain(self) -> None:
        if not self.owner:
            return
        intake = self._workers[-1]
        if intake.query is not None:
            intake.query.stop()
        self.pending.drain(owner=self.owner)
        deadline = time.monotonic() + self.settings.stop_timeout_ms / 1000
        lanes = [w for w in self._workers if w.lane is not None and w.query is not None]
        while lanes and time.monotonic() < deadline:
            lanes = [worker for worker in lanes if not self._settled(worker)]
            time.sleep(WATCH_S / 4)
        for worker in lanes:
            _log.warning(
                "lane did not end in time; its batch is released at the next start",
                query=worker.name,
            )

    def _settled(self, worker: Worker) -> bool:
        """Settle what Spark has committed of a draining lane; whether that was all of it.

        A stopping query never commits its last batch to the source, so it is done here.
        """
        query = worker.query
        assert isinstance(query, StreamingQuery)
        ends = [
            int(name.split(":")[2])
            for shard in self.pending.shards
            for name in shard.batches()
            if name.startswith(f"{worker.lane}:{worker.run}:")
        ]
        if not ends:
            return True
        if not query.isActive:
            return True
        progress = query.lastProgress
        if progress is None:
            return False
        committed_ms = int(json.loads(progress.sources[0].endOffset)["end_ms"])
        for end_ms in set(ends):
            if end_ms <= committed_ms:
                assert worker.lane is not None
                self.pending.settle(Batch(worker.lane, worker.run, end_ms))
        return max(ends) <= committed_ms

    def close(self) -> None:
        """At once: queries and Spark end, nothing is settled."""
        if self._metrics is not None:
            self._metrics.close()
        if self._canary is not None:
            self._canary.stop()
        if self._targets is not None:
            self._targets.stop()
        for worker in self._workers:
            if worker.query is not None and worker.query.isActive:
                worker.query.stop()
        if self._spark is not None:
            self._spark.stop()
        shutil.rmtree(self._scratch, ignore_errors=True)
