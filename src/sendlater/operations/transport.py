"""How a client reaches an installation: the face of its transports."""

from collections.abc import Callable, Iterable
from typing import Protocol

from sendlater.model import Cancelled, Moved, Schedule
from sendlater.operations.requests import Query

Done = Callable[[Exception | None], None]
"""Called once, maybe in another thread: None, or why the schedule was not taken."""


class Transport(Protocol):
    """What the client asks of an installation. Safe to share between threads."""

    def send(self, schedule: Schedule, *, done: Done) -> None:
        """Hand over; raises BadRequest or BadTime at once for what would be rejected."""

    def send_many(self, schedules: Iterable[Schedule]) -> int:
        """Hand over all and wait for the last; how many. Raises Unavailable if any was not taken,
        and whatever the iterable raises once those before have been taken."""

    def ready(self) -> bool:
        """Whether `send` would return without waiting."""

    def cancel(self, schedule_id: bytes) -> Cancelled:
        """Take back."""

    def forget(self, schedule_id: bytes) -> None:
        """Take back, without an answer."""

    def reschedule(self, schedule_id: bytes, *, due_ms: int) -> Moved:
        """Give another due time."""

    def deliver_now(self, schedule_id: bytes) -> Moved:
        """Make due at once."""

    def get(self, schedule_id: bytes) -> Schedule | None:
        """Pending or claimed, None otherwise."""

    def page(self, query: Query) -> tuple[list[Schedule], str | None]:
        """Pending schedules and where the next page starts, None after the last."""

    def flush(self) -> None:
        """Wait until everything handed over was taken or refused."""

    def close(self) -> None:
        """Flush and let go."""
