"""A request to schedule given as text: the flags of `send`, or one line of JSON."""

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import msgspec
from ulid import ULID

from sendlater.client.scheduler import Scheduler
from sendlater.config import Settings, load
from sendlater.dialects import duration_ms, instant_ms, share_of
from sendlater.dialects.recurrence import Plan
from sendlater.dialects.tags import checked_tags
from sendlater.errors import BadRequest, BadTime
from sendlater.model import Headers, Record, Schedule
from sendlater.operations.acceptance import inbox_record
from sendlater.operations.arguments import carried, plan_expiry, planned
from sendlater.operations.conditions import checked_condition


class Sent(NamedTuple):
    """The id and due time of a schedule that was sent."""

    id: str
    due_ms: int


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """One line of JSON; a value that is not a string stays unparsed JSON, with exact numbers."""

    topic: str
    value: msgspec.Raw
    key: str | None = None
    headers: dict[str, str | None] | list[str | tuple[str, str | None]] = []
    delay: str | int | float | None = None
    at: str | int | float | None = None
    spread: str | int | float | None = None
    expires: str | int | float | None = None
    expires_after: str | int | float | None = None
    id: str | None = None
    partition: int | None = None
    tags: list[str] | None = None
    every: str | int | float | None = None
    cron: str | None = None
    zone: str | None = None
    start: str | int | float | None = None
    end: str | int | float | None = None
    count: int | None = None
    jitter: str | int | float | None = None
    missed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """A request in text form; `send` checks and sends it."""

    topic: str
    value: bytes
    key: str | None = None
    headers: Any = field(default_factory=list)
    """`name=value` texts or (name, value or None) pairs in a list, or a mapping."""
    delay: str | float | None = None
    at: str | float | None = None
    spread: str | float | None = None
    expires: str | float | None = None
    expires_after: str | float | None = None
    id: str | None = None
    partition: int | None = None
    tags: list[str] | None = None
    only_if: str | None = None
    every: str | float | None = None
    cron: str | None = None
    zone: str | None = None
    start: str | float | None = None
    end: str | float | None = None
    count: int | None = None
    jitter: str | float | None = None
    missed: str | None = None

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """One JSON object. `value` may be a string or any JSON value. Raises BadRequest."""
        try:
            given = msgspec.json.decode(line, type=_Line)
            value = bytes(given.value)
            if value.startswith(b'"'):
                value = msgspec.json.decode(value, type=str).encode()
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise BadRequest(
                f"expected a JSON object to send, got {line[:80]!r}: {error}"
            ) from None
        fields = {name: getattr(given, name) for name in _Line.__struct_fields__}
        return cls(**{**fields, "value": value})

    def send(self, scheduler: Scheduler) -> Sent:
        """Send to the inbox. Raises BadTime, BadRequest, BrokerUnavailable; with a condition also
        ConditionFailed."""
        if self.only_if is not None:
            settings = load() if scheduler.remote is not None else scheduler.settings
            meant, _ = self._planned(settings, inbox="unknown")
            scheduler.create(meant, only_if=self.only_if)
        elif scheduler.remote is not None:
            meant, _ = self._planned(load(), inbox="unknown")
            scheduler.remote.send(meant, done=lambda _: None)
        else:
            meant, record = self._planned(scheduler.settings, inbox=scheduler.inbox)
            scheduler.broker.send(record)
        return Sent(meant.id.decode(), meant.due_ms)

    def check(self, settings: Settings) -> None:
        """Raises BadTime or BadRequest if `send` would, but without a connection."""
        self._planned(settings, inbox="unknown")
        if self.only_if is not None:
            checked_condition(self.only_if)

    def _planned(self, settings: Settings, *, inbox: str) -> tuple[Schedule, Record]:
        """The schedule, and the record for the inbox."""
        now_ms = time.time_ns() // 1_000_000
        schedule_id = _utf8("id", str(ULID()) if self.id is None else self.id)
        plan = self._plan(schedule_id, now_ms)
        due_ms = plan.due_ms(schedule_id) if plan else self._due_ms(now_ms)
        if due_ms > now_ms + settings.max_delay_days * 86_400_000:
            given = self.delay or self.at or self.start or self.every or self.cron
            raise BadTime(
                f"expected a time within {settings.max_delay_days} days (setting max_delay_days), "
                f"got {given}"
            )
        if self.spread is not None:
            due_ms += share_of(duration_ms(str(self.spread)), schedule_id)
        if len(self.value) > settings.max_payload_bytes:
            raise BadRequest(
                f"value: expected at most {settings.max_payload_bytes} bytes "
                f"(setting max_payload_bytes), got {len(self.value)}"
            )
        schedule = Schedule(
            id=schedule_id,
            due_ms=due_ms,
            record=self.record(),
            plan=plan.text if plan else "",
            expiry=plan_expiry(
                None if self.expires is None else str(self.expires),
                None if self.expires_after is None else str(self.expires_after),
                due_ms=due_ms,
                now_ms=now_ms,
            ),
            tags=checked_tags(self.tags),
        )
        return schedule, inbox_record(schedule, settings=settings, inbox=inbox, now_ms=now_ms)

    def _plan(self, schedule_id: bytes, now_ms: int) -> Plan | None:
        """The plan of a request that has one. Raises BadRequest, BadTime."""
        words = {name: getattr(self, name) for name in self.__slots__}
        for word in ("every", "start", "end", "jitter"):
            words[word] = None if words[word] is None else str(words[word])
        return planned(words, schedule_id=schedule_id, now_ms=now_ms)

    def record(self) -> Record:
        """The record for the target topic. Raises BadRequest."""
        return Record(
            topic=self.topic,
            value=self.value,
            key=None if self.key is None else os.fsencode(self.key),
            headers=_headers(self.headers),
            partition=self.partition,
        )

    def _due_ms(self, now_ms: int) -> int:
        if (self.delay is None) == (self.at is None):
            came = "neither" if self.delay is None else "both"
            raise BadTime(f"expected one of delay and at, got {came}")
        if self.delay is not None:
            return now_ms + duration_ms(str(self.delay))
        return instant_ms(str(self.at), now_ms=now_ms)


def read_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes, SendRequest | BadRequest]]:
    """(line number, line, request or error), blank lines skipped."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield number, line, SendRequest.parse(line)
            except BadRequest as error:
                yield number, line, error


def _headers(given: Any) -> Headers:
    """`name=value` texts, pairs, or a mapping."""
    if isinstance(given, dict):
        given = list(given.items())
    pairs = []
    for one in given:
        name, separator, value = (
            one.partition("=") if isinstance(one, str) else (one[0], "=", one[1])
        )
        if not name or not separator:
            raise BadRequest(f"header: expected name=value, got {one!r}")
        _utf8("header", name)
        pairs.append((name, None if value is None else os.fsencode(value)))
    return carried(pairs)


def _utf8(what: str, text: str) -> bytes:
    """The bytes of a name, which must be UTF-8; values need not be."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadRequest(f"{what}: expected UTF-8, got {text!r}") from None
