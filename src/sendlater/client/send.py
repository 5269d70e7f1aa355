"""A request to schedule as text gives it: the CLI's flags, or one line of JSON."""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from ulid import ULID

from sendlater.client.scheduler import Scheduler
from sendlater.dialects import duration_ms, encode_headers, instant_ms
from sendlater.errors import BadRequest, BadTime
from sendlater.model import Headers, Record


class Sent(NamedTuple):
    """What became of it."""

    id: str
    due_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """Text in; `send` checks it and hands it over."""

    topic: str
    value: bytes
    key: str | None = None
    headers: list[str] | dict[str, str] | list[list[str]] = field(default_factory=list)
    delay: str | float | None = None
    at: str | float | None = None
    id: str | None = None
    partition: int | None = None

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """One JSON object. `value` may be a string or any JSON value. Raises BadRequest."""
        try:
            given = json.loads(line)
        except ValueError as error:
            raise BadRequest(f"expected a JSON object, got {line[:80]!r}: {error}") from error
        if not isinstance(given, dict):
            raise BadRequest(f"expected a JSON object, got {line[:80]!r}")
        unknown = given.keys() - set(cls.__slots__)
        if unknown:
            raise BadRequest(f"expected {list(cls.__slots__)}, got also {sorted(unknown)}")
        missing = {"topic", "value"} - given.keys()
        if missing:
            raise BadRequest(f"expected topic and value, {sorted(missing)} missing")
        value = given["value"]
        text = value if isinstance(value, str) else json.dumps(value)
        return cls(**{**given, "value": text.encode()})

    def send(self, scheduler: Scheduler) -> Sent:
        """Hand over to the inbox. Raises BadTime, BadRequest, BrokerUnavailable."""
        now_ms = time.time_ns() // 1_000_000
        if (self.delay is None) == (self.at is None):
            raise BadTime(f"expected one of delay and at, got {self.delay!r} and {self.at!r}")
        if self.delay is not None:
            due_ms = now_ms + duration_ms(str(self.delay))
        else:
            due_ms = instant_ms(str(self.at), now_ms=now_ms)
        schedule_id = str(ULID()) if self.id is None else self.id
        record = Record(
            topic=self.topic,
            value=self.value,
            key=None if self.key is None else self.key.encode(),
            headers=_headers(self.headers),
            partition=self.partition,
        )
        scheduler.broker.send(
            encode_headers(record, inbox=scheduler.inbox, id=schedule_id.encode(), due_ms=due_ms)
        )
        return Sent(schedule_id, due_ms)


def read_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes, SendRequest | BadRequest]]:
    """(line number, line, request or what is wrong with it), blank lines skipped."""
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
        pairs.append((name, None if value is None else str(value).encode()))
    return pairs
