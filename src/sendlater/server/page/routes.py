"""The page: HTML, sign-in, live numbers. Its scripts read and change data through /v1."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec
from fastapi import APIRouter, Request
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from sendlater.errors import Unavailable
from sendlater.limits import RECENT_COUNT_MAX, TAIL_COUNT_MAX
from sendlater.server import timeline_view
from sendlater.server.auth import SESSION_S, Role, asks_for_page, cookie_name, may, require
from sendlater.server.page.first_answers import with_answers
from sendlater.server.page.reference import html
from sendlater.server.problems import Problem
from sendlater.server.routes.schedules import server_state
from sendlater.store.timeline import due_ms_of_share

router = APIRouter(include_in_schema=False)
EVENT_S = 2.0
"""Pause between two live updates."""
LISTENERS_MAX = 100
"""Most pages with live updates at once."""
SIGN_IN_BYTES_MAX = 1_000
PAGES = {
    "/": ("overview", "Pending"),
    "/schedule": ("detail", "Schedule"),
    "/history": ("history", "History"),
    "/rejected": ("records", "Rejected"),
    "/dead": ("records", "Dead letters"),
    "/records": ("records", "Records"),
    "/running": ("running", "Running"),
    "/audit": ("audit", "Audit"),
}
FIRST_ASKED = ("/v1/stats", "/v1/trend", "/v1/schedules?limit=50")
"""What the overview asks for first, beside its timeline: the answers come with it."""
MOST = 0.9
"""The timeline shows at first when this share is due: one schedule of years to come is not all."""
FROM_ELSEWHERE = ("/schedule", "/records")
"""Pages that other pages link to; they need a schedule or a topic."""


def _shell(request: Request) -> Response:
    path = request.scope["path"]
    name, title = PAGES[path]
    if name != "overview":
        return _page(request, f"{name}.html", name=name, title=title)
    plain, timeline = not request.url.query, _timeline(request)
    shown = _page(request, "overview.html", name=name, title=title, plain=plain, **timeline)
    if not plain:
        return shown
    return with_answers(request, shown, (*FIRST_ASKED, timeline["timeline_asked"]))


def _page(request: Request, template: str, **values: Any) -> HTMLResponse:
    who = require(request.scope, Role.READ)
    at = server_state(request)
    path = request.scope["path"]
    return html(
        template,
        pages={to: told for to, (_, told) in PAGES.items() if to not in FROM_ELSEWHERE},
        path=path,
        who=who,
        role=who.role.name.lower(),
        payload=at.shows_payload(who),
        badge=at.settings.http_badge,
        signed_in=at.tokens.asked,
        topic=at.settings.dead_topic if path == "/dead" else at.settings.rejected_topic,
        dead=at.settings.dead_topic,
        inboxes=" ".join(at.operations.inboxes),
        kafka=at.settings.on_kafka,
        recent=RECENT_COUNT_MAX * at.settings.shards,
        tail=TAIL_COUNT_MAX,
        **values,
    )


def missing(request: Request) -> HTMLResponse | None:
    """The answer to a reader's browser that asks for a page that there is none of; None to all
    others: below an open path, nobody needs to have signed in."""
    scope = request.scope
    if scope["path"].startswith("/v1/") or not asks_for_page(scope) or not may(scope, Role.READ):
        return None
    shown = _page(request, "missing.html", name="shared", title="Not found")
    shown.status_code = 404
    return shown


def _timeline(request: Request) -> dict[str, Any]:
    """What the timeline shows first, and where it asks for that."""
    at = server_state(request)
    now_ms, admin, last_ms, most_ms = at.clock.now_ms(), at.operations.admin, None, None
    with suppress(Unavailable):
        last_ms, most_ms = admin.last_due_ms(), due_ms_of_share(admin.pending, MOST)
    usual = timeline_view.usual_range(now_ms=now_ms, most_ms=most_ms, last_ms=last_ms)
    from_ms, to_ms = timeline_view.shown(usual, now_ms=now_ms, last_ms=last_ms)
    asked = {
        "round": "true",
        "buckets": timeline_view.FIRST_BARS,
        "due_from": f"{from_ms / 1_000:.3f}",
        "due_to": f"{to_ms / 1_000:.3f}",
    }
    return {
        "ranges": timeline_view.RANGES_MS,
        "usual": usual,
        "last_due_ms": last_ms,
        "timeline_asked": f"/v1/histogram?{urlencode(asked)}",
    }


for _path in PAGES:
    router.add_api_route(_path, _shell, methods=["GET"], name=_path)


@router.get("/sign-in")
def sign_in_form(request: Request) -> HTMLResponse:
    """A form for the token. Its answer goes to this address again, so what follows `?` stays."""
    asked = request.query_params
    return html("sign_in.html", failed="failed" in asked, ended="ended" in asked)


def _way_back(wanted: str) -> str:
    """The view that somebody wanted to see; the first page if it is none of ours, as anybody can
    have written the link."""
    try:
        parts = urlsplit(wanted)
    except ValueError:
        return "/"
    if parts.scheme or parts.netloc or parts.path not in (*PAGES, "/docs"):
        return "/"
    return parts.path + (f"?{parts.query}" if parts.query else "")


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Set a session cookie for a token: scripts cannot read it, other sites cannot use it."""
    body = await request.body()
    if len(body) > SIGN_IN_BYTES_MAX:
        raise Problem(413, f"expected at most {SIGN_IN_BYTES_MAX} bytes")
    token = parse_qs(body.decode(errors="replace")).get("token", [""])[0].strip()
    cookie = server_state(request).tokens.session(token)
    to = _way_back(request.query_params.get("to", "/"))
    if cookie is None:
        return RedirectResponse(f"/sign-in?{urlencode({'failed': '', 'to': to})}", 303)
    answer = RedirectResponse(to, 303)
    answer.set_cookie(
        cookie_name(request.scope),
        cookie,
        max_age=SESSION_S,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/sign-out")
def sign_out(request: Request) -> Response:
    """Delete the session cookie."""
    answer = RedirectResponse("/sign-in", 303)
    answer.delete_cookie(cookie_name(request.scope))
    return answer


@router.get("/v1/events")
async def events(request: Request) -> Response:
    """/v1/stats as server-sent events, until the page is closed."""
    require(request.scope, Role.READ)
    at = server_state(request)
    if at.listeners >= LISTENERS_MAX:
        raise Problem(429, f"expected at most {LISTENERS_MAX} live pages at once")

    async def stream() -> AsyncIterator[bytes]:
        at.listeners += 1
        try:
            until = time.monotonic() + SESSION_S
            while time.monotonic() < until and not at.stopping:
                told = await run_in_threadpool(at.watch.stats)
                data = msgspec.json.encode(told).decode()
                yield format_sse_event(event="stats", data_str=data)
                await asyncio.sleep(EVENT_S)
        finally:
            at.listeners -= 1

    return EventSourceResponse(stream(), headers={"X-Accel-Buffering": "no"})
