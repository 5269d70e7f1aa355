"""What must be running: Spark queries and loops, started again when they end."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog
from pyspark.sql.streaming.query import StreamingQuery

from sendlater.errors import Fenced

RESTART_DELAY_S = 0.5
"""Pause before the first restart of a failed query; doubled each time after."""
KAFKAS = "org.apache.kafka.common."
"""What is in the error of a query that Kafka has ended."""
HEALTHY_S = 30.0
"""A query that ran this long has its restart delay forgotten."""
FIRST_BATCH_S = 30.0
"""Longest that a start waits for the first batch of a query; it takes a few seconds."""
WATCH_S = 0.1
"""Pause between two looks at the queries."""
STORE_WATCH_S = 1.0
"""Pause between two looks at whether the store went back or was taken over."""
FIRST_BATCH_WATCH_S = 0.1
"""Pause between two looks at whether it is over."""
LOOP_STOP_S = 60.0
"""Longest wait for the pass under way when a loop is stopped."""

_log = structlog.get_logger()


class Running(Protocol):
    """A query or a loop, as far as who watches it is concerned."""

    @property
    def isActive(self) -> bool:
        """Whether it runs."""

    def exception(self) -> Exception | None:
        """Why it ended."""

    def stop(self) -> None:
        """End it."""


@dataclass
class Worker:
    """A query that must be running: how to start it, and what it is doing now."""

    name: str
    start: Callable[[], "Running | StreamingQuery"]
    query: "Running | StreamingQuery | None" = None
    started_s: float = 0.0
    delay_s: float = RESTART_DELAY_S
    next_s: float = 0.0
    run: int = 0
    lane: int | None = None
    refused: bool = False
    """Whether Kafka has ended it: a record may be in its batch that no broker takes."""

    @property
    def failed(self) -> bool:
        """Whether it has ended by itself of late."""
        return self.delay_s > RESTART_DELAY_S

    def begin(self) -> None:
        """Start it, once more or for the first time."""
        self.started_s = time.monotonic()
        self.query = self.start()

    def await_first_batch(self, stop: threading.Event) -> None:
        """Until its query is past the first batch, which loads and compiles all that others need.

        There is one even where nothing is to be read: a fresh checkpoint has no end to compare.
        Gives up after FIRST_BATCH_S, when the query has ended or is to begin anew, or when `stop`
        is set.
        """
        query, deadline_s = self.query, time.monotonic() + FIRST_BATCH_S
        if query is None:
            return
        assert isinstance(query, StreamingQuery)
        while query.isActive and query.lastProgress is None and time.monotonic() < deadline_s:
            if stop.wait(FIRST_BATCH_WATCH_S):
                return

    def look_after(
        self, now_s: float, *, delay_s_max: float, ended: Callable[[], None] = lambda: None
    ) -> None:
        """Restart it when it has ended, with growing pauses; its cause is logged once, in words.

        `ended` is called first when it has: it may raise.
        """
        if self.query is not None:
            if self.query.isActive:
                if now_s - self.started_s > HEALTHY_S:
                    self.delay_s = RESTART_DELAY_S
                return
            ended()
            told = cause(self.query)
            self.refused = KAFKAS in str(self.query.exception())
            _log.error("query failed", query=self.name, cause=told)
            self.query = None
            self.next_s = now_s + self.delay_s
            self.delay_s = min(2 * self.delay_s, delay_s_max)
        elif now_s >= self.next_s:
            try:
                self.begin()
                _log.info("query started again", query=self.name)
            except Exception as error:
                if isinstance(error, Fenced):
                    # Either a newer owner is there, or the store has forgotten this one.
                    ended()
                _log.warning("query cannot start yet", query=self.name, cause=str(error))
                self.next_s = now_s + self.delay_s


class Loop:
    """A thread that takes one step after another; `stop` lets the one under way finish."""

    def __init__(self, name: str, step: Callable[[], float]) -> None:
        """`step` returns how many seconds the next may wait; `wake` cuts that short."""
        self._step = step
        self._stop = False
        self._stepped = threading.Event()
        self._wake = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop:
                self._wake.clear()
                pause_s = self._step()
                self._stepped.set()
                if not self._stop:
                    self._wake.wait(pause_s)
        except Exception as error:
            self._error = error
            self._stepped.set()

    def stepped(self, *, timeout_s: float) -> bool:
        """Wait for the end of the first step, or of all; whether it came."""
        return self._stepped.wait(timeout_s)

    def wake(self) -> None:
        """There is something to do."""
        self._wake.set()

    @property
    def isActive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def exception(self) -> Exception | None:
        """Why it ended by itself."""
        return self._error

    def stop(self) -> None:
        """Let the step under way finish, and end."""
        self._stop = True
        self._wake.set()
        self._thread.join(LOOP_STOP_S)


def cause(query: "Running | StreamingQuery") -> str:
    """Why a query ended: the last line of the Python error in it, or the first of Spark's."""
    error = query.exception()
    if error is None:
        return "it was stopped"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error:" in line or "Exception:" in line]
    return (named[-1] if named else lines[0] if lines else "unknown")[:500]
