"""The service without Redis: schedules wait in bucket topics, and this host keeps no state."""

import shutil
import threading
import time
from collections.abc import Callable, Mapping

import structlog
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from ulid import ULID

from sendlater.brokers.client_options import client_options
from sendlater.brokers.group_offsets import Progress
from sendlater.brokers.kafka_topics import KafkaTopics, TopicFacts
from sendlater.brokers.own_topics import inbox_facts, own_kafka_topics
from sendlater.clock import SystemClock
from sendlater.config import Settings
from sendlater.errors import BrokerUnavailable, SendlaterError
from sendlater.local.installation import Installation
from sendlater.service.supervision import WATCH_S, Loop, Worker
from sendlater.service.watchdog import Watchdog, watch_jvm
from sendlater.spark.buckets.counts import group_of, prepared_of
from sendlater.spark.buckets.crash_lookup import arrived
from sendlater.spark.buckets.holding import Holding, Offsets, Standing
from sendlater.spark.buckets.ladder import Ladder
from sendlater.spark.buckets.owner import Owner
from sendlater.spark.buckets.passes import Intake, Moves
from sendlater.spark.buckets.record import DRAIN
from sendlater.spark.buckets.topics import require_topics
from sendlater.spark.buckets.warm_up import warm_up
from sendlater.spark.cluster import await_slots
from sendlater.spark.delivery.query import start_held
from sendlater.spark.kafka_sink import request_bytes_max
from sendlater.spark.session import start_session

FIRST_PASS_S = 30.0
"""Longest wait of delivery for the first passes at a start; a pass takes a second or two."""

_log = structlog.get_logger()


