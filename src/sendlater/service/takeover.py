"""Taking a space over: fence, settle what was left, fill the store, let intake catch up."""

import shutil
import threading
import time
from functools import partial

import structlog

from sendlater.brokers.own_topics import inbox_ends
from sendlater.errors import BrokerUnavailable, StoreUnavailable, StoreWentBack
from sendlater.limits import LOOK_UP_COUNT_MAX
from sendlater.service.queries import Queries
from sendlater.service.supervision import (
    FIRST_BATCH_WATCH_S,
    STORE_WATCH_S,
    WARM_S_MAX,
    WATCH_S,
)
from sendlater.spark.delivery.crash_lookup import CrashLookup
from sendlater.spark.delivery.targets import Targets
from sendlater.spark.intake.watermark import Inboxes, Watermark
from sendlater.spark.journal.horizon import Horizon
from sendlater.spark.journal.rebuild import Filling, reached
from sendlater.spark.journal.standing import Ends
from sendlater.store.rebuild import JournalCopy, hold
from sendlater.store.succession import left_lanes, tell_layout
from sendlater.store.unsettled import count_rows
from sendlater.store.waiting import unlimit

_log = structlog.get_logger()


class Takeover(Queries):
    """Takes over at a start, and again whenever the store has lost data."""

    def _take_over(self, stop: threading.Event) -> bool:
        """Fence, fill the store, start every query; False if `stop` was set first.

        Starts over if the store goes back, or store or broker go away meanwhile. Raises Fenced.
        """
        while True:
            try:
                return self._take_over_once(stop)
            except (StoreWentBack, StoreUnavailable, BrokerUnavailable) as error:
                _log.warning("a start begins anew", cause=str(error))
            self._end_queries()
            if stop.wait(STORE_WATCH_S):
                return False

    def _take_over_once(self, stop: threading.Event) -> bool:
        """Before the first delivery, intake reads what was on the journals when this began, and
        what is on the inboxes: there may be a newer version or a cancellation."""
        self._become(self.pending.fence(above=self.owner))
        self.pending.require_layout()  # it may have changed since this service looked
        tell_layout(self.pending)
        shutil.rmtree(self._scratch, ignore_errors=True)
        ends = self._fill(stop)
        # All start together, as each takes seconds; lanes are held until intake has caught up.
        hold(self.pending, owner=self.owner)
        for worker in reversed(self._workers):
            worker.begin()
        if not self._caught_up(ends, stop):
            return False
        self._start_horizon()
        self._watermark = self._new_watermark()
        self._watermark.start()
        return True

    def _start_horizon(self) -> None:
        if self._filling is not None and self.settings.horizon_ms is not None:
            assert self._spark is not None
            copy = JournalCopy(self.pending, owner=self.owner)
            self._horizon = Horizon(
                self._spark, self.settings, copy, fill_task=self._filling.fill_task
            )
            self._horizon.start()

    def _new_watermark(self) -> Watermark:
        settings, copier, intake = self.settings, self._copier, self._workers[-1]
        ends = partial(inbox_ends, self._topics, self._broker)
        return Watermark(
            self.pending,
            Inboxes(
                ends=partial(ends, [inbox.topic for inbox in settings.taken_in]),
                copied_ends=partial(ends, [i.topic for i in settings.inboxes if i.copy_to]),
                copied=copier.copied if copier is not None else dict,
                begins=lambda: not intake.failed and not self._reads(),
            ),
            owner=self.owner,
            margin_ms=settings.margin_ms,
            hold_ms_max=settings.hold_ms_max,
        )

    def _fill(self, stop: threading.Event) -> Ends:
        """Settle or release old batches, fill the store; returns the ends intake must reach."""
        settings = self.settings
        self.pending.arm(owner=self.owner)
        beside = self._looked_up_beside()
        if self._topics is not None:
            # It counts its failures: a start that begins anew goes on with it.
            self._crash_lookup = self._crash_lookup or self._new_lookup()
            if any(shard.batches() for shard in self.pending.shards):
                stop.wait(settings.recovery_pause_ms / 1_000)
            self._crash_lookup.settle(owner=self.owner, but=beside)
        self.pending.release_all(owner=self.owner, looked_up=True, but=beside)
        unlimit(self.pending, sorted(settings.limits), owner=self.owner)
        if self._topics is None:
            return {}
        assert self._spark is not None
        self._start_targets()
        self._filling = self._new_filling()
        return self._filling.fill()

    def _looked_up_beside(self) -> set[int]:
        """Lanes of a dead service that has left so much that all others should not wait for its
        look-up: it follows when we deliver, as what an heir inherits (see `_look_after_estate`)."""
        if self.settings.journals or self._topics is None:
            return set()  # what is torn must be known before intake reads
        lanes = left_lanes(self.pending, self.owner)
        return lanes if count_rows(self.pending, lanes) > LOOK_UP_COUNT_MAX else set()

    def _new_lookup(self) -> CrashLookup:
        assert self._topics is not None
        assert self._spark is not None
        return CrashLookup(self._spark, self.settings, self.pending, self._topics)

    def _start_targets(self, *, inherited: bool = False) -> None:
        assert self._topics is not None
        self._targets = Targets(self.pending, self._topics, self.settings, owner=self.owner)
        self._targets.start(inherited=inherited)

    def _new_filling(self) -> Filling:
        assert self._topics is not None
        assert self._spark is not None
        url = self._redis_url
        return Filling(
            self._spark, self.settings, self.pending, self._topics, redis_url=url, owner=self.owner
        )

    def _caught_up(self, ends: Ends, stop: threading.Event) -> bool:
        """Wait until intake has read up to `ends`; False if `stop` was set first.

        Not forever if intake fails, as with a full store: only delivery makes room there."""
        intake, since_s = self._workers[-1], time.monotonic()
        while True:
            waited_ms = 1_000 * (time.monotonic() - since_s)
            if intake.failed and waited_ms > self.settings.hold_ms_max:
                _log.error("intake fails: deliveries wait no longer for it", waited_ms=waited_ms)
                return True
            if reached(ends, positions=self.pending.positions()):
                return True
            if stop.wait(WATCH_S):
                return False
            if self._store_is_lost():
                raise StoreWentBack("it was lost before intake had caught up")
            self._look_after(intake, time.monotonic())

    def _reads(self, word: str = "reads") -> bool:
        """Whether intake reads every inbox, or (as an heir) is `warm`."""
        run, tasks = self._workers[-1].run, range(self.settings.intake_slots)
        return self.pending.noted(word, run, tasks=tasks)

    def _await_warm(self, stop: threading.Event) -> None:
        """Wait until intake reads and each lane has warmed up.

        Not for a query that has ended, as by a store that went back: `watch` mends that. Nor for
        ever, nor if `stop` is set."""
        deadline_s = time.monotonic() + WARM_S_MAX
        while not (self._reads() and all(worker.is_warm for worker in self._workers)):
            if not all(worker.runs for worker in self._workers):
                return
            if time.monotonic() > deadline_s:
                _log.warning("ready, but not warm: the first deliveries are late")
                return
            if stop.wait(FIRST_BATCH_WATCH_S):
                return

    def _store_is_lost(self) -> bool:
        """Whether the store has forgotten its owner, or is no (longer a) copy of the journals."""
        # Perhaps only one of several shards has forgotten it.
        forgotten = min(self.pending.owners()) < self.owner
        if not forgotten and (self._filling is None or self._filling.is_copy()):
            return False
        _log.error("the store has lost what it knew" if forgotten else "the store is to be rebuilt")
        return True
