"""Writes a schedule into the store if a condition about what stands under its id holds, or, where
schedules come from an inbox, reserves the id until its record has been read there."""

import time

from sendlater.errors import StoreUnavailable
from sendlater.limits import CHANGE_KEPT_MS, CHANGES_COUNT_MAX
from sendlater.model import Schedule, State
from sendlater.store.codec import pack, unpack
from sendlater.store.connection import answering
from sendlater.store.pending import Pending
from sendlater.store.scripts import script

BUSY = "intake is far behind with the copies of changes: try again"
RESERVED = "somebody else is creating a schedule with this id: try again"


class Reserved(StoreUnavailable):
    """Somebody else has reserved the id, for a moment."""


def put_if(
    pending: Pending, schedule: Schedule, *, only_if: str, reserve_ms: int = 0, near_ms: int = 0
) -> tuple[bool, Schedule | None]:
    """Whether the condition held and the schedule was written, and what stood under its id before.

    With `reserve_ms` the id is reserved instead, for so long or until `released`; what stands and
    is due within `near_ms` counts as being delivered. Raises Reserved, and StoreUnavailable, also
    when Redis is full and when too many changes wait for their copies.
    """
    shard = pending.shard_of(schedule.id)
    names = ("due", "record", "state", "wake", "batches", "changes", "aside")
    verdict, stands, packed = script("put")(
        shard.client,
        **shard._keys(*names),
        id=schedule.id,
        due_ms=schedule.due_ms,
        packed_record=pack(schedule),
        only_if=only_if,
        now_ms=time.time_ns() // 1_000_000,
        reserve_ms=reserve_ms,
        keep_ms=CHANGE_KEPT_MS,
        changes_max=CHANGES_COUNT_MAX,
        near_ms=near_ms,
    )
    if verdict == b"busy":
        raise StoreUnavailable(BUSY)
    if verdict == b"reserved":
        raise Reserved(RESERVED)
    standing = unpack(schedule.id, packed, state=State(stands.decode())) if stands else None
    return verdict == b"put", standing


def released(pending: Pending, schedule_id: bytes) -> None:
    """End the reservation of an id. Raises StoreUnavailable."""
    shard = pending.shard_of(schedule_id)
    with answering():
        shard.client.zrem(shard.keys["changes"], b"new " + schedule_id)
