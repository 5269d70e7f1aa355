"""Schedules that say little more than where and when, decoded where they are read.

Most records are of this kind. They have none of what makes decoding in SQL long, and take a tenth
of its time here. Whatever may be anything else, or wrong, is left to `decode`; what both decode is
the same (docs/adr/0026).
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from sendlater.dialects import names
from sendlater.dialects.when import duration_ms
from sendlater.errors import BadTime
from sendlater.limits import EPOCH_SECONDS_MAX, ID_BYTES_MAX, PLAIN_BYTES_MAX, TIMESTAMP_SPAN_MS_MAX
from sendlater.model import DUE_MS_MAX

if TYPE_CHECKING:
    from sendlater.config import Settings

Plain = tuple[int, str, bytes | None, list[str | bytes | None] | None]
"""Of a plain record: due time in ms, target, its key, and flat [name, value, ...] of the headers to
pass on, null if there are none."""
OTHERS = frozenset(
    {*names.CONTROL, names.CE_EXPIRYTIME, names.UNREADABLE, "traceparent"}
    - {names.TARGET_TOPIC, names.TARGET_KEY, *names.TIMES}
)
"""Headers that only `decode` understands, and the one of a message that is traced."""
_BLANKS = b" \t\n\v\f\r"
_DIGITS_MAX, _DELAY_BYTES_MAX, _TOPIC_BYTES_MAX = 16, 18, 249
"""Longer delays are for Spark, which reads no more than 18 decimals."""
_CACHED_COUNT = 1_000
"""Topics and delays that are remembered."""


@dataclass(frozen=True, slots=True)
class PlainRules:
    """What an installation wants of records; travels to tasks. By default none is plain."""

    topics: tuple[str, ...] = ()
    """Inboxes whose records may be plain."""
    few: tuple[str, ...] = ()
    """Inboxes whose deliveries get few headers."""
    bytes_max: int = 0
    """Size of value, key and headers together."""
    delay_ms_max: int = 0
    past: bool = False
    """Whether what is due before it was written is plain too."""

    @classmethod
    def of(cls, settings: "Settings") -> "PlainRules":
        """Those of an installation; where control headers are passed on, nothing is plain."""
        plain = () if settings.keep_input_headers else settings.taken_in
        return cls(
            topics=tuple(one.topic for one in plain if one.dialect == "headers"),
            few=adding_few(settings),
            bytes_max=min(PLAIN_BYTES_MAX, settings.max_payload_bytes),
            delay_ms_max=settings.max_delay_days * 86_400_000,
            past=settings.past != "reject",
        )

    @classmethod
    def of_text(cls, text: str) -> "PlainRules":
        """Those that `text` is of."""
        told = json.loads(text)
        return cls(**{**told, "topics": tuple(told["topics"]), "few": tuple(told["few"])})

    def text(self) -> str:
        """As an option of Spark's."""
        return json.dumps(asdict(self))

    def read(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Sequence[tuple[str, bytes | None]] | None,
    ) -> Plain | None:
        """What a record of an inbox says; None if it is not plain."""
        if key is None or value is None or not headers:
            return None
        if not 0 <= timestamp_ms <= TIMESTAMP_SPAN_MS_MAX:
            return None
        found = dict(headers)
        if topic not in self.topics or len(found) < len(headers) or not OTHERS.isdisjoint(found):
            return None
        size = len(key) + len(value) + 4 * sum(map(len, found))  # at most
        size += sum(map(len, filter(None, found.values())))
        if size > self.bytes_max or len(key) > ID_BYTES_MAX or not key.strip(_BLANKS):
            return None
        topic_bytes = found.pop(names.TARGET_TOPIC, None) or b""
        target = _target(topic_bytes) if len(topic_bytes) <= _TOPIC_BYTES_MAX else None
        target_key = found.pop(names.TARGET_KEY, None)
        due_ms = _due_ms(found, timestamp_ms)
        if due_ms is None or target is None or (due_ms < timestamp_ms and not self.past):
            return None
        if due_ms > min(timestamp_ms + self.delay_ms_max, DUE_MS_MAX):
            return None
        return due_ms, target, target_key, [part for pair in found.items() for part in pair] or None


def adding_few(settings: "Settings") -> tuple[str, ...]:
    """Inboxes whose deliveries get few headers."""
    return tuple(one.topic for one in settings.inboxes if one.added_headers == "few")


def _due_ms(found: dict[str, bytes | None], timestamp_ms: int) -> int | None:
    """Takes the headers with the due time out, of which the first decides; None if there is none,
    or it is not simple."""
    told = [(name, found.pop(name)) for name in names.TIMES if name in found]
    name, text = told[0] if told else ("", None)
    if text is None or name == names.AT:
        return None
    if name == names.DELAY:
        delay_ms = _delay_ms(text) if len(text) <= _DELAY_BYTES_MAX else None
        return None if delay_ms is None else timestamp_ms + delay_ms
    if not text.isdigit() or len(text) > _DIGITS_MAX:
        return None
    number = int(text)
    if name == names.DUE_MS:
        return number
    return number * 1_000 if number < EPOCH_SECONDS_MAX else None


@lru_cache(_CACHED_COUNT)
def _target(topic: bytes) -> str | None:
    """A target's name if it is one."""
    name = topic.decode(errors="replace")
    return name if re.fullmatch(names.TOPIC, name) and name not in (".", "..") else None


@lru_cache(_CACHED_COUNT)
def _delay_ms(text: bytes) -> int | None:
    """Milliseconds of a delay if it is one."""
    try:
        return duration_ms(text.decode())
    except (BadTime, UnicodeDecodeError):
        return None
