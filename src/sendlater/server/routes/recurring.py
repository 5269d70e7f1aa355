"""REST: when a recurring schedule would come."""

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sendlater.dialects.recurrence import preview, shown_at
from sendlater.errors import BadRequest
from sendlater.limits import PREVIEW_COUNT_MAX
from sendlater.operations.arguments import planned
from sendlater.server.auth import Role, require
from sendlater.server.openapi import documented
from sendlater.server.routes.schedules import answer, server_state

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
        raise BadRequest("expected one of every and cron")
    times = preview(plan, count)
    return answer({"times": [shown_at(ms, plan.zone) for ms in times], "times_ms": times})
