"""The ASGI application: routes, errors, authentication, limits."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sendlater import __version__
from sendlater.addresses import LOOPBACK, host_and_port
from sendlater.config import Settings
from sendlater.errors import BadSettings, Unavailable
from sendlater.limits import BODIES_BYTES_MAX, BODY_BYTES_MAX, OPEN_BODY_BYTES_MAX
from sendlater.server import problems
from sendlater.server.auth import OPEN_PATHS, Gate
from sendlater.server.openapi import describe, require_known_words
from sendlater.server.page import assets, reference
from sendlater.server.page import routes as page
from sendlater.server.problems import Problem, as_problem, problem_response
from sendlater.server.routes import bulk, health, numbers, recurring, running, schedules, topics
from sendlater.server.state import ServerState

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
)
SHORT_CUT = ("http", "POST", "/v1/schedules")


def address_of(settings: Settings) -> tuple[str, int]:
    """Host and port of http_addr. Raises BadSettings, also if other machines can reach it and there
    are no tokens."""
    host, port = host_and_port(settings.http_addr, setting="http_addr")
    if host not in LOOPBACK and settings.http_tokens is None:
        raise BadSettings(
            f"http_addr: {host} can be reached from other machines: expected http_tokens too "
            "(see `sendlater token`), or 127.0.0.1"
        )
    return host, port


def make_app(settings: Settings, *, redis_url: str, starting: bool = False) -> "Headers":
    """The whole application; its threads run from startup to shutdown. `starting`: its service has
    just been started.

    Raises BadSettings, Unavailable.
    """
    host, _ = address_of(settings)
    server_state = ServerState(settings, redis_url=redis_url, starting=starting)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        server_state.start()
        app.openapi()  # takes 0.1 s and more: the first to need it would hold up everybody
        threading.Thread(target=assets.pack_all, name="pack", daemon=True).start()
        yield
        server_state.stop()

    app = FastAPI(
        title="sendlater",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
    )
    app.state.server_state = server_state
    problems.install(app, missing=page.missing)
    # Of schedules first: routes are tried in order.
    for routes in (schedules, bulk, numbers, running, recurring, topics):
        app.include_router(routes.router, dependencies=[Depends(require_known_words)])
    app.include_router(health.router)
    app.include_router(reference.router)
    app.include_router(page.router)
    app.include_router(assets.router)
    describe(app, with_tokens=server_state.tokens.asked)
    gate = Gate(Bounded(ShortCut(app)), tokens=server_state.tokens, loopback=host in LOOPBACK)
    return Headers(Stopped(gate), server_state=server_state)


class Headers:
    """Adds the security headers to every response, unless the route has set them."""

    def __init__(self, app: ASGIApp, *, server_state: ServerState) -> None:
        self.app, self.server_state = app, server_state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass through."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(pair for pair in SECURITY_HEADERS if pair[0] not in given),
                ]
            await send(message)

        await self.app(scope, receive, sending)


class Stopped:
    """Answers requests that still wait when the server has to end."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass through."""
        began = False

        async def sending(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except asyncio.CancelledError:
            if began or scope["type"] != "http":
                raise
            told = Unavailable("the server stops and could not wait: look what stands, try again")
            await problem_response(as_problem(told))(scope, receive, send)


class Bounded:
    """Refuses request bodies that are too large, by Content-Length or by actual size, and those for
    which there is no memory now."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_open = scope["path"].startswith(OPEN_PATHS)
        bytes_max = OPEN_BODY_BYTES_MAX if is_open else BODY_BYTES_MAX
        declared = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
        too_large = Problem(413, f"expected a body of at most {bytes_max} bytes")
        if declared.isdigit() and int(declared[:20]) > bytes_max:
            await problem_response(too_large)(scope, receive, send)
            return
        count = 0

        async def receiving() -> Message:
            nonlocal count
            message: Any = await receive()
            size = len(message.get("body", b""))
            count += size
            self.held_bytes += size
            if count > bytes_max:
                raise too_large
            if self.held_bytes > BODIES_BYTES_MAX:
                raise Unavailable("the bodies of other requests fill the memory: try again")
            return message  # type: ignore[no-any-return]

        try:
            await self.app(scope, receiving, send)
        finally:
            self.held_bytes -= count


class ShortCut:
    """Handles POST /v1/schedules without the framework, which would take half of the time. This
    request comes thousands of times a second. Its route exists for the OpenAPI document."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request, or pass it through."""
        asked = (scope["type"], scope.get("method"), scope.get("path"))
        if asked != SHORT_CUT or scope["query_string"]:
            await self.app(scope, receive, send)
            return
        scope["app"] = self.app
        try:
            response = await schedules.create(Request(scope, receive))
        except Exception as error:
            problem = as_problem(error)
            await problem_response(problem)(scope, receive, send)
            if problem.status == 500:
                raise  # so that the server logs it
            return
        await response(scope, receive, send)
