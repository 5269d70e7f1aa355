"""Reads the plans of recurring schedules on their way into the store."""

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from sendlater.dialects import names
from sendlater.dialects.cron import DAY_MS
from sendlater.dialects.recurrence import Plan, check_id, read_headers, read_text, shown_at
from sendlater.dialects.rejected import waited_as
from sendlater.errors import BadRequest, BadTime
from sendlater.limits import REJECTED_DETAIL_CHARS_MAX
from sendlater.model import DUE_MS_MAX, Reason

if TYPE_CHECKING:
    from sendlater.config import Settings

_log = structlog.get_logger()

RECURS = "recurs "
"""Beginning of the `change` of a recurring schedule; the name of its change follows, if any."""
AGAIN = "again "
"""Beginning of the `change` of a copy on a journal; its version follows."""
ONCE = (*names.TIMES, names.SPREAD, *names.EXPIRIES[:1])
"""Headers that make no sense beside a plan; CloudEvents' expiry is one where it is taken."""


UNREADABLE = (BadRequest, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a plan may do to its reader, whenever it is read: it is rejected, and stops nobody else."""


class Parked(NamedTuple):
    """A row for the store: the recurring schedule, or the record for the rejected topic."""

    id: bytes
    due_ms: int
    change: str | None
    row: tuple[Any, ...]
    plan: str
    waited: tuple[bytes, ...] = ()
    """Of a copy that a delivery has left on the journal: the ids that its occurrence may have."""


@dataclass(frozen=True)
class PlanReader:
    """Reads plans as these settings want it; travels to tasks."""

    rejected_topic: str = "rejected"
    keep_input_headers: bool = False
    max_delay_days: int = 3_660
    ce_expirytime: bool = False

    @classmethod
    def of(cls, settings: "Settings") -> "PlanReader":
        """As an installation wants it."""
        return cls(**{one.name: getattr(settings, one.name) for one in fields(cls)})

    def read(self, schedule_id: bytes, change: str, row: tuple[Any, ...]) -> Parked:
        """A decoded row with a plan, whose headers are those of the inbox record. Whatever they
        are it raises nothing, because intake would meet them again and again."""
        first: dict[str, bytes | None] = {}
        for header in row[4] or ():
            first.setdefault(header["key"], header["value"])
        try:
            return self._meant(schedule_id, change.removeprefix(RECURS), row, first)
        except UNREADABLE as error:
            return self._rejected(schedule_id, row, error)

    def _meant(
        self,
        schedule_id: bytes,
        change: str,
        row: tuple[Any, ...],
        first: dict[str, bytes | None],
    ) -> Parked:
        """The schedule; raises any of UNREADABLE."""
        removed = (*names.STALE, names.PLAN) if self.keep_input_headers else names.CONTROL
        if names.COPIED in first:
            removed = (*removed, names.COPIED, names.ORIGIN_TIMESTAMP_MS)
        once = (*ONCE, names.CE_EXPIRYTIME) if self.ce_expirytime else ONCE
        stamp_ms = _written_ms(first, row[-1])
        plan, due_ms = _read(schedule_id, first, stamp_ms, self.max_delay_days, once)
        kept = [header for header in row[4] or () if header["key"] not in removed]
        if plan is None:
            kept.append({"key": names.SCHEDULE, "value": first[names.SCHEDULE]})
            return Parked(schedule_id, due_ms, change or None, (*row[:4], kept, *row[5:]), "")
        meant = (*row[:4], kept, *row[5:])
        waited: tuple[bytes, ...] = ()
        if change.startswith(AGAIN):
            waited = waited_as(schedule_id, first.get(names.ID) or b"", change.split()[1])
            # The store compares how far two copies of a version have come.
            change = f"{change} {plan.planned_ms} {plan.changes}"
        return Parked(schedule_id, due_ms, change or None, meant, plan.text, waited)

    def _rejected(self, schedule_id: bytes, row: tuple[Any, ...], error: Exception) -> Parked:
        """The record itself, for the rejected topic."""
        origin, partition, at, stamp_ms = row[-4:]
        reason = Reason.TOO_FAR if isinstance(error, BadTime) else Reason.BAD_PLAN
        if not isinstance(error, BadRequest):
            told = {"topic": origin, "partition": partition, "at": at}
            _log.error("a plan cannot be read", **told, exc_info=error)
        place = f"{origin}/{partition}/{at}"
        marks = {
            names.REJECTED: reason.value,
            names.REJECTED_DETAIL: (str(error) or repr(error))[:REJECTED_DETAIL_CHARS_MAX],
            names.ORIGIN: place,
            names.ORIGIN_TIMESTAMP_MS: str(stamp_ms),
        }
        kept = [
            *(row[4] or ()),
            *({"key": n, "value": v.encode(errors="replace")} for n, v in marks.items()),
        ]
        rejected = (self.rejected_topic, None, schedule_id, row[3], kept, "rejected")
        id = place.replace("/", "-").encode()
        return Parked(id, max(stamp_ms, 0), None, (*rejected, None, None, None, *row[-4:]), "")


def of_version(row: tuple[Any, ...], change: str | None) -> tuple[Any, ...]:
    """The row of a copy on a journal, with the position of its version."""
    if change is None or not change.startswith(AGAIN):
        return row
    version = change.split()[1]
    return (*row[:-2], int(version.rpartition("/")[2]), row[-1])


def _written_ms(headers: dict[str, bytes | None], stamp_ms: int) -> int:
    """When a schedule was written; a copy tells when its original was."""
    told = (headers.get(names.ORIGIN_TIMESTAMP_MS) or b"").decode(errors="replace")
    is_copy = names.COPIED in headers and told.isascii() and told.isdigit()
    return min(int(told[:20]), stamp_ms) if is_copy else stamp_ms


def _read(
    schedule_id: bytes,
    headers: dict[str, bytes | None],
    stamp_ms: int,
    days_max: int,
    once: tuple[str, ...] = ONCE,
) -> tuple[Plan | None, int]:
    """The plan and the due time of its next occurrence; no plan of one that is beside it. Raises
    BadTime if the first occurrence is too far away, and BadRequest."""
    text = headers.get(names.PLAN)
    due = (headers.get(names.DUE_MS) or b"").decode(errors="replace")
    moved = bool(re.fullmatch(names.WHOLE_MS, due)) and int(due) <= DUE_MS_MAX
    if text == names.EXTRA:
        of = headers.get(names.SCHEDULE)
        if not moved or not of or not schedule_id.startswith(of + b"@"):
            raise BadRequest("expected an occurrence with its schedule and its due time")
        return None, int(due)
    check_id(schedule_id)
    if text is not None:
        plan = read_text(text)
        return plan, int(due) if moved else plan.due_ms(schedule_id)
    for name in once:
        if name in headers:
            raise BadRequest(f"expected a plan without {name}: that is for what comes once")
    plan = read_headers(headers, now_ms=stamp_ms)
    due_ms = plan.due_ms(schedule_id)
    if due_ms - stamp_ms > days_max * DAY_MS:
        first = shown_at(plan.planned_ms, plan.zone)
        raise BadTime(f"expected a first time within {days_max} days, got {first}")
    return plan, due_ms
