"""Rows that nobody can look up yet: a topic of theirs takes nothing for the moment, as a partition
has no leader, or too few replicas in sync.

What a leader has taken and too few have got is not readable. On a cluster, the producer of a lane
that has ended may still send the rest. So such rows are kept (see store/unsettled.py), and the
others do not wait for them.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import structlog

from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.limits import LOOK_UP_COUNT_MAX
from sendlater.spark.kafka_sink import STILL_SENT_MS
from sendlater.store import Batch, Pending
from sendlater.store.codec import topics_of
from sendlater.store.unsettled import Unsettled, keep, kept, read_whole

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
        self._silent_before: set[str] | None = None
        """Topics that took nothing at the last look."""
        self._topics_in: dict[tuple[int, str], set[str]] = {}
        """Per shard and batch that is kept where its rows go: they are not read at each look."""

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

    def ready(self, *, owner: int) -> list[Unsettled]:
        """What of all that is kept can be looked up now. Raises what `hold_back` raises.

        Its topics must have taken something at the last look too: what their leaders have taken is
        not readable at once. So nothing is ready at the first look."""
        names = {(shard.number, name) for shard, name in kept(self._pending)}
        self._topics_in = {
            one: self._topics_in.get(one) or self._where(self._read(one)) for one in names
        }
        silent = self._topics.silent(set().union(*self._topics_in.values()))
        before, self._silent_before = self._silent_before, silent
        if before is None:
            return []
        now_ms, found = self._clock.now_ms(), []
        for one in sorted(names):
            topics = self._topics_in[one]
            if Batch.named(one[1]).number > now_ms or (topics and topics <= silent | before):
                continue
            batch = self._read(one)
            rest = self._without(silent | before, batch)
            if rest.ids or not batch.ids:
                self._keep(batch, rest, LOOK_AGAIN_MS, owner=owner)
                found.append(rest)
            if sum(len(one.ids) for one in found) > LOOK_UP_COUNT_MAX:
                break  # the others at the next look
        return found

    def _read(self, one: tuple[int, str]) -> Unsettled:
        return read_whole(self._pending.shards[one[0]], one[1])

    def _keep(self, batch: Unsettled, rest: Unsettled, for_ms: int, *, owner: int) -> None:
        left = set(rest.ids)
        ids = [one for one in batch.ids if one not in left]
        keep(batch, ids, until_ms=self._clock.now_ms() + for_ms, owner=owner)

    def _silent(self, batches: Sequence[Unsettled]) -> set[str]:
        return self._topics.silent(set().union(*map(self._where, batches)))

    def _without(self, silent: Collection[str], batch: Unsettled) -> Unsettled:
        where = map(self._all_of, topics_of(batch.packed))
        rows = [
            (i, packed)
            for i, packed, topics in zip(batch.ids, batch.packed, where, strict=True)
            if topics.isdisjoint(silent)
        ]
        return replace(batch, ids=[i for i, _ in rows], packed=[p for _, p in rows])

    def _where(self, batch: Unsettled) -> set[str]:
        """Where its rows go."""
        return set().union(*map(self._all_of, set(topics_of(batch.packed))))

    def _all_of(self, row: tuple[str, str]) -> set[str]:
        """Where a lane sends something for a row with this target that was read from this topic."""
        target, origin = row
        if origin in self._settings.journals:
            return {target, origin, self._settings.history_topic} - {""}
        return {target}
