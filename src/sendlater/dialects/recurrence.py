"""Recurring schedules: a plan says when a schedule comes again. No I/O, and no clock of its own.

A plan counts from its planned times, never from when something was delivered, so it does not drift.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from sendlater.dialects import names
from sendlater.dialects.cron import EPOCH, MS, cron_after, zone_of
from sendlater.dialects.when import WHOLE, duration_ms, rfc3339_ms, share_of
from sendlater.errors import BadRequest, BadTime
from sendlater.limits import (
    EVERY_MS_MIN,
    ID_BYTES_MAX,
    JITTER_MS_MAX,
    MISSED_COUNT_MAX,
    MISSED_LATE_MS_MAX,
)
from sendlater.model import DUE_MS_MAX, PAUSED_MS, Headers, Record, Schedule

if TYPE_CHECKING:  # clients import this room too, and need no settings to encode
    from sendlater.config import Settings

MISSED = ("one", "none", "all")
"""What becomes of occurrences that were missed; the first is the default."""
ADDED_ID_BYTES = 1 + len(str(DUE_MS_MAX))
"""How much longer the id of an occurrence is than its schedule's."""
PLAN_HEADERS = {
    "every": names.EVERY,
    "cron": names.CRON,
    "zone": names.ZONE,
    "start": names.START,
    "end": names.END,
    "count": names.COUNT,
    "jitter": names.JITTER,
    "missed": names.MISSED,
}
"""Words of a plan, and their headers."""


class Plan(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True
):
    """When a schedule comes again, and where it stands. Its text is JSON of these fields."""

    every_ms: int | None = None
    cron: str | None = None
    zone: str = "UTC"
    end_ms: int | None = None
    left: int | None = None
    """How many occurrences are still delivered; None: no limit."""
    jitter_ms: int = 0
    missed: str = MISSED[0]
    planned_ms: int
    """The planned time of the next occurrence."""
    overdue: int = 0
    """With missed `all`: how many were delivered one after the other that were too late."""
    paused: bool = False
    """Whether it waits to be resumed."""
    changes: int = 0
    """How often it was paused, resumed or moved since an occurrence: of copies on a journal the
    last one counts."""

    @property
    def text(self) -> str:
        """The canonical text form; `read_text` is the inverse."""
        return msgspec.json.encode(self).decode()

    def next_after(self, after_ms: int) -> int | None:
        """The first planned time after this one; None: the plan is over."""
        if self.every_ms is not None:
            steps = (after_ms - self.planned_ms) // self.every_ms + 1
            found: int | None = self.planned_ms + max(0, steps) * self.every_ms
        else:
            found = cron_after(self.cron or "", self.zone, after_ms)
        if found is None or found > DUE_MS_MAX - self.jitter_ms:
            return None
        return None if self.end_ms is not None and found > self.end_ms else found

    def occurrence_id(self, schedule_id: bytes) -> bytes:
        """The id of the next occurrence, the same whenever it is delivered."""
        return b"%s@%d" % (schedule_id, self.planned_ms)

    def due_ms(self, schedule_id: bytes) -> int:
        """When the next occurrence is due: as planned, or later by a part of the jitter."""
        if self.paused:
            return PAUSED_MS
        return self.planned_ms + share_of(self.jitter_ms, self.occurrence_id(schedule_id))

    def pause(self) -> "Plan":
        """The same, paused."""
        return msgspec.structs.replace(self, paused=True, changes=self.changes + 1)

    def resume(self, now_ms: int) -> "Plan | None":
        """The same plan at its first time after now; None: it is over."""
        planned_ms = self.next_after(max(now_ms, self.planned_ms - 1))
        return self.at(planned_ms, paused=False, overdue=0, changes=self.changes + 1)

    def at(self, planned_ms: int | None, **changed: int | None) -> "Plan | None":
        """The same plan, at another planned time."""
        if planned_ms is None:
            return None
        return msgspec.structs.replace(self, planned_ms=planned_ms, **changed)


def step(plan: Plan, schedule_id: bytes, *, due_ms: int, now_ms: int) -> tuple[bool, Plan | None]:
    """What follows when an occurrence is claimed: whether to deliver it, and the plan after it."""
    delivers = plan.missed != "none" or now_ms - due_ms <= MISSED_LATE_MS_MAX
    left = None if plan.left is None else plan.left - delivers
    if left == 0:
        return delivers, None
    after = plan.at(plan.next_after(plan.planned_ms), left=left, overdue=0, changes=0)
    if after is None or after.due_ms(schedule_id) > now_ms:
        return delivers, after
    if plan.missed == "all" and plan.overdue < MISSED_COUNT_MAX:
        return delivers, after.at(after.planned_ms, overdue=plan.overdue + 1)
    return delivers, _later_than(after, schedule_id, now_ms)


