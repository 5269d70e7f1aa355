"""The command line's output format for schedules, bytes and times."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

from sendlater.errors import BadRequest
from sendlater.model import Schedule
from sendlater.operations.arguments import id_text

BASE64 = "base64:"
"""Prefix of bytes that cannot be shown as text."""


def as_json(schedule: Schedule) -> dict[str, Any]:
    """A schedule as JSON values: bytes as text if they are UTF-8, else `base64:...`."""
    origin = schedule.origin
    record = schedule.record
    return {
        "id": text_of(schedule.id),
        "state": schedule.state.value,
        "due_ms": schedule.due_ms,
        "due": time_of(schedule.due_ms),
        "expires": None if schedule.expires_ms is None else time_of(schedule.expires_ms),
        "plan": json.loads(schedule.plan) if schedule.plan else None,
        "tags": list(schedule.tags),
        "topic": record.topic,
        "key": text_of(record.key),
        "value": text_of(record.value),
        "headers": [[name, text_of(value)] for name, value in record.headers],
        "partition": record.partition,
        "origin": f"{origin.topic}/{origin.partition}/{origin.position}" if origin else None,
    }


def text_of(value: bytes | None) -> str | None:
    """UTF-8 text as it is, other bytes as `base64:...`."""
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = BASE64
    # Text that starts with the prefix is encoded too, so that reading it back is unambiguous.
    return BASE64 + base64.b64encode(value).decode() if text.startswith(BASE64) else text


def id_of(text: str) -> str:
    """The client's id for an id shown by `text_of`. Raises BadRequest."""
    if not text.startswith(BASE64):
        return text
    try:
        return id_text(base64.b64decode(text.removeprefix(BASE64), validate=True))
    except ValueError as error:
        raise BadRequest(f"id: expected base64 after {BASE64!r}, got {text!r}: {error}") from error


def time_of(ms: int) -> str:
    """An instant as RFC 3339 in UTC."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return f"{ms} ms"
