"""The mini mode of etf1's scheduler: sample schedules for its admin page."""

from collections.abc import Iterator

from sendlater.clock import Clock, SystemClock
from sendlater.model import Origin, Record, Schedule

MINI_COUNT = 3
"""Number of schedules of `--mini`."""


class Mini:
    """Replaces the store, to try the interfaces without Kafka: three schedules that renew
    themselves, the n-th every n minutes (contract 1.9)."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._began_ms = self._clock.now_ms()

    def all(self) -> Iterator[Schedule]:
        """All of them."""
        return map(self._schedule, range(1, MINI_COUNT + 1))

    def counts(self) -> dict[str, int]:
        """As `Pending.counts`, with the names that the counter needs."""
        due = sum(self._renewals(n) for n in range(1, MINI_COUNT + 1))
        none = dict.fromkeys(("rejected", "tombstones", "missed"), 0)
        return {"parked": MINI_COUNT + due, "settled": due, **none}

    def _renewals(self, number: int) -> int:
        return (self._clock.now_ms() - self._began_ms) // (number * 60_000)

    def _schedule(self, number: int) -> Schedule:
        made_ms = self._began_ms + self._renewals(number) * number * 60_000
        return Schedule(
            id=f"schedule-{number}".encode(),
            due_ms=made_ms + number * 60_000,
            record=Record(topic="topic", key=b"%d" % number, value=b"value %d" % number),
            dialect="headers",
            origin=Origin(topic="schedules", partition=0, position=0, timestamp_ms=made_ms),
        )
