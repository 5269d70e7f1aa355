"""The page: HTML shells, sign-in, live numbers. What it shows and does goes through /v1."""

import asyncio
import gzip
import time
from collections.abc import AsyncIterator
from functools import cache
from importlib import resources
from urllib.parse import parse_qs

import msgspec
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from sendlater.api.access import COOKIE, SESSION_S, Role, require
from sendlater.api.problems import Problem
from sendlater.api.reference import html, plotly_script
from sendlater.api.schedules import desktop

router = APIRouter(include_in_schema=False)
EVENT_S = 2.0
"""Pause between two live updates."""
LISTENERS_MAX = 100
"""Most pages that are updated live at once."""
SIGN_IN_BYTES_MAX = 1_000
STATIC_S = 3_600
"""How long browsers keep our scripts; plotly's for a year, its version is in the name."""
TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
PAGES = {
    "/": ("overview", "Pending"),
    "/schedule": ("detail", "Schedule"),
    "/history": ("history", "History"),
    "/rejected": ("records", "Rejected and dead"),
    "/audit": ("audit", "Audit"),
}


@cache
def static(name: str) -> tuple[bytes, bytes] | None:
    """A file of ours, or plotly's script from its package: plain and compressed."""
    script, content = plotly_script()
    if name != script:
        file = resources.files(__package__) / "static" / name
        if "/" in name or name.startswith(".") or not file.is_file():
            return None
        content = file.read_bytes()
    return content, gzip.compress(content, 6)


@router.get("/static/{name}")
def static_file(request: Request, name: str) -> Response:
    """Scripts and styles; no token is needed for them."""
    found = static(name)
    if found is None:
        raise Problem(404, "no such file")
    kept_s = 365 * 86_400 if name == plotly_script()[0] else STATIC_S
    headers = {"Cache-Control": f"public, max-age={kept_s}", "Vary": "Accept-Encoding"}
    plain, packed = found
    kind = TYPES.get(name.rpartition(".")[2], "application/octet-stream")
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(packed, media_type=kind, headers=headers)
    return Response(plain, media_type=kind, headers=headers)


def _shell(request: Request) -> HTMLResponse:
    who = require(request.scope, Role.READ)
    at = desktop(request)
    name, title = PAGES[request.scope["path"]]
    return html(
        f"{name}.html",
        name=name,
        title=title,
        pages={path: told for path, (_, told) in PAGES.items() if path != "/schedule"},
        path=request.scope["path"],
        who=who,
        role=who.role.name.lower(),
        payload=at.shows_payload(who),
        badge=at.settings.http_badge,
        signed_in=at.tokens.asked,
        plotly=plotly_script()[0],
        rejected_topic=at.settings.rejected_topic,
        inbox=at.office.inboxes[0],
    )


for _path in PAGES:
    router.add_api_route(_path, _shell, methods=["GET"], name=PAGES[_path][0])


@router.get("/sign-in")
def sign_in_form(request: Request) -> HTMLResponse:
    """A form for the token."""
    return html("sign_in.html", failed="failed" in request.query_params)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """A session cookie for a token: scripts cannot read it, other sites cannot send it."""
    body = await request.body()
    if len(body) > SIGN_IN_BYTES_MAX:
        raise Problem(413, f"expected at most {SIGN_IN_BYTES_MAX} bytes")
    token = parse_qs(body.decode(errors="replace")).get("token", [""])[0].strip()
    cookie = desktop(request).tokens.session(token, now_s=int(time.time()))
    if cookie is None:
        return RedirectResponse("/sign-in?failed", 303)
    answer = RedirectResponse("/", 303)
    answer.set_cookie(
        COOKIE,
        cookie,
        max_age=SESSION_S,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/sign-out")
def sign_out() -> Response:
    """Forget the session."""
    answer = RedirectResponse("/sign-in", 303)
    answer.delete_cookie(COOKIE)
    return answer


@router.get("/v1/events")
async def events(request: Request) -> Response:
    """The numbers of /v1/stats as server-sent events, until the page is closed."""
    require(request.scope, Role.READ)
    at = desktop(request)
    if at.listeners >= LISTENERS_MAX:
        raise Problem(429, f"expected at most {LISTENERS_MAX} live pages at once")

    async def stream() -> AsyncIterator[bytes]:
        at.listeners += 1
        try:
            until = time.monotonic() + SESSION_S
            while time.monotonic() < until and not at.stopping:
                told = await run_in_threadpool(at.watch.stats)
                yield b"event: stats\ndata: " + msgspec.json.encode(told) + b"\n\n"
                await asyncio.sleep(EVENT_S)
        finally:
            at.listeners -= 1

    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(stream(), media_type="text/event-stream", headers=headers)
