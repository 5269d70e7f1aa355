"""The watermark: the instant until which intake has read all inboxes; delivery stays behind it.

What is due later than watermark + margin is not claimed yet. So a cancellation or newer version
wins if an inbox acknowledged it `margin_ms` before the due time. Normally intake is closer than the
margin, and nothing waits. After an outage or a start, delivery waits until intake has caught up,
but for `hold_ms_max` at most: a stuck intake must not stop delivery forever.

To find the watermark, the broker is asked for the ends of all inboxes again and again. When the
store's positions have reached such ends, all that was on the inboxes when it was asked is read.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from sendlater.clock import Clock, SystemClock
from sendlater.errors import Fenced, MissingInbox, StoreWentBack, Unavailable
from sendlater.limits import WATERMARK_LOOKS_MAX
from sendlater.store import Pending
from sendlater.store.recent import tell

TICK_S = 0.1
"""Pause between two requests to the broker while deliveries may wait for the answer."""
TICKS_A_MARGIN = 4
"""Requests within a margin otherwise; the watermark is at least one such pause behind."""
TICK_S_MAX = 0.5
"""Longest such pause, for a long margin."""
BEGIN_MS_MAX = 120_000
"""For so long after a start, `hold_ms_max` does not run while intake is starting."""
TOLD_EVERY_MS = 10_000
"""Pause between two log lines about deliveries that do not wait any longer."""

Positions = Mapping[str, int]
"""Per `topic/partition` the position after the last record, or the next one to read."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inboxes:
    """The watermark's sources of information; each may raise Unavailable."""

    ends: Callable[[], Positions]
    """Ends of the inboxes that intake reads."""
    copied_ends: Callable[[], Positions] = dict
    """Ends of the inboxes that are copied to one of those."""
    copied: Callable[[], Positions] = dict
    """How far they have been copied."""
    begins: Callable[[], bool] = lambda: False
    """Whether intake is starting, and has not failed."""


@dataclass(slots=True)
class _Look:
    """One request for ends: when it was made, and the ends that intake must reach."""

    at_ms: int
    elapsed_ms: float
    copied_ends: Positions
    ends: Positions | None


