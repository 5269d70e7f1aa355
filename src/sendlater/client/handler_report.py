"""What handlers count, told to the store every few seconds: the page shows it."""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sendlater.client.event_worker import Tally
from sendlater.client.quiet_log import log

if TYPE_CHECKING:
    from sendlater.client.scheduler import Scheduler

TELL_S = 2.0
"""Pause between two reports."""


class HandlerReport:
    """Reports the tallies of one process. Nothing depends on it: an error is logged and passed
    over, and a fake installation, which has no store, is told nothing."""

    def __init__(
        self, scheduler: "Scheduler", tallies: Callable[[], dict[str, Tally]], *, group: str
    ) -> None:
        self._scheduler, self._tallies, self._group = scheduler, tallies, group
        self._name = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Report from now on, on the running loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Report no more, and have the last report forgotten."""
        self._stopping.set()
        await self._task

    async def _run(self) -> None:
        await asyncio.to_thread(self._try, self._forget_gone)
        while not self._stopping.is_set():
            await asyncio.to_thread(self._try, self._tell)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), TELL_S)
        await asyncio.to_thread(self._try, lambda handling: handling.forget(self._name))

    def _try(self, work: Callable[[Any], None]) -> None:
        from sendlater.store.at_work import Handling  # a fake needs no Redis client

        try:
            pending = self._scheduler.pending
            if hasattr(pending, "client"):
                work(Handling(pending))
        except Exception as error:
            log().debug("cannot report what handlers count", cause=str(error))

    def _tell(self, handling: Any) -> None:
        tallies = {type_: asdict(tally) for type_, tally in self._tallies().items()}
        handling.tell(self._name, self._group, tallies, now_ms=self._scheduler.now_ms())

    def _forget_gone(self, handling: Any) -> None:
        # What killed workers told must not pile up, even if nobody looks at it.
        handling.told(now_ms=self._scheduler.now_ms())
