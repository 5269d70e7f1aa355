"""The service: connects the rooms and keeps them running."""

import shutil
import threading
import time
from collections.abc import Callable
from functools import partial

import structlog

from sendlater.brokers.client_options import client_options
from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.brokers.own_topics import own_kafka_topics, own_redis_topics
from sendlater.brokers.redis import RedisBroker, open_topics
from sendlater.errors import NotSupported, StoreUnavailable, Unavailable
from sendlater.service.graceful_stop import drain
from sendlater.service.handing_over import HandingOver
from sendlater.service.queries import forget_dead
from sendlater.service.supervision import FIRST_BATCH_S, STORE_WATCH_S, WATCH_S, Worker
from sendlater.service.watchdog import Watchdog, watch_jvm
from sendlater.spark.cluster import await_slots
from sendlater.spark.delivery.practice import practise
from sendlater.spark.intake.recreated_inboxes import InboxWatch
from sendlater.spark.session import require_jvm, start_session
from sendlater.spark.warm_up import warm_up, warm_up_producer
from sendlater.store.lease import Lease
from sendlater.store.rebuild import JournalCopy
from sendlater.store.succession import HEIR, require_layout

_log = structlog.get_logger()


class Service(HandingOver):
    """One running sendlater. `start`, then `watch` until stopped, then `stop`."""

    _watchdog: Watchdog | None = None
    _practice: threading.Event | None = None
    """Ends the thread that practises; None if there was none."""

    def start(
        self,
        *,
        stop: threading.Event | None = None,
        on_standby: Callable[[], None] = lambda: None,
        take_over: bool = False,
    ) -> bool:
        """Get ready, wait until no other service is active or one hands over, take over. Then every
        query runs and is warm.

        False if `stop` was set before that; `on_standby` is called if there is a wait. `take_over`:
        ask the active service for the space as soon as everything is warm.
        Raises Unavailable when Redis, Kafka or a tool is missing, Fenced when overtaken already,
        NotSupported if the active service cannot hand over to this version.
        """
        stop = stop or threading.Event()
        self._asks = take_over
        self._add_workers()
        if not self._get_ready(stop, on_standby):
            return False
        if self._inherited:
            return True
        producer = threading.Thread(target=self._warm_up_producer, name="warm-up", daemon=True)
        producer.start()
        if not self._take_over(stop):
            return False
        self._sidecars.start()
        self._await_warm(stop)
        producer.join(FIRST_BATCH_S)
        self._begin_practice()
        return True

    def _add_workers(self) -> None:
        for number in range(self.settings.lanes):
            worker = Worker(f"lane-{number}", lambda: None, lane=number)  # type: ignore[arg-type,return-value]
            worker.start = lambda worker=worker: self._start_lane(worker)  # type: ignore[misc]
            self._workers.append(worker)
        if any(inbox.copy_to for inbox in self.settings.inboxes):
            self._workers.append(Worker("copying", self._start_copying))
        self._workers.append(Worker("intake", self._start_intake))

    def rebuild(self) -> None:
        """Fill the store from its journals and end; nothing is delivered.

        Raises what `start` raises, NotSupported if there is no journal.
        """
        if not self.settings.journals:
            raise NotSupported("rebuild needs an inbox with journal = true: others are not kept")
        self._get_ready(threading.Event(), lambda: None)
        self.owner = self.pending.fence()
        self.pending.require_layout()  # it may have changed since this service looked
        JournalCopy(self.pending, owner=self.owner).forget()
        self._fill(threading.Event())
        self.close()

    def is_active(self) -> bool:
        """Whether any service is active on the space."""
        return bool(self._new_lease().holder())

    def _get_ready(self, stop: threading.Event, on_standby: Callable[[], None]) -> bool:
        """Get topics, Spark and the lease; False if `stop` was set before the lease was ours."""
        settings = self.settings
        self.pending.require_layout()
        require_layout(self.pending)
        forget_dead(self._scratch.parent)
        if settings.on_kafka:
            self._topics = KafkaTopics(client_options(settings))
            self._inbox_watch = InboxWatch(self._topics, settings, self.pending)
            own_kafka_topics(self._topics, settings, liveness=self._etf1 is not None)
        else:
            topics = open_topics(self.installation.redis_url, settings)
            own_redis_topics(topics, settings)
            self._broker = RedisBroker(topics)
        if self._etf1 is not None:
            self._sidecars.answer_as_etf1(self._etf1)
        self._spark = start_session(
            settings, java_home=self.installation.java_home, jars=self.installation.jars
        )
        self._watchdog = watch_jvm(self._spark, settings)
        if not await_slots(self._spark, settings, stop):
            return False
        return self._stand_by(stop, on_standby)

    def _stand_by(self, stop: threading.Event, on_standby: Callable[[], None]) -> bool:
        """Wait for the lease; False if `stop` was set first."""

        told = False

        def tell() -> None:
            nonlocal told
            if not told:
                on_standby()
            told = True

        def waiting() -> bool:
            if not told:
                self._warm_up_producer()
            self._inherited = self._wait_as_heir(stop, asks=self._asks, on_standby=tell)
            if not self._inherited and not told:
                self._warm_up()
                tell()
            return self._inherited

        self._lease = self._new_lease()
        by_force = not (self._asks or self.settings.stands_by)
        # An heir that lives delivers sooner than we would.
        heir = self._new_lease(HEIR).holder
        return self._lease.wait(stop, by_force=by_force, waiting=waiting, yields=heir)

    def _warm_up(self) -> None:
        if self._topics is not None and self._spark is not None:
            warm_up(self._spark, self.settings, self._topics)
            self._begin_practice()

    def _warm_up_producer(self) -> None:
        if self._topics is not None and self._spark is not None:
            warm_up_producer(self._spark, self.settings)

    def _begin_practice(self) -> None:
        """Once, in a thread: nobody waits for it. The executors of a cluster have JVMs of their
        own."""
        topics, spark, settings = self._topics, self._spark, self.settings
        if self._practice is not None or topics is None or spark is None:
            return
        if settings.compile_twice and not settings.spark_master:
            self._practice = over = threading.Event()
            checkpoint = self._scratch / "practice"
            act = partial(practise, spark, settings, topics, checkpoint=checkpoint, over=over)
            threading.Thread(target=act, name="practice", daemon=True).start()

    def _new_lease(self, key: str = "lease") -> Lease:
        return Lease(
            self.installation.redis_url,
            space=self.settings.space,
            key=key,
            lease_ms=self.settings.lease_ms,
            works=lambda: None if self._spark is None else require_jvm(self._spark),
        )

    def watch(self, stop: threading.Event) -> None:
        """Keep every query running until `stop` is set, or the space is handed over. Raises Fenced
        when overtaken.

        A thread looks after the lanes: before one starts again, its deliveries are looked up, which
        may take long. Intake must not wait for that."""
        over = threading.Event()
        lanes = threading.Thread(target=lambda: self._watch_lanes(over), name="lanes", daemon=True)
        lanes.start()
        try:
            store_s = 0.0
            while not stop.wait(WATCH_S):
                if self._lanes_error is not None:
                    raise self._lanes_error
                now_s = time.monotonic()
                for worker in () if self._lost else self._workers:
                    if worker.lane is None:
                        self._look_after(worker, now_s)
                if now_s - store_s >= STORE_WATCH_S:
                    store_s = now_s
                    self._look_after_store(stop)
                    if self._hands_over():
                        return
        finally:
            over.set()
            lanes.join()

    def _watch_lanes(self, over: threading.Event) -> None:
        try:
            while not over.wait(WATCH_S):
                with self._lanes_lock:
                    if not self._lost:
                        try:
                            self._end_blocked_lanes()
                        except StoreUnavailable as error:
                            _log.warning("a blocked lane waits for the store", cause=str(error))
                    for worker in () if self._lost else self._workers:
                        if worker.lane is not None:
                            self._look_after(worker, time.monotonic())
        except Exception as error:
            self._lanes_error = error

    def stop(self) -> None:
        """Gracefully: lanes end their batches early; what they claimed is delivered and settled.

        If another service is the heir and warm, it gets the space first."""
        try:
            handed_over = self.owner and (self._leaving is not None or self._hand_over())
            if handed_over:
                self._settle_handed_over()
            elif self.owner:
                self._end_intake()
                try:
                    self._commit_copies()
                except Unavailable as error:
                    _log.warning("some records will be copied twice", cause=str(error))
                within_s = self.settings.stop_timeout_ms / 1_000
                drain(self.pending, self._workers, owner=self.owner, within_s=within_s)
        except Exception as error:
            # No error ends the stop: the next start releases what is not settled.
            _log.warning("stopped without settling", cause=str(error))
        self.close()

    def close(self) -> None:
        """At once: end queries and Spark, settle nothing."""
        if self._practice is not None:
            self._practice.set()
        self._end_queries()
        self._sidecars.close()
        if self._lease is not None:
            self._lease.release()
        if self._spark is not None:
            self._spark.stop()
        if self._watchdog is not None:
            self._watchdog.stop()
        shutil.rmtree(self._scratch, ignore_errors=True)
