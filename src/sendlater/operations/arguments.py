"""Converts the client's arguments to schedules (bytes, times) for a `Transport`. No I/O."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NotRequired, TypedDict, Unpack

from sendlater.dialects import duration_ms, instant_ms, names, share_of
from sendlater.dialects.recurrence import PLAN_HEADERS, Plan, check_id, make_plan
from sendlater.dialects.tags import checked_tags
from sendlater.errors import BadRequest, BadTime
from sendlater.model import DUE_MS_MAX, Expiry, Headers, Record, Schedule

DATETIME_MS_MAX = 253_402_300_799_999
"""Last instant of a Python datetime (year 9999): `Scheduled` shows due times as datetimes."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_NO_TIME = timedelta(0)
AnyHeaders = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
"""Headers from a caller: pairs (names may repeat) or a mapping; text is sent as UTF-8."""
Delay = timedelta | float | str
"""A timedelta, seconds, or text as in header `sendlater-delay`: "15m", "PT15M", "900"."""
Instant = datetime | str
"""An aware datetime, or text: RFC 3339, "+15m" from now, or seconds since 1970."""

INSTEAD = {
    names.IF: "only_if",
    names.DUE_MS: "at",
    names.AT: "at",
    names.DELAY: "delay",
    names.EXPIRES: "expires",
    names.EXPIRES_AFTER: "expires_after",
    names.SPREAD: "spread",
    names.TAGS: "tags",
    names.TARGET_PARTITION: "partition",
    names.RETRY: "retry()",
    **{header: word for word, header in PLAN_HEADERS.items()},
}
"""Headers that tell intake what to do, and what says the same in a call."""


class Recurrence(TypedDict, total=False):
    """When a schedule comes again: see docs/recurring.md."""

    every: Delay | None
    cron: str | None
    zone: str | None
    start: Instant | None
    end: Instant | None
    count: int | None
    jitter: Delay | None
    missed: str | None


class Message(Recurrence):
    """One item of `send_many`: the arguments of `send_later` by name."""

    topic: str
    value: bytes | str
    key: NotRequired[bytes | str | None]
    headers: NotRequired[AnyHeaders]
    delay: NotRequired[Delay | None]
    at: NotRequired[Instant | None]
    spread: NotRequired[Delay | None]
    expires: NotRequired[Instant | None]
    expires_after: NotRequired[Delay | None]
    id: NotRequired[str | None]
    partition: NotRequired[int | None]
    tags: NotRequired[Iterable[str] | None]


def plan_send(
    topic: str,
    value: bytes | str,
    *,
    now_ms: int,
    key: bytes | str | None = None,
    headers: AnyHeaders = (),
    delay: Delay | None = None,
    at: Instant | None = None,
    spread: Delay | None = None,
    expires: Instant | None = None,
    expires_after: Delay | None = None,
    id: str | None = None,
    partition: int | None = None,
    tags: Iterable[str] | None = None,
    **recurrence: Unpack[Recurrence],
) -> Schedule:
    """The schedule for the arguments of `send_later`; without an id it gets a new ULID.

    Raises BadTime or BadRequest for arguments that are not valid.
    """
    if recurrence and (unknown := recurrence.keys() - Recurrence.__annotations__.keys()):
        raise TypeError(f"send_later() got unexpected arguments: {', '.join(sorted(unknown))}")
    if not isinstance(topic, str):
        raise BadRequest(f"topic: expected text, got {topic!r}")
    if id == "":
        raise BadRequest("id: expected text that is not empty, or None for a new one")
    body = to_bytes(value, what="value")
    if body is None:
        raise BadRequest("value: expected bytes or str, got None")
    record = Record(
        topic=topic,
        value=body,
        key=to_bytes(key, what="key"),
        headers=carried(to_headers(headers or ())),
        partition=partition,
    )
    if partition is not None and (not isinstance(partition, int) or isinstance(partition, bool)):
        raise BadRequest(f"partition: expected a whole number, got {partition!r}")
    schedule_id = to_id(new_id() if id is None else id)
    plan, found = "", None
    if recurrence:
        once = {"delay": delay, "at": at, "spread": spread, "expires": expires}
        found = planned({**recurrence, **once}, schedule_id=schedule_id, now_ms=now_ms)
    if found:
        planned_ms, plan = found.due_ms(schedule_id), found.text
    else:
        planned_ms = due_ms(delay=delay, at=at, now_ms=now_ms)
        if spread is not None:
            planned_ms += share_of(span_ms(spread, what="spread"), schedule_id)
    return Schedule(
        id=schedule_id,
        due_ms=representable(planned_ms),
        record=record,
        expiry=plan_expiry(expires, expires_after, due_ms=planned_ms, now_ms=now_ms),
        plan=plan,
        tags=checked_tags(tags),
    )


