"""While a burst leaves, the producers of lanes gather records for longer than in a stream.

Each request to a broker costs what some hundred records cost. In a stream nobody should wait for
others, in a burst all wait for the processors: see docs/adr/0052.
"""

import threading
from collections.abc import Callable
from contextlib import closing, suppress

import structlog

from sendlater.errors import StoreUnavailable
from sendlater.store import Shard
from sendlater.store.wakeup import Wake, wake_readers

BURST_LINGER_MS = 10
"""How long a producer gathers records then: a request of each in so long."""
OVER_MS = 300
"""A burst is over when no task has said for so long that one leaves."""
LOOK_MS, AGAIN_S = 1_000, 1.0
"""Longest wait for a burst at once, so that the thread can be stopped, and pause after an error."""

_log = structlog.get_logger()


class BurstLinger:
    """A thread that hears of bursts from tasks, and tells producers how long to gather."""

    def __init__(self, first: Shard, *, linger_ms: int) -> None:
        """`linger_ms`: how long they gather otherwise."""
        self._first, self._calm_ms = first, linger_ms
        self._linger_ms = linger_ms
        self._tells: dict[str, Callable[[int], None]] = {}
        """By lane what tells its producer."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, lane: str, tell: Callable[[int], None] | None) -> None:
        """From now on, until `stop`, tell this producer in place of the lane's last one."""
        self._tells.pop(lane, None)
        if tell is None:
            return
        self._tells[lane] = tell
        if self._linger_ms != self._calm_ms:
            tell(self._linger_ms)
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="burst-linger", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Forget the producers, and end the thread."""
        self._tells.clear()
        self._stop.set()
        if self._thread is not None:
            with suppress(StoreUnavailable):
                wake_readers(self._first.client, self._first.keys["bursts"])
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with closing(Wake(self._first.client, self._first.keys["bursts"])) as bursts:
                    self._listen(bursts)
            except StoreUnavailable:
                self._stop.wait(AGAIN_S)  # others say so
            except Exception:
                _log.exception("bursts may leave in small batches, will go on")
                self._stop.wait(AGAIN_S)

    def _listen(self, bursts: Wake) -> None:
        while not self._stop.is_set():
            if bursts.wait(LOOK_MS) and not self._stop.is_set():
                try:
                    self._tell(max(self._calm_ms, BURST_LINGER_MS))
                    while bursts.wait(OVER_MS) and not self._stop.is_set():
                        pass
                finally:
                    self._tell(self._calm_ms)

    def _tell(self, linger_ms: int) -> None:
        self._linger_ms = linger_ms
        for tell in list(self._tells.values()):
            tell(linger_ms)
