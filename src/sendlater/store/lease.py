"""The lease: one service is active on a space, others stand by."""

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog

from sendlater.errors import StoreUnavailable
from sendlater.store.at_work import HANDOVERS_MAX, LEASE, STANDBY_MS, lease_keys
from sendlater.store.connection import answering, connect
from sendlater.store.rebuild import RENEWALS, STANDBY_WATCH_S
from sendlater.store.scripts import script

_log = structlog.get_logger()


class Lease:
    """The right to be the active one of several services on a space; renewed by a thread.

    The lease only chooses the active service. The fence stops a service that was overtaken.
    """

    def __init__(
        self,
        url: str,
        *,
        space: str,
        lease_ms: int,
        key: str = LEASE,
        holder: str = "",
        works: Callable[[], object] = lambda: None,
    ) -> None:
        """`key`: which of the space's leases. `works` is called before each renewal. While it hangs
        or raises, the lease is not renewed, so that another service takes over from one that cannot
        work any more."""
        # Its own connection: renewing must not wait for other commands.
        self._client: Any = connect(url)[0]
        self._keys = lease_keys(space, key)
        self._noted = key == LEASE
        self._holder = holder or f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        self._lease_ms, self._works = lease_ms, works
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._held = False

    def acquire(self, *, by_force: bool = False) -> bool:
        """Take it if it is free, or `by_force`, and keep it; False while another holds it."""
        with answering():
            if by_force:
                self._client.delete(self._keys["lease"])
            taken = self._renew()
        if taken and self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
            self._thread.start()
        return taken

    def wait(
        self,
        stop: threading.Event,
        *,
        by_force: bool,
        waiting: Callable[[], bool],
        yields: Callable[[], object] = lambda: False,
    ) -> bool:
        """Wait for the lease; False if `stop` was set first.

        `waiting` is called whenever another service has been alive for longer than `lease_ms`; it
        answers True if it has got the space. While `yields`, a free lease is left to another one,
        unless it is taken `by_force`. Raises StoreUnavailable at once, not once it waits.
        """
        waited_s, waits = 0.0, False
        while not self._gets(by_force=by_force, yields=yields, patient=waits):
            waits = True
            if stop.wait(STANDBY_WATCH_S):
                return False
            waited_s += STANDBY_WATCH_S
            if waited_s > self._lease_ms / 1_000:
                if waiting():
                    return True
                waited_s = 0.0
        return True

    def _gets(self, *, by_force: bool, yields: Callable[[], object], patient: bool) -> bool:
        try:
            return (by_force or not yields()) and self.acquire(by_force=by_force)
        except StoreUnavailable as error:
            if not patient:
                raise
            _log.warning("standing by waits for the store", cause=str(error))
            return False

    @property
    def is_held(self) -> bool:
        """Whether it was ours when it was last renewed."""
        return self._held

    def _renew(self, lease_ms: int | None = None) -> bool:
        got = script("lease")(
            self._client,
            **self._keys,
            holder=self._holder,
            lease_ms=self._lease_ms if lease_ms is None else lease_ms,
            now_ms=time.time_ns() // 1_000_000,
            standby_ms=STANDBY_MS,
            handovers_max=HANDOVERS_MAX if self._noted else 0,
        )
        self._held = bool(got)
        return self._held

    def _keep(self) -> None:
        while not self._stop.wait(self._lease_ms / 1_000 / RENEWALS):
            try:
                self._works()
                if not self._renew():
                    _log.warning("another service holds the lease")
            except StoreUnavailable as error:
                _log.warning("the lease waits for the store", cause=str(error))
            except Exception as error:
                _log.error("the lease is not renewed: this service cannot work", cause=str(error))

    def holder(self) -> str:
        """The holder; empty if there is none. Raises StoreUnavailable."""
        with answering():
            holder: bytes = self._client.get(self._keys["lease"]) or b""
        return holder.decode()

    def lapse(self) -> None:
        """Renew it no more: another service is about to take it."""
        self._stop.set()

    def release(self) -> None:
        """Give the lease back, so that the next service starts at once."""
        self._stop.set()
        if self._thread is None:
            return
        self._thread.join(self._lease_ms / 1_000)
        try:
            self._renew(0)
        except StoreUnavailable as error:
            _log.warning("the lease will run out by itself", cause=str(error))