def planned(words: Mapping[str, Any], *, schedule_id: bytes = b"", now_ms: int) -> Plan | None:
    """The plan at its first occurrence; None if no word of PLAN_HEADERS was given. `words`: these,
    and what else was given with them; None counts as not given. Raises BadRequest, BadTime."""
    given = {word: value for word, value in words.items() if value is not None}
    if not given.keys() & PLAN_HEADERS.keys():
        return None
    for word in ("delay", "at", "due", "due_at", "due_ms", "spread", "expires"):
        if word in given:
            raise BadRequest(f"expected every or cron without {word}: that is for what comes once")
    check_id(schedule_id)
    read: dict[str, Any] = {w: given.get(w) for w in ("cron", "zone", "count", "missed")}
    for word in {"every", "jitter"} & given.keys():
        read[f"{word}_ms"] = span_ms(given[word], what=word)
    for word in {"start", "end"} & given.keys():
        read[f"{word}_ms"] = to_ms(given[word], what=word, now_ms=now_ms)
    return make_plan(now_ms=now_ms, **read)


def plan_expiry(
    expires: Instant | None, expires_after: Delay | None, *, due_ms: int, now_ms: int
) -> Expiry | None:
    """The expiry of a schedule with this due time; None for neither argument.

    Raises BadTime for both, for an instant before the due time, and for what is no time.
    """
    if expires is not None and expires_after is not None:
        raise BadTime(f"expected one of expires and expires_after, got {expires=} {expires_after=}")
    if expires_after is not None:
        return Expiry(span_ms(expires_after, what="expires_after"), after_due=True)
    if expires is None:
        return None
    return checked_expiry(Expiry(to_ms(expires, what="expires", now_ms=now_ms)), due_ms=due_ms)


def checked_expiry(expiry: Expiry, *, due_ms: int) -> Expiry:
    """The same. Raises BadTime if it lies before the due time."""
    if expiry.at_ms(due_ms) < due_ms:
        raise BadTime(
            f"expires: expected an instant that is not before the due time, {to_datetime(due_ms)}, "
            f"got {to_datetime(expiry.ms)}"
        )
    return expiry


def due_ms(*, delay: Delay | None, at: Instant | None, now_ms: int) -> int:
    """The due time of a delay or of an instant, rounded up to the next millisecond.

    A past `at` means now. Raises BadTime for both, neither, a naive datetime, a negative delay or
    text that is no time.
    """
    if (delay is None) == (at is None):
        raise BadTime(f"expected one of delay and at, got {delay=} and {at=}")
    if at is not None:
        return max(now_ms, to_ms(at, what="at", now_ms=now_ms))
    assert delay is not None
    return representable(now_ms + span_ms(delay, what="delay"))


def representable(ms: int) -> int:
    """The same. Raises BadTime after the year 9999."""
    if ms > DATETIME_MS_MAX:
        raise BadTime(f"expected a time before year 10000, got {ms} ms since 1970")
    return ms


