"""REST: when a recurring schedule would come; pause, resume and trigger one."""

from typing import Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sendlater.dialects.cron import clock_notes
from sendlater.dialects.recurrence import preview, shown_at
from sendlater.errors import BadRequest
from sendlater.limits import PREVIEW_COUNT_MAX
from sendlater.operations import recurring
from sendlater.operations.arguments import planned
from sendlater.operations.schedules import Changed
from sendlater.server import json_shapes as wire
from sendlater.server.auth import Role, require
from sendlater.server.once import Attempt, once
from sendlater.server.openapi import IDEMPOTENCY_KEY, IF_MATCH, documented
from sendlater.server.routes.schedules import (
    answer,
    changed_answer,
    id_in_path,
    if_match,
    server_state,
)
from sendlater.store import Answer

router = APIRouter()


@router.get("/v1/next", tags=["schedules"], **documented("Preview a plan.", answers={200: "Next"}))
def next_times(
    request: Request,
    cron: str | None = Query(None, description="Five fields: 0 9 * * MON-FRI."),
    every: str | None = Query(None, description="An interval: 15m. One of the two."),
    zone: str | None = Query(None, description="Of cron, such as Europe/Paris. Default: UTC."),
    start: str | None = Query(None, description="In the forms of due_at."),
    end: str | None = Query(None, description="The same."),
    count: int = Query(10, ge=1, le=PREVIEW_COUNT_MAX),
) -> Response:
    """The next times of a recurring schedule that is sent now, without jitter."""
    require(request.scope, Role.READ)
    given = {"cron": cron, "every": every, "zone": zone, "start": start, "end": end}
    plan = planned(given, now_ms=server_state(request).clock.now_ms())
    if plan is None:
        raise BadRequest("expected one of every and cron, got neither")
    times = preview(plan, count)
    shown = [shown_at(ms, plan.zone) for ms in times]
    return answer({"times": shown, "times_ms": times, "notes": clock_notes(times, plan.zone)})


@router.post(
    "/v1/schedules/{id:path}:pause",
    tags=["schedules"],
    **documented("Pause a recurring schedule.", answers={200: "Answer"}, headers=(IF_MATCH,)),
)
async def pause(request: Request, id: str) -> Response:  # noqa: ARG001
    """Nothing of it is delivered until it is resumed. Answers paused, unchanged (it was paused),
    delivering or unknown; 422 if it comes once."""
    return await _replan(request, "pause", recurring.pause)


@router.post(
    "/v1/schedules/{id:path}:resume",
    tags=["schedules"],
    **documented("Resume a recurring schedule.", answers={200: "Answer"}, headers=(IF_MATCH,)),
)
async def resume(request: Request, id: str) -> Response:  # noqa: ARG001
    """It goes on with its first time after now. Answers resumed, unchanged (it was not paused),
    ended (it has no time left), delivering or unknown; 422 if it comes once."""
    return await _replan(request, "resume", recurring.resume)


async def _replan(request: Request, action: str, change: Any) -> Response:
    who, at = require(request.scope, Role.WRITE), server_state(request)
    schedule_id, version = id_in_path(request, cut=f":{action}"), if_match(request)

    def work() -> Response:
        changed = change(at.operations, schedule_id, version=version)
        return changed_answer(at, who, action, changed)

    return await at.waiting.run(work)


@router.post(
    "/v1/schedules/{id:path}:trigger",
    tags=["schedules"],
    **documented(
        "Send an occurrence of a recurring schedule now.",
        answers={200: "Triggered"},
        headers=(IDEMPOTENCY_KEY,),
    ),
)
async def trigger(request: Request, id: str) -> Response:  # noqa: ARG001
    """One more, beside the plan, which stays as it is. Answers triggered, with the schedule that
    is delivered, or unknown; 422 if it comes once."""
    who, at = require(request.scope, Role.WRITE), server_state(request)
    schedule_id = id_in_path(request, cut=":trigger")

    def work(attempt: Attempt) -> Response:
        found = recurring.trigger(at.operations, schedule_id, now_ms=attempt.now_ms)
        if found is None:
            return answer({"answer": Answer.UNKNOWN.value})
        at.audited.note_one(who.name, "trigger", Changed(Answer.TRIGGERED, found))
        shown = wire.show(found, payload=at.shows_payload(who))
        return answer({"answer": Answer.TRIGGERED.value, "schedule": shown})

    body = await request.body()
    return await once(at, request, who, body, lambda attempt: at.waiting.run(work, attempt))
