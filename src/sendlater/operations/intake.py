"""How far intake has read the inboxes: what the store answers is true for what it has read."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from sendlater.brokers.broker import Broker
from sendlater.errors import BrokerUnavailable, StoreUnavailable
from sendlater.store import Pending
from sendlater.store.conditional import Reserved
from sendlater.store.connection import answering

CATCH_UP_S = 30.0
"""Longest wait for intake to read the inboxes: a service that has just started is slow."""
CATCH_UP_PAUSE_S = 0.01
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Look:
    """Up to where intake had read the inboxes, and the servers that knew it."""

    servers: list[str]
    ends: dict[str, int]


class Intake:
    """Safe to share between threads. `ends` are positions by inbox partition, "topic/number".

    Records of an inbox that is `copied` to a journal are read there, as soon as they are copied.
    """

    def __init__(
        self,
        inboxes: Sequence[str],
        *,
        pending: Pending,
        broker: Broker,
        copied: Collection[str] = (),
    ) -> None:
        """`copied`: those among `inboxes` that are copied to one of the others."""
        self.inboxes, self.pending, self.broker = inboxes, pending, broker
        self._copied = frozenset(copied)
        self._own: dict[str, int] = {}
        """Positions on the inboxes after the last record that this process has written."""
        self._unplaced: dict[str, int] = {}
        """Inboxes that it has written to at positions nobody has told, and which writing was the
        last."""
        self._writings = count(1)
        self._lock = threading.Lock()

    def catch_up(self) -> Look:
        """Wait until intake has read what is on the inboxes now; see `require`. Raises
        StoreUnavailable if that takes too long: the store's answer could be wrong."""
        with answering():
            look = Look(self.pending.servers(), self.ends())
        self._raise_for(self.caught_up(within_s=CATCH_UP_S, ends=look.ends))
        return look

    def require(self, look: Look) -> None:
        """Raises StoreUnavailable if the store has lost since what intake had read at this look: a
        server was restarted, or followed by a replica, or the store is filled again. What it has
        answered may be about an older version."""
        with answering():
            lost = self.pending.servers() != look.servers
        if lost or self._behind(look.ends):
            raise StoreUnavailable(
                "Redis was restarted meanwhile, or is filled again, so that this may have met an "
                "older version: look how it stands, and try again"
            )

    def catch_up_with_own(self) -> None:
        """The same for what this process has written."""
        self._ask_for_own()
        with self._lock:
            own = dict(self._own)
        self._raise_for(self._left_of(own, within_s=CATCH_UP_S))
        if self._of_copied(own):
            self.catch_up()

    def caught_up(self, *, within_s: float, ends: dict[str, int] | None = None) -> set[str]:
        """As `catch_up`, but returns the inbox partitions that intake has not read in time."""
        deadline = time.monotonic() + within_s
        ends = self.ends() if ends is None else ends
        left = self._left_of(ends, within_s=within_s)
        if left or not self._of_copied(ends):
            return left
        # What was copied meanwhile is behind what was there before.
        return self._left_of(self.ends(), within_s=deadline - time.monotonic())

    def unreserved(self, change: Callable[[], T]) -> T:
        """What `change` returns, with all that intake has read, and again while it raises Reserved.

        Raises Reserved if somebody else has the id for too long, and StoreUnavailable."""
        deadline = time.monotonic() + CATCH_UP_S
        while True:
            look = self.catch_up()
            try:
                changed = change()
            except Reserved:
                if time.monotonic() >= deadline:
                    raise
            else:
                self.require(look)
                return changed
            time.sleep(CATCH_UP_PAUSE_S)

    def is_behind(self) -> bool:
        """Whether intake has not read all of the inboxes."""
        return bool(self._behind(self.ends()))

    def ends(self, inboxes: Iterable[str] | None = None) -> dict[str, int]:
        """The positions after the last records on the inboxes, by default all. Raises
        BrokerUnavailable."""
        return {
            f"{inbox}/{number}": end
            for inbox in (self.inboxes if inboxes is None else inboxes)
            for number, end in self._ends_of(inbox).items()
            if end
        }

    def _ends_of(self, inbox: str) -> dict[int, int]:
        try:
            return self.broker.ends(inbox)
        except BrokerUnavailable as error:
            raise BrokerUnavailable(f"inbox {inbox!r} of the settings here: {error}") from error

    def remember(self, ends: dict[str, int]) -> None:
        """Note that this process has written up to `ends`."""
        with self._lock:
            for source, end in ends.items():
                self._own[source] = max(self._own.get(source, 0), end)

    def has_written(self, inbox: str) -> None:
        """Note that this process has written there; where to, the broker is asked when that
        matters."""
        with self._lock:
            self._unplaced[inbox] = next(self._writings)

    def _ask_for_own(self) -> None:
        """Ask how far the inboxes are that this process has written to, if nobody has told."""
        with self._lock:
            asked = dict(self._unplaced)
        self.remember(self.ends(asked))
        with self._lock:  # but for what was written meanwhile
            self._unplaced = dict(self._unplaced.items() - asked.items())

    def _raise_for(self, behind: set[str]) -> None:
        if behind:
            raise StoreUnavailable(
                f"intake has not read {sorted(behind)} within {CATCH_UP_S:g} s: "
                "is the service running?"
            )

    def _of_copied(self, ends: Iterable[str]) -> bool:
        return any(source.rpartition("/")[0] in self._copied for source in ends)

    def _left_of(self, ends: dict[str, int], *, within_s: float) -> set[str]:
        deadline = time.monotonic() + within_s
        while (behind := self._behind(ends)) and time.monotonic() < deadline:
            time.sleep(CATCH_UP_PAUSE_S)
        return behind

    def _behind(self, ends: dict[str, int]) -> set[str]:
        """Inbox partitions that intake has not read up to `ends`."""
        if not ends:
            return set()
        with answering():
            seen = self.pending.positions()
            if self._of_copied(ends):
                seen |= self.pending.copied()
        return {source for source, end in ends.items() if seen.get(source, 0) < end}
