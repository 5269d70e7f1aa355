"""Decodes the JSON of requests, and shows schedules as JSON."""

import base64
import binascii
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec

from sendlater.dialects import duration_ms, instant_ms, names, share_of
from sendlater.dialects.tags import checked_tags
from sendlater.errors import BadRequest, BadTime
from sendlater.limits import BULK_IDS_MAX
from sendlater.model import DUE_MS_MAX, Headers, Record, Schedule
from sendlater.operations.arguments import carried, plan_expiry
from sendlater.server.plans import plan_in
from sendlater.server.problems import Problem

DATETIME_MS_MAX = 253_402_300_799_999
"""Last instant of RFC 3339 (year 9999)."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Header(msgspec.Struct, forbid_unknown_fields=True):
    """A header whose value may be bytes that are not text."""

    name: str
    value: str | None = None
    value_base64: str | None = None


class When(msgspec.Struct, forbid_unknown_fields=True):
    """A due time in exactly one of three forms."""

    due_at: str | None = None
    due_ms: int | float | None = None
    delay: int | float | str | None = None

    def resolve(self, *, now_ms: int) -> int:
        """Milliseconds since 1970; a time in the past means now. Raises BadTime."""
        given = (self.due_at, self.due_ms, self.delay)
        if sum(one is not None for one in given) != 1:
            raise BadTime("expected exactly one of due_at, due_ms and delay")
        if self.delay is not None:
            found = now_ms + delay_ms(self.delay)
        elif self.due_at is not None:
            found = instant_ms(self.due_at, now_ms=now_ms)
        else:
            assert self.due_ms is not None
            found = _whole("due_ms", self.due_ms)
            if found < 0:
                raise BadTime(f"due_ms: expected zero or more, got {found}")
        if found > DUE_MS_MAX:
            raise BadTime(f"expected a time up to {DUE_MS_MAX} ms since 1970, got {found}")
        return max(now_ms, found)


class NewSchedule(When, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/schedules."""

    topic: str
    value: msgspec.Raw = msgspec.Raw(b"")
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: list[tuple[str | None, str | None] | Header] = []
    spread: int | float | str | None = None
    expires: str | None = None
    expires_after: int | float | str | None = None
    id: str | None = None
    partition: int | float | None = None
    tags: list[str] | None = None
    only_if: str | None = None
    every: int | float | str | None = None
    cron: str | None = None
    zone: str | None = None
    start: str | None = None
    end: str | None = None
    count: int | float | None = None
    jitter: int | float | str | None = None
    missed: str | None = None

    def schedule(self, *, now_ms: int, new_id: Callable[[], str]) -> Schedule:
        """The schedule to create; without an id it gets a new one. Raises BadRequest, BadTime."""
        if self.id == "":
            raise BadRequest("id: expected text that is not empty, or none for a new one")
        id = (new_id() if self.id is None else self.id).encode()
        plan = plan_in(self, schedule_id=id, now_ms=now_ms)
        due_ms = plan.due_ms(id) if plan else self.resolve(now_ms=now_ms)
        if self.spread is not None:
            due_ms += share_of(delay_ms(self.spread), id)
        return Schedule(
            id=id,
            due_ms=due_ms,
            expiry=plan_expiry(self.expires, self.expires_after, due_ms=due_ms, now_ms=now_ms),
            plan=plan.text if plan else "",
            tags=checked_tags(self.tags),
            record=Record(
                topic=self.topic,
                value=self._value(),
                key=_either("key", self.key, self.key_base64),
                headers=_headers(self.headers),
                partition=None if self.partition is None else _whole("partition", self.partition),
            ),
        )

    def _value(self) -> bytes:
        raw = bytes(self.value)
        if bool(raw) == (self.value_base64 is not None):
            raise BadRequest("expected exactly one of value and value_base64")
        if self.value_base64 is not None:
            return from_base64("value_base64", self.value_base64)
        if raw == b"null":
            raise BadRequest("value: expected text or JSON, got null: on an inbox that cancels")
        if raw.startswith(b'"'):
            text: str = decode(str, raw)
            return text.encode()
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            raise Problem(400, f"value: expected UTF-8: {error}") from error
        return raw


