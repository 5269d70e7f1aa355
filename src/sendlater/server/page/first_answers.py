"""What the page asks for first, answered in its HTML: the browser waits for no further request."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec
from fastapi import Request
from starlette.responses import HTMLResponse, StreamingResponse
from starlette.types import Message

from sendlater.limits import FIRST_ANSWERS_S_MAX


def with_answers(request: Request, page: HTMLResponse, paths: Iterable[str]) -> StreamingResponse:
    """The page as it is, and behind it the answers of paths of ours to the one who asks for it: the
    browser loads scripts and styles meanwhile, and runs the scripts once it has all of it."""

    async def parts() -> AsyncIterator[str]:
        before, end, after = bytes(page.body).decode().rpartition("</body>")
        yield before
        answers = await first_answers(request, paths)
        yield f'<script type="application/json" id="first-answers">{answers}</script>{end}{after}'

    headers = {"Content-Security-Policy": page.headers["Content-Security-Policy"]}
    return StreamingResponse(parts(), media_type="text/html", headers=headers)


async def first_answers(request: Request, paths: Iterable[str]) -> str:
    """By path, as JSON for a script element; without those that are errors or late: the page asks
    for these itself, and tells."""
    asked = {path: asyncio.create_task(_answer(request, path)) for path in paths}
    await asyncio.wait(asked.values(), timeout=FIRST_ANSWERS_S_MAX)
    got = {path: one.result() for path, one in asked.items() if one.done()}
    return as_data({path: msgspec.Raw(body) for path, body in got.items() if body is not None})


def as_data(value: object) -> str:
    """JSON that ends no script element and begins no comment, whatever its texts are."""
    return msgspec.json.encode(value).replace(b"<", rb"\u003c").decode()


async def _answer(request: Request, path: str) -> bytes | None:
    """The body that this sender would get for a GET of a path; None if that is an error."""
    address = urlsplit(path)
    scope = {key: request.scope[key] for key in ("type", "http_version", "scheme", "server", "who")}
    scope |= {"method": "GET", "path": address.path, "headers": []}
    scope |= {"query_string": address.query.encode()}
    statuses, body = [], b""

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        nonlocal body
        statuses.append(message.get("status", 200))
        body += message.get("body", b"")

    with suppress(Exception):
        await request.app(scope, receive, send)
        return body if set(statuses) == {200} else None
    return None
