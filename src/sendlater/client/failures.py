"""What handlers and codecs may raise, which is anything: as text, and as what it means."""

import asyncio
from collections.abc import Callable
from typing import Any


class Failed(Exception):
    """A handler failed without an exception of its own."""


def called(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function in a thread. As in a coroutine, a StopIteration becomes a RuntimeError: a
    future refuses it, and who waits for the thread would wait for ever."""
    try:
        return function(*arguments, **named)
    except StopIteration as error:
        raise RuntimeError("the function raised StopIteration") from error


def ends_us(error: BaseException) -> bool:
    """Whether an exception is meant for the task that called a handler, not an answer of it."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        # Else something that the handler awaited was cancelled.
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit)


def told(error: BaseException) -> str:
    """Type and text of an exception."""
    text = text_of(error)
    return text if isinstance(error, Failed) else f"{type(error).__name__}: {text}"


def text_of(thing: object) -> str:
    """As text that every log and header takes. A text may itself fail, and have half characters."""
    try:
        text = str(thing)
    except Exception as error:
        text = f"its text fails with {type(error).__name__}"
    return text.encode(errors="backslashreplace").decode()
