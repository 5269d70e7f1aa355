"""Writes the schedules of many requests together, and answers the requests together."""

import asyncio
import threading
import time
from collections import deque

from sendlater.model import Schedule
from sendlater.operations.schedules import Operations
from sendlater.operations.transport import Done

GATHER_S = 0.002
"""Pause after a batch: each costs five round trips to Redis; 1,000 a second would be too many."""


class LoopWaker:
    """Passes answers from other threads to an event loop, which wakes once for many answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._answers: deque[tuple[asyncio.Future[None], Exception | None]] = deque()
        self._rung = False

    def ring(self, future: "asyncio.Future[None]", error: Exception | None) -> None:
        """Resolve `future` soon; may be called from any thread."""
        self._answers.append((future, error))
        if not self._rung:  # a race between two threads only wakes the loop twice
            self._rung = True
            self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        self._rung = False  # first, so that later answers wake the loop again
        while self._answers:
            future, error = self._answers.popleft()
            if future.done():  # its client has disconnected
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


class Writer:
    """Collects schedules of many requests and writes them in batches, in its own thread.

    While one batch is being written the next one is collected: many requests share a round trip.
    """

    LOT_COUNT_MAX = 2_000

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._waiting: list[tuple[Schedule, Done]] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, schedule: Schedule, *, done: Done) -> None:
        """Add a checked schedule; `done` is called later, in another thread."""
        with self._changed:
            self._waiting.append((schedule, done))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                lot = self._waiting[: self.LOT_COUNT_MAX]
                del self._waiting[: self.LOT_COUNT_MAX]
            answers = self._operations.write([schedule for schedule, _ in lot])
            for (_, done), error in zip(lot, answers, strict=True):
                done(error)
            time.sleep(GATHER_S)

    def close(self) -> None:
        """Write what has been collected, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
