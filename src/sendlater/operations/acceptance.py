"""Refuses at once what intake would reject later. No I/O."""

from typing import TYPE_CHECKING

from sendlater.dialects import encode_schedule, names
from sendlater.dialects.recurrence import once_only
from sendlater.errors import BadRequest, BadTime, NotSupported
from sendlater.model import PAUSED_MS, Record, Schedule

if TYPE_CHECKING:
    from sendlater.config import Settings
DAY_MS = 86_400_000
NOW_MS = 1_000
"""How long ago a due time may be that still means now: what a client does until it writes the
record takes less, and who asks for a time in the past means one that is longer ago."""
CANNOT_EXPIRE = "expected a schedule without an expiry, as one in buckets cannot expire"
CANNOT_TAG = "expected a schedule without tags, as one in buckets cannot be selected by them"
CANNOT_RECUR = "expected a schedule that is due once, as one in buckets cannot recur"


def inbox_record(schedule: Schedule, *, settings: "Settings", inbox: str, now_ms: int) -> Record:
    """The record for the inbox. Raises BadRequest or BadTime if intake would reject it,
    NotSupported for what this kind of installation cannot do."""
    if not (schedule.plan and schedule.due_ms == PAUSED_MS):
        check_due(schedule.due_ms, settings=settings, now_ms=now_ms)
    if schedule.expiry and settings.pending == "buckets":
        raise NotSupported(CANNOT_EXPIRE)
    if schedule.tags and settings.pending == "buckets":
        raise NotSupported(CANNOT_TAG)
    if schedule.plan and inbox in once_only(settings):
        raise NotSupported(CANNOT_RECUR)
    at_once = settings.past == "reject" and _is_now(schedule, now_ms)
    record = encode_schedule(schedule, inbox=inbox, at_once=at_once)
    size = len(record.value or b"") + len(record.key or b"")
    for name, content in record.headers:
        size += len(name) + len(content or b"")
    if size > settings.max_payload_bytes:
        raise BadRequest(
            f"expected at most {settings.max_payload_bytes} bytes of value, key and headers, "
            f"got {size}"
        )
    return record


def _is_now(schedule: Schedule, now_ms: int) -> bool:
    """Whether it was asked for without a delay: where the past is rejected, its due time would be
    in the past if the record got the timestamp of the next second. What has a plan, or is beside
    one, needs its due time, and counts from the record's timestamp anyway."""
    is_occurrence = any(name == names.SCHEDULE for name, _ in schedule.record.headers)
    just_now = 0 <= now_ms - schedule.due_ms <= NOW_MS
    return just_now and not schedule.plan and not is_occurrence


def check_due(due_ms: int, *, settings: "Settings", now_ms: int) -> None:
    """Raises BadTime if intake would reject the time as too far in the future."""
    away_ms = due_ms - now_ms
    if away_ms > settings.max_delay_days * DAY_MS:
        raise BadTime(
            f"expected a time within {settings.max_delay_days} days, got one "
            f"{away_ms / DAY_MS:,.1f} days away"
        )
