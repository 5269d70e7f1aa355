"""Converts a record for its target to the record for an inbox."""

import json
import re
from functools import lru_cache

from sendlater.dialects import names
from sendlater.dialects.tags import tags_headers
from sendlater.dialects.when import rfc3339_ms
from sendlater.errors import BadRequest, BadTime
from sendlater.limits import ID_BYTES_MAX
from sendlater.model import DUE_MS_MAX, Expiry, Headers, Record, Schedule


def encode_headers(
    record: Record,
    *,
    inbox: str,
    id: bytes,
    due_ms: int | None = None,
    delay_ms: int | None = None,
    at: str | None = None,
    expiry: Expiry | None = None,
    plan: str = "",
    tags: tuple[str, ...] = (),
    change: str = "",
) -> Record:
    """The record to put on `inbox` (dialect `headers`), so that `record` goes to its topic later.

    Exactly one of `due_ms` (since 1970), `delay_ms` (after the inbox record's timestamp) and `at`
    (RFC 3339) is given. As in etf1's client, headers of `record` that belong to a scheduler are
    dropped. Absolute times are also written in etf1's format, seconds rounded up, for its tools.

    `tags` are words that it is selected by, see dialects/tags.py.

    `plan` makes it recur; `due_ms` is then the due time of the next occurrence.

    `change` is the id of the change that this record is a copy of, see names.CHANGE.

    Raises BadTime, or BadRequest for an id, topic, value or partition that would be rejected.
    """
    _check_id(id)
    _check_target(record)
    if [due_ms, delay_ms, at].count(None) != 2:
        raise BadTime(f"expected one of due_ms, delay_ms, at, got {due_ms=}, {delay_ms=}, {at=}")
    headers = names.foreign(record.headers)
    if len(headers) < len(record.headers):
        headers += _extra_headers(id, record.headers)
    if delay_ms is not None:
        headers.append((names.DELAY, _seconds(delay_ms).encode()))
    else:
        if at is not None:
            headers.append((names.AT, at.encode()))
            due_ms = rfc3339_ms(at)
        else:
            assert due_ms is not None
            _check_ms("due_ms", due_ms)
            headers.append((names.DUE_MS, b"%d" % due_ms))
        headers.append((names.EPOCH, b"%d" % -(-due_ms // 1_000)))
    headers += expiry_headers(expiry) + tags_headers(tags)
    if plan:
        headers.append((names.PLAN, plan.encode()))
    headers.append((names.TARGET_TOPIC, record.topic.encode()))
    if record.key is not None:
        headers.append((names.TARGET_KEY, record.key))
    if record.partition is not None:
        headers.append((names.TARGET_PARTITION, b"%d" % record.partition))
    if change:
        headers.append((names.CHANGE, change.encode()))
    return Record(topic=inbox, key=id, value=record.value, headers=headers)


def encode_schedule(
    schedule: Schedule, *, inbox: str, change: str = "", at_once: bool = False
) -> Record:
    """The record of a whole schedule; `change` and what it raises as of `encode_headers`. What is
    due `at_once` is so when the record is written, not before."""
    return encode_headers(
        schedule.record,
        inbox=inbox,
        id=schedule.id,
        due_ms=None if at_once else schedule.due_ms,
        delay_ms=0 if at_once else None,
        expiry=schedule.expiry,
        plan=schedule.plan,
        tags=schedule.tags,
        change=change,
    )


def _extra_headers(id: bytes, headers: Headers) -> Headers:
    """Of an occurrence beside a plan: what keeps its `sendlater-schedule`."""
    of = [value for name, value in headers if name == names.SCHEDULE]
    if len(of) != 1 or not of[0] or not id.startswith(of[0] + b"@"):
        return []
    return [(names.PLAN, names.EXTRA), (names.SCHEDULE, of[0])]


def encode_again(schedule: Schedule, *, anew: bool = False) -> Record:
    """The record that writes a schedule unchanged to its journal again: a copy of its version or,
    with `anew`, a new version."""
    origin, record = schedule.origin, schedule.record
    assert origin is not None, "only what was read from a journal is written to it again"
    headers = again_headers(schedule)
    own = record.headers
    if not schedule.plan and names.foreign(own) != own:
        own = [(names.OWN, None), *own]
    return Record(
        topic=origin.topic,
        partition=origin.partition,
        key=schedule.id,
        value=record.value,
        headers=(headers[:-1] if anew else headers) + own,
    )


def again_headers(schedule: Schedule) -> Headers:
    """The headers of a copy for its journal, in front of the schedule's own; the last one names its
    version."""
    origin, record = schedule.origin, schedule.record
    assert origin is not None, "only what was read from a journal is written to it again"
    version = f"{origin.topic}/{origin.partition}/{origin.position}"
    headers: Headers = [
        (names.DUE_MS, b"%d" % schedule.due_ms),
        (names.EPOCH, b"%d" % -(-schedule.due_ms // 1_000)),
        *expiry_headers(schedule.expiry),
        *tags_headers(schedule.tags),
        (names.TARGET_TOPIC, record.topic.encode()),
    ]
    if schedule.plan:
        headers.append((names.PLAN, schedule.plan.encode()))
    if record.key is not None:
        headers.append((names.TARGET_KEY, record.key))
    if record.partition is not None:
        headers.append((names.TARGET_PARTITION, b"%d" % record.partition))
    return [*headers, (names.AGAIN, version.encode())]


def encode_tombstone(*, id: bytes, version: str) -> Record:
    """The record that marks a version (topic/partition/offset) as done on its journal."""
    topic, partition, _ = version.rsplit("/", 2)
    return Record(
        topic=topic,
        partition=int(partition),
        key=id,
        value=None,
        headers=[(names.ORIGIN, version.encode())],
    )


def encode_cancel(
    *, inbox: str, id: bytes, change: str = "", partition: int | None = None
) -> Record:
    """The record that cancels `id` on `inbox` (dialect `headers`): its value is null. A store that
    knows `change` has done so already, and ignores it.

    Raises BadRequest for an id that would be rejected.
    """
    _check_id(id)
    headers: Headers = [(names.CHANGE, change.encode())] if change else []
    return Record(topic=inbox, key=id, value=None, headers=headers, partition=partition)


def encode_envelope(
    record: Record, *, inbox: str, delay_ms: int, caller: str | None = None
) -> Record:
    """The record to put on `inbox` (dialect `envelope`), so that `record` goes out later.

    `delay_ms` counts from the inbox record's timestamp. The value must be UTF-8, as it is sent as a
    JSON string. `caller` becomes header CALLER_SERVICE. Raises BadTime, or BadRequest for what an
    envelope cannot contain.
    """
    _check_target(record)
    _check_ms("delay_ms", delay_ms)
    if record.partition is not None:
        raise BadRequest(f"expected no partition in an envelope, got {record.partition}")
    assert record.value is not None
    try:
        message = record.value.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"expected a UTF-8 value in an envelope, got {error}") from error
    # Not json.dumps of the whole: countdown must be an exact number.
    parts = {
        "topic": json.dumps(record.topic),
        "message": json.dumps(message),
        "countdown": _seconds(delay_ms),
    }
    value = "{" + ", ".join(f'"{name}": {part}' for name, part in parts.items()) + "}"
    headers = names.foreign(record.headers)
    if caller is not None:
        headers.append((names.CALLER_SERVICE, caller.encode()))
    return Record(topic=inbox, key=record.key, value=value.encode(), headers=headers)


def expiry_headers(expiry: Expiry | None) -> Headers:
    """The header of an expiry; none if there is none. Raises BadTime."""
    if expiry is None:
        return []
    if expiry.after_due:
        return [(names.EXPIRES_AFTER, _seconds(expiry.ms).encode())]
    _check_ms("expires", expiry.ms)
    return [(names.EXPIRES, b"%d" % expiry.ms)]


def _seconds(ms: int) -> str:
    """Decimal seconds, exact: 90, 1.5, 0.001."""
    _check_ms("delay_ms", ms)
    whole, rest = divmod(ms, 1_000)
    return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)


def _check_ms(name: str, ms: int) -> None:
    if not 0 <= ms <= DUE_MS_MAX:
        raise BadTime(f"expected {name} within 0..{DUE_MS_MAX}, got {ms}")


def _check_id(id: bytes) -> None:
    if not id.strip():
        raise BadRequest(f"expected an id that is not blank, got {id!r}")
    if len(id) > ID_BYTES_MAX:
        raise BadRequest(f"expected an id of at most {ID_BYTES_MAX} bytes, got {len(id)}")


@lru_cache(1_000)
def _is_topic(name: str) -> bool:
    return bool(re.fullmatch(names.TOPIC, name)) and name not in (".", "..")


def _check_target(record: Record) -> None:
    if not _is_topic(record.topic):
        raise BadRequest(f"expected a topic name ({names.TOPIC}), got {record.topic[:100]!r}")
    if record.value is None:
        raise BadRequest("expected a value, got null: on an inbox a null value cancels")
    if record.partition is not None and not 0 <= record.partition < 2**31:
        raise BadRequest(f"expected a partition of zero or more, got {record.partition}")
