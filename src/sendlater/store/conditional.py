"""Writes a schedule into the store if a condition about what stands under its id holds."""

import time

from sendlater.errors import StoreUnavailable
from sendlater.limits import CHANGE_KEPT_MS, CHANGES_COUNT_MAX
from sendlater.model import Schedule, State
from sendlater.store.codec import pack, unpack
from sendlater.store.pending import Pending
from sendlater.store.scripts import script

BUSY = "intake is far behind with the copies of changes: try again"


def put_if(
    pending: Pending, schedule: Schedule, *, only_if: str, change: str = ""
) -> tuple[bool, Schedule | None]:
    """Whether the condition held and the schedule was written, and what stood under its id before.

    `change` names the copy that will follow on the inbox. Raises StoreUnavailable, also when Redis
    is full and when too many changes wait for their copies.
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
        change=change,
        now_ms=time.time_ns() // 1_000_000,
        keep_ms=CHANGE_KEPT_MS,
        changes_max=CHANGES_COUNT_MAX,
    )
    if verdict == b"busy":
        raise StoreUnavailable(BUSY)
    standing = unpack(schedule.id, packed, state=State(stands.decode())) if stands else None
    return verdict == b"put", standing
