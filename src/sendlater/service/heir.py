"""Standing by with everything warm: the heir of a space, and how it inherits.

Its queries run under the number that it will have as the owner (see store/succession.py). When it
has inherited, the last owner goes on until these deliver and read: so a handover has no pause.
"""

import threading
import time
from collections.abc import Callable

import structlog

from sendlater.errors import (
    BrokerUnavailable,
    Fenced,
    NotSupported,
    StoreUnavailable,
    StoreWentBack,
)
from sendlater.limits import KEPT_LANE
from sendlater.service.store_watch import StoreWatch
from sendlater.service.supervision import STORE_WATCH_S, WATCH_S
from sendlater.store import succession
from sendlater.store.lease import Lease
from sendlater.store.rebuild import STANDBY_WATCH_S
from sendlater.store.unsettled import recall_lanes
from sendlater.store.waiting import unlimit

DISMISS_S = 10.0
"""Longest time for which the last owner goes on, if our lanes have nothing to deliver."""
DISMISS_BATCHES = 2
"""A lane has delivered something when so many batches have ended: the first began before."""
KEPT_WATCH_S = 1.0
"""Pause between two looks at what is kept."""
HEIR_WATCH_S = 0.02
"""Pause between two looks at whether the space is ours."""
_log = structlog.get_logger()


