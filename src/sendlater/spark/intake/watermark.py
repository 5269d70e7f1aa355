"""The watermark: the instant until which intake has read all inboxes; delivery stays behind it.

A cancellation, or a newer version, that an inbox acknowledged `margin_ms` before the due time wins:
what is due later than watermark + margin is not claimed yet. In a healthy run intake is closer than
the margin, and nothing waits. After an outage or a start delivery waits until intake has caught up;
for `hold_ms_max` at most, as a stuck intake must not stop delivery for ever.

Where the watermark is: now and then the ends of all inboxes are asked for. Once the store's
positions have reached them, everything that was on an inbox when that was asked has been read.
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
from sendlater.store.admin import tell

TICK_S = 0.1
"""Pause between two questions to the broker while something may wait for the answer."""
TICKS_A_MARGIN = 10
"""How often it is asked within a margin otherwise: so far the watermark is behind at least."""
TICK_S_MAX = 0.5
"""The same where the margin is long."""
PASSED_AFTER_MS = 1_000
"""How long intake may stand before an end until Spark is asked whether a record is there at all."""
BEGIN_MS_MAX = 120_000
"""How long intake may take for its first batch, after a start, before holding counts."""
TOLD_EVERY_MS = 10_000
"""Pause between two log lines about a hold that goes on."""

Positions = Mapping[str, int]
"""Per `topic/partition` the position after the last record, or the next to be read."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inboxes:
    """How the watermark asks what it must know; each may raise Unavailable."""

    ends: Callable[[], Positions]
    """Ends of the inboxes that intake reads."""
    copied_ends: Callable[[], Positions] = dict
    """Ends of the inboxes that are copied to one of those first."""
    copied: Callable[[], Positions] = dict
    """How far they have been copied."""
    progress: Callable[[], tuple[int, int, Positions] | None] = lambda: None
    """Intake's run, its last batch, and what Spark has read up to with it."""
    begins: Callable[[], bool] = lambda: False
    """Whether intake is on its way to its first batch, as far as anybody knows."""


@dataclass(slots=True)
class _Look:
    """One question: when it was asked, and what must be read for the answer to be old news."""

    at_ms: int
    elapsed_ms: float
    copied_ends: Positions
    ends: Positions | None


class Watermark:
    """Moves the bound of what may be claimed; `tick` by `tick`, or in a thread of its own."""

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
        """Since when everybody has answered: holding counts from there."""
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
        """The store may have gone back: what was asked so far says nothing any more.

        Nothing is asked for a while: what a producer still sends must be on its topic before. Nor
        is the store told anything meanwhile, so whoever calls this holds deliveries afterwards.
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
                # Whoever looks after the store decides what that means.
                continue
            except Unavailable as error:
                _log.warning("the watermark waits", cause=str(error))
            except Exception:
                _log.exception("moving the watermark failed, will go on")

    def tick(self) -> None:
        """Ask, compare, and tell the store. Raises Unavailable, Fenced, StoreWentBack."""
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
            # What is still to be copied comes to its journal later: ask for that one's end then.
            ends = None if copied_ends else self._inboxes.ends()
        except MissingInbox as error:
            # Nothing can be said of it; but one that never comes back must not hold up the others.
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
                if elapsed - look.elapsed_ms > PASSED_AFTER_MS:
                    self._pass(look.ends, positions)
                return
            self._at_ms, self._moved = look.at_ms, elapsed
            self._looks.popleft()

    def _pass(self, ends: Positions, positions: Positions) -> None:
        """Where a partition ends with what is no record, as transactions leave, Spark knows it."""
        progress = self._inboxes.progress()
        if progress is None:
            return
        run, batch, read = progress
        behind = {s: read[s] for s in ends if positions.get(s, 0) < min(ends[s], read.get(s, 0))}
        if behind:
            self._pending.set_passed(behind, owner=self._owner, run=run, batch=batch)

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
        """Something may have to wait: count how long, and see that it is not for ever."""
        assert self._resumed is not None
        if self._pending.due_within(0 if bound_ms is None else bound_ms + 1, now_ms):
            tell(self._pending.shards[0], {"held-ms": round(elapsed - since)})
        early = self._at_ms is None and elapsed - self._began < BEGIN_MS_MAX
        if early and self._inboxes.begins():
            # A JVM that has just started is slow, but not stuck.
            self._resumed = elapsed
        # Whose intake only lags waits so long at most; behind one that stands still nobody waits.
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
