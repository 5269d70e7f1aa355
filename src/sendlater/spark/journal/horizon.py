"""The horizon: what is due soon is in Redis; the rest waits in its journal until it is planned in.

Two marks move together. Intake keeps what is due until `horizon` and skips the rest; everything in
the journals that is due until `planned` is in the store. A step moves `horizon` on, reads from the
journals what is due between the two, and then moves `planned`. What intake reads during a step is
newer than what the step finds.
"""

import threading
from dataclasses import replace

import structlog
from pyspark.sql import SparkSession

from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.errors import Fenced, StoreUnavailable
from sendlater.spark.journal.fill_tasks import FillTask, plan
from sendlater.store.rebuild import JournalCopy

TICK_S = 0.5
"""Pause between two checks whether it is time for the next step."""

_log = structlog.get_logger()


class Horizon:
    """Moves the horizon on, by half its length at a time."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        copy: JournalCopy,
        *,
        fill_task: FillTask,
        clock: Clock | None = None,
    ) -> None:
        assert settings.horizon_ms is not None, "without a horizon there is nothing to plan"
        self._spark, self._settings, self._copy = spark, settings, copy
        self._fill_task, self._span_ms = fill_task, settings.horizon_ms
        self._clock = clock or SystemClock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="horizon", daemon=True)

    def start(self) -> None:
        """Keep going until `stop`. What was missed is planned in before this returns, unless the
        store has no room: then deliveries must make room first."""
        planned_ms = self._copy.horizon()[1]
        if planned_ms is not None and planned_ms <= self._clock.now_ms():
            try:
                self.step()
            except StoreUnavailable as error:
                _log.error("planning failed, will try again", cause=str(error)[:500])
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a step under way is abandoned, and the next owner repeats it."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self.step()
            except Fenced:
                return
            except Exception as error:
                if not self._stop.is_set():
                    _log.error("planning failed, will try again", cause=str(error)[:500])

    def step(self) -> bool:
        """Move the horizon if it is time; whether it was."""
        now_ms = self._clock.now_ms()
        horizon_ms, planned_ms = self._copy.horizon()
        if horizon_ms is None or planned_ms is None or not self._copy.is_even():
            return False  # uneven: the store is about to be filled again
        until_ms = max(horizon_ms, now_ms + self._span_ms)
        if planned_ms == horizon_ms and planned_ms - now_ms > self._span_ms // 2:
            return False
        self._copy.begin()
        self._copy.set_horizon(until_ms, planned_ms=planned_ms)
        # What intake has read so far, per shard; it reads the rest with the new horizon.
        seen = self._copy.seen()
        all_ends = self._copy.seen_ends(seen)
        ends = {topic: all_ends[topic] for topic in self._settings.journals if topic in all_ends}
        later = written = 0
        if ends:
            found = plan(
                self._spark,
                self._settings,
                fill_task=replace(self._fill_task, seen=tuple(seen)),
                ends=ends,
                tasks=1,
                after_ms=planned_ms,
                until_ms=until_ms,
            )
            later, written = found.later, found.written
        self._copy.set_horizon(until_ms, planned_ms=until_ms, later=later, begun=True)
        done_ms = self._clock.now_ms()
        _log.info("horizon moved", written=written, later=later, took_ms=done_ms - now_ms)
        if done_ms > planned_ms > now_ms:
            _log.error("planning takes too long for this horizon", late_ms=done_ms - planned_ms)
        return True