class Watermark:
    """Moves the bound of what may be claimed: by calls of `tick`, or in its own thread."""

    def __init__(
        self,
        pending: Pending,
        inboxes: Inboxes,
        *,
        owner: int,
        margin_ms: int,
        hold_ms_max: int,
        clock: Clock | None = None,
    ) -> None:
        self._pending, self._inboxes, self._owner = pending, inboxes, owner
        self._margin_ms, self._hold_ms_max = margin_ms, hold_ms_max
        self._clock = clock or SystemClock()
        self._looks: deque[_Look] = deque()
        self._at_ms: int | None = None
        self._not_before = self._began = self._clock.elapsed_ms()
        self._resumed: float | None = None
        """Since when broker and store have answered: `hold_ms_max` runs from there."""
        self._moved = self._began
        self._holds = True
        self._ticked = self._clock.elapsed_ms()
        self._told = -float(TOLD_EVERY_MS)
        self._ticking = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watermark", daemon=True)

    def start(self) -> None:
        """Keep going until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; waits for the tick under way."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def begin_anew(self, *, pause_ms: int) -> None:
        """The store may have gone back: drop what was asked so far.

        Nothing is asked for `pause_ms`: what a producer still sends must be on its topic first.
        The bound is not moved meanwhile, so the caller must hold deliveries after this call.
        """
        with self._ticking:
            self._began = self._clock.elapsed_ms()
            self._not_before = self._began + pause_ms
            self._at_ms, self._resumed = None, None
            self._looks.clear()

    def _run(self) -> None:
        calm_s = min(max(TICK_S, self._margin_ms / 1_000 / TICKS_A_MARGIN), TICK_S_MAX)
        while not self._stop.wait(TICK_S if self._holds else calm_s):
            try:
                self.tick()
            except (Fenced, StoreWentBack):
                # The service's own watch over the store reacts to that.
                continue
            except Unavailable as error:
                _log.warning("the watermark waits", cause=str(error))
            except Exception:
                _log.exception("moving the watermark failed, will go on")

    def tick(self) -> None:
        """Ask, compare, and move the bound. Raises Unavailable, Fenced, StoreWentBack."""
        with self._ticking:
            self._tick()

    def _tick(self) -> None:
        elapsed = self._clock.elapsed_ms()
        if elapsed < self._not_before:
            return
        try:
            self._ask(elapsed)
            positions = self._pending.positions()
        except Unavailable:
            self._resumed = None
            raise
        if self._resumed is None:
            self._resumed = elapsed
        self._compare(positions, elapsed)
        self._tell(elapsed)

    def _ask(self, elapsed: float) -> None:
        if len(self._looks) >= WATERMARK_LOOKS_MAX:
            return
        at_ms = self._clock.now_ms()
        try:
            copied_ends = self._inboxes.copied_ends()
            # Records not yet copied reach their journal later: ask for the journal's end then.
            ends = None if copied_ends else self._inboxes.ends()
        except MissingInbox as error:
            # It may never come back: not raised, so that `hold_ms_max` runs for the others.
            _log.error("deliveries wait for an inbox", cause=str(error))
            return
        self._looks.append(_Look(at_ms, elapsed, copied_ends, ends))

    def _compare(self, positions: Positions, elapsed: float) -> None:
        while self._looks:
            look = self._looks[0]
            if look.ends is None:
                if not _reached(look.copied_ends, self._inboxes.copied()):
                    return
                try:
                    look.ends = self._inboxes.ends()
                except MissingInbox:
                    return
            if not _reached(look.ends, positions):
                return
            self._at_ms, self._moved = look.at_ms, elapsed
            self._looks.popleft()

    def _tell(self, elapsed: float) -> None:
        assert self._resumed is not None
        now_ms = self._clock.now_ms()
        bound_ms = None if self._at_ms is None else self._at_ms + self._margin_ms
        since, self._ticked = self._ticked, elapsed
        self._holds = bound_ms is None or bound_ms < now_ms
        if bound_ms is None or bound_ms < now_ms:
            bound_ms = self._hold(bound_ms, now_ms, elapsed, since)
        if bound_ms is not None:
            self._pending.set_bound(bound_ms, owner=self._owner)

    def _hold(self, bound_ms: int | None, now_ms: int, elapsed: float, since: float) -> int | None:
        """Deliveries may have to wait: count how long, and limit it."""
        assert self._resumed is not None
        if self._pending.due_within(0 if bound_ms is None else bound_ms + 1, now_ms):
            tell(self._pending.shards[0], {"held-ms": round(elapsed - since)})
        early = self._at_ms is None and elapsed - self._began < BEGIN_MS_MAX
        if early and self._inboxes.begins():
            # A JVM that has just started is slow, but not stuck.
            self._resumed = elapsed
        # Behind a slow intake deliveries are late by hold_ms_max at most; a stuck one is ignored.
        stands = elapsed - max(self._moved, self._resumed) >= self._hold_ms_max
        latest_ms = now_ms + (self._margin_ms if stands else -self._hold_ms_max)
        if elapsed - self._resumed < self._hold_ms_max or (bound_ms or 0) >= latest_ms:
            return bound_ms
        if elapsed - self._told >= TOLD_EVERY_MS:
            self._told = elapsed
            _log.error(
                "deliveries go on although intake has not read the inboxes: "
                "a cancellation may come too late",
                held_ms_max=self._hold_ms_max,
                behind_ms=None if self._at_ms is None else now_ms - self._at_ms,
            )
        return latest_ms


def _reached(ends: Positions, positions: Positions) -> bool:
    return all(positions.get(source, 0) >= end for source, end in ends.items())
