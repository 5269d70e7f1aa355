"""Handles one event type: one thread reads, a bounded number of handlers run, failures are retried.

Event types share only the client that sends their retries: a slow type blocks no other.
"""

import asyncio
import contextvars
import inspect
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sendlater.brokers.broker import Arrived
from sendlater.client.backoff import Backoff, Dead, Retry
from sendlater.client.dead_letters import dead_letter
from sendlater.client.etf1_records import header, retried
from sendlater.client.event_codec import Codec, RecordCodec, decoded, shape_of
from sendlater.client.events import Context, context_of, retry_id
from sendlater.client.failures import Failed, called, ends_us, text_of, told
from sendlater.client.quiet_log import log
from sendlater.client.retries import expiry_of, failed_first
from sendlater.client.tracing import handling
from sendlater.dialects.names import EVENT_ID, RETRY_OF
from sendlater.errors import BadRequest, NoAttemptsLeft, Unavailable
from sendlater.model import Schedule

POLL_S = 0.2
"""Longest wait for the next event, and so the longest time between commits."""
FULL_S = 0.5
"""How often the reader polls, to stay in its group, while all handlers are busy."""
AGAIN_S = 0.2
"""First pause after an error of Kafka or Redis; doubled each time, up to AGAIN_S_MAX."""
AGAIN_S_MAX = 10.0
UNREAD_S = 2.0
"""How often the unread records on the topic are counted."""
PARALLELISM_MAX = 1_000

if TYPE_CHECKING:  # Kafka's client loads slowly, and a process that only enqueues has no worker
    from sendlater.brokers.group_reader import GroupReader


@dataclass(slots=True)
class Tally:
    """Counts of one event type since its handler started, and its current state."""

    taken: int = 0
    succeeded: int = 0
    retried: int = 0
    dead: int = 0
    skipped: int = 0
    """Events that could not be put on the dead-letter topic either, in whatever form."""
    ready: int = 0
    """Events on the topic whose handling has not begun. Unread ones are counted every UNREAD_S,
    and on Redis at most 1,000 per partition."""
    in_flight: int = 0
    seconds: float = 0.0
    """Total time spent in the handler."""
    error: str = ""
    """Why events cannot be read, handled or retried at the moment; empty if they can."""


HANDLES = "handle-"
"""How the names of threads begin that run plain functions."""
Forward = Callable[[Schedule], Awaitable[None]]
"""Sends a schedule; raises BadRequest for one that can never be sent, otherwise Unavailable."""


