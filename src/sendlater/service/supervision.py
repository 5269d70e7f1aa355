"""Keeps Spark queries and loops running: starts them again when they end."""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

import structlog
from pyspark.sql.streaming.query import StreamingQuery

from sendlater.errors import Fenced, NotLookedUp
from sendlater.spark.delivery.lane import WARM_UP_BATCHES

RESTART_DELAY_S = 0.5
"""Pause before the first restart of a failed query; doubled each time after."""
REFUSALS = ("org.apache.kafka.common.", NotLookedUp.__name__)
"""Parts of the errors of a query that failed because of Kafka: its own, and that of a task that was
tried again after it."""
HEALTHY_S = 30.0
"""After this time without a failure a query has the first restart delay again."""
FIRST_BATCH_S = 30.0
"""Longest wait of a start for the first batch of a query; it takes a few seconds."""
WARM_S_MAX = 90.0
"""Longest wait of a start until all queries are warm: on a busy machine that takes a minute, and
who is told sooner that it is ready has late deliveries."""
WATCH_S = 0.25
"""Pause between two looks at the queries: each is a question to the JVM for each of them."""
STORE_WATCH_S = 1.0
"""Pause between two checks whether the store went back or was taken over."""
FIRST_BATCH_WATCH_S = 0.1
"""Pause between two checks whether the first batch is over."""
LOOP_STOP_S = 60.0
"""Longest wait for the pass under way when a loop is stopped."""

_log = structlog.get_logger()


class Running(Protocol):
    """A query or a loop, as its watcher sees it."""

    @property
    def isActive(self) -> bool:
        """Whether it runs."""

    def exception(self) -> Exception | None:
        """Why it ended."""

    def stop(self) -> None:
        """End it."""


@dataclass
class Worker:
    """A query that must be running: how to start it, and its state."""

    name: str
    start: Callable[[], "Running | StreamingQuery"]
    query: "Running | StreamingQuery | None" = None
    started_s: float = 0.0
    delay_s: float = RESTART_DELAY_S
    next_s: float = 0.0
    run: int = 0
    lane: int | None = None
    refused: bool = False
    """Whether Kafka's error ended it: its batch may have a record that the broker refuses."""
    producer: str = ""
    """The name of its Kafka producer; empty where that is in another process."""
    waits: Collection[str] = ()
    """Topics for whose sake a lane was ended: they take nothing for the moment."""

    @property
    def runs(self) -> bool:
        """Whether its query is there and has not ended."""
        return self.query is not None and self.query.isActive

    @property
    def failed(self) -> bool:
        """Whether it has failed recently."""
        return self.delay_s > RESTART_DELAY_S

    @property
    def is_warm(self) -> bool:
        """Whether a lane has had its short first batches; others are not asked."""
        lane = self.lane is not None and isinstance(self.query, StreamingQuery)
        return not lane or self.batches >= WARM_UP_BATCHES

    @property
    def batches(self) -> int:
        """How many batches of its query have ended."""
        progress = self.query.lastProgress if isinstance(self.query, StreamingQuery) else None
        return 0 if progress is None else progress.batchId + 1

    def begin(self) -> None:
        """Start it, for the first time or again."""
        self.started_s = time.monotonic()
        self.query = self.start()

    def await_first_batch(self, stop: threading.Event) -> None:
        """Wait for the end of the first batch, which loads and compiles all that later ones need.

        There is one even if there is nothing to read: a new checkpoint has no end to compare with.
        Gives up after FIRST_BATCH_S, if the query has ended or waits for its restart, or if `stop`
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
        """Restart it if it has ended, with growing pauses; log the cause once, in words.

        `ended` is called first if it has ended; it may raise.
        """
        if self.query is not None:
            if self.query.isActive:
                if now_s - self.started_s > HEALTHY_S:
                    self.delay_s = RESTART_DELAY_S
                return
            ended()
            told = cause(self.query)
            self.refused = any(sign in str(self.query.exception()) for sign in REFUSALS)
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
                    # Either there is a newer owner, or the store has forgotten this one.
                    ended()
                _log.warning("query cannot start yet", query=self.name, cause=str(error))
                self.next_s = now_s + self.delay_s


class Loop:
    """A thread that runs one step after another; `stop` lets the running step finish."""

    def __init__(self, name: str, step: Callable[[], float]) -> None:
        """`step` returns the pause before the next step in seconds; `wake` ends the pause."""
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
        """Wait for the end of the first step, or for a failure; False if neither came in time."""
        return self._stepped.wait(timeout_s)

    def wake(self) -> None:
        """End the pause: there is something to do."""
        self._wake.set()

    @property
    def isActive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def exception(self) -> Exception | None:
        """Why it ended by itself."""
        return self._error

    def stop(self) -> None:
        """Let the running step finish, and end."""
        self._stop = True
        self._wake.set()
        self._thread.join(LOOP_STOP_S)


def cause(query: "Running | StreamingQuery") -> str:
    """Why a query ended: the last line of the Python error in it, or the first of Spark's."""
    error = query.exception()
    if error is None:
        return "it was stopped"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("sendlater.errors.")]
    named = ours or [line for line in lines if "Error:" in line or "Exception:" in line]
    return (named[-1] if named else lines[0] if lines else "unknown")[:500]
