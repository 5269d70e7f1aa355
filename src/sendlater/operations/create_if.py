"""Creates a schedule under a condition, with a true answer.

As for every change: wait until intake has read the inboxes, decide and write in the store in one
step, then leave a copy on the inbox. The copy has no condition: a store that goes back must come to
what the caller was told.
"""

from contextlib import suppress
from dataclasses import replace

from sendlater.errors import NotSupported, StoreUnavailable
from sendlater.model import Schedule
from sendlater.operations.arguments import new_id
from sendlater.operations.conditions import checked_condition, condition_failed
from sendlater.operations.schedules import Operations
from sendlater.store.codec import version_of
from sendlater.store.conditional import put_if
from sendlater.store.connection import answering


def create_if(operations: Operations, schedule: Schedule, *, only_if: str) -> Schedule:
    """The schedule as it stands now, with its version.

    Raises ConditionFailed, BadRequest, BadTime, NotSupported (with a horizon), Unavailable: then it
    may have been created, and the same call again finds it there.
    """
    settings = operations.settings
    checked_condition(only_if)
    if settings.journals and settings.horizon:
        raise NotSupported(
            "only_if: with a horizon the store does not know all schedules, so that it cannot "
            "tell what stands"
        )
    change = new_id() if settings.on_kafka else ""
    copy = operations.checked(schedule, change=change)
    operations.catch_up()
    with answering():
        before = operations.pending.get(schedule.id)
    schedule = _in_place_of(before, schedule, operations)
    holds, standing = put_if(operations.pending, schedule, only_if=only_if, change=change)
    if not holds:
        raise condition_failed(only_if, standing)
    if change:
        inbox, partition = operations.home(standing)
        operations.leave_copies([(replace(copy, topic=inbox), partition)])
    return replace(schedule, version=_version_now(schedule, operations))


def _version_now(schedule: Schedule, operations: Operations) -> str:
    """Its version. On a journal its copy makes it a new one, as soon as that has been read."""
    if operations.settings.journals:
        with suppress(StoreUnavailable):  # it has been created all the same
            found = operations.get(schedule.id)
            if found is not None and found.due_ms == schedule.due_ms:
                return found.version
    return version_of(schedule)


def _in_place_of(before: Schedule | None, schedule: Schedule, operations: Operations) -> Schedule:
    """The schedule with the origin of what it replaces: later changes go to that partition too. On
    a journal an origin is a version, which the copy gives it."""
    origin = None if before is None else before.origin
    kept = set(operations.inboxes) - set(operations.settings.journals)
    if not operations.settings.on_kafka or origin is None or origin.topic not in kept:
        return schedule
    return replace(schedule, origin=origin, dialect="headers")