class BucketService:
    """One running sendlater on Kafka alone. `start`, `watch` until stopped, then `stop`."""

    def __init__(self, settings: Settings, installation: Installation) -> None:
        self.settings = settings
        self.installation = installation
        self.ladder = Ladder.of(settings)
        self._client = client_options(settings)
        self._progress = Progress(self._client, group=group_of(settings))
        # Clients live as long as the service: librdkafka has crashed when a client ended soon after
        # it began.
        self._topics = KafkaTopics(self._client)
        self._spark: SparkSession | None = None
        self._watchdog: Watchdog | None = None
        self._run = ""
        self._owner: Owner | None = None
        self._scratch = settings.data_dir / "checkpoints" / settings.space
        self._deliver = Worker("deliver", self._start_deliver)
        self._moves = Worker("moves", self._start_moves)
        self._intake = Worker("intake", self._start_intake)
        self._workers = [self._deliver, self._moves, self._intake]
        self._room_bytes = 0

    def start(
        self,
        *,
        stop: threading.Event | None = None,
        on_standby: Callable[[], None] = lambda: None,  # noqa: ARG002
    ) -> bool:
        """Check topics, start Spark and everything else; True when all is warm. Never stands by.

        Raises Unavailable when Kafka or a tool is missing, BadSettings for topics that may delete
        schedules.
        """
        settings = self.settings
        own_kafka_topics(self._topics, settings)
        self._room_bytes = require_topics(settings, self.ladder)
        self._spark = start_session(
            settings, java_home=self.installation.java_home, jars=self.installation.jars
        )
        self._watchdog = watch_jvm(self._spark, settings)
        if not await_slots(self._spark, settings, stop or threading.Event()):
            return False
        # The fence comes late, so that an older service delivers until this one can.
        self._owner = Owner(self._client, space=settings.space, topic=self.ladder.topic(0))
        shutil.rmtree(self._scratch, ignore_errors=True)
        warm_up(self._spark, settings, self.ladder, SystemClock(), room_bytes=self._room_bytes)
        # The first pass repeats what a dead pass has written. The repeated copies must be in bucket
        # 0 before the look-up there of what had been delivered, or it would not find them.
        for worker in (self._moves, self._intake):
            worker.begin()
            assert isinstance(worker.query, Loop)
            worker.query.stepped(timeout_s=FIRST_PASS_S)
        self._deliver.begin()
        self._deliver.await_first_batch(stop or threading.Event())
        return True

    def _start_deliver(self) -> StreamingQuery:
        """Each run has its own name: what an earlier run prepared and Spark lost never counts."""
        settings = self.settings
        assert self._spark is not None
        self._run = str(ULID())
        holding = Holding(
            client=self._client,
            topic=self.ladder.topic(0),
            shards=settings.shards,
            group=group_of(settings),
            prepared=prepared_of(settings),
            run=self._run,
            window_ms=settings.window_ms,
            rejected_topic=settings.rejected_topic,
            record_bytes_max=request_bytes_max(settings),
            arrived=self._arrived(self._spark),
        )
        checkpoint = self._scratch / self._run
        return start_held(
            self._spark, settings, options=holding.to_options(), checkpoint=checkpoint
        )

    def _arrived(self, spark: SparkSession) -> Offsets:
        """What a dead run had delivered. If the look-up fails, it is delivered again."""
        try:
            return arrived(spark, self.settings, self.ladder, self._progress, topics=self._topics)
        except Exception as error:
            told = "deliveries of a dead run cannot be looked up; they are repeated"
            _log.error(told, cause=str(error)[:500])
            return {}

    def _start_moves(self) -> Loop:
        assert self._spark is not None
        return Loop("moves", Moves(self._spark, self.settings, self.ladder, self._progress).step)

    def _start_intake(self) -> Loop:
        assert self._spark is not None
        intake = Intake(
            self._spark,
            self.settings,
            self.ladder,
            self._progress,
            inboxes=self._inboxes,
            room_bytes=self._room_bytes,
            taken_in=self._wake_moves,
        )
        return Loop("intake", intake.step)

    def _inboxes(self) -> Mapping[str, TopicFacts]:
        try:
            return inbox_facts(self._topics, self.settings)
        except BrokerUnavailable:
            self._topics.require_answer()  # notices a client that never gets one again
            raise

    def _wake_moves(self) -> None:
        if isinstance(self._moves.query, Loop):
            self._moves.query.wake()

    def watch(self, stop: threading.Event) -> None:
        """Keep everything running until `stop` is set. Raises Fenced when overtaken."""
        delay_s_max = self.settings.restart_delay_ms_max / 1_000
        while not stop.wait(WATCH_S):
            if self._owner is not None:
                self._owner.require()
            now_s = time.monotonic()
            for worker in self._workers:
                worker.look_after(now_s, delay_s_max=delay_s_max)

    # --- stopping -------------------------------------------------------------------------------

    def stop(self) -> None:
        """Gracefully: finish the passes under way, and commit what has been delivered."""
        try:
            for worker in (self._intake, self._moves):
                if worker.query is not None:
                    worker.query.stop()
            self._drain()
        except SendlaterError as error:
            _log.warning("stopped before all deliveries were committed", cause=str(error))
        self.close()

    def _drain(self) -> None:
        """Ask the delivering tasks to end their batch, and wait until it is committed."""
        query = self._deliver.query
        if query is None or not query.isActive:
            return
        places = self.ladder.places(0)
        producer = Producer(self._client)
        for topic, partition in places:
            asks: list[tuple[str, str | bytes | None]] = [(DRAIN, self._run.encode())]
            producer.produce(topic, partition=partition, headers=asks)
        deadline = time.monotonic() + self.settings.stop_timeout_ms / 1_000
        producer.flush(self.settings.stop_timeout_ms / 1_000)
        while query.isActive and time.monotonic() < deadline:
            known = self._progress.committed(places)
            standings = [Standing.of(known[place]) for place in places if place in known]
            if len(standings) == len(places) and all(
                at.drained and at.run == self._run for at in standings
            ):
                return
            time.sleep(WATCH_S)
        _log.warning("delivery did not end in time; its batch is repeated at the next start")

    def close(self) -> None:
        """At once: finish nothing."""
        if self._owner is not None:
            self._owner.close()
        for worker in self._workers:
            if worker.query is not None and worker.query.isActive:
                worker.query.stop()
        if self._spark is not None:
            self._spark.stop()
        if self._watchdog is not None:
            self._watchdog.stop()
        shutil.rmtree(self._scratch, ignore_errors=True)
