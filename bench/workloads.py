"""The workloads, as data, and what each one orders when. Nothing here touches a system."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

LEAD_MS = 10_000
"""Delay of a message that is to be pending in good time."""
CHANGE_AFTER_MS = 1_000
"""When a message of a load with changes is moved or cancelled."""
MOVED_BY_MS = 5_000
"""How much later a moved message is due."""
FAR_MS = 10 * 86_400_000
"""Delay of what only lies there: no run lasts that long."""
BURST_MARGIN_MS = 5_000
"""Time between the end of sending a burst, as planned, and its instant."""
SECONDS_MIN = 5.0
"""No scaled load is shorter."""

SCHEDULE, MOVE, CANCEL = "smc"
"""What can be ordered: the first letter of a line to a driver."""


class Order(NamedTuple):
    """One line to a driver. A message with a negative number must not arrive."""

    at_ms: float
    """When to give it, after the start of the load."""
    verb: str
    number: int
    due_ms: int
    """When the message is due, after the start of the load."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A load. It runs twice on a fresh system: the first time cold, then warm."""

    name: str
    rate: float = 0.0
    """Messages a second."""
    seconds: float = 0.0
    delays_ms: tuple[int, ...] = (LEAD_MS,)
    """Delays of the messages, in turn."""
    burst: int = 0
    """Messages due in one instant: once, or at the end of every `every_s`."""
    every_s: float = 0.0
    """How often a burst repeats during `seconds`; 0: there is one, and nothing else."""
    pending: int = 0
    """Messages due in FAR_MS, sent before the load."""
    changes: bool = False
    """Of three messages one stays, one is moved, one is cancelled."""
    backlog: bool = False
    """What is pending is sent while the service is away: how long until it has taken that in."""
    restart: bool = False
    """The servers are stopped and started again: how long until the first delivery."""
    long: bool = False
    """It takes many minutes for each system: it runs only when it is named."""

    @property
    def most(self) -> int:
        """The largest number of messages that lie in the system at once."""
        return max(self.burst, self.pending)

    @property
    def verbs(self) -> frozenset[str]:
        """What a system must be able to do for this load."""
        return frozenset({SCHEDULE, MOVE, CANCEL} if self.changes else {SCHEDULE})

    def scaled(self, scale: float) -> "Workload":
        """The same with `scale` times the messages and seconds; rates and delays stay."""
        return replace(
            self,
            seconds=max(min(SECONDS_MIN, self.seconds), self.seconds * scale),
            burst=round(self.burst * scale),
            every_s=max(min(SECONDS_MIN, self.every_s), self.every_s * scale),
            pending=round(self.pending * scale),
        )


WORKLOADS = (
    Workload(name="steady 5/s", rate=5, seconds=60),
    Workload(name="steady 100/s", rate=100, seconds=60),
    Workload(name="steady 2,000/s", rate=2_000, seconds=60),
    Workload(name="steady 8,000/s", rate=8_000, seconds=60),
    Workload(name="short delays", rate=50, seconds=60, delays_ms=(0, 10, 100, 300, 1_000)),
    Workload(name="burst 300,000", burst=300_000),
    Workload(name="burst 3,000,000", burst=3_000_000, long=True),
    Workload(name="herd", rate=2_000, seconds=180, burst=50_000, every_s=60),
    Workload(name="far", rate=1_000, seconds=60, pending=10_000_000, long=True),
    Workload(name="churn", rate=300, seconds=60, changes=True),
    Workload(name="cold", pending=1_000_000, restart=True, long=True),
    Workload(name="idle", seconds=60),
    Workload(name="backlog", pending=1_000_000, backlog=True),
)
"""CPU for each message ("cost") is a figure of every load, not a load of its own."""


def plan(workload: Workload, *, first: int, sends_per_s: float) -> list[Order]:
    """The orders of one run of a load, by time. Messages that must arrive are numbered from `first`
    without gaps, the others from -first-1 downwards.

    `sends_per_s` is what the system takes in: a burst is due once all of it can be there.
    """
    numbers, never = count(first), count(-first - 1, -1)
    if workload.burst and not workload.every_s:
        due_ms = BURST_MARGIN_MS + round(1_000 * workload.burst / sends_per_s)
        return [Order(0.0, SCHEDULE, next(numbers), due_ms) for _ in range(workload.burst)]
    streams = [_steady(workload, numbers, never), _herd(workload, numbers)]
    return list(heapq.merge(*streams))


def due_times(orders: Sequence[Order]) -> list[int]:
    """When each message that must arrive is due at last, by number."""
    due = {order.number: order.due_ms for order in orders if order.number >= 0}
    first = min(due, default=0)
    assert len(due) == max(due, default=first - 1) + 1 - first, "numbers have no gaps"
    return [due[number] for number in sorted(due)]


def _steady(workload: Workload, numbers: Iterator[int], never: Iterator[int]) -> Iterator[Order]:
    orders = []
    for n in range(round(workload.rate * workload.seconds)):
        at_ms = 1_000 * n / workload.rate
        due_ms = round(at_ms) + workload.delays_ms[n % len(workload.delays_ms)]
        change = (None, MOVE, CANCEL)[n % 3] if workload.changes else None
        number = next(never if change == CANCEL else numbers)
        orders.append(Order(at_ms, SCHEDULE, number, due_ms))
        if change is not None:
            moved_ms = due_ms + (MOVED_BY_MS if change == MOVE else 0)
            orders.append(Order(at_ms + CHANGE_AFTER_MS, change, number, moved_ms))
    yield from sorted(orders)


def _herd(workload: Workload, numbers: Iterator[int]) -> Iterator[Order]:
    """Repeated bursts; each is sent evenly over the time before, but for the last LEAD_MS."""
    period_ms = 1_000 * workload.every_s
    rounds = int(workload.seconds // workload.every_s) if period_ms else 0
    for n in range(rounds * workload.burst):
        turn, place = divmod(n, workload.burst)
        at_ms = period_ms * (turn + place / workload.burst)
        yield Order(at_ms, SCHEDULE, next(numbers), round(period_ms * (turn + 1)) + LEAD_MS)
