"""REST: create, get, list, change and cancel schedules."""

from dataclasses import replace
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sendlater.errors import BadRequest
from sendlater.limits import LINES_COUNT_MAX, PAGE_COUNT_MAX, PAGE_LOOK_S
from sendlater.model import Schedule
from sendlater.operations.create_if import create_if
from sendlater.operations.queries import from_cursor, to_cursor
from sendlater.operations.schedules import Changed
from sendlater.server import json_shapes as wire
from sendlater.server.auth import Identity, Role, require
from sendlater.server.conditions import condition_of, etag_version
from sendlater.server.once import Attempt, once
from sendlater.server.openapi import (
    CREATE_IF_MATCH,
    CREATE_IF_NONE_MATCH,
    IDEMPOTENCY_KEY,
    IF_MATCH,
    IF_NONE_MATCH,
    documented,
)
from sendlater.server.problems import Problem, as_problem
from sendlater.server.selections import to_filter
from sendlater.server.state import ServerState
from sendlater.store import Answer
from sendlater.store.codec import VERSION_CHARS

JSON, NDJSON = "application/json", "application/x-ndjson"
ONE = "/v1/schedules/"
NOW = ":deliver-now"
NO_VERSION = "-" * VERSION_CHARS
AWAY = HTTPStatus.SERVICE_UNAVAILABLE
GONE = "unknown, delivered, cancelled, expired or rejected"
LOOK_S = 1.0
"""Longest wait for intake before a list, which is then shown anyway."""
router = APIRouter(tags=["schedules"])


