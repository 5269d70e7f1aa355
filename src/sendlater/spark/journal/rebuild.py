"""Fills a store that is empty, of other journals or incomplete, before anything is delivered."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import structlog
from pyspark.sql import DataFrame, SparkSession

from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.clock import SystemClock
from sendlater.config import Settings
from sendlater.errors import BadSettings
from sendlater.limits import RELEASE_COUNT_MAX
from sendlater.model import DUE_MS_MAX, State
from sendlater.spark.journal.fill_tasks import FillTask, Planned, TaskProgress, plan
from sendlater.spark.journal.standing import Ends, records, task_count, undecided
from sendlater.spark.journal.torn import Mark, Place, marks, torn, without
from sendlater.spark.plans import PlanReader
from sendlater.store import Admin, Pending
from sendlater.store.rebuild import JournalCopy
from sendlater.store.unsettled import touch_kept

_log = structlog.get_logger()


class Filling:
    """What an owner does with its store between the fence and the first delivery."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        pending: Pending,
        topics: KafkaTopics,
        *,
        redis_url: str,
        owner: int,
    ) -> None:
        self._spark, self._settings, self._pending = spark, settings, pending
        self._topics = topics
        self._copy = JournalCopy(pending, owner=owner)
        self._clock = SystemClock()
        self.fill_task = FillTask(
            redis_url=redis_url,
            space=settings.space,
            shards=settings.shards,
            owner=owner,
            # What an earlier version has accepted stands.
            plans=replace(PlanReader.of(settings), ce_expirytime=False),
        )
        self.journals = topics.identity(settings.journals) if settings.journals else ""

    def is_copy(self) -> bool:
        """Whether the store is a complete copy of the journals up to the horizon, if any."""
        if not self.journals:
            return True
        without = self._copy.horizon()[1] is None
        same = without == (self._settings.horizon_ms is None)
        return same and self._copy.is_even() and self._copy.stands_for(self.journals)

    def fill(self) -> Ends:
        """Fill the store if needed; returns the ends that intake must reach before delivery.

        Raises BadSettings if a person must decide, by the setting on_empty_store.
        """
        self._look_at_plain_inboxes()
        ends = self._topics.ends(self._settings.journals)
        if not self.is_copy() or self._has_forgotten(ends):
            # Clients change nothing from here on, until all that they have changed is read.
            self._copy.forget()
            self._copy.forget_seen(self._settings.journals)
            ends = self._topics.ends(self._settings.journals)
            self.rebuild(ends)
        return ends

    def _has_forgotten(self, ends: Ends) -> bool:
        """Whether the store has forgotten a claim whose delivery never arrived: pending is what
        has a tombstone that intake is yet to read, and would be cancelled by that."""
        seen = self._pending.positions()
        starts = {
            topic: {
                number: min(seen.get(f"{topic}/{number}", 0), end) for number, end in of.items()
            }
            for topic, of in ends.items()
        }
        if starts == ends:
            return False
        unread = records(self._spark, self._settings, ends=ends, starts=starts, tasks=1)
        return self._waits_for(marks(unread, self._settings)) and bool(self._torn(unread))

    def _waits_for(self, told: Iterator[Mark]) -> bool:
        """Whether one of these deliveries is still to be made, as far as the store knows."""
        admin = Admin(self._pending)
        while some := list(islice(told, RELEASE_COUNT_MAX)):
            asked = [(i, mark) for mark in some for i in mark.ids]
            found = admin.get_many([i for i, _ in asked])
            for (_, mark), stands in zip(asked, found, strict=True):
                origin = stands.origin if stands and stands.state is State.PENDING else None
                if stands is None or origin is None or stands.due_ms > mark.due_ms:
                    continue
                if f"{origin.topic}/{origin.partition}/{origin.position}" == mark.version:
                    return True
        return False

    def _torn(self, read: DataFrame) -> list[Place]:
        """Tombstones without their deliveries; of a producer that died, some may be under way."""
        time.sleep(self._settings.recovery_pause_ms / 1_000)
        return torn(self._spark, self._settings, self._topics, read)

    def rebuild(self, ends: Ends) -> Planned:
        """Remove all that was read from journals, and write their current schedules."""
        total = sum(sum(partitions.values()) for partitions in ends.values())
        _log.warning("rebuilding the store from its journals", records=total)
        horizon_ms, tasks = self._settings.horizon_ms, task_count(ends)
        until_ms = DUE_MS_MAX if horizon_ms is None else self._clock.now_ms() + horizon_ms
        kept_ms = None if horizon_ms is None else until_ms
        self._copy.tell(step="reading", done=0, total=total)
        self._copy.begin()
        # What intake has seen during a step that was never ended is removed like everything else.
        self._copy.set_horizon(kept_ms, planned_ms=kept_ms)
        self._copy.empty(self._settings.journals)
        touch_kept(self._pending)

        def tell(share: float) -> None:
            self._copy.tell(step="reading", done=round(share * total), total=total)

        read = partial(records, self._spark, self._settings, ends=ends, tasks=tasks)
        lost = self._torn(read()) if total else []
        if lost:
            _log.error("deliveries that never arrived are made again", count=len(lost))
        with TaskProgress(self._spark, tasks=2 * tasks, tell=tell):
            planned = plan(
                self._spark,
                self._settings,
                fill_task=self.fill_task,
                ends=ends,
                tasks=tasks,
                until_ms=until_ms,
                torn=lost,
            )
        self._copy.set_horizon(kept_ms, planned_ms=kept_ms, later=planned.later)
        flat = {f"{t}/{p}": end for t, partitions in ends.items() for p, end in partitions.items()}
        # Intake decides what is open, before any delivery.
        decides = planned.conditional and horizon_ms is None
        left = undecided(without(read(), lost)) if decides else {}
        self._copy.forget_changes()
        self._copy.complete(flat, journals=self.journals, undecided=left, begun=True)
        self._copy.tell()
        _log.warning("the store is rebuilt", schedules=planned.written)
        return planned

    def _look_at_plain_inboxes(self) -> None:
        """What to do when the store is empty but an inbox is not: first start, or all was lost.

        A store that knows another such inbox is not empty: one that is new is read from its
        beginning."""
        plain = [i.topic for i in self._settings.taken_in if not i.journal]
        known = {source.rpartition("/")[0] for source in self._pending.positions()}
        new = [topic for topic in plain if topic not in known]
        if known - set(self._settings.journals):
            for topic in new:
                _log.info("an inbox is new: it is read from its beginning", inbox=topic)
            return
        ends = self._topics.ends(new)
        choice = self._settings.on_empty_store
        skipped: dict[str, int] = {}
        for topic, partitions in ends.items():
            records = sum(partitions.values())
            if not records:
                continue
            told: dict[str, Any] = {"inbox": topic, "records_ever": records}
            if choice == "stop":
                raise BadSettings(
                    f"on_empty_store: the store knows nothing of inbox {topic!r}, which has had "
                    f"{records} records; set replay (deliver what it still holds again) or skip "
                    "(begin at its end)"
                )
            if choice == "skip":
                _log.error("the store is empty: what was pending from an inbox is skipped", **told)
                skipped |= {f"{topic}/{p}": end for p, end in partitions.items()}
            else:
                _log.error(
                    "the store is empty: all that an inbox still holds is read again", **told
                )
        if skipped:  # all at once: an inbox alone would make the others new ones
            self._copy.complete(skipped, journals="")


def reached(ends: Ends, *, positions: Mapping[str, int]) -> bool:
    """Whether intake has read up to `ends`, by the store's positions per `topic/partition`."""
    return all(
        positions.get(f"{topic}/{number}", 0) >= end
        for topic, partitions in ends.items()
        for number, end in partitions.items()
    )
