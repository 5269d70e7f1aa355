"""Threads for calls that may take long, apart from those of all other requests."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from sendlater.errors import Unavailable
from sendlater.limits import TURN_S_MAX

T = TypeVar("T")


class Turns:
    """At most `count_max` calls of one kind at once, each in a thread.

    While intake stands still, requests that wait for it fill these threads and no others: the page,
    health and metrics go on. A request that gets no turn within TURN_S_MAX is refused.
    """

    def __init__(self, count_max: int, *, what: str) -> None:
        self._count_max, self._what = count_max, what
        self._free = asyncio.Semaphore(count_max)
        self._threads = CapacityLimiter(count_max)

    async def run(self, work: Callable[..., T], *given: object) -> T:
        """Call `work` in a thread. Raises Unavailable if it gets no turn, and what it raises."""
        try:
            async with asyncio.timeout(TURN_S_MAX):
                await self._free.acquire()
        except TimeoutError as error:
            raise Unavailable(
                f"{self._count_max} other requests {self._what}: try again"
            ) from error
        try:
            return await to_thread.run_sync(work, *given, limiter=self._threads)
        finally:
            self._free.release()
