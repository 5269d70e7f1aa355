"""Records and retries as S1's client library writes them (etf1/kafka-message-scheduler, clientlib).

Formats: `clientlib/schedule` and `clientlib/retry` of etf1/kafka-message-scheduler v0.0.9. Nothing
here touches a broker: each function makes the record to send.
"""

from dataclasses import replace
from typing import Any

from sendlater.client.backoff import Backoff
from sendlater.dialects import encode_cancel, encode_headers, names
from sendlater.errors import BadTime, NoAttemptsLeft
from sendlater.model import Headers, Record

RETRY_ATTEMPT = "retry-attempt"
"""Header: how often the record has been sent again, decimal."""
RETRY_ORIGINAL_TIMESTAMP = "retry-original-timestamp"
"""Header: when it failed first, whole seconds since 1970."""


def schedule_record(message: Any, *, id: str, epoch_s: int, inbox: str, now_ms: int) -> Record:
    """S1's `Schedule`: the record that has `message` sent to its topic at `epoch_s`.

    Its headers are those of `message` without `scheduler-*` and `sendlater-*`, and S1's three and
    nothing else, so that S1 itself may read it. Raises BadTime for a past second, BadRequest.
    """
    if epoch_s < now_ms // 1_000:
        raise BadTime(f"epoch_s: expected {now_ms // 1_000} or later, got {epoch_s}")
    record = encode_headers(as_record(message), inbox=inbox, id=id.encode(), due_ms=epoch_s * 1_000)
    ours = (names.DUE_MS, names.TARGET_PARTITION)
    return replace(record, headers=[pair for pair in record.headers if pair[0] not in ours])


def delete_record(*, id: str, inbox: str) -> Record:
    """S1's `DeleteSchedule`: a null value, no headers. Raises BadRequest for a blank id."""
    return encode_cancel(inbox=inbox, id=id.encode())


def retried(message: Any, *, backoff: Backoff, now_ms: int) -> tuple[Record, int]:
    """S1's `ScheduleRetry`: the record with its attempt counted, and when it is due.

    Raises NoAttemptsLeft once `backoff.retries` have been made.
    """
    record = as_record(message)
    attempt = attempts_made(record) + 1
    if attempt > backoff.retries:
        raise NoAttemptsLeft(f"{record.topic}: {backoff.retries} retries have been made")
    kept: Headers = [
        pair
        for pair in record.headers
        if pair[0] != RETRY_ATTEMPT and not pair[0].startswith(names.PREFIXES)
    ]
    if not any(name == RETRY_ORIGINAL_TIMESTAMP for name, _ in kept):
        kept.append((RETRY_ORIGINAL_TIMESTAMP, b"%d" % (now_ms // 1_000)))
    kept.append((RETRY_ATTEMPT, b"%d" % attempt))
    due_ms = now_ms + -int(-backoff.pause_s(attempt) * 1_000 // 1)
    # A consumer's partition is where it came from, not where it must go.
    return replace(record, headers=kept, partition=None), due_ms


def attempts_made(message: Any) -> int:
    """How often a record has been retried; what is no number counts as none, as in S1."""
    value = header(as_record(message).headers, RETRY_ATTEMPT)
    try:
        return max(0, int(value or b"0"))
    except ValueError:
        return 0


def is_scheduled(message: Any) -> bool:
    """S1's `IsSchedulerMessage`: whether a scheduler has delivered this record."""
    return header(as_record(message).headers, names.SCHEDULER_KEY) is not None


def is_retried(message: Any) -> bool:
    """S1's `IsRetriedMessage`."""
    return header(as_record(message).headers, RETRY_ATTEMPT) is not None


def header(headers: Headers, name: str) -> bytes | None:
    """The last header of that name: what is added on the way comes last."""
    return next((value for key, value in reversed(headers) if key == name), None)


def as_record(message: Any) -> Record:
    """A Record from one, from a record of a topic on Redis, or from confluent-kafka's Message."""
    if isinstance(message, Record):
        return message
    if callable(message.topic):
        return Record(
            topic=message.topic(),
            value=message.value(),
            key=message.key(),
            headers=list(message.headers() or ()),
        )
    return Record(
        topic=message.topic,
        value=message.value,
        key=message.key,
        headers=list(message.headers),
    )
