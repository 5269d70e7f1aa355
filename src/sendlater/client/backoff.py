"""Growing pauses between attempts, as in etf1's client (etf1-contract.md, section 2)."""

import random
from dataclasses import dataclass, field

from sendlater.errors import BadRequest


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
        if self.retries < 1:
            raise BadRequest(f"retries: expected 1 or more, got {self.retries}")
        if not 0 <= self.jitter <= 1:
            raise BadRequest(f"jitter: expected 0 to 1, got {self.jitter}")
        if any(pause < 0 for pause in self.intervals_s):
            raise BadRequest(f"intervals_s: expected zero or more, got {self.intervals_s}")

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
