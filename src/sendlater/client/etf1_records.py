"""Records and retries in the format of etf1's client (etf1/kafka-message-scheduler, clientlib).

Formats: `clientlib/schedule` and `clientlib/retry` of etf1/kafka-message-scheduler v0.0.9. Each
function returns the record to send; none contacts a broker.
"""

from dataclasses import replace
from typing import Any

from sendlater.brokers.message_headers import UNREADABLE_HEADERS, headers_of
from sendlater.client.backoff import Backoff
from sendlater.dialects import encode_cancel, encode_headers, names
from sendlater.dialects.names import RETRY_ATTEMPT, RETRY_ORIGINAL_TIMESTAMP
from sendlater.errors import BadRequest, BadTime, NoAttemptsLeft
from sendlater.model import Headers, Record


def schedule_record(message: Any, *, id: str, epoch_s: int, inbox: str, now_ms: int) -> Record:
    """etf1's `Schedule`: the record that has `message` sent to its topic at `epoch_s`.

    It keeps the headers of `message`, except `scheduler-*` and `sendlater-*`, and adds etf1's three
    headers only, so that etf1's scheduler can read it too. Raises BadTime for a past second,
    BadRequest.
    """
    if epoch_s < now_ms // 1_000:
        raise BadTime(f"epoch_s: expected {now_ms // 1_000} or later, got {epoch_s}")
    record = encode_headers(as_record(message), inbox=inbox, id=id.encode(), due_ms=epoch_s * 1_000)
    ours = (names.DUE_MS, names.TARGET_PARTITION)
    return replace(record, headers=[pair for pair in record.headers if pair[0] not in ours])


def delete_record(*, id: str, inbox: str) -> Record:
    """etf1's `DeleteSchedule`: a null value, no headers. Raises BadRequest for a blank id."""
    return encode_cancel(inbox=inbox, id=id.encode())


def retried(message: Any, *, backoff: Backoff, now_ms: int) -> tuple[Record, int]:
    """etf1's `ScheduleRetry`: the record with one more attempt counted, and its due time.

    Raises NoAttemptsLeft once `backoff.retries` have been made.
    """
    record = as_record(message)
    attempt = attempts_made(record) + 1
    if attempt > backoff.retries:
        raise NoAttemptsLeft(f"{record.topic}: {backoff.retries} retries have been made")
    kept = [pair for pair in names.foreign(record.headers) if pair[0] != RETRY_ATTEMPT]
    if not any(name == RETRY_ORIGINAL_TIMESTAMP for name, _ in kept):
        kept.append((RETRY_ORIGINAL_TIMESTAMP, b"%d" % (now_ms // 1_000)))
    kept.append((RETRY_ATTEMPT, b"%d" % attempt))
    due_ms = now_ms + -int(-backoff.pause_s(attempt) * 1_000 // 1)
    # The partition in `message` is the one it was read from, not a target.
    return replace(record, headers=kept, partition=None), due_ms


def attempts_made(message: Any) -> int:
    """How often a record has been retried. As in etf1's client, a value that is not a number
    counts as 0."""
    value = header(as_record(message).headers, RETRY_ATTEMPT)
    try:
        return max(0, int(value or b"0"))
    except ValueError:
        return 0


def is_scheduled(message: Any) -> bool:
    """etf1's `IsSchedulerMessage`: whether a scheduler has delivered this record."""
    return header(as_record(message).headers, names.SCHEDULER_KEY) is not None


def is_retried(message: Any) -> bool:
    """etf1's `IsRetriedMessage`."""
    return header(as_record(message).headers, RETRY_ATTEMPT) is not None


def header(headers: Headers, name: str) -> bytes | None:
    """The value of the last header of that name: headers added later come last."""
    return next((value for key, value in reversed(headers) if key == name), None)


def as_record(message: Any) -> Record:
    """A Record from one, from a record of a topic on Redis, or from confluent-kafka's Message.

    Raises BadRequest for anything else, and for one with a header name that is not UTF-8.
    """
    if isinstance(message, Record):
        return message
    if not hasattr(message, "topic"):
        raise BadRequest(f"message: expected a record that was read, got {message!r}")
    if callable(message.topic):
        return Record(
            topic=message.topic(),
            value=message.value(),
            key=message.key(),
            headers=_headers(message),
        )
    return Record(
        topic=message.topic,
        value=message.value,
        key=message.key,
        headers=list(message.headers),
    )


def _headers(message: Any) -> Headers:
    found = headers_of(message, unreadable=UNREADABLE_HEADERS)
    if found == UNREADABLE_HEADERS:
        raise BadRequest("message: expected header names in UTF-8, got one that is not")
    return found or []
