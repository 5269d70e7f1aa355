"""Records that were handed to the broker together, and what it answers."""

import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from sendlater.errors import BrokerUnavailable
from sendlater.model import Record
from sendlater.operations.transport import Done

ACK_S = 30.0
"""Longest wait for the broker to acknowledge records."""
ONLY_IN_STORE = "changed in the store, but not on the inbox: "


class HandedOver:
    """Several records on their way. Any thread may hear the broker's answers."""

    def __init__(
        self, records: Sequence[Record], hand_over: Callable[[Record, Done], None]
    ) -> None:
        unheard = BrokerUnavailable(f"the broker has not answered within {ACK_S:g} s")
        self._outcome: list[Exception | None] = [unheard] * len(records)
        self._heard = itertools.count(1)
        self._all_heard = threading.Event()
        for number, record in enumerate(records):
            hand_over(record, partial(self._hear, number))

    def _hear(self, number: int, error: Exception | None) -> None:
        self._outcome[number] = error
        if next(self._heard) == len(self._outcome):
            self._all_heard.set()

    def outcome(self) -> list[Exception | None]:
        """Wait for the broker; the error of each record, or None once it is safe."""
        if self._outcome:
            self._all_heard.wait(ACK_S)
        return self._outcome


class Copies:
    """Copies of changes, on their way to the inbox. The broker acknowledges those of some changes
    while the store makes the next ones, and no more than these are on their way."""

    def __init__(
        self, hand_over: Callable[[Record, Done], None], *, flush: Callable[[], None]
    ) -> None:
        self._hand_over, self._flush = hand_over, flush
        self._last = HandedOver((), hand_over)

    def leave(self, records: Sequence[Record]) -> None:
        """Hand these over, and wait until those before are safe. Raises BrokerUnavailable."""
        before, self._last = self._last, HandedOver(records, self._hand_over)
        require_safe(before.outcome(), otherwise=ONLY_IN_STORE)

    def settle(self) -> None:
        """Wait until all are safe. Raises BrokerUnavailable."""
        with suppress(BrokerUnavailable):  # the outcome has this error too
            self._flush()
        require_safe(self._last.outcome(), otherwise=ONLY_IN_STORE)


def require_safe(outcome: Sequence[Exception | None], *, otherwise: str = "") -> None:
    """Raises BrokerUnavailable if a record was not accepted; `otherwise` is what that means."""
    failed = next((error for error in outcome if error is not None), None)
    if failed is not None:
        raise BrokerUnavailable(f"{otherwise}{failed}")
