"""Dead events as schedules for the dead-letter topic: whole, or cut to what every topic takes."""

from sendlater.brokers.broker import Arrived
from sendlater.client.etf1_records import header
from sendlater.client.events import context_of
from sendlater.dialects.names import EVENT_CUT, EVENT_ERROR, EVENT_ID, EVENT_TYPE
from sendlater.limits import ID_BYTES_MAX, REJECTED_VALUE_BYTES_MAX
from sendlater.model import Headers, Record, Schedule

ERROR_CHARS_MAX = 1_000
"""Longest `event-error`."""


def dead_letter(
    type_: str, record: Arrived, *, topic: str, failure: str, now_ms: int, cut: bool = False
) -> Schedule:
    """The schedule, due at once, that puts an event and the reason on `topic`.

    With `cut` it has no more than the first bytes of the value, and no headers of the event but
    its id. It cannot be redriven then: `event-cut` says so, and how many bytes the value had.
    """
    value, key = record.value or b"", record.key
    headers: Headers = []
    if not cut:
        mine = (EVENT_ERROR, EVENT_TYPE)
        headers = [pair for pair in record.headers if pair[0] not in mine]
    headers += [
        (EVENT_TYPE, type_.encode()),
        (EVENT_ERROR, failure[:ERROR_CHARS_MAX].encode(errors="replace")),
    ]
    if header(headers, EVENT_ID) is None:
        id = context_of(type_, record).id.encode(errors="surrogateescape")
        headers.append((EVENT_ID, id[:ID_BYTES_MAX] if cut else id))
    if cut:
        headers.append((EVENT_CUT, b"%d" % len(value)))
        value = value[:REJECTED_VALUE_BYTES_MAX]
        key = None if key is None else key[:ID_BYTES_MAX]
    place = f"{record.topic}/{record.partition}/{record.position}"
    dead = Record(topic=topic, value=value, key=key, headers=headers)
    return Schedule(id=f"dead:{place}".encode(), due_ms=now_ms, record=dead)