def answer(body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(msgspec.json.encode(body), status_code=status, media_type=JSON, headers=headers)


def server_state(request: Request) -> ServerState:
    """The state shared by all requests."""
    found: ServerState = request.app.state.server_state
    return found


@router.post(
    "/v1/schedules",
    status_code=201,
    **documented(
        "Create one schedule, or many with application/x-ndjson.",
        body={JSON: "NewSchedule", NDJSON: "NewSchedule"},
        answers={201: "Schedule", 200: "Accepted"},
        headers=(IDEMPOTENCY_KEY, CREATE_IF_MATCH, CREATE_IF_NONE_MATCH),
        etag=", if it was created under a condition and stands",
    ),
)
async def create(request: Request) -> Response:
    """Answers once the schedule is safe: on the inbox, or without Kafka in the store.

    NDJSON: one schedule per line, at most 100,000 lines. The answer lists refused lines; if all are
    refused, it is an error. With a condition (`only_if`, If-Match, If-None-Match) the answer waits
    for intake; 412 if the condition does not hold, with what stands.
    """
    who, at = require(request.scope, Role.WRITE), server_state(request)
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    body = await request.body()
    condition = condition_of(request, None)
    if kind == NDJSON:
        if condition is not None:
            raise Problem(422, "expected one schedule with a condition, got lines of many")
        return await once(at, request, who, body, lambda attempt: _create_many(at, body, attempt))
    if kind != JSON:
        raise Problem(415, f"expected {JSON} or {NDJSON}, got {kind}")
    asked = body if condition is None else body + condition.encode()
    return await once(
        at, request, who, asked, lambda attempt: _create_one(at, request, body, attempt)
    )


async def _create_one(at: ServerState, request: Request, body: bytes, attempt: Attempt) -> Response:
    given = wire.decode(wire.NewSchedule, body)
    schedule, only_if = _new(at, given, attempt), condition_of(request, given.only_if)
    headers = {"Location": _address(schedule.id)}
    if only_if is None:
        await at.written(schedule)
    else:
        schedule = await at.waiting.run(lambda: create_if(at.operations, schedule, only_if=only_if))
        if schedule.version:  # it may have been delivered or changed already
            headers["ETag"] = f'"{schedule.version}"'
    return answer(wire.show(schedule, payload=False), status=201, headers=headers)


def _new(at: ServerState, given: Any, attempt: Attempt, *, line: int = 0) -> Schedule:
    """The schedule of a body or a line. A later attempt counts a delay from the first one."""
    made: Schedule = given.schedule(now_ms=attempt.now_ms, new_id=lambda: attempt.new_id(line))
    now_ms = at.clock.now_ms()
    return made if made.due_ms >= now_ms else replace(made, due_ms=now_ms)


async def _create_many(at: ServerState, body: bytes, attempt: Attempt) -> Response:
    lines = [line for line in body.split(b"\n") if line.strip()]
    if len(lines) > LINES_COUNT_MAX:
        raise Problem(413, f"expected at most {LINES_COUNT_MAX} lines, got {len(lines)}")

    def write() -> Response:
        ids: list[str | None] = [None] * len(lines)
        if attempt.so_far is not None:
            ids = msgspec.json.decode(attempt.so_far)["ids"]
        good: list[tuple[int, Schedule]] = []
        refused: list[dict[str, Any]] = []
        for number, line in enumerate(lines):
            if ids[number] is not None:
                continue
            try:
                given = wire.decode(wire.NewSchedule, line)
                if given.only_if is not None:
                    raise BadRequest("only_if: expected one schedule, got one line of many")
                schedule = _new(at, given, attempt, line=number)
                at.operations.checked(schedule)
                good.append((number, schedule))
            except (Problem, BadRequest) as error:
                refused.append({"line": number + 1, "status": 422, "detail": str(error)})
        failed = at.operations.write([schedule for _, schedule in good])
        away: Exception | None = None
        for (number, schedule), failure in zip(good, failed, strict=True):
            if failure is None:
                ids[number] = schedule.id.decode()
            else:
                problem = as_problem(failure)
                away = away or (failure if problem.status == AWAY else None)
                refused.append(
                    {"line": number + 1, "status": problem.status, "detail": problem.detail}
                )
        refused.sort(key=lambda one: one["line"])
        if away and not any(ids):
            raise away
        if refused and len(refused) == len(lines):
            told = f"every line was refused; the first: {refused[0]['detail']}"
            raise Problem(422, told, refused=refused)
        body = {"accepted": len(lines) - len(refused), "ids": ids, "refused": refused}
        # With Retry-After, `once` keeps the ids only to leave these lines out of another attempt.
        return answer(body, headers={"Retry-After": "1"} if away else None)

    return await at.waiting.run(write)


@router.get(
    "/v1/schedules",
    **documented("List pending schedules in due order, in pages.", answers={200: "Page"}),
)
async def page(
    request: Request,
    due_from: str | None = Query(None, description="RFC 3339, +15m or seconds since 1970."),
    due_to: str | None = Query(None, description="The same; not included."),
    id_prefix: str | None = Query(None),
    topic: str | None = Query(None),
    tag: str | None = Query(None, description="One of its tags."),
    caller: str | None = Query(None, description="Value of header CALLER_SERVICE."),
    state: Literal["pending", "claimed"] = Query(
        "pending", description="claimed: being delivered; one page only."
    ),
    order: Literal["first", "last"] = Query(
        "first", description="Whether those due first or last come first."
    ),
    limit: int = Query(100, ge=1, le=PAGE_COUNT_MAX),
    cursor: str | None = Query(None),
) -> Response:
    """With a filter, a page may be short or empty without being the last.

    If intake is still behind after a second, header Sendlater-Behind lists the inbox partitions
    that it has not read.
    """
    who = require(request.scope, Role.READ)
    at = server_state(request)
    wanted = to_filter(
        due_from=due_from,
        due_to=due_to,
        id_prefix=id_prefix,
        topic=topic,
        tag=tag,
        caller=caller,
        now_ms=at.clock.now_ms(),
    )
    after = from_cursor(cursor) if cursor and state == "pending" else None

    def work() -> Response:
        behind = at.operations.intake.caught_up(within_s=LOOK_S)
        next_cursor = None
        if state == "pending":
            got = at.operations.admin.page_within(
                wanted,
                within_s=PAGE_LOOK_S,
                count_max=limit,
                after=after,
                backwards=order == "last",
            )
            found, next_cursor = got.schedules, got.after and to_cursor(got.after)
        else:
            found = at.operations.admin.claimed(wanted, count_max=limit)
        payload = at.shows_payload(who)
        items = [wire.show(one, payload=payload) for one in found]
        told = {"Sendlater-Behind": ", ".join(sorted(behind))} if behind else None
        return answer({"items": items, "next_cursor": next_cursor}, headers=told)

    return await at.waiting.run(work)


@router.post(
    "/v1/schedules/{id:path}:deliver-now",
    **documented(
        "Make a schedule due at once.",
        answers={200: "Answer"},
        headers=(IF_MATCH,),
        etag=" it has now, if it was moved",
    ),
)
async def deliver_now(request: Request, id: str) -> Response:  # noqa: ARG001
    """Answers moved, delivering (it already is) or unknown."""
    who, at = require(request.scope, Role.WRITE), server_state(request)

    def work() -> Response:
        changed = at.operations.deliver_now(id_in_path(request, cut=NOW), version=if_match(request))
        return changed_answer(at, who, "deliver-now", changed)

    return await at.waiting.run(work)


@router.get(
    "/v1/schedules/{id:path}",
    **documented(
        "Get a pending or claimed schedule.",
        answers={200: "Schedule"},
        headers=(IF_NONE_MATCH,),
        etag=" it has",
    ),
)
async def get(request: Request, id: str) -> Response:  # noqa: ARG001
    """404 if it is unknown, delivered, cancelled, expired or rejected. Its version is the ETag."""
    who, at = require(request.scope, Role.READ), server_state(request)
    found = await at.waiting.run(at.operations.get, id_in_path(request))
    if found is None:
        told = f"neither pending nor on its way: {GONE}"
        raise Problem(404, told, answer=Answer.UNKNOWN.value)
    tag = {"ETag": f'"{found.version}"'}
    if request.headers.get("if-none-match", "").strip() == tag["ETag"]:
        return Response(status_code=304, headers=tag)
    return answer(wire.show(found, payload=at.shows_payload(who)), headers=tag)


@router.delete(
    "/v1/schedules/{id:path}",
    **documented("Cancel a schedule.", answers={200: "Answer"}, headers=(IF_MATCH,)),
)
async def cancel(request: Request, id: str) -> Response:  # noqa: ARG001
    """Answers cancelled, delivering (too late) or unknown."""
    who, at = require(request.scope, Role.WRITE), server_state(request)

    def work() -> Response:
        changed = at.operations.cancel(id_in_path(request), version=if_match(request))
        return changed_answer(at, who, "cancel", changed)

    return await at.waiting.run(work)


@router.patch(
    "/v1/schedules/{id:path}",
    **documented(
        "Give a schedule another due time.",
        body={JSON: "NewTime"},
        answers={200: "Answer"},
        headers=(IF_MATCH,),
        etag=" it has now, if it was moved",
    ),
)
async def move(request: Request, id: str) -> Response:  # noqa: ARG001
    """Answers moved, delivering (too late) or unknown. A time in the past means now."""
    who, at = require(request.scope, Role.WRITE), server_state(request)
    due_ms = wire.decode(wire.When, await request.body()).resolve(now_ms=at.clock.now_ms())

    def work() -> Response:
        changed = at.operations.move(id_in_path(request), due_ms=due_ms, version=if_match(request))
        return changed_answer(at, who, "reschedule", changed)

    return await at.waiting.run(work)


def changed_answer(at: ServerState, who: Identity, action: str, changed: Changed) -> Response:
    """The answer to a change; a change that was made goes into the audit trail."""
    if changed.answer is Answer.CHANGED:
        raise Problem(412, "the schedule has changed since; read it again")
    body: dict[str, Any] = {"answer": changed.answer.value}
    headers = {}
    if changed.after is not None:
        body |= {"due_ms": changed.after.due_ms, "due_at": wire.to_time(changed.after.due_ms)}
        headers["ETag"] = f'"{changed.after.version}"'
    ended = changed.answer in (Answer.CANCELLED, Answer.ENDED)
    if changed.before is not None and (ended or changed.after is not None):
        at.audited.note_one(who.name, action, changed)
    return answer(body, headers=headers)


def id_in_path(request: Request, *, cut: str = "") -> bytes:
    """The id in the path as bytes: it need not be text. If there is none, the one in the query:
    browsers and many clients take `.` and `..` for steps, and send another path."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    path = unquote_to_bytes(raw.partition(b"?")[0])
    found = path.partition(ONE.encode())[2].removesuffix(cut.encode()) or query_bytes(request, "id")
    if not found:
        raise Problem(404, "expected an id after /v1/schedules/")
    return found


def query_bytes(request: Request, name: str) -> bytes:
    """The last query parameter of this name as bytes: keys and ids need not be text."""
    found = b""
    for pair in request.scope["query_string"].replace(b"+", b" ").split(b"&"):
        given, _, value = pair.partition(b"=")
        if unquote_to_bytes(given) == name.encode():
            found = unquote_to_bytes(value)
    return found


def if_match(request: Request) -> str:
    """The version in If-Match; empty: any."""
    given = request.headers.get("if-match", "*").strip()
    if given == "*":
        return ""
    version = etag_version("If-Match", given)
    # The store compares prefixes, so a shorter version must not reach it.
    return version if len(version) == VERSION_CHARS else NO_VERSION


def _address(schedule_id: bytes) -> str:
    quoted = quote_from_bytes(schedule_id, safe="")
    return ONE + (f"?id={quoted}" if quoted in (".", "..") else quoted)
