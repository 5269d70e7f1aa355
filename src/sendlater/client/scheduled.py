"""What the client returns: a schedule with methods to change it, and pages of schedules."""

import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from sendlater.model import Cancelled, Headers, Moved, Paused, Schedule, State
from sendlater.operations.arguments import Delay, Instant, id_text, to_datetime

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list; `next_cursor` asks for the next page, None after the last."""

    items: list[T]
    next_cursor: str | None


class Changes(Protocol):
    """What a Scheduled needs from its client."""

    def cancel(self, id: str) -> Cancelled:
        """See Scheduler.cancel."""

    def _reschedule(self, id: str, *, delay: Delay | None, at: Instant | None) -> tuple[Moved, int]:
        """The answer, and the new due time in milliseconds since 1970."""

    def deliver_now(self, id: str) -> Moved:
        """See Scheduler.deliver_now."""

    def pause(self, id: str) -> Paused:
        """See Scheduler.pause."""

    def resume(self, id: str) -> Paused:
        """See Scheduler.resume."""

    def trigger(self, id: str) -> "Scheduled | None":
        """See Scheduler.trigger."""


class Scheduled:
    """A schedule as it was sent or found, with methods to change it."""

    def __init__(self, owner: Changes, schedule: Schedule) -> None:
        self._owner = owner
        self.schedule = schedule

    @property
    def id(self) -> str:
        """Its id: a new schedule with the same id replaces it."""
        return id_text(self.schedule.id)

    @property
    def due_ms(self) -> int:
        """When it is due, milliseconds since 1970."""
        return self.schedule.due_ms

    @property
    def due_at(self) -> datetime:
        """When it is due, in UTC."""
        return to_datetime(self.schedule.due_ms)

    @property
    def expires_at(self) -> datetime | None:
        """The last instant at which it may be delivered, in UTC."""
        expires_ms = self.schedule.expires_ms
        return None if expires_ms is None else to_datetime(expires_ms)

    @property
    def plan(self) -> dict[str, Any] | None:
        """When it comes again, if it recurs: docs/recurring.md."""
        return json.loads(self.schedule.plan) if self.schedule.plan else None

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags, in the order they were given: docs/tags.md."""
        return self.schedule.tags

    @property
    def state(self) -> State:
        """Its state when it was sent or found."""
        return self.schedule.state

    @property
    def version(self) -> str:
        """Its version, new after every change, for `only_if="version=V"`; empty if it was just sent
        without a condition."""
        return self.schedule.version

    @property
    def topic(self) -> str:
        """Its target topic."""
        return self.schedule.record.topic

    @property
    def value(self) -> bytes | None:
        """Its payload."""
        return self.schedule.record.value

    @property
    def key(self) -> bytes | None:
        """Its key on the target topic."""
        return self.schedule.record.key

    @property
    def headers(self) -> Headers:
        """Its headers, in order."""
        return self.schedule.record.headers

    @property
    def partition(self) -> int | None:
        """Its partition on the target topic, if one was requested."""
        return self.schedule.record.partition

    def cancel(self) -> Cancelled:
        """See Scheduler.cancel."""
        return self._owner.cancel(self.id)

    def reschedule(self, *, delay: Delay | None = None, at: Instant | None = None) -> Moved:
        """See Scheduler.reschedule; after `moved`, `due_at` is the new time."""
        return self._follow(*self._owner._reschedule(self.id, delay=delay, at=at))

    def deliver_now(self) -> Moved:
        """See Scheduler.deliver_now."""
        return self._owner.deliver_now(self.id)

    def pause(self) -> Paused:
        """See Scheduler.pause."""
        return self._owner.pause(self.id)

    def resume(self) -> Paused:
        """See Scheduler.resume."""
        return self._owner.resume(self.id)

    def trigger(self) -> "Scheduled | None":
        """See Scheduler.trigger."""
        return self._owner.trigger(self.id)

    def _follow(self, answer: Moved, moved_to_ms: int) -> Moved:
        if answer is Moved.MOVED:
            self.schedule = replace(self.schedule, due_ms=moved_to_ms)
        return answer

    def __repr__(self) -> str:
        return f"<{self.id} to {self.topic} at {self.due_at.isoformat()} {self.state}>"
