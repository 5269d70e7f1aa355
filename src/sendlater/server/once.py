"""Requests with an Idempotency-Key: a repeated one gets the first answer, and changes nothing.

Also after a crash or an outage in the middle: each attempt at a request gives its schedules the
same ids and the same times, and leaves out the lines that an earlier one has written.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from fastapi import Request
from starlette.responses import Response
from ulid import ULID

from sendlater.server.auth import Identity
from sendlater.server.openapi import IDEMPOTENCY_KEY_CHARS_MAX
from sendlater.server.problems import PartlyDone, Problem, as_problem, problem_response
from sendlater.server.state import ServerState

KEPT_HEADERS = ("content-type", "location", "etag")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a request; `now_ms` is when its first attempt began."""

    now_ms: int
    name: str = ""
    """Of the request; empty if it has no Idempotency-Key."""
    so_far: bytes | None = None
    """The answer to the last attempt, if that could do only a part."""

    def new_id(self, line: int = 0) -> str:
        """A ULID for the schedule in a line: each attempt gives it the same."""
        if not self.name:
            return str(ULID())
        drawn = hashlib.sha256(f"{self.name}:{line}".encode()).digest()[:10]
        return str(ULID.from_bytes(self.now_ms.to_bytes(6, "big") + drawn))


async def once(
    at: ServerState,
    request: Request,
    who: Identity,
    body: bytes,
    work: Callable[[Attempt], Awaitable[Response]],
) -> Response:
    """The answer to a request; with an Idempotency-Key, the answer to the first such request.

    Raises what `work` raises, and Problem 400, 409 and 422 about the key.
    """
    key = request.headers.get("idempotency-key")
    if key is None:
        return await work(Attempt(at.clock.now_ms()))
    if not 0 < len(key) <= IDEMPOTENCY_KEY_CHARS_MAX:
        raise Problem(400, f"Idempotency-Key: expected 1 to 255 characters, got {len(key)}")
    keys = at.idempotency
    name = hashlib.sha256(f"{who.name}\0{key}".encode()).hexdigest()
    asked = f"{request.method} {request.scope['path']}\0".encode() + body
    digest = hashlib.sha256(asked).digest()
    begun = await asyncio.to_thread(keys.begin, name, digest, now_ms=at.clock.now_ms())
    if begun is None:
        raise Problem(409, "the first request with this Idempotency-Key is still running")
    if begun.digest != digest:
        raise Problem(422, "Idempotency-Key: used before with another request")
    if begun.answer is not None:
        status, headers, content = msgspec.json.decode(begun.answer)
        return Response(content, status, headers | {"Idempotency-Replayed": "true"})
    try:
        response = await work(Attempt(begun.at_ms, name, begun.so_far))
    except PartlyDone as problem:
        response = problem_response(problem)
    except BaseException as error:
        refused = isinstance(error, Exception) and as_problem(error).status < 500
        with suppress(Exception):
            await asyncio.to_thread(keys.drop if refused else keys.leave, name)
        raise
    content = bytes(response.body)
    if "retry-after" in response.headers:
        begun = msgspec.structs.replace(begun, so_far=content)
    else:
        headers = {k: v for k, v in response.headers.items() if k in KEPT_HEADERS}
        kept = msgspec.json.encode((response.status_code, headers, content.decode()))
        begun = msgspec.structs.replace(begun, answer=kept)
    await asyncio.to_thread(keys.keep, name, begun)
    return response
