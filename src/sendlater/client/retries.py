"""A record that could not be handled, as the schedule that brings it again: what intake makes of
`sendlater-retry` (dialects/retry.py), computed by the client."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ulid import ULID

from sendlater.client.backoff import Backoff
from sendlater.client.etf1_records import as_record
from sendlater.dialects import names
from sendlater.dialects.retry import ATTEMPT, DEAD
from sendlater.dialects.when import WHOLE
from sendlater.errors import NoAttemptsLeft
from sendlater.limits import ID_BYTES_MAX, RETRY_ERROR_BYTES_MAX
from sendlater.model import DUE_MS_MAX, Expiry, Headers, Record, Schedule

_OURS = (names.RETRY_OF, names.RETRY_ORIGINAL_TIMESTAMP, names.RETRY_ATTEMPT)
_OF_A_DELIVERY = (*_OURS, names.RETRY_ORIGIN, names.ID, names.DUE, names.DELIVERED_TO, names.EXPIRY)


def again_or_dead(
    message: Any,
    error: str,
    policy: Backoff | str,
    *,
    dead_topic: Callable[[], str] | None,
    now_ms: int,
) -> Schedule:
    """The next attempt at a record, or after the last one its dead letter. Raises NoAttemptsLeft
    if there is no `dead_topic`."""
    policy = policy if isinstance(policy, Backoff) else Backoff.parse(policy)
    try:
        return come_again(message, policy=policy, now_ms=now_ms)
    except NoAttemptsLeft:
        if dead_topic is None:
            raise
        return given_up(message, error, dead_topic=dead_topic(), now_ms=now_ms)


def come_again(message: Any, *, policy: Backoff, now_ms: int) -> Schedule:
    """The schedule that delivers a record to its topic again, under the id that intake would give
    it. Raises NoAttemptsLeft."""
    record = _read(message)
    target, retry_of = _target(record), failed_first(message)
    attempt = _attempt(record)
    if attempt > policy.retries:
        raise NoAttemptsLeft(f"{target}: {attempt - 1} of {policy.retries} retries have been made")
    schedule_id = _id(target, retry_of, attempt)
    kept = [pair for pair in names.foreign(record.headers) if pair[0] not in _OURS]
    if not any(name == names.RETRY_ORIGIN for name, _ in kept) and (place := _place(message)):
        kept.append((names.RETRY_ORIGIN, place))
    first_failed = _first(record.headers, names.RETRY_ORIGINAL_TIMESTAMP)
    kept += [
        (names.RETRY_OF, retry_of),
        (
            names.RETRY_ORIGINAL_TIMESTAMP,
            b"%d" % (now_ms // 1_000) if first_failed is None else first_failed,
        ),
        (names.RETRY_ATTEMPT, b"%d" % attempt),
    ]
    return Schedule(
        id=schedule_id,
        due_ms=now_ms + policy.pause_ms(attempt, seed=schedule_id),
        record=replace(record, topic=target, key=_key(record), headers=kept, partition=None),
        expiry=expiry_of(record.headers),
    )


def given_up(message: Any, error: str, *, dead_topic: str, now_ms: int) -> Schedule:
    """The schedule, due now, that puts a record on the dead-letter topic, in the format of a dead
    event, so that it can be redriven in the same way."""
    record = _read(message)
    target, retry_of = _target(record), failed_first(message)
    mine = (names.EVENT_TYPE, names.EVENT_ERROR, names.EVENT_ID)
    headers: Headers = [pair for pair in names.foreign(record.headers) if pair[0] not in mine]
    headers += [
        (names.EVENT_TYPE, target.encode()),
        (names.EVENT_ERROR, error.encode(errors="replace")[:RETRY_ERROR_BYTES_MAX]),
        (names.EVENT_ID, retry_of[:ID_BYTES_MAX]),
    ]
    return Schedule(
        id=DEAD.encode() + _id(target, retry_of, _attempt(record)),
        due_ms=now_ms,
        record=replace(record, topic=dead_topic, key=_key(record), headers=headers, partition=None),
    )


def _read(message: Any) -> Record:
    """As a Record; without what tells of a delivery to another topic, whose headers somebody has
    passed on."""
    record = as_record(message)
    delivered_to = _first(record.headers, names.DELIVERED_TO)
    if delivered_to is None or delivered_to == record.topic.encode():
        return record
    own = [pair for pair in record.headers if pair[0] not in _OF_A_DELIVERY]
    return replace(record, headers=own)


def _target(record: Record) -> str:
    for name in (names.TARGET_TOPIC, names.DELIVERED_TO):
        if (given := _first(record.headers, name)) is not None:
            return given.decode(errors="replace")
    return record.topic


def _key(record: Record) -> bytes | None:
    if any(name == names.TARGET_KEY for name, _ in record.headers):
        return _first(record.headers, names.TARGET_KEY)
    return record.key


def failed_first(message: Any) -> bytes:
    """What failed first, for `retry-of`: all attempts at it have the same. Where nothing tells, it
    is this call."""
    record = _read(message)
    id, due = (_first(record.headers, name) for name in (names.ID, names.DUE))
    found = (
        _first(record.headers, names.RETRY_OF),
        b"%s@%s" % (id, due) if id and due else None,
        _first(record.headers, names.RETRY_ORIGIN),
        _place(message),
    )
    return next((one for one in found if one), str(ULID()).encode())


def _place(message: Any) -> bytes | None:
    """`topic/partition/offset` of a record that was read; None for a Record."""
    if isinstance(message, Record):
        return None
    if callable(message.topic):
        place = (message.topic(), message.partition(), message.offset())
    else:
        place = (message.topic, message.partition, message.position)
    return "{}/{}/{}".format(*place).encode()


def _attempt(record: Record) -> int:
    """The number of the coming attempt, from 1."""
    made = (_first(record.headers, names.RETRY_ATTEMPT) or b"").decode(errors="replace")
    return 1 + (int(made) if re.fullmatch(ATTEMPT, made) else 0)


def _id(target: str, retry_of: bytes, attempt: int) -> bytes:
    own = hashlib.md5(target.encode() + b"\0" + retry_of, usedforsecurity=False).hexdigest()
    return f"retry-{own}-{attempt}".encode()


def expiry_of(headers: Headers) -> Expiry | None:
    """That of a delivery, which its retries keep; one that is not a number is none."""
    given = (_first(headers, names.EXPIRY) or b"").decode(errors="replace")
    return Expiry(min(int(given), DUE_MS_MAX)) if re.fullmatch(WHOLE, given) else None


def _first(headers: Headers, name: str) -> bytes | None:
    return next((value for key, value in headers if key == name), None)
