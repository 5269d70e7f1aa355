"""Reads the plans of recurring schedules on their way into the store."""

from typing import Any, NamedTuple

from sendlater.dialects import names
from sendlater.dialects.recurrence import Plan, check_id, read_headers, read_text
from sendlater.errors import BadRequest
from sendlater.limits import REJECTED_DETAIL_CHARS_MAX
from sendlater.model import DUE_MS_MAX, Reason

RECURS = "recurs "
"""Beginning of the `change` of a recurring schedule; the name of its change follows, if any."""
ONCE = (*names.TIMES, names.SPREAD, *names.EXPIRIES[:1])
"""Headers that make no sense beside a plan."""


class Parked(NamedTuple):
    """A row for the store: the recurring schedule, or the record for the rejected topic."""

    id: bytes
    due_ms: int
    change: str | None
    row: tuple[Any, ...]
    plan: str


def read_plan(
    schedule_id: bytes,
    change: str,
    row: tuple[Any, ...],
    *,
    rejected_topic: str,
    keep_input_headers: bool = False,
) -> Parked:
    """A decoded row with a plan, whose headers are those of the inbox record."""
    _, _, _, value, headers, *_, origin, partition, at, stamp_ms = row
    first: dict[str, bytes | None] = {}
    for header in headers:
        first.setdefault(header["key"], header["value"])
    try:
        plan, due_ms = _read(schedule_id, first, stamp_ms)
    except BadRequest as error:
        place = f"{origin}/{partition}/{at}"
        told = {
            names.REJECTED: Reason.BAD_PLAN.value,
            names.REJECTED_DETAIL: str(error)[:REJECTED_DETAIL_CHARS_MAX],
            names.ORIGIN: place,
            names.ORIGIN_TIMESTAMP_MS: str(stamp_ms),
        }
        kept = [
            *headers,
            *({"key": n, "value": v.encode(errors="replace")} for n, v in told.items()),
        ]
        rejected = (rejected_topic, None, schedule_id, value, kept, "rejected", None, None, None)
        id = place.replace("/", "-").encode()
        return Parked(id, max(stamp_ms, 0), None, (*rejected, *row[-4:]), "")
    removed = names.STALE if keep_input_headers else names.CONTROL
    kept = [header for header in headers if header["key"] not in removed]
    meant = (*row[:4], kept, *row[5:])
    return Parked(schedule_id, due_ms, change.removeprefix(RECURS) or None, meant, plan.text)


def _read(schedule_id: bytes, headers: dict[str, bytes | None], stamp_ms: int) -> tuple[Plan, int]:
    """The plan and the due time of its next occurrence. Raises BadRequest."""
    check_id(schedule_id)
    if (text := headers.get(names.PLAN)) is not None:
        plan = read_text(text)
        due = (headers.get(names.DUE_MS) or b"").decode(errors="replace")
        moved = due.isascii() and due.isdigit() and int(due[:20]) <= DUE_MS_MAX
        return plan, int(due) if moved else plan.due_ms(schedule_id)
    for name in ONCE:
        if name in headers:
            raise BadRequest(f"expected a plan without {name}: that is for what comes once")
    plan = read_headers(headers, now_ms=stamp_ms)
    return plan, plan.due_ms(schedule_id)