class Redrive(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /v1/records:redrive; places are partition/position."""

    topic: Annotated[str, msgspec.Meta(pattern=f"^{names.TOPIC}$")]
    places: Annotated[
        list[Annotated[str, msgspec.Meta(pattern="^[0-9]{1,9}/[0-9]{1,19}$")]],
        msgspec.Meta(min_length=1, max_length=BULK_IDS_MAX),
    ]
    target: Annotated[str, msgspec.Meta(pattern=f"^{names.TOPIC}$")] | None = None
    delay: int | float | str = 0


def is_topic(name: str) -> bool:
    """Whether Kafka allows the name."""
    return bool(re.fullmatch(names.TOPIC, name)) and name not in (".", "..")


def decode(kind: Any, body: bytes) -> Any:
    """A body as `kind`. Raises Problem 400 if it is not JSON, or has another shape."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise Problem(400, str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, f"expected JSON, got {body[:40]!r}: {error}") from error


def span_ms(given: float | str) -> int:
    """Milliseconds of a span, rounded up: seconds, or text as in header `sendlater-delay`, which
    may have a sign. Raises BadTime."""
    if isinstance(given, str):
        sign = -1 if given.startswith("-") else 1
        try:
            return sign * duration_ms(re.sub(r"^[+-]", "", given))
        except BadTime:
            raise BadTime(
                "expected a duration, with or without a sign: seconds (90, -1.5), ISO 8601 "
                f"(PT2H) or 2h30m, got {given[:40]!r}"
            ) from None
    if not abs(given) <= DUE_MS_MAX:
        raise BadTime(f"expected seconds, up to {DUE_MS_MAX}, got {given}")
    return math.ceil(given * 1_000)


def delay_ms(given: float | str) -> int:
    """The same for a span that must not be negative. Raises BadTime."""
    if isinstance(given, str):
        return duration_ms(given)
    found = span_ms(given)
    if found < 0:
        raise BadTime(f"delay: expected zero or more, got {given}")
    return found


def from_base64(name: str, text: str) -> bytes:
    """The decoded bytes. Raises BadRequest."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"{name}: expected base64, got {text[:40]!r}: {error}") from error


def _whole(name: str, given: float) -> int:
    """A JSON integer; 1.0 is one too. Raises BadRequest."""
    if isinstance(given, float) and not given.is_integer():
        raise BadRequest(f"{name}: expected a whole number, got {given}")
    return int(given)


def _either(name: str, text: str | None, packed: str | None) -> bytes | None:
    if text is not None and packed is not None:
        raise BadRequest(f"expected one of {name} and {name}_base64, got both")
    if packed is not None:
        return from_base64(f"{name}_base64", packed)
    return None if text is None else text.encode()


def _headers(given: Sequence[tuple[str | None, str | None] | Header]) -> Headers:
    found: Headers = []
    for one in given:
        if isinstance(one, Header):
            name, value = one.name, _either("value", one.value, one.value_base64)
        else:
            name, value = one[0] or "", None if one[1] is None else one[1].encode()
        if not name:
            raise BadRequest("headers: expected names that are not empty")
        found.append((name, value))
    return carried(found)


# --- out ----------------------------------------------------------------------------------------


def to_time(ms: int) -> str | None:
    """RFC 3339 in UTC with milliseconds; None beyond the year 9999."""
    if ms > DATETIME_MS_MAX:
        return None
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")[:-6] + "Z"


def text_or_base64(name: str, value: bytes | None) -> dict[str, str | None]:
    """`{name: text}` if the bytes are UTF-8, else `{name_base64: ...}`."""
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        assert value is not None
        return {f"{name}_base64": base64.b64encode(value).decode()}


def show_id(schedule_id: bytes) -> dict[str, str]:
    """`id` as text, and `id_base64` too if the id is not UTF-8."""
    text = schedule_id.decode(errors="replace")
    if text.encode() == schedule_id:
        return {"id": text}
    return {"id": text, "id_base64": base64.b64encode(schedule_id).decode()}


def show(schedule: Schedule, *, payload: bool = True) -> dict[str, Any]:
    """A schedule as JSON values; without `payload`, not its key, value and headers."""
    record, origin = schedule.record, schedule.origin
    shown: dict[str, Any] = {
        **show_id(schedule.id),
        "topic": record.topic,
        "due_ms": schedule.due_ms,
        "due_at": to_time(schedule.due_ms),
        "state": schedule.state.value,
        "partition": record.partition,
        "value_bytes": len(record.value or b""),
    }
    if schedule.expiry and schedule.expires_ms is not None:
        shown["expires_ms"] = schedule.expires_ms
        shown["expires_after_ms"] = schedule.expiry.ms if schedule.expiry.after_due else None
    if schedule.held_since_ms is not None:
        shown["held_since_ms"] = schedule.held_since_ms
    if schedule.plan:
        shown["plan"] = msgspec.json.decode(schedule.plan)
    if schedule.tags:
        shown["tags"] = schedule.tags
    if schedule.version:
        shown["version"] = schedule.version
    if origin:
        shown["origin"] = {
            "topic": origin.topic,
            "partition": origin.partition,
            "position": origin.position,
            "timestamp_ms": origin.timestamp_ms,
            # As text too: a position on Redis can exceed JavaScript's exact integers.
            "place": f"{origin.partition}/{origin.position}",
        }
    if caller := caller_of(record.headers):
        shown["caller"] = caller
    if payload:
        shown |= text_or_base64("key", record.key)
        shown |= text_or_base64("value", record.value)
        shown["headers"] = [show_header(name, value) for name, value in record.headers]
    return shown


def show_header(name: str, value: bytes | None) -> list[str | None] | dict[str, str | None]:
    """A pair, or an object if the value is not text."""
    shown = text_or_base64("value", value)
    return [name, shown["value"]] if "value" in shown else {"name": name, **shown}


def caller_of(headers: Headers) -> str:
    """The sender, from header CALLER_SERVICE."""
    found = next((v for k, v in headers if k == names.CALLER_SERVICE and v), b"")
    return found.decode(errors="replace")
