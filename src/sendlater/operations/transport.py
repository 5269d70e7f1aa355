"""The interface of a client's transports to an installation."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sendlater.model import Cancelled, Moved, Paused, Schedule
from sendlater.operations.queries import Query

Done = Callable[[Exception | None], None]
"""Called once, maybe in another thread: with None, or with why the schedule was not accepted."""


@dataclass(frozen=True, slots=True)
class Matched:
    """What became of all schedules that matched: how many there were, and how many are cancelled
    (of a dry run none). Those that were being delivered, or were replaced meanwhile, are not.

    `later`: how many are due beyond the horizon of a journal, where no filter sees them.
    `audit_id`: the entry of the audit trail by which it can be undone; over REST only.
    """

    matched: int
    cancelled: int
    audit_id: str | None = None
    later: int = 0


class Opens(Protocol):
    """An installation that is an object, such as sendlater.testing.Fake."""

    def open_transport(self) -> "Transport":
        """A client's connection to it."""
        ...


class Transport(Protocol):
    """The calls of a client to an installation. Safe to share between threads."""

    def send(self, schedule: Schedule, *, done: Done) -> None:
        """Send a schedule; raises BadRequest or BadTime at once if intake would reject it."""

    def create(self, schedule: Schedule, *, only_if: str) -> Schedule:
        """Create a schedule under a condition, and wait. Raises BadRequest, ConditionFailed,
        NotSupported, Unavailable."""

    def send_many(self, schedules: Iterable[Schedule]) -> int:
        """Send all and wait for the last; returns their number. Raises Unavailable if any was not
        accepted. If the iterable raises, the schedules before that are sent first."""

    def now_ms(self) -> int:
        """The clock that delays count from, milliseconds since 1970."""

    def ready(self) -> bool:
        """Whether `send` would return without waiting."""

    def cancel(self, schedule_id: bytes) -> Cancelled:
        """Cancel a schedule."""

    def cancel_many(self, ids: Sequence[bytes]) -> list[Cancelled]:
        """Cancel schedules; an answer for each, in order."""

    def cancel_matching(self, query: Query, *, dry_run: bool) -> Matched:
        """Cancel all that a query without limit and cursor finds, or only count them. Raises
        BadRequest for more than BULK_COUNT_MAX."""

    def forget(self, schedule_id: bytes) -> None:
        """Cancel a schedule, without an answer."""

    def reschedule(self, schedule_id: bytes, *, due_ms: int) -> Moved:
        """Give a schedule another due time."""

    def deliver_now(self, schedule_id: bytes) -> Moved:
        """Make a schedule due at once."""

    def pause(self, schedule_id: bytes) -> Paused:
        """Deliver nothing of a recurring schedule until it is resumed. Raises BadRequest for one
        that comes once, as the next two."""

    def resume(self, schedule_id: bytes) -> Paused:
        """Go on with the first planned time after now."""

    def trigger(self, schedule_id: bytes) -> Schedule | None:
        """Send an occurrence beside the plan, due now; None if there is no such schedule."""

    def get(self, schedule_id: bytes) -> Schedule | None:
        """A pending or claimed schedule, None otherwise."""

    def page(self, query: Query) -> tuple[list[Schedule], str | None]:
        """Pending schedules and where the next page starts, None after the last."""

    def flush(self) -> None:
        """Wait until everything sent was accepted or refused."""

    def close(self) -> None:
        """Flush and disconnect."""
