"""Creates a schedule under a condition, with a true answer.

As for every change: wait until intake has read the inboxes, then decide in the store in one step.
On Kafka that step reserves the id until intake has read the schedule's record, which has no
condition: a store that goes back or is rebuilt must come to what the caller was told.
"""

from dataclasses import replace

from sendlater.dialects import names
from sendlater.errors import NotSupported
from sendlater.limits import ACKNOWLEDGED_MS, RESERVED_MS
from sendlater.model import Schedule
from sendlater.operations.conditions import checked_condition, condition_failed
from sendlater.operations.schedules import Operations
from sendlater.store.codec import pack, version_of
from sendlater.store.conditional import put_if, released


def create_if(operations: Operations, schedule: Schedule, *, only_if: str) -> Schedule:
    """The schedule as it stands now, with its version.

    Raises ConditionFailed, BadRequest, BadTime, NotSupported (with a horizon), Unavailable: then it
    may have been created, and the same call again finds it there.
    """
    settings = operations.settings
    if checked_condition(only_if) == names.ONCE:
        return create_once(operations, schedule)
    if settings.journals and settings.horizon:
        raise NotSupported(
            "only_if: with a horizon the store does not know all schedules, so that it cannot "
            "tell what stands"
        )
    record = operations.checked(schedule)
    standing = _decide(operations, schedule, only_if=only_if)
    if not settings.on_kafka:
        return replace(schedule, version=version_of(schedule))
    # One partition keeps the versions in order.
    inbox, partition = operations.home(standing)
    operations.deliver([replace(record, topic=inbox, partition=partition)])
    found = operations.get(schedule.id)  # waits for intake
    released(operations.pending, schedule.id)
    stands = found is not None and found.due_ms == schedule.due_ms
    return found if found and stands else schedule


def create_once(operations: Operations, schedule: Schedule) -> Schedule:
    """The same, sent so that it counts only if it is the first of its id. Who is not hears nothing.
    Where no store remembers ids (time buckets, a horizon) it always counts. Raises BadRequest,
    BadTime, Unavailable."""
    record = operations.checked(schedule)
    if operations.settings.on_kafka or operations.intake.is_behind():
        headers = [*record.headers, (names.IF, names.ONCE.encode())]
        operations.deliver([replace(record, headers=headers)])
    else:
        operations.pending.require_same()
        row = [schedule.id, f"if {names.ONCE}|{schedule.due_ms}", pack(schedule)]
        operations.pending.shard_of(schedule.id).park(row)
    return schedule


def _decide(operations: Operations, schedule: Schedule, *, only_if: str) -> Schedule | None:
    """Write or reserve; returns what stood under the id. Raises ConditionFailed."""
    settings, reserved = operations.settings, dict[str, int]()
    if settings.on_kafka:
        reserved = {"reserve_ms": RESERVED_MS, "near_ms": settings.margin_ms + ACKNOWLEDGED_MS}
    holds, standing = operations.intake.unreserved(
        lambda: put_if(operations.pending, schedule, only_if=only_if, **reserved)
    )
    if not holds:
        raise condition_failed(only_if, standing)
    return standing
