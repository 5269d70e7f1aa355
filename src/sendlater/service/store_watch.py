"""Watches for another owner, a store that went back or was emptied, and recreated inboxes."""

import threading

import structlog

from sendlater.clock import SystemClock
from sendlater.errors import BrokerUnavailable, Fenced
from sendlater.service.takeover import Takeover
from sendlater.spark.journal.rewrite import bury_surplus, rescue_overtaken
from sendlater.spark.session import require_jvm
from sendlater.store import Admin

_log = structlog.get_logger()


class StoreWatch(Takeover):
    """Checks the store once a second, and takes over again if it has lost data."""

    _sidecars_told = False
    """Whether the log has said that they do not start."""

    def _take_over_again(self, stop: threading.Event) -> None:
        """The store has lost data: end everything that uses it, and take over again."""
        self._lost = True
        with self._lanes_lock:
            self._end_queries()
            # What lanes have given to the producer must be on its topics before these are read.
            stop.wait(self.settings.recovery_pause_ms / 1_000)
            self._take_over(stop)
            self._lost = False

    def _look_after_estate(self) -> None:
        raise NotImplementedError

    def _look_after_store(self, stop: threading.Event) -> None:
        """Notice a takeover, and a store that came back empty or older. Raises Py4J's error if the
        JVM is gone."""
        self._require_owner()
        settings = self.settings
        self._look_after_sidecars()
        try:
            self._beat()
            self._commit_copies()
            if self._lost or self._store_is_lost():
                self._take_over_again(stop)
                return
            if settings.journals:
                self._tidy_journals()
            anew = self._inbox_watch.made_anew() if self._inbox_watch is not None else set()
            self._lost = not anew.isdisjoint(settings.journals)
            seen = self.pending.positions()
            self._look_after_estate()
        except Exception as error:
            if isinstance(error, Fenced):
                # Either there is a newer owner, or the store has forgotten this one again.
                self._require_owner()
            if self._spark is not None:
                require_jvm(self._spark)  # without queries, nobody else notices that it is gone
            _log.warning("the store is not usable", cause=str(error)[:500])
            return
        back = [source for source, at in self._seen.items() if seen.get(source, 0) < at]
        self._seen = seen
        if back or anew:
            _log.error("intake starts again", store_went_back=back, made_anew=sorted(anew))
            self._read_again()

    def _tidy_journals(self) -> None:
        """A copy that the broker does not take stops nothing else that is looked after."""
        for tidy in (rescue_overtaken, bury_surplus):
            try:
                tidy(self.settings, self.pending)
            except BrokerUnavailable as error:
                _log.warning("copies for the journals wait", cause=str(error)[:500])

    def _look_after_sidecars(self) -> None:
        """An heir starts them once it is alone: on the same host the last owner has their
        addresses."""
        if self._sidecars.started or self._estate is not None:
            return
        try:
            self._sidecars.start()
        except Exception as error:
            if not self._sidecars_told:
                _log.error("metrics and canary will be tried again", cause=str(error)[:500])
            self._sidecars_told = True

    def _beat(self) -> None:
        """Show the page that this service is alive, and which of its queries run."""
        running = {f"worker:{w.name}": int(w.query is not None) for w in self._workers}
        Admin(self.pending).note({"beat-ms": SystemClock().now_ms(), **running})