class Heir(StoreWatch):
    """A service that waits for the space of another one, or has just got it."""

    def _new_lease(self, key: str = "lease") -> Lease:
        raise NotImplementedError

    def _warm_up(self) -> None:
        raise NotImplementedError

    def _wait_as_heir(
        self, stop: threading.Event, *, asks: bool, on_standby: Callable[[], None]
    ) -> bool:
        """Get everything warm, then wait until the space is handed over, or its owner is dead.

        False if `stop` was set first, or another service is the heir. `asks`: ask for the space
        when warm, and be the heir instead of one that only waits. Raises NotSupported if `asks` and
        the owner cannot hand over to this version.
        """
        # Only once: of several that ask, the last one is the heir, and the others come after it.
        lease, by_force = self._new_lease(succession.HEIR), asks and not self._asked
        self._asked = True
        try:
            while lease.acquire(by_force=by_force) and not stop.is_set():
                by_force = False
                try:
                    succession.require_handover(self.pending)
                    if self._inherits(stop, lease, asks=asks, on_standby=on_standby):
                        self._enter()
                        return True
                except (Fenced, StoreWentBack, StoreUnavailable, BrokerUnavailable) as error:
                    _log.warning("getting ready begins anew", cause=str(error))
                self._end_queries()
                stop.wait(STORE_WATCH_S)
                # With the space's lease, ours or nobody's, it is taken over as at every start.
                if self._lease is None or self._lease.is_held or not self._lease.holder():
                    break
            return False
        except StoreUnavailable as error:
            _log.warning("standing by waits for the store", cause=str(error))
            return False
        except NotSupported as error:
            if asks:
                raise
            _log.warning("stands by without its queries", cause=str(error))
            return False
        finally:
            self._is_heir = False
            lease.release()

    def _inherits(
        self,
        stop: threading.Event,
        heir_lease: Lease,
        *,
        asks: bool,
        on_standby: Callable[[], None],
    ) -> bool:
        """Announce, start every query, and wait; False if `stop` was set or we are not the heir."""
        number, follows = succession.announce(self.pending)
        self._become(number)
        self._is_heir = True
        lanes = set(succession.lanes_of(number))
        leaving, active = self._new_lease(succession.LEAVING), self._lease
        assert active is not None
        while leaving.holder() or lanes & succession.foreign_lanes(self.pending, follows):
            # The owner before this one, or what it has left, has the same lanes as we. If this one
            # dies as well, there is nothing to inherit: both are looked up, as at every start.
            if stop.wait(WATCH_S) or not active.holder():
                return False
        self.pending.arm(owner=number)
        own = [worker for worker in self._workers if worker.name != "copying"]
        for worker in reversed(own):
            worker.begin()
        warm, looked_s = False, 0.0
        while heir_lease.is_held and not stop.wait(HEIR_WATCH_S):
            stands = succession.stands(self.pending, number)
            if stands == "owner":
                # Its lease is still the last owner's, which does not give it to anybody else.
                active.acquire(by_force=True)
                return True
            if not stands:
                raise StoreWentBack(f"number {number} is not the next one any more")
            now_s = time.monotonic()
            if now_s - looked_s < STANDBY_WATCH_S:
                continue
            looked_s = now_s
            if active.acquire():
                bound_stays = self.pending.is_armed(owner=follows)
                return succession.inherit(self.pending, number, bound_stays=bound_stays)
            for worker in own:
                self._look_after(worker, now_s)
            if warm and not succession.ready_heir(self.pending):
                succession.tell_ready(self.pending, number, asks=False)  # we have been asked again
            if not warm and self._reads("warm") and all(one.is_warm for one in own):
                warm = True
                succession.tell_ready(self.pending, number, asks=asks)
                on_standby()
                # For the look-up after a crash, which nothing else has to wait for.
                threading.Thread(target=self._warm_up, name="warm-up", daemon=True).start()
        return False

    def _enter(self) -> None:
        """The space is ours, and its queries run: start what an owner does beside them."""
        self._is_heir = False
        self._watermark = self._new_watermark()
        self._watermark.start()
        succession.tell_layout(self.pending)
        if self._topics is not None:
            self._start_targets(inherited=True)
            if self._inbox_watch is not None:
                self._inbox_watch.begin(owner=self.owner)
            self._crash_lookup = self._crash_lookup or self._new_lookup()
            self._filling = self._new_filling()
        for worker in self._workers:
            if worker.query is None:
                worker.begin()
        unlimit(self.pending, sorted(self.settings.limits), owner=self.owner)
        self._start_horizon()
        self._seen = self.pending.positions()
        self._begin_estate(inherited=True)

    def _dismiss(self, leaving: Lease, over: threading.Event) -> None:
        """Let the last owner go when we read, and each lane has delivered; at once if it is dead:
        what it had claimed waits to be looked up."""
        lanes = [worker for worker in self._workers if worker.lane is not None]
        ends = {worker.name: worker.batches + DISMISS_BATCHES for worker in lanes}
        deadline_s = time.monotonic() + DISMISS_S
        while leaving.holder() and not (
            self._reads() and all(one.batches >= ends[one.name] for one in lanes)
        ):
            if over.wait(WATCH_S) or time.monotonic() > deadline_s:
                break
        succession.dismiss(self.pending)

    def _look_after_estate(self) -> None:
        """A store that went back has batches of earlier owners again. Those of our own lanes are
        looked up when the lanes start again. What is kept may be looked up at last."""
        lanes = succession.foreign_lanes(self.pending, self.owner)
        if self._estate is None and any(lane < KEPT_LANE for lane in lanes):
            self._begin_estate(inherited=False)
        if self._kept is None and any(lane >= KEPT_LANE for lane in lanes):
            self._kept = over = threading.Event()
            threading.Thread(
                target=lambda: self._settle_kept(over), name="kept", daemon=True
            ).start()

    def _begin_estate(self, *, inherited: bool) -> None:
        self._estate = over = threading.Event()
        threading.Thread(
            target=lambda: self._settle_estate(over, inherited=inherited),
            name="estate",
            daemon=True,
        ).start()

    def _settle_estate(self, over: threading.Event, *, inherited: bool) -> None:
        """What the last owner has claimed it settles itself; if it dies before, we look it up."""
        leaving, paused, dismissed = self._new_lease(succession.LEAVING), False, not inherited
        # One of its own: that of the lanes counts its failures.
        lookup = self._new_lookup() if self._topics is not None else None
        recalled = False
        while not over.wait(WATCH_S):
            try:
                if not recalled and not leaving.holder():
                    # It is dead: what it had not delivered for certain waits for no look-up.
                    recall_lanes(self.pending, succession.foreign_lanes(self.pending, self.owner))
                    recalled = True
                if not dismissed:
                    self._dismiss(leaving, over)
                    dismissed = True
                if leaving.holder():
                    continue
                lanes = succession.left_lanes(self.pending, self.owner)
                if not lanes:
                    break
                if not paused:
                    paused = True  # its producer may still send
                    over.wait(self.settings.recovery_pause_ms / 1_000)
                    continue
                for lane in sorted(lanes):
                    if lookup is not None:
                        lookup.settle(owner=self.owner, lane=lane)
                    succession.release_lane(self.pending, lane, owner=self.owner)
            except Fenced:
                return
            except Exception as error:
                _log.warning("the last owner's deliveries wait", cause=str(error)[:500])
        if not over.is_set():
            self._estate = None

    def _settle_kept(self, over: threading.Event) -> None:
        """Look up what was kept, once its topics take something again; until nothing is left."""
        try:
            lookup = self._new_lookup()
            while not over.wait(KEPT_WATCH_S):
                try:
                    with self._lanes_lock:
                        if over.is_set():
                            return
                        lookup.settle_kept(owner=self.owner)
                    lanes = succession.foreign_lanes(self.pending, self.owner)
                    if not any(lane >= KEPT_LANE for lane in lanes):
                        return
                except Fenced:
                    return
                except Exception as error:
                    _log.warning("deliveries wait for their topics", cause=str(error)[:500])
        finally:
            if not over.is_set():
                self._kept = None
