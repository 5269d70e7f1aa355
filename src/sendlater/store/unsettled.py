"""Batches that a dead run left claimed: read them, and settle the rows that had arrived."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from sendlater.limits import RELEASE_COUNT_MAX
from sendlater.store.codec import unpack
from sendlater.store.connection import answering
from sendlater.store.pending import Pending
from sendlater.store.scripts import script
from sendlater.store.shard import OVERTAKEN, Batch, Shard


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A batch that nobody has settled, and its rows as the scripts return them."""

    shard: Shard
    name: str
    ids: list[bytes]
    packed: list[bytes]

    @property
    def end_ms(self) -> int:
        """When the batch was to end."""
        return Batch.named(self.name).end_ms

    def standing(self) -> "Unsettled":
        """The same without rows whose id was written again or cancelled since."""
        rows = [row for row in zip(self.ids, self.packed, strict=True) if row[1][0] != OVERTAKEN]
        return replace(self, ids=[i for i, _ in rows], packed=[p for _, p in rows])


def unsettled(pending: Pending, *, lane: int | None = None) -> Iterator[Unsettled]:
    """Batches left behind, of one lane or of all."""
    for shard in pending.shards:
        for name, of_lane in shard.batches().items():
            if lane is None or lane == of_lane:
                with answering():
                    rows = shard.client.hgetall(shard._batch_key(name))
                if rows:
                    yield Unsettled(shard, name, list(rows), list(rows.values()))


def goes_to(pending: Pending, lane: int, topics: Collection[str]) -> bool:
    """Whether a lane has claimed anything for one of these topics that is not settled."""
    return any(
        unpack(schedule_id, packed).record.topic in topics
        for batch in unsettled(pending, lane=lane)
        for schedule_id, packed in zip(batch.ids, batch.packed, strict=True)
    )


def settle_some(batch: Unsettled, ids: Sequence[bytes], *, owner: int) -> None:
    """Drop rows of a batch that were found on their target topics."""
    for first in range(0, len(ids), RELEASE_COUNT_MAX):
        script("settle_some")(
            batch.shard.client,
            state=batch.shard.keys["state"],
            batch=batch.shard._batch_key(batch.name),
            owner=owner,
            rest=list(ids[first : first + RELEASE_COUNT_MAX]),
        )
