"""Takes rows that have expired out of a lane's batch, before anything is delivered."""

from collections import Counter
from collections.abc import Sequence

from sendlater.clock import Clock
from sendlater.dialects.rejected import dropped_schedule, expired_schedule
from sendlater.model import Schedule
from sendlater.store import Batch, Claim, Shard
from sendlater.store.codec import EXPIRES, unpack
from sendlater.store.expiring import expire


def has_expired(schedule: Schedule, *, now_ms: int) -> bool:
    """Whether a schedule must not be delivered any more."""
    return schedule.expires_ms is not None and schedule.expires_ms < now_ms


def expired_rows(got: Claim, kinds: Sequence[int], clock: Clock) -> dict[int, Schedule]:
    """The rows of a claim that have expired, by their places in it. Only those whose kind has an
    expiry are unpacked."""
    if max(kinds, default=0) < EXPIRES:
        return {}
    now_ms = clock.now_ms()
    expiring = (
        (n, unpack(got.ids[n], got.packed[n])) for n, kind in enumerate(kinds) if kind >= EXPIRES
    )
    return {n: one for n, one in expiring if has_expired(one, now_ms=now_ms)}


def instead_of(
    schedule: Schedule, *, now_ms: int, dead_topic: str, journals: Sequence[str]
) -> Schedule | None:
    """What is delivered instead of an expired schedule: its record for `dead_topic` or, if that is
    empty, for a journal a tombstone, else nothing."""
    if dead_topic:
        return expired_schedule(schedule, now_ms=now_ms, topic=dead_topic)
    origin = schedule.origin
    return dropped_schedule(schedule) if origin and origin.topic in journals else None


def take_out(
    shard: Shard,
    batch: Batch,
    expired: Sequence[Schedule],
    *,
    owner: int,
    attempt: str,
    now_ms: int,
    dead_topic: str,
    journals: Sequence[str],
) -> Counter[str]:
    """Replace these rows of a batch, or drop them; returns the counters to add."""
    rows = [
        (one.id, instead_of(one, now_ms=now_ms, dead_topic=dead_topic, journals=journals))
        for one in expired
    ]
    expire(shard, batch, rows, owner=owner, attempt=attempt)
    return Counter(f"expired:{one.record.topic}" for one in expired)
