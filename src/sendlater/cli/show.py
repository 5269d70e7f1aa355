"""How the command line writes things down."""

import base64
from datetime import UTC, datetime
from typing import Any

from sendlater.model import Schedule


def as_json(schedule: Schedule) -> dict[str, Any]:
    """A schedule as JSON values: bytes as text where they are UTF-8, else `base64:...`."""
    origin = schedule.origin
    record = schedule.record
    return {
        "id": text_of(schedule.id),
        "state": schedule.state.value,
        "due_ms": schedule.due_ms,
        "due": time_of(schedule.due_ms),
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
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()


def time_of(ms: int) -> str:
    """An instant as RFC 3339 in UTC."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return f"{ms} ms"
