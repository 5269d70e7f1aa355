"""Rows of a batch that are not delivered: another schedule comes in place of each, or nothing."""

from collections.abc import Iterable

from sendlater.model import Schedule
from sendlater.store.batch import Batch
from sendlater.store.codec import pack
from sendlater.store.scripts import script
from sendlater.store.shard import Shard


def expire(
    shard: Shard,
    batch: Batch,
    rows: Iterable[tuple[bytes, Schedule | None]],
    *,
    owner: int,
    attempt: str = "",
) -> int:
    """Replace rows of a batch by another schedule each, or drop them; returns how many.

    Raises LaneEnded if another attempt is at work, Fenced, StoreUnavailable.
    """
    flat: list[bytes | int] = []
    for schedule_id, instead in rows:
        told = (instead.id, instead.due_ms, pack(instead)) if instead else (b"", 0, b"")
        flat += (schedule_id, *told)
    count: int = script("expire")(
        shard.client,
        **shard._keys("due", "record", "state", "batches", "wake"),
        **shard._at_work(batch, attempt),
        owner=owner,
        rest=flat,
    )
    return count
