"""Schedules of many requests, written together."""

import threading
from collections.abc import Callable

from sendlater.client.office import Office
from sendlater.model import Schedule


class Writer:
    """Gathers schedules of many requests and writes them together, in a thread of its own.

    While one lot is on its way the next one gathers, so that a wait for the broker is shared.
    """

    LOT_COUNT_MAX = 2_000

    def __init__(
        self, office: Office, *, answer: Callable[[list[tuple[object, Exception | None]]], object]
    ) -> None:
        self._office, self._answer = office, answer
        self._waiting: list[tuple[Schedule, object]] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, schedule: Schedule, ticket: object) -> None:
        """Hand over a checked schedule; `answer` is called with its ticket later."""
        with self._changed:
            self._waiting.append((schedule, ticket))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                lot = self._waiting[: self.LOT_COUNT_MAX]
                del self._waiting[: self.LOT_COUNT_MAX]
            answers = self._office.write([schedule for schedule, _ in lot])
            self._answer([(ticket, error) for (_, ticket), error in zip(lot, answers, strict=True)])

    def close(self) -> None:
        """Write what has gathered, then end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