class EventWorker:
    """Handles one event type. Call `start`, then `stop`, on the same loop."""

    def __init__(
        self,
        type_: str,
        function: Callable[..., Any],
        *,
        reader: "GroupReader",
        forward: Forward,
        codec: Codec | RecordCodec,
        parallelism: int,
        retry: Backoff,
        timeout_s: float,
        dead_topic: str,
        now_ms: Callable[[], int],
    ) -> None:
        self.type, self.function = type_, function
        self.hint, self.wants_context = shape_of(function)
        self.is_async = inspect.iscoroutinefunction(function)
        self.reader, self.forward, self.codec = reader, forward, codec
        self.parallelism, self.retry, self.timeout_s = parallelism, retry, timeout_s
        self.dead_topic, self.now_ms = dead_topic, now_ms
        self.tally = Tally()
        self._ready: asyncio.Queue[Arrived | None] = asyncio.Queue()
        self._room = asyncio.Event()
        self._stopping = asyncio.Event()
        self._unread, self._counted_s = 0, 0.0
        self._reader = ThreadPoolExecutor(1, f"read-{type_}")
        self._threads = ThreadPoolExecutor(parallelism, f"{HANDLES}{type_}")
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start reading and handling."""
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self.parallelism)]
        self._fetching = asyncio.create_task(self._fetch())

    async def stop(self, *, drain_s: float) -> None:
        """Read nothing new, wait up to `drain_s` for running handlers, commit, leave the group."""
        self._stopping.set()
        self._room.set()
        await self._fetching
        while not self._ready.empty():
            self._ready.get_nowait()  # not committed: another member of the group gets it
        for _ in self._tasks:
            self._ready.put_nowait(None)
        _, left = await asyncio.wait(self._tasks, timeout=drain_s)
        for task in left:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._reader, self.reader.close)
        except Exception as error:
            log().warning("left the group without committing", type=self.type, cause=str(error))
        self._reader.shutdown(wait=False)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- reading --------------------------------------------------------------------------------

    async def _fetch(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = AGAIN_S
        while not self._stopping.is_set():
            room = self.parallelism - self._ready.qsize()
            if room <= 0:
                self._room.clear()
                await _wait(self._room, FULL_S)
            try:
                found = await loop.run_in_executor(self._reader, self._poll, max(0, room))
            except Exception as error:
                self.tally.error = f"cannot read: {error}"
                log().warning("cannot read events", type=self.type, cause=str(error))
                await _wait(self._stopping, pause_s)
                pause_s = min(2 * pause_s, AGAIN_S_MAX)
                continue
            if self.tally.error.startswith("cannot read"):
                self.tally.error = ""
            pause_s = AGAIN_S
            for record in found:
                self._ready.put_nowait(record)
            self.tally.taken += len(found)
            self.tally.ready = self._ready.qsize() + self._unread

    def _poll(self, count_max: int) -> list[Arrived]:
        found = self.reader.poll(count_max, timeout_s=POLL_S if count_max else 0.0)
        self._unread = max(0, self._unread - len(found))
        if time.monotonic() - self._counted_s > UNREAD_S:
            self._counted_s = time.monotonic()
            try:
                self._unread = self.reader.unread()
            except Exception as error:  # what was read must not be lost for a number
                log().warning("cannot count events", type=self.type, cause=text_of(error))
        return found

    # --- handling -------------------------------------------------------------------------------

    async def _work(self) -> None:
        while (record := await self._ready.get()) is not None:
            self._room.set()
            self.tally.ready = self._ready.qsize() + self._unread
            if self._stopping.is_set():
                return
            self.tally.in_flight += 1
            threads: set[asyncio.Future[Any]] = set()
            try:
                await self._settle(record, threads)
                if left := [thread for thread in threads if not thread.done()]:
                    # A thread cannot be interrupted: wait, so that no more than `parallelism` run.
                    await asyncio.wait(left)
            finally:
                self.tally.in_flight -= 1

    async def _settle(self, record: Arrived, threads: set["asyncio.Future[Any]"]) -> None:
        """Handle an event and, if it is settled, have it committed; `threads`: see _call."""
        try:
            if await self._handle(record, threads):
                self.reader.done(record)
        except Exception as error:  # our own fault, not the handler's; the worker goes on
            self.tally.error = f"cannot handle: {told(error)}"
            log().exception("cannot settle an event, it is not committed", type=self.type)

    async def _handle(self, record: Arrived, threads: set["asyncio.Future[Any]"]) -> bool:
        """Whether the event is settled (succeeded, re-scheduled or dead) and can be committed."""
        context = context_of(self.type, record)
        try:
            event = await decoded(
                self.codec,
                record.value or b"",
                self.hint,
                topic=record.topic,
                headers=list(record.headers),
            )
        except Unavailable as error:
            return await self._fail(record, context, told(error))
        except Exception as error:
            return await self._bury(record, f"cannot be decoded: {text_of(error)}")
        except BaseException as error:  # no answer about the event
            if ends_us(error):
                raise
            return await self._fail(record, context, told(error))
        began = time.monotonic()
        with handling(context, now_ms=self.now_ms()) as failed:
            failure = await self._call(event, context, began, threads)
            failed("" if failure is None else told(failure))
        self.tally.seconds += time.monotonic() - began
        if failure is None:
            self.tally.succeeded += 1
            return True
        if isinstance(failure, Dead):
            return await self._bury(record, text_of(failure) or told(failure))
        after_ms = failure.after_ms if isinstance(failure, Retry) else None
        return await self._fail(record, context, told(failure), after_ms=after_ms)

    async def _call(
        self,
        event: Any,
        context: Context,
        began: float,
        threads: set["asyncio.Future[Any]"],
    ) -> BaseException | None:
        """Why the handler failed, None where it has not. Its thread, which may still run, is added
        to `threads`."""
        try:
            arguments = (event, context) if self.wants_context else (event,)
            async with asyncio.timeout(self.timeout_s):
                if self.is_async:
                    answer = await self.function(*arguments)
                else:
                    loop = asyncio.get_running_loop()
                    run = contextvars.copy_context().run
                    call = partial(run, called, self.function, *arguments)
                    thread = loop.run_in_executor(self._threads, call)
                    threads.add(thread)
                    answer = await asyncio.shield(thread)
                    if inspect.isawaitable(answer):  # a plain wrapper around an async function
                        answer = await answer
        except TimeoutError as error:
            spent = time.monotonic() - began >= self.timeout_s
            return Failed(f"not finished within {self.timeout_s:g} s") if spent else error
        except BaseException as error:
            if ends_us(error):
                raise
            return error
        return Failed("the handler returned False") if answer is False else None

    async def _fail(
        self, record: Arrived, context: Context, failure: str, *, after_ms: int | None = None
    ) -> bool:
        """Schedule the next attempt, after `after_ms` if the handler has asked for that."""
        now_ms = self.now_ms()
        try:
            again, due_ms = retried(record, backoff=self.retry, now_ms=now_ms)
        except NoAttemptsLeft:
            return await self._bury(record, failure)
        if after_ms is not None:
            due_ms = now_ms + after_ms
        if header(again.headers, EVENT_ID) is None:
            again.headers.append((EVENT_ID, context.id.encode(errors="surrogateescape")))
        if header(again.headers, RETRY_OF) is None:
            again.headers.append((RETRY_OF, failed_first(record)))
        log().info(
            "event failed",
            type=self.type,
            id=text_of(context.id),
            attempt=context.attempt,
            cause=failure,
        )
        schedule = Schedule(
            id=retry_id(self.type, context.id),
            due_ms=due_ms,
            record=again,
            expiry=expiry_of(record.headers),
        )
        try:
            settled = await self._insist(schedule)
        except BadRequest as error:
            return await self._bury(record, f"{failure}; cannot be retried: {error}")
        self.tally.retried += settled
        return settled

    async def _bury(self, record: Arrived, failure: str) -> bool:
        """Send the event to the dead-letter topic, as a schedule that is due now: whole if that can
        be, else cut, and if that cannot be either, skip it."""
        context = context_of(self.type, record)
        now_ms, why = self.now_ms(), failure
        for cut in (False, True):
            dead = dead_letter(
                self.type, record, topic=self.dead_topic, failure=why, now_ms=now_ms, cut=cut
            )
            try:
                settled = await self._insist(dead)
            except BadRequest as error:
                why = f"{failure}; cut: {error}"
                continue
            if settled:
                self.tally.dead += 1
                id = text_of(context.id)
                log().warning("event is dead", type=self.type, id=id, cause=failure)
            return settled
        self.tally.skipped += 1
        place = f"{record.topic}/{record.partition}/{record.position}"
        log().error("event is skipped: it cannot be dead either", place=place, cause=why)
        return True

    async def _insist(self, schedule: Schedule) -> bool:
        """Send a schedule, with retries until it succeeds; False if stopped before. Raises
        BadRequest for one that can never be sent: trying again would stop its type for ever."""
        pause_s = AGAIN_S
        while True:
            try:
                await self.forward(schedule)
            except BadRequest:
                raise
            except Exception as error:
                self.tally.error = f"cannot re-schedule: {error}"
                log().warning("cannot re-schedule an event", type=self.type, cause=str(error))
                if await _wait(self._stopping, pause_s):
                    return False
                pause_s = min(2 * pause_s, AGAIN_S_MAX)
            else:
                if self.tally.error.startswith("cannot re-schedule"):
                    self.tally.error = ""
                return True


async def _wait(event: asyncio.Event, timeout_s: float) -> bool:
    """Whether the event was set in time."""
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return False
    return True
