"""Schedules and records in the JSON of REST, for the client (format: docs/rest.md)."""

import base64
import json
from typing import TYPE_CHECKING, Any

from sendlater.errors import BadRequest
from sendlater.model import Expiry, Headers, Record, Schedule, Standing, State
from sendlater.operations.arguments import to_datetime

if TYPE_CHECKING:
    from sendlater.brokers.broker import Arrived


def to_json(schedule: Schedule) -> dict[str, Any]:
    """A field with text if the bytes are UTF-8, otherwise `..._base64`."""
    record = schedule.record
    told: dict[str, Any] = {
        "topic": record.topic,
        "id": _text(schedule.id),
        **(_plan(schedule.plan) if schedule.plan else {"due_ms": schedule.due_ms}),
        **_field("value", record.value),
    }
    if record.key is not None:
        told |= _field("key", record.key)
    if record.headers:
        told["headers"] = [_header(name, value) for name, value in record.headers]
    if record.partition is not None:
        told["partition"] = record.partition
    if schedule.tags:
        told["tags"] = schedule.tags
    if schedule.expiry is not None:
        ms, after_due = schedule.expiry.ms, schedule.expiry.after_due
        told |= {"expires_after": ms / 1_000} if after_due else {"expires": _instant(ms)}
    return told


def _plan(text: str) -> dict[str, Any]:
    from sendlater.dialects.recurrence import read_text, words_of

    return words_of(read_text(text))


def _instant(ms: int) -> str:
    return to_datetime(ms).isoformat(timespec="milliseconds")


def _text(schedule_id: bytes) -> str:
    try:
        return schedule_id.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"id: expected UTF-8 over HTTP, got {schedule_id!r}") from error


def _field(name: str, value: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value or b"").decode()}


def _header(name: str, value: bytes | None) -> Any:
    told = _field("value", value)
    return [name, told["value"]] if "value" in told else {"name": name, **told}


def from_json(told: dict[str, Any]) -> Schedule:
    """The schedule that an answer shows."""
    return Schedule(
        id=_bytes(told, "id") or b"",
        due_ms=told["due_ms"],
        record=Record(
            topic=told["topic"],
            value=_bytes(told, "value"),
            key=_bytes(told, "key"),
            headers=_headers(told.get("headers") or []),
            partition=told.get("partition"),
        ),
        expiry=_expiry(told),
        plan=json.dumps(told["plan"], separators=(",", ":")) if "plan" in told else "",
        tags=tuple(told.get("tags", ())),
        state=State(told.get("state", State.PENDING)),
        version=told.get("version", ""),
    )


def standing_of(told: dict[str, Any] | None) -> Standing | None:
    """What a condition that does not hold was about."""
    if told is None:
        return None
    return Standing(told["id"], told["version"], told["due_ms"], State(told["state"]))


def _expiry(told: dict[str, Any]) -> Expiry | None:
    if (after_ms := told.get("expires_after_ms")) is not None:
        return Expiry(after_ms, after_due=True)
    at_ms = told.get("expires_ms")
    return None if at_ms is None else Expiry(at_ms)


def to_arrived(told: dict[str, Any]) -> "Arrived":
    """A record. If the server hides payloads, its headers are those that have fields of their
    own."""
    # Not at the top: a client that only sends needs no brokers.
    from sendlater.brokers.broker import Arrived
    from sendlater.operations.read_topics import TOLD

    partition, _, position = told["place"].partition("/")
    headers = _headers(told.get("headers") or [])
    if "headers" not in told:
        headers = [(n, str(told[f]).encode()) for f, n in TOLD.items() if f in told]
    return Arrived(
        told["topic"],
        int(partition),
        int(position),
        told["at_ms"],
        _bytes(told, "key"),
        _bytes(told, "value"),
        headers,
    )


def _bytes(told: dict[str, Any], name: str) -> bytes | None:
    packed = told.get(f"{name}_base64")
    if packed is not None:
        return base64.b64decode(packed)
    text = told.get(name)
    return None if text is None else str(text).encode()


def _headers(told: list[Any]) -> Headers:
    return [
        (one["name"], _bytes(one, "value"))
        if isinstance(one, dict)
        else (one[0], None if one[1] is None else str(one[1]).encode())
        for one in told
    ]