def _later_than(plan: Plan, schedule_id: bytes, now_ms: int) -> Plan | None:
    """The plan at its first occurrence that is due after now."""
    found = plan.at(plan.next_after(max(plan.planned_ms, now_ms - plan.jitter_ms)))
    while found is not None and found.due_ms(schedule_id) <= now_ms:
        found = found.at(found.next_after(found.planned_ms))
    return found


def occurrence(schedule: Schedule, plan: Plan) -> Schedule:
    """The next occurrence as a schedule of its own, which is delivered once."""
    record = schedule.record
    headers: Headers = [*record.headers, (names.SCHEDULE, schedule.id)]
    return Schedule(
        id=plan.occurrence_id(schedule.id),
        due_ms=schedule.due_ms,
        record=Record(
            topic=record.topic,
            value=record.value,
            key=record.key,
            headers=headers,
            partition=record.partition,
        ),
        dialect=schedule.dialect,
        origin=schedule.origin,
        expiry=schedule.expiry,
    )


def extra_occurrence(schedule: Schedule, *, now_ms: int) -> Schedule:
    """An occurrence beside the plan, due now, with an id that no planned one has. Raises BadRequest
    if the schedule does not recur."""
    plan = plan_of(schedule)
    # Planned times of cron are whole minutes.
    is_planned = (now_ms - plan.planned_ms) % (plan.every_ms or 60_000) == 0
    one = occurrence(schedule, msgspec.structs.replace(plan, planned_ms=now_ms + is_planned))
    expiry = schedule.expiry if schedule.expiry and schedule.expiry.after_due else None
    one = replace(one, dialect="", origin=None, expiry=expiry, tags=schedule.tags)
    return replace(one, due_ms=now_ms)


def plan_of(schedule: Schedule) -> Plan:
    """The plan of a recurring schedule. Raises BadRequest if it comes once."""
    if not schedule.plan:
        raise BadRequest("expected a recurring schedule, got one that comes once")
    return read_text(schedule.plan)


def preview(plan: Plan, count: int) -> list[int]:
    """The first planned times, without jitter."""
    found: list[int] = []
    then: Plan | None = plan
    while then is not None and len(found) < min(count, plan.left or count):
        found.append(then.planned_ms)
        then = then.at(then.next_after(then.planned_ms))
    return found


def shown_at(ms: int, zone: str) -> str:
    """An instant as the clock on the wall of a zone shows it, RFC 3339; after the year 9999 as
    milliseconds since 1970."""
    try:
        return (EPOCH + ms * MS).astimezone(zone_of(zone)).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError):
        return f"{ms} ms since 1970"


def words_of(plan: Plan) -> dict[str, str | int]:
    """The words that make this plan again, at the same occurrence."""
    words: dict[str, str | int] = {"start": shown_at(plan.planned_ms, "UTC"), "missed": plan.missed}
    if plan.every_ms is not None:
        words["every"] = f"{plan.every_ms}ms"
    else:
        words |= {"cron": plan.cron or "", "zone": plan.zone}
    if plan.end_ms is not None:
        words["end"] = shown_at(plan.end_ms, "UTC")
    if plan.left is not None:
        words["count"] = plan.left
    if plan.jitter_ms:
        words["jitter"] = f"{plan.jitter_ms}ms"
    return words


def once_only(settings: "Settings") -> tuple[str, ...]:
    """The inboxes whose schedules cannot recur: all of them, if schedules wait in buckets."""
    in_buckets = settings.pending == "buckets"
    return tuple(inbox.topic for inbox in settings.inboxes if in_buckets)


# --- reading plans --------------------------------------------------------------------------------