def span_ms(span: Delay, *, what: str) -> int:
    """Milliseconds of a span, rounded up, at most DUE_MS_MAX. Raises BadTime for a negative one,
    and for text that is none."""
    if isinstance(span, str):
        return min(_read(duration_ms, span, what=what), DUE_MS_MAX)
    if isinstance(span, bool):
        raise BadTime(f"{what}: expected a timedelta or seconds, got {span}")
    try:
        found = span if isinstance(span, timedelta) else timedelta(seconds=span)
        found_ms = -(-found // _MS)
    except (OverflowError, TypeError, ValueError) as error:
        raise BadTime(f"{what}: expected a timedelta or seconds, got {span!r}") from error
    if found < _NO_TIME:
        raise BadTime(f"{what}: expected zero or more, got {span}")
    return found_ms


def _read(grammar: Callable[[str], int], text: str, *, what: str) -> int:
    try:
        return grammar(text)
    except BadTime as error:
        raise BadTime(f"{what}: {error}") from None


def to_datetime(due_ms: int) -> datetime:
    """An instant in UTC, at most the last one of Python's datetime."""
    return EPOCH + timedelta(milliseconds=min(due_ms, DATETIME_MS_MAX))


def to_ms(instant: Instant, *, what: str, now_ms: int) -> int:
    """Milliseconds since 1970, rounded up; `now_ms` is what "+15m" counts from.

    Raises BadTime for a naive datetime, and for text that is no instant.
    """
    if isinstance(instant, str):
        return _read(lambda text: instant_ms(text, now_ms), instant, what=what)
    if not isinstance(instant, datetime):
        raise BadTime(f"{what}: expected a datetime or text, got {type(instant).__name__}")
    if instant.utcoffset() is None:
        raise BadTime(f"{what}: expected a datetime with a time zone, got {instant.isoformat()}")
    return min(max(0, -((EPOCH - instant) // _MS)), DUE_MS_MAX)


def to_bytes(given: bytes | str | None, *, what: str) -> bytes | None:
    """Bytes as they are, text as UTF-8. Raises BadRequest for anything else."""
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(f"{what}: expected text that UTF-8 can carry: {error}") from error
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    raise BadRequest(f"{what}: expected bytes or str, got {type(given).__name__}")


def to_headers(given: AnyHeaders) -> Headers:
    """Pairs in order. Raises BadRequest for a name that is not text, or a value that is neither
    bytes nor text."""
    pairs: Any = given.items() if isinstance(given, Mapping) else given
    try:
        found = [(name, to_bytes(value, what=f"header {name}")) for name, value in pairs]
    except (TypeError, ValueError) as error:
        if isinstance(error, BadRequest):
            raise
        raise BadRequest(f"headers: expected pairs of name and value, got {given!r}") from error
    for name, _ in found:
        if not isinstance(name, str) or not name:
            raise BadRequest(f"headers: expected names that are text, got {name!r}")
    return found


def carried(headers: Headers) -> Headers:
    """The headers for the receiver: those of an earlier delivery are dropped. Raises BadRequest for
    one that tells intake what to do: dropped, it would be a wish that nobody hears."""
    kept = names.foreign(headers)
    if len(kept) < len(headers):  # all names of INSTEAD are a scheduler's
        for name, _ in headers:
            if name in INSTEAD:
                raise BadRequest(
                    f"headers: expected {INSTEAD[name]} in place of {name}, which is for records "
                    "that are put on an inbox"
                )
    return kept


def new_id() -> str:
    """A new unique id; ids sort by the time they were made."""
    from ulid import ULID  # loads slowly, and many clients give ids of their own

    return str(ULID())


def change_names(count: int) -> list[str]:
    """Unique names of changes that are made together: an id for each would cost more."""
    together = new_id()
    return [f"{together}-{n}" for n in range(count)]


def to_id(text: str, *, what: str = "id") -> bytes:
    """An id as bytes, as in the store; `id_text` is the inverse. Raises BadRequest for no text."""
    if not isinstance(text, str):
        raise BadRequest(f"{what}: expected text, got {text!r}")
    return text.encode(errors="surrogateescape")


def id_text(schedule_id: bytes) -> str:
    """An id as text; bytes that are not UTF-8 become surrogates."""
    return schedule_id.decode(errors="surrogateescape")


def chunks(schedules: Iterable[Schedule], *, count_max: int) -> Iterator[list[Schedule]]:
    """Lists of at most `count_max`; if the iterable raises, the items before that come first."""
    chunk: list[Schedule] = []
    try:
        for schedule in schedules:
            chunk.append(schedule)
            if len(chunk) == count_max:
                yield chunk
                chunk = []
    except Exception:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk
