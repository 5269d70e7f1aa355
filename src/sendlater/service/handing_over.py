"""Handing a space over to its heir: stop claiming, pass it on, then settle what is claimed."""

import time

import structlog

from sendlater.errors import StoreUnavailable
from sendlater.service.graceful_stop import settle_drained
from sendlater.service.heir import Heir
from sendlater.store import succession
from sendlater.store.lease import Lease

CLOSE_S = 5.0
"""Longest wait for tasks to end after they were asked to claim no more; they take milliseconds.
Nothing is delivered meanwhile, so after that they go on, and the space is not handed over."""
CLOSE_WATCH_S = 0.005
"""Pause between two looks at whether they have."""
ANSWER_S = 2.0
"""Longest wait for the heir to say that it is alive; it looks four times a second."""
_log = structlog.get_logger()


class HandingOver(Heir):
    """A service that gives its space away when the heir asks for it, or when it is stopped."""

    _leaving: Lease | None = None
    """Held from the handover until all is settled: so the next owner knows that we live."""
    _drains = False
    """Whether tasks have been asked to claim no more."""

    def _hand_over(self) -> bool:
        """Make the heir the owner; False if there is none that is ready, or it must wait."""
        heir = succession.ready_heir(self.pending)
        if not heir or self._lost or not self._answers(heir):
            return False
        for worker in self._workers:
            if worker.name == "copying" and worker.query is not None:
                # Two of them would copy everything twice.
                worker.query.stop()
                self._commit_copies()
                worker.query = None
        leaving = self._new_lease(succession.LEAVING)
        leaving.acquire(by_force=True)
        with self._lanes_lock:
            began_s = time.monotonic()
            self._drains = True
            self.pending.drain(owner=self.owner)
            if (
                self._all_closed()
                and self.pending.is_armed(owner=self.owner)
                and succession.inherit(self.pending, heir, bound_stays=True)
            ):
                took_ms = round(1_000 * (time.monotonic() - began_s))
                _log.warning("handed over", to_owner=heir, paused_ms=took_ms)
                self._leaving = leaving
                if self._lease is not None:
                    self._lease.lapse()
                return True
            _log.error("not handed over: deliveries go on", heir=heir)
            self.pending.drain(owner=None)
            self._drains = False
        leaving.release()
        return False

    def _hands_over(self) -> bool:
        """Hand over if the heir is warm and wants the space; whether that is done."""
        try:
            if self._drains:
                # The store went away in the middle of a handover.
                self.pending.drain(owner=None)
                self._drains = False
            asked = succession.ready_heir(self.pending, asking=True)
            return bool(asked) and self._hand_over()
        except StoreUnavailable as error:
            _log.warning("not handed over: the store is not usable", cause=str(error))
            return False

    def _answers(self, heir: int) -> bool:
        if not self._new_lease(succession.HEIR).holder():
            return False
        succession.doubt(self.pending)
        deadline_s = time.monotonic() + ANSWER_S
        while succession.ready_heir(self.pending) != heir:
            if time.monotonic() > deadline_s:
                _log.warning("the service that stands by does not answer", heir=heir)
                return False
            time.sleep(CLOSE_WATCH_S)
        return True

    def _all_closed(self) -> bool:
        runs = {worker.lane: worker.run for worker in self._workers if worker.lane is not None}
        deadline_s = time.monotonic() + CLOSE_S
        while not succession.all_closed(self.pending, runs):
            if time.monotonic() > deadline_s:
                return False
            time.sleep(CLOSE_WATCH_S)
        return True

    def _settle_handed_over(self) -> None:
        """The queries may deliver what they have claimed; the next owner waits for that."""
        assert self._leaving is not None
        within_s = self.settings.stop_timeout_ms / 1_000
        settle_drained(self.pending, self._workers, owner=self.owner, within_s=within_s)
        self._sidecars.close()
        self._leaving.release()
