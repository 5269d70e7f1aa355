"""Rows that nobody can look up yet: a topic of theirs takes nothing for the moment, as a partition
has no leader, or too few replicas in sync.

What a leader has taken and too few have got is not readable. On a cluster, the producer of a lane
that has ended may still send the rest. So such rows are kept (see store/unsettled.py), and the
others do not wait for them.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import structlog

from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.model import Schedule
from sendlater.spark.kafka_sink import STILL_SENT_MS
from sendlater.store import Pending
from sendlater.store.codec import unpack
from sendlater.store.unsettled import Unsettled, keep, kept

LOOK_AGAIN_MS = 1_000
"""How long those wait at least whose batch is looked up without them."""
_log = structlog.get_logger()


class KeptRows:
    """Tells apart what can be looked up, and keeps the rest."""

    def __init__(
        self, settings: Settings, pending: Pending, topics: KafkaTopics, clock: Clock | None = None
    ) -> None:
        self._settings, self._pending, self._topics = settings, pending, topics
        self._clock = clock or SystemClock()
        self._for_ms = STILL_SENT_MS if settings.spark_master else settings.recovery_pause_ms
        self._silent_before: set[str] = set()
        """Topics that took nothing at the last look; what they have is not readable at once."""

    def hold_back(
        self, batches: Sequence[Unsettled], waits: Collection[str], *, owner: int
    ) -> list[Unsettled]:
        """What can be looked up of these batches; the rest is kept until no producer sends it any
        more. `waits`: topics that took nothing when the batches' lane was ended.

        Raises BrokerUnavailable, Fenced, StoreUnavailable.
        """
        silent = {*waits, *self._silent(batches)}
        if not silent:
            return list(batches)
        left = [self._without(silent, batch) for batch in batches]
        for batch, rest in zip(batches, left, strict=True):
            self._keep(batch, rest, self._for_ms, owner=owner)
        if count := sum(len(one.ids) for one in batches) - sum(len(one.ids) for one in left):
            _log.warning("deliveries wait for their topics", rows=count, topics=sorted(silent)[:10])
        return [rest for rest in left if rest.ids]

    def keep_all(self, batches: Iterable[Unsettled], *, owner: int) -> None:
        """Keep these. Raises what `hold_back` raises."""
        for batch in batches:
            self._keep(batch, replace(batch, ids=[], packed=[]), self._for_ms, owner=owner)

    def ready(self, *, owner: int) -> Iterator[Unsettled]:
        """Batches of what is kept that can be looked up now. Raises what `hold_back` raises."""
        batches = list(kept(self._pending, now_ms=self._clock.now_ms()))
        silent = self._silent(batches)
        self._silent_before, waits = silent, silent | self._silent_before
        for batch in batches:
            rest = self._without(waits, batch)
            if rest.ids:
                self._keep(batch, rest, LOOK_AGAIN_MS, owner=owner)
                yield rest

    def _keep(self, batch: Unsettled, rest: Unsettled, for_ms: int, *, owner: int) -> None:
        left = set(rest.ids)
        ids = [one for one in batch.ids if one not in left]
        keep(batch, ids, until_ms=self._clock.now_ms() + for_ms, owner=owner)

    def _silent(self, batches: Sequence[Unsettled]) -> set[str]:
        rows = ((i, p) for one in batches for i, p in zip(one.ids, one.packed, strict=True))
        return self._topics.silent(set().union(*(self._topics_of(unpack(*row)) for row in rows)))

    def _without(self, silent: Collection[str], batch: Unsettled) -> Unsettled:
        rows = [
            row
            for row in zip(batch.ids, batch.packed, strict=True)
            if self._topics_of(unpack(*row)).isdisjoint(silent)
        ]
        return replace(batch, ids=[i for i, _ in rows], packed=[p for _, p in rows])

    def _topics_of(self, schedule: Schedule) -> set[str]:
        """Where a lane sends something for it."""
        topics, origin = {schedule.record.topic}, schedule.origin
        if origin is not None and origin.topic in self._settings.journals:
            topics |= {origin.topic, self._settings.history_topic} - {""}
        return topics
