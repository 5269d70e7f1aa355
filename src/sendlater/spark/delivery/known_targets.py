"""What a task knows of target topics, and whether they take its rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sendlater.clock import Clock
from sendlater.limits import ADDED_BYTES_MAX
from sendlater.model import Target
from sendlater.store import Claim, Shard
from sendlater.store.codec import unpack

REFRESH_MS = 200
"""How long a task uses its copy of the known target topics."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What some rows need of their targets, at worst."""

    topics: frozenset[bytes]
    sources: frozenset[bytes]
    bytes_max: int
    keyless: bool
    """Whether a row has no key."""
    placed: bool
    """Whether a row names its partition."""

    @classmethod
    def of(
        cls, ids: Sequence[bytes], packed: Sequence[bytes], columns: Sequence[Sequence[Any]]
    ) -> "Needs":
        """`columns`: of `unpack_columns`."""
        return cls(
            topics=frozenset(columns[1]),
            sources=frozenset(columns[7]),
            # A delivered record has its id in three places at most.
            bytes_max=max(map(len, packed)) + 3 * max(map(len, ids)),
            keyless=None in columns[3],
            placed=columns[2].count(None) < len(ids),
        )


class KnownTargets:
    """A task's copy of the known targets; an old one is read again."""

    def __init__(self, shard: Shard, clock: Clock) -> None:
        self._shard, self._clock = shard, clock
        self._known: dict[bytes, Target] = {}
        self._until_ms = 0

    def take_all(self, needs: Needs) -> bool:
        """Whether all these rows are known to be taken. Nearly always this is enough."""
        now_ms = self._clock.now_ms()
        if now_ms >= self._until_ms or not needs.topics <= self._known.keys():
            # An emptied store knows none. What was claimed before is delivered: a later occurrence
            # of its schedule may have told the journal already where the plan stands.
            self._known = self._shard.targets() or self._known
            self._until_ms = now_ms + REFRESH_MS
        bytes_max, with_key = self._at_most(needs)
        clear = needs.bytes_max <= bytes_max and not (with_key and needs.keyless)
        return clear and not needs.placed and needs.topics <= self._known.keys()

    def _at_most(self, needs: Needs) -> tuple[int, bool]:
        """How large a record may be, and whether it must have a key, for all their topics."""
        known = self._known
        copies = {
            copy.encode() for topic in needs.sources & known.keys() for copy in known[topic].copies
        }
        given = [known[topic] for topic in (needs.topics | copies) & known.keys()]
        bytes_max = min((target.record_bytes_max for target in given), default=0)
        return bytes_max - ADDED_BYTES_MAX, any(target.compacted for target in given)

    def refused(self, got: Claim, columns: Sequence[Sequence[Any]]) -> set[int]:
        """Rows of which it is not known that their target takes them. Only unusual ones are
        measured."""
        ids, packed = got.ids, got.packed
        topics, partitions, keys = columns[1], columns[2], columns[3]
        needs = Needs.of(ids, packed, columns)
        if self.take_all(needs):
            return set()
        known, (bytes_max, with_key) = self._known, self._at_most(needs)

        def stands_out(i: int) -> bool:
            return (
                len(packed[i]) + 3 * len(ids[i]) > bytes_max
                or (with_key and keys[i] is None)
                or (partitions[i] or 0) >= known[topics[i]].partitions
            )

        return {
            i
            for i, topic in enumerate(topics)
            if topic not in known or (stands_out(i) and self._is_refused(ids[i], packed[i]))
        }

    def _is_refused(self, schedule_id: bytes, packed: bytes) -> bool:
        from sendlater.spark.delivery.refusal import refusal

        schedule = unpack(schedule_id, packed)
        return refusal(schedule, lambda topic: self._known.get(topic.encode())) is not None