def make_plan(
    *,
    now_ms: int,
    every_ms: int | None = None,
    cron: str | None = None,
    zone: str | None = None,
    start_ms: int | None = None,
    end_ms: int | None = None,
    count: int | None = None,
    jitter_ms: int = 0,
    missed: str | None = None,
) -> Plan:
    """The plan at its first occurrence: of `cron` the first after now, of `every_ms` one interval
    from now; with `start_ms`, the first that is neither before it nor before now.

    Raises BadRequest for what cannot be meant.
    """
    if (every_ms is None) == (cron is None):
        raise BadRequest(f"expected one of every and cron, got {'both' if cron else 'neither'}")
    for word, text in {"cron": cron, "zone": zone, "missed": missed}.items():
        if not isinstance(text, str | None):
            raise BadRequest(f"{word}: expected text, got {text!r}")
    if not isinstance(count, int | None) or isinstance(count, bool):
        raise BadRequest(f"count: expected a whole number, got {count!r}")
    if every_ms is not None and not EVERY_MS_MIN <= every_ms <= DUE_MS_MAX:
        raise BadRequest(f"every: expected at least {EVERY_MS_MIN // 1_000} s, got {every_ms} ms")
    if cron is None and zone is not None:
        raise BadRequest("zone: expected it only beside cron: an interval is the same everywhere")
    if count is not None and not 1 <= count < 2**53:
        raise BadRequest(f"count: expected 1 to {2**53 - 1}, got {str(count)[:100]}")
    if missed not in (None, *MISSED):
        raise BadRequest(f"missed: expected {', '.join(MISSED)}, got {str(missed)[:100]!r}")
    plan = Plan(
        every_ms=every_ms,
        cron=None if cron is None else " ".join(cron.split()),
        zone="UTC" if zone is None else zone,
        end_ms=end_ms,
        left=count,
        jitter_ms=jitter_ms,
        missed=missed or MISSED[0],
        planned_ms=_anchor(every_ms, start_ms, now_ms),
    )
    # An interval that starts now has its first occurrence after now; one that starts later, then.
    since_ms = now_ms if start_ms is None else max(now_ms, start_ms) - 1
    first = plan.at(plan.next_after(since_ms))
    if first is None:
        end = "none" if end_ms is None else f"an end at {shown_at(end_ms, plan.zone)}"
        raise BadRequest(f"expected a plan with an occurrence, got {end}: {plan.text}")
    then = first.next_after(first.planned_ms)
    most_ms = JITTER_MS_MAX if then is None else min(JITTER_MS_MAX, then - first.planned_ms)
    if jitter_ms > most_ms:
        raise BadRequest(
            f"jitter: expected at most {most_ms} ms, the time between two occurrences or a day, "
            f"got {jitter_ms} ms"
        )
    return checked(first)


def _anchor(every_ms: int | None, start_ms: int | None, now_ms: int) -> int:
    if start_ms is not None:
        return start_ms
    return min(now_ms + every_ms, DUE_MS_MAX) if every_ms is not None else now_ms


def checked(plan: Plan) -> Plan:
    """The same plan. Raises BadRequest if it cannot be read, or has numbers that cannot be."""
    every_ms = EVERY_MS_MIN if plan.every_ms is None else plan.every_ms
    numbers = (every_ms - EVERY_MS_MIN, every_ms, plan.planned_ms, plan.jitter_ms)
    if (
        (plan.every_ms is None) == (plan.cron is None)
        or plan.missed not in MISSED
        or not all(0 <= number <= DUE_MS_MAX for number in numbers)
        or plan.jitter_ms > JITTER_MS_MAX
        or not 0 <= plan.overdue <= MISSED_COUNT_MAX
        or not 0 <= plan.changes < 2**53
        or (plan.left is not None and plan.left < 1)
    ):
        raise BadRequest(f"expected a plan, got {plan.text[:100]!r}")
    plan.next_after(plan.planned_ms)  # reads cron and zone
    return plan


def read_text(text: str | bytes) -> Plan:
    """The plan of its canonical text. Raises BadRequest."""
    try:
        return checked(msgspec.json.decode(text, type=Plan))
    except (msgspec.MsgspecError, UnicodeError) as error:
        told = text.decode(errors="replace") if isinstance(text, bytes) else text
        raise BadRequest(f"expected a plan, got {told[:100]!r}: {error}") from None


def read_headers(headers: Mapping[str, bytes | None], *, now_ms: int) -> Plan:
    """The plan of `sendlater-every` or `sendlater-cron` and the headers beside it; `now_ms` is the
    record's timestamp. Raises BadRequest."""
    given = {
        word: (headers[name] or b"").decode(errors="replace")
        for word, name in PLAN_HEADERS.items()
        if name in headers
    }
    return make_plan(
        now_ms=now_ms,
        every_ms=_read(duration_ms, given, "every"),
        cron=given.get("cron"),
        zone=given.get("zone"),
        start_ms=_read(rfc3339_ms, given, "start"),
        end_ms=_read(rfc3339_ms, given, "end"),
        count=_read(_whole, given, "count"),
        jitter_ms=_read(duration_ms, given, "jitter") or 0,
        missed=given.get("missed"),
    )


def _read(grammar: Callable[[str], int], given: Mapping[str, str], word: str) -> int | None:
    if word not in given:
        return None
    try:
        found = grammar(given[word])
        return found if word == "count" else min(found, DUE_MS_MAX)
    except BadTime as error:
        raise BadRequest(f"{PLAN_HEADERS[word]}: {error}") from None


def _whole(text: str) -> int:
    if not re.fullmatch(WHOLE, text):
        raise BadTime(f"expected a whole number, got {text[:100]!r}")
    return int(text)


def check_id(schedule_id: bytes) -> None:
    """Raises BadRequest if the ids of occurrences would be too long."""
    if len(schedule_id) > ID_BYTES_MAX - ADDED_ID_BYTES:
        raise BadRequest(
            f"expected an id of at most {ID_BYTES_MAX - ADDED_ID_BYTES} bytes, as each occurrence "
            f"adds its time, got {len(schedule_id)}"
        )
