"""Batches that a dead run left claimed: read them, and settle the rows that had arrived.

Rows whose topics take nothing for the moment are kept: nobody can tell yet whether they have
arrived. They are moved to batches of lanes that no service has, and are looked up later.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from sendlater.limits import (
    KEPT_LANE,
    LOOK_UP_BYTES_MAX,
    LOOK_UP_COUNT_MAX,
    RELEASE_COUNT_MAX,
    SCAN_COUNT,
)
from sendlater.model import Schedule
from sendlater.store.batch import OVERTAKEN, Batch
from sendlater.store.codec import topics_of, unpack
from sendlater.store.connection import answering
from sendlater.store.pending import Pending
from sendlater.store.scripts import script
from sendlater.store.shard import Shard


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A batch that nobody has settled, and rows of it as the scripts return them."""

    shard: Shard
    name: str
    ids: list[bytes]
    packed: list[bytes]

    @property
    def end_ms(self) -> int:
        """When the batch was to end."""
        return Batch.named(self.name).end_ms

    def schedules(self) -> Iterator[Schedule]:
        """Its rows, unpacked, in their order."""
        return (unpack(*row) for row in zip(self.ids, self.packed, strict=True))

    def standing(self) -> "Unsettled":
        """The same without rows whose id was written again or cancelled since."""
        rows = [row for row in zip(self.ids, self.packed, strict=True) if row[1][0] != OVERTAKEN]
        return replace(self, ids=[i for i, _ in rows], packed=[p for _, p in rows])


def unsettled(
    pending: Pending, *, lane: int | None = None, but: Collection[int] = ()
) -> Iterator[Unsettled]:
    """Batches left behind, of one lane or of all `but` some, in parts; without what is kept, and
    without what they have prefetched, which goes back to pending."""
    for shard in pending.shards:
        for name, of_lane in shard.batches().items():
            if lane == of_lane or (lane is None and of_lane < KEPT_LANE and of_lane not in but):
                shard.recall(name)
                yield from read_batch(shard, name)


def count_rows(pending: Pending, lanes: Collection[int]) -> int:
    """How many rows the batches of these lanes hold."""
    return sum(
        shard.held(name)
        for shard in pending.shards
        for name, lane in shard.batches().items()
        if lane in lanes
    )


def recall_lanes(pending: Pending, lanes: Collection[int]) -> None:
    """Put back what these lanes have prefetched."""
    for shard in pending.shards:
        for name, of_lane in shard.batches().items():
            if of_lane in lanes:
                shard.recall(name)


def kept(pending: Pending) -> Iterator[tuple[Shard, str]]:
    """The names of batches of what is kept."""
    for shard in pending.shards:
        for name, of_lane in shard.batches().items():
            if of_lane >= KEPT_LANE:
                yield shard, name


def read_batch(shard: Shard, name: str) -> Iterator[Unsettled]:
    """A batch as it stands, in parts that fit into memory, each with rows. While rows are taken
    out of it another one may come twice."""
    rows: dict[bytes, bytes] = {}
    cursor, size = 0, 0
    while True:
        with answering():
            cursor, found = shard.client.hscan(shard._batch_key(name), cursor, count=SCAN_COUNT)
        rows |= found
        size += sum(map(len, found.values()))
        is_full = len(rows) >= LOOK_UP_COUNT_MAX or size >= LOOK_UP_BYTES_MAX
        if rows and (is_full or cursor == 0):
            yield Unsettled(shard, name, list(rows), list(rows.values()))
            rows, size = {}, 0
        if cursor == 0:
            return


def read_whole(shard: Shard, name: str) -> Unsettled:
    """All of a batch that keeps rows: no more than was looked up at once."""
    rows: dict[bytes, bytes] = {}
    for part in read_batch(shard, name):
        rows.update(zip(part.ids, part.packed, strict=True))
    return Unsettled(shard, name, list(rows), list(rows.values()))


def touch_kept(pending: Pending) -> None:
    """Have no filling from journals write what is kept: its versions stand there until it is known
    whether they have arrived."""
    for shard, name in kept(pending):
        gone = [
            f"\0{o.topic}/{o.partition}/{o.position}\0".encode() + one.id
            for one in read_whole(shard, name).schedules()
            if (o := one.origin) is not None
        ]
        for first in range(0, len(gone), RELEASE_COUNT_MAX):
            with answering():
                shard.client.sadd(shard.keys["touched"], *gone[first : first + RELEASE_COUNT_MAX])


def keep(batch: Unsettled, ids: Sequence[bytes], *, until_ms: int, owner: int) -> None:
    """Keep rows of a batch, which are not looked up before `until_ms`: that is the number of the
    batch that keeps them. Its end stays, as deliveries are looked for from there on."""
    of = Batch.named(batch.name)
    lane = of.lane + (KEPT_LANE if of.lane < KEPT_LANE else 0)
    keeper = Batch(lane, of.run, of.end_ms, until_ms).name
    for first in range(0, len(ids), RELEASE_COUNT_MAX):
        script("keep")(
            batch.shard.client,
            **batch.shard._keys("state", "batches"),
            batch=batch.shard._batch_key(batch.name),
            kept=batch.shard._batch_key(keeper),
            owner=owner,
            name=keeper,
            lane=lane,
            rest=list(ids[first : first + RELEASE_COUNT_MAX]),
        )


def goes_to(pending: Pending, lane: int, topics: Collection[str]) -> bool:
    """Whether a lane has claimed anything for or from one of these topics that is not settled."""
    return any(
        target in topics or origin in topics
        for batch in unsettled(pending, lane=lane)
        for target, origin in topics_of(batch.packed)
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
