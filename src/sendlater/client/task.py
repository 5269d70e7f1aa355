"""What `@app.on(...)` makes of a function: still that function, and a way to have it called."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from sendlater.client.async_scheduler import AsyncScheduled
from sendlater.model import Cancelled
from sendlater.operations.arguments import Delay, Instant

Event = TypeVar("Event")
More = ParamSpec("More")
Answer = TypeVar("Answer")


class Events(Protocol):
    """What a Task needs of Handlers."""

    async def enqueue(
        self,
        type_: str,
        event: Any,
        *,
        delay: Delay | None = None,
        at: Instant | None = None,
        spread: Delay | None = None,
        expires: Instant | None = None,
        expires_after: Delay | None = None,
        tags: Iterable[str] | None = None,
        id: str | None = None,
        key: bytes | str | None = None,
        context: Mapping[str, str] | None = None,
    ) -> AsyncScheduled:
        """See Handlers."""
        ...

    async def cancel(self, type_: str, id: str) -> Cancelled:
        """See Handlers."""
        ...


class Task(Generic[Event, More, Answer]):
    """A handler. Calling it calls the function here and now, as a test does."""

    def __init__(
        self,
        app: Events,
        type_: str,
        function: Callable[Concatenate[Event, More], Answer],
    ) -> None:
        functools.update_wrapper(self, function)
        self.app, self.type, self.function = app, type_, function

    def __call__(self, event: Event, *more: More.args, **named: More.kwargs) -> Answer:
        return self.function(event, *more, **named)

    async def enqueue(
        self,
        event: Event,
        *,
        delay: Delay | None = None,
        at: Instant | None = None,
        spread: Delay | None = None,
        expires: Instant | None = None,
        expires_after: Delay | None = None,
        tags: Iterable[str] | None = None,
        id: str | None = None,
        key: bytes | str | None = None,
        context: Mapping[str, str] | None = None,
    ) -> AsyncScheduled:
        """Have the function called with `event`; see Handlers.enqueue."""
        return await self.app.enqueue(
            self.type,
            event,
            delay=delay,
            at=at,
            spread=spread,
            expires=expires,
            expires_after=expires_after,
            tags=tags,
            id=id,
            key=key,
            context=context,
        )

    async def cancel(self, id: str) -> Cancelled:
        """Cancel an event; see Handlers.cancel."""
        return await self.app.cancel(self.type, id)

    def __repr__(self) -> str:
        return f"<Task {self.type}: {self.function!r}>"
