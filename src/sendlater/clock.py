"""Time comes in as an argument; these are the two places it comes from."""

import time
from typing import Protocol


class Clock(Protocol):
    """Anything that can tell the time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...

    def elapsed_ms(self) -> float:
        """Milliseconds since some instant; never goes back, whatever is done to the clock."""
        ...


class SystemClock:
    """The clock of this host. "Never early" is promised by this clock on the claiming host."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, rounded down, so that a comparison can only err towards late."""
        return time.time_ns() // 1_000_000

    def elapsed_ms(self) -> float:
        """Of the machine's monotonic clock."""
        return time.monotonic() * 1_000


class FixedClock:
    """A clock that moves only when told to, for tests and simulations."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """The instant last set."""
        return self._now_ms

    def elapsed_ms(self) -> float:
        """The same: it goes back only in a simulation, which counts for itself."""
        return self._now_ms

    def advance(self, by_ms: int) -> None:
        """Move forward; going back is an error, as a real clock should not."""
        assert by_ms >= 0, f"a clock moves forward, got {by_ms}"
        self._now_ms += by_ms
