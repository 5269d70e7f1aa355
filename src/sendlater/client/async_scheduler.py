"""The client for asyncio: the same plans and transports, with blocking calls in threads."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from sendlater.client.backoff import Backoff
from sendlater.client.scheduled import Page, Scheduled
from sendlater.client.scheduler import RETRY, Scheduler
from sendlater.client.sender import SEND_TIMEOUT_S, unanswered
from sendlater.client.tracing import scheduling
from sendlater.limits import PAGE_COUNT_MAX
from sendlater.model import Cancelled, Moved, Paused, Schedule
from sendlater.operations.arguments import (
    AnyHeaders,
    Delay,
    Instant,
    Message,
    Recurrence,
    plan_send,
)
from sendlater.operations.queries import Matching, Selection
from sendlater.operations.transport import Matched, Opens

if TYPE_CHECKING:
    from sendlater.config import Settings

T = TypeVar("T")
THREAD_COUNT = 16
"""Blocking calls at the same time; further calls wait for a thread."""
ASYNC_CHUNK_COUNT = 10_000
"""Messages of an async iterable that are sent together."""


class AsyncScheduled(Scheduled):
    """A Scheduled whose methods are coroutines."""

    _owner: "AsyncScheduler"  # type: ignore[assignment]

    async def cancel(self) -> Cancelled:  # type: ignore[override]
        """See Scheduler.cancel."""
        return await self._owner.cancel(self.id)

    async def reschedule(  # type: ignore[override]
        self, *, delay: Delay | None = None, at: Instant | None = None
    ) -> Moved:
        """See Scheduler.reschedule; after `moved`, `due_at` is the new time."""
        sync = self._owner.sync
        return self._follow(*await self._owner._call(sync._reschedule, self.id, delay=delay, at=at))

    async def deliver_now(self) -> Moved:  # type: ignore[override]
        """See Scheduler.deliver_now."""
        return await self._owner.deliver_now(self.id)

    async def pause(self) -> Paused:  # type: ignore[override]
        """See Scheduler.pause."""
        return await self._owner.pause(self.id)

    async def resume(self) -> Paused:  # type: ignore[override]
        """See Scheduler.resume."""
        return await self._owner.resume(self.id)

    async def trigger(self) -> "AsyncScheduled | None":  # type: ignore[override]
        """See Scheduler.trigger."""
        return await self._owner.trigger(self.id)


OnAsyncSent = Callable[[Exception | None, AsyncScheduled], None]
"""Called with None once the schedule was accepted, or with the error."""


class AsyncScheduler:
    """A Scheduler whose methods are coroutines; they do not block the event loop."""

    def __init__(
        self,
        where: "Settings | Opens | str | None" = None,
        *,
        redis_url: str | None = None,
        space: str | None = None,
        token: str | None = None,
        ca_file: "str | Path | None" = None,
        **settings: Any,
    ) -> None:
        """See Scheduler. Connects at once, which blocks: create it early."""
        self.sync = Scheduler(
            where, redis_url=redis_url, space=space, token=token, ca_file=ca_file, **settings
        )
        # Threads of our own: the caller's work may keep the loop's default threads busy.
        self._threads = ThreadPoolExecutor(THREAD_COUNT, "sendlater-asyncio")

    async def _call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(function, *arguments, **named))

    async def send_later(
        self,
        topic: str,
        value: bytes | str,
        *,
        key: bytes | str | None = None,
        headers: AnyHeaders = (),
        delay: Delay | None = None,
        at: Instant | None = None,
        spread: Delay | None = None,
        expires: Instant | None = None,
        expires_after: Delay | None = None,
        id: str | None = None,
        partition: int | None = None,
        tags: Iterable[str] | None = None,
        only_if: str | None = None,
        wait: bool = True,
        on_sent: "OnAsyncSent | None" = None,
        **recurrence: Unpack[Recurrence],
    ) -> AsyncScheduled:
        """See Scheduler.send_later; `on_sent` is a plain function, called in the loop."""
        schedule = plan_send(
            topic,
            value,
            now_ms=self.sync.now_ms(),
            key=key,
            headers=headers,
            delay=delay,
            at=at,
            spread=spread,
            expires=expires,
            expires_after=expires_after,
            id=id,
            partition=partition,
            tags=tags,
            **recurrence,
        )
        with scheduling(schedule, now_ms=self.sync.now_ms()) as schedule:
            scheduled = AsyncScheduled(self, schedule)  # type: ignore[arg-type]
            if only_if is not None:
                create = self.sync._sender.create
                scheduled.schedule = await self._call(create, schedule, only_if=only_if, wait=wait)
                if on_sent is not None:
                    on_sent(None, scheduled)
                return scheduled
            return await self._send(scheduled, wait=wait, on_sent=on_sent)

    async def _send(
        self, scheduled: AsyncScheduled, *, wait: bool, on_sent: "OnAsyncSent | None"
    ) -> AsyncScheduled:
        schedule = scheduled.schedule
        if wait:
            await self.submit(schedule)
            if on_sent is not None:
                on_sent(None, scheduled)
            return scheduled
        loop = asyncio.get_running_loop()

        def told(error: Exception | None) -> None:
            assert on_sent is not None, "asked for below only then"
            loop.call_soon_threadsafe(on_sent, error, scheduled)

        await self._call(self.sync.send_aside, schedule, told if on_sent is not None else None)
        return scheduled

    async def submit(self, schedule: Schedule) -> None:
        """Send a schedule as it is, and wait until it was accepted."""
        # If the producer's queue has room, sending costs less than changing threads.
        if self.sync._transport.ready():
            future = self.sync._sender.submit(schedule)
        else:
            future = await self._call(self.sync._sender.submit, schedule)
        try:
            await asyncio.wait_for(asyncio.wrap_future(future), SEND_TIMEOUT_S)
        except TimeoutError as error:
            raise unanswered() from error

    async def forget(self, schedule_id: bytes) -> None:
        """Cancel without an answer: does not wait for intake."""
        await self._call(self.sync._transport.forget, schedule_id)

    async def send_many(self, messages: Iterable[Message] | AsyncIterable[Message]) -> int:
        """See Scheduler.send_many; accepts async iterables too."""
        if not isinstance(messages, AsyncIterable):
            return await self._call(self.sync.send_many, messages)
        count, chunk = 0, []
        async for message in messages:
            chunk.append(message)
            if len(chunk) == ASYNC_CHUNK_COUNT:
                count += await self._call(self.sync.send_many, chunk)
                chunk = []
        return count + await self._call(self.sync.send_many, chunk)

    async def retry(
        self,
        message: Any,
        error: str = "",
        policy: Backoff | str | None = None,
        *,
        backoff: Backoff = RETRY,
        id: str | None = None,
    ) -> AsyncScheduled:
        """See Scheduler.retry."""
        found = await self._call(self.sync.retry, message, error, policy, backoff=backoff, id=id)
        return AsyncScheduled(self, found.schedule)  # type: ignore[arg-type]

    async def cancel(self, id: str) -> Cancelled:
        """See Scheduler.cancel."""
        return await self._call(self.sync.cancel, id)

    async def cancel_many(self, ids: Iterable[str]) -> dict[str, Cancelled]:
        """See Scheduler.cancel_many."""
        return await self._call(self.sync.cancel_many, ids)

    async def cancel_matching(
        self,
        *,
        all: bool = False,
        dry_run: bool = False,
        **matching: Unpack[Matching],
    ) -> Matched:
        """See Scheduler.cancel_matching."""
        return await self._call(self.sync.cancel_matching, all=all, dry_run=dry_run, **matching)

    async def reschedule(
        self, id: str, *, delay: Delay | None = None, at: Instant | None = None
    ) -> Moved:
        """See Scheduler.reschedule."""
        return await self._call(self.sync.reschedule, id, delay=delay, at=at)

    async def deliver_now(self, id: str) -> Moved:
        """See Scheduler.deliver_now."""
        return await self._call(self.sync.deliver_now, id)

    async def pause(self, id: str) -> Paused:
        """See Scheduler.pause."""
        return await self._call(self.sync.pause, id)

    async def resume(self, id: str) -> Paused:
        """See Scheduler.resume."""
        return await self._call(self.sync.resume, id)

    async def trigger(self, id: str) -> AsyncScheduled | None:
        """See Scheduler.trigger."""
        found = await self._call(self.sync.trigger, id)
        return None if found is None else AsyncScheduled(self, found.schedule)  # type: ignore[arg-type]

    async def get(self, id: str) -> AsyncScheduled | None:
        """See Scheduler.get."""
        found = await self._call(self.sync.get, id)
        return None if found is None else AsyncScheduled(self, found.schedule)  # type: ignore[arg-type]

    async def list(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        **selection: Unpack[Selection],
    ) -> Page[AsyncScheduled]:
        """See Scheduler.list."""
        page = await self._call(self.sync.list, limit=limit, cursor=cursor, **selection)
        items = [AsyncScheduled(self, one.schedule) for one in page.items]  # type: ignore[arg-type]
        return Page(items, page.next_cursor)

    async def iter(self, **selection: Unpack[Selection]) -> AsyncIterator[AsyncScheduled]:
        """See Scheduler.iter: `async for schedule in scheduler.iter()`."""
        cursor: str | None = ""
        while cursor is not None:
            page = await self.list(limit=PAGE_COUNT_MAX, cursor=cursor or None, **selection)
            for one in page.items:
                yield one
            cursor = page.next_cursor

    async def flush(self) -> None:
        """See Scheduler.flush."""
        await self._call(self.sync.flush)

    async def close(self) -> None:
        """See Scheduler.close."""
        await self._call(self.sync.close)
        self._threads.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
