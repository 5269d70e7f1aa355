"""Handing a space over to its heir: pass it on, go on until the heir delivers, then settle."""

import time

import structlog

from sendlater.errors import Unavailable
from sendlater.service.graceful_stop import settle_drained
from sendlater.service.heir import Heir
from sendlater.store import succession
from sendlater.store.lease import Lease

LEAVE_S = 20.0
"""Longest time for which both deliver; the heir ends it sooner, unless it dies."""
LEAVE_WATCH_S = 0.05
"""Pause between two looks at whether it has, or has answered."""
ANSWER_S = 2.0
"""Longest wait for the heir to say that it is alive; it looks four times a second."""
_log = structlog.get_logger()


class HandingOver(Heir):
    """A service that gives its space away when the heir asks for it, or when it is stopped."""

    _leaving: Lease | None = None
    """Held from the handover until all is settled: so the next owner knows that we live."""

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
        try:
            leaving.acquire(by_force=True)
            return self._pass_on(heir, leaving)
        finally:
            if self._leaving is None:
                leaving.release()  # else the next heir would wait for it as long as we live

    def _pass_on(self, heir: int, leaving: Lease) -> bool:
        succession.dismiss(self.pending)  # whoever was here before us
        with self._lanes_lock:
            if self.pending.is_armed(owner=self.owner) and succession.inherit(
                self.pending, heir, bound_stays=True, leaves=True
            ):
                _log.warning("handed over", to_owner=heir)
                self._leaving = leaving
                if self._horizon is not None:
                    self._horizon.stop()
                if self._kept is not None:
                    self._kept.set()  # the next owner looks it up
                if self._lease is not None:
                    self._lease.lapse()
                return True
        _log.error("not handed over: deliveries go on", heir=heir)
        return False

    def _hands_over(self) -> bool:
        """Hand over if the heir is warm and wants the space; whether that is done."""
        try:
            asked = succession.ready_heir(self.pending, asking=True)
            return bool(asked) and self._hand_over()
        except Unavailable as error:
            _log.warning("not handed over", cause=str(error))
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
            time.sleep(LEAVE_WATCH_S)
        return True

    def _settle_handed_over(self) -> None:
        """Go on until we are dismissed, then settle what is claimed; the next owner waits."""
        assert self._leaving is not None
        deadline_s = time.monotonic() + LEAVE_S
        while not succession.may_leave(self.pending, self.owner):
            if time.monotonic() > deadline_s:
                succession.dismiss(self.pending)
            time.sleep(LEAVE_WATCH_S)
        self._end_intake()
        within_s = self.settings.stop_timeout_ms / 1_000
        settle_drained(self.pending, self._workers, owner=self.owner, within_s=within_s)
        self._sidecars.close()
        self._leaving.release()
