"""Recurring schedules in a lane's batch: an occurrence is delivered, the schedule comes again."""

from collections.abc import Sequence
from dataclasses import dataclass

from sendlater.model import Schedule
from sendlater.store.batch import Batch
from sendlater.store.codec import pack, with_due
from sendlater.store.scripts import script
from sendlater.store.shard import Shard


@dataclass(frozen=True, slots=True)
class Recurring:
    """A claimed row: what is delivered of it, and how it comes again; None: neither."""

    id: bytes
    occurrence: Schedule | None
    again: Schedule | None


def recur(
    shard: Shard, batch: Batch, rows: Sequence[Recurring], *, owner: int, attempt: str
) -> list[tuple[bytes, bytes]]:
    """Put occurrences of these rows into their batch; returns ids and packed rows of those that are
    in it now. The schedules come again with `renew`.

    Raises LaneEnded if another attempt is at work, Fenced, StoreUnavailable.
    """
    placed: list[tuple[bytes, bytes]] = []
    flat: list[bytes | int] = []
    for row in rows:
        one, again = row.occurrence, row.again
        placed.append((one.id, with_due(one.due_ms, pack(one))) if one else (b"", b""))
        then = (again.due_ms, pack(again)) if again else (b"", b"")
        flat += (row.id, *placed[-1], *then)
    told = script("recur")(
        shard.client,
        **shard._keys("state", "batches"),
        **shard._at_work(batch, attempt),
        owner=owner,
        rest=flat,
    )
    return [one for one, stood in zip(placed, told, strict=True) if stood and one[0]]


def renew(shard: Shard, batch: Batch, ids: Sequence[bytes], *, owner: int, attempt: str) -> None:
    """Put these recurring schedules of a batch back to pending: their occurrences are on their way.

    Raises LaneEnded if another attempt is at work, Fenced, StoreUnavailable.
    """
    script("renew")(
        shard.client,
        **shard._keys("due", "record", "state", "batches", "wake"),
        **shard._at_work(batch, attempt),
        owner=owner,
        rest=list(ids),
    )
