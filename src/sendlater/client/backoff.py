"""Growing pauses between attempts, as in etf1's client (etf1-contract.md, section 2)."""

import random
import re
from dataclasses import dataclass, field
from typing import Self

from sendlater.dialects import duration_ms, share_of
from sendlater.dialects.retry import EXPONENTIAL, JITTER, NONE, PAUSES, POLICY_EXPECTED
from sendlater.errors import BadRequest, BadTime
from sendlater.limits import RETRIES_MAX
from sendlater.model import DUE_MS_MAX
from sendlater.operations.arguments import Delay, span_ms


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """The first pause is `min_s`; each next is `factor` times longer, up to `max_s`.

    There are at most `retries` pauses. `jitter` shortens each pause by a random share between 0
    and `jitter`, so that events that failed together are not retried together. `intervals_s` lists
    the pauses instead; the last repeats.
    """

    min_s: float = 5.0
    max_s: float = 3_600.0
    factor: float = 2.0
    retries: int = 50
    jitter: float = 0.0
    intervals_s: tuple[float, ...] = field(default=())

    def __post_init__(self) -> None:
        if not 0 <= self.min_s <= self.max_s:
            raise BadRequest(f"expected 0 <= min_s <= max_s, got {self.min_s} and {self.max_s}")
        if self.factor < 1:
            raise BadRequest(f"factor: expected 1 or more, got {self.factor}")
        if self.retries < 0:
            raise BadRequest(f"retries: expected 0 or more, got {self.retries}")
        if not 0 <= self.jitter <= 1:
            raise BadRequest(f"jitter: expected 0 to 1, got {self.jitter}")
        if any(pause < 0 for pause in self.intervals_s):
            raise BadRequest(f"intervals_s: expected zero or more, got {self.intervals_s}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """The policy that is written so in header `sendlater-retry`. Raises BadRequest.

        >>> Backoff.parse("5s,30s,5m").intervals_s
        (5.0, 30.0, 300.0)
        >>> Backoff.parse("exponential 1s..10m x8 jitter 20%").max_s
        600.0
        """
        if not isinstance(text, str):
            raise BadRequest(f"expected {POLICY_EXPECTED}, got {text!r}")
        found = re.fullmatch(f"(.*?)(?:{JITTER})?", text)
        try:
            if found is None:
                raise BadTime("a line break")
            return cls._parse(found[1], jitter=int(found[2] or 0) / 100)
        except BadRequest:
            raise BadRequest(f"expected {POLICY_EXPECTED}, got {text[:100]!r}") from None

    @classmethod
    def _parse(cls, body: str, *, jitter: float) -> Self:
        if body == NONE:
            return cls(retries=0, jitter=jitter)
        if doubling := re.fullmatch(EXPONENTIAL, body):
            first, most = (_seconds(duration_ms(doubling[n])) for n in (1, 2))
            if int(doubling[3]) > RETRIES_MAX:
                raise BadRequest("too many retries")
            return cls(min_s=first, max_s=most, retries=int(doubling[3]), jitter=jitter)
        if not re.fullmatch(PAUSES, body):
            raise BadRequest("no list of pauses")
        pauses = tuple(_seconds(duration_ms(one.strip())) for one in body.split(","))
        return cls(intervals_s=pauses, retries=len(pauses), jitter=jitter)

    def pause_ms(self, attempt: int, *, seed: bytes) -> int:
        """The pause in milliseconds; the jitter is a part of it that `seed` decides."""
        whole = round(self.pause_s(attempt, chance=0.0) * 1_000)
        return whole - share_of(whole * round(self.jitter * 100) // 100, seed)

    def pause_s(self, attempt: int, *, chance: float | None = None) -> float:
        """Seconds to wait after attempt number `attempt` (from 1) has failed.

        `chance` in [0, 1) replaces the random number of the jitter.

        >>> [Backoff(min_s=5, max_s=30).pause_s(n) for n in (1, 2, 3, 4)]
        [5.0, 10.0, 20.0, 30.0]
        """
        assert attempt >= 1, f"attempts count from 1, got {attempt}"
        if self.intervals_s:
            pause = self.intervals_s[min(attempt, len(self.intervals_s)) - 1]
        elif self.min_s == 0:
            pause = 0.0
        else:
            # The loop is bounded by max_s / min_s; a power would overflow at attempt 1,025.
            pause = float(self.min_s)
            for _ in range(attempt - 1):
                if pause >= self.max_s or self.factor == 1:
                    break
                pause *= self.factor
            pause = min(pause, self.max_s)
        dice = random.random() if chance is None else chance
        return pause * (1 - self.jitter * dice)


class Retry(Exception):
    """Raised by a handler: try this event again, after a pause of the handler's choice."""

    def __init__(self, why: str = "", *, after: Delay | None = None) -> None:
        """`after`: a timedelta, seconds, or text such as "15m"; without it, the policy's pause.
        Raises BadTime."""
        super().__init__(why or "asked to be tried again")
        self.after_ms = None if after is None else span_ms(after, what="after")


class Dead(Exception):
    """Raised by a handler: never try this event again, it goes to the dead-letter topic."""


def _seconds(ms: int) -> float:
    return min(ms, DUE_MS_MAX) / 1_000
