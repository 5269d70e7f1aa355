"""REST: changes of many schedules at once, the audit trail, undo."""

from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sendlater.errors import BadRequest
from sendlater.server import json_shapes as wire
from sendlater.server.auth import Role, require
from sendlater.server.bulk_changes import Plan
from sendlater.server.once import Attempt, once
from sendlater.server.openapi import IDEMPOTENCY_KEY, documented
from sendlater.server.routes.schedules import JSON, answer, query_bytes, server_state
from sendlater.server.selections import BulkCancel, BulkMove

router = APIRouter()

BULK = (IDEMPOTENCY_KEY,)


async def _bulk(request: Request, kind: Any, plan_of: Any) -> Response:
    who = require(request.scope, Role.ADMIN)
    at = server_state(request)
    body = await request.body()

    async def work(attempt: Attempt) -> Response:
        given = wire.decode(kind, body)
        now_ms = attempt.now_ms
        plan = plan_of(given, now_ms)
        given.require_one()
        wanted = given.filter(now_ms=now_ms) if given.ids is None else given.named()
        what = {
            k: v
            for k, v in msgspec.structs.asdict(given).items()
            if v is not None and v is not False
        }
        for name in ("dry_run", "versions"):
            what.pop(name, None)
        if given.ids is not None:
            what["ids"] = given.ids[:5] + (["..."] if len(given.ids) > 5 else [])
        run = partial(at.bulk.run, what=what, dry_run=given.dry_run, audit_id=attempt.new_id())
        return answer(await at.waiting.run(run, who.name, plan, wanted))

    return await once(at, request, who, body, work)


@router.post(
    "/v1/schedules:cancel",
    tags=["bulk"],
    **documented(
        "Cancel many schedules.", body={JSON: "BulkCancel"}, answers={200: "Bulk"}, headers=BULK
    ),
)
async def bulk_cancel(request: Request) -> Response:
    """Cancels all that match, up to 100,000; with dry_run it only counts them. To cancel everything
    takes `all`. If it stops in the middle (503), `audit_id` names the entry that can undo it."""
    return await _bulk(request, BulkCancel, lambda _given, _now: Plan("cancel"))


@router.post(
    "/v1/schedules:deliver-now",
    tags=["bulk"],
    **documented(
        "Make many schedules due at once.",
        body={JSON: "BulkCancel"},
        answers={200: "Bulk"},
        headers=BULK,
    ),
)
async def bulk_deliver_now(request: Request) -> Response:
    """Changes all that match, up to 100,000 (everything takes `all`); this cannot be undone."""
    return await _bulk(request, BulkCancel, lambda _given, _now: Plan("deliver-now"))


@router.post(
    "/v1/schedules:reschedule",
    tags=["bulk"],
    **documented(
        "Give many schedules other due times.",
        body={JSON: "BulkMove"},
        answers={200: "Bulk"},
        headers=BULK,
    ),
)
async def bulk_move(request: Request) -> Response:
    """Shifts all by a span, spreads them evenly over a span, or moves all to one time."""
    return await _bulk(request, BulkMove, lambda given, now_ms: _plan_move(given, now_ms))


def _plan_move(given: BulkMove, now_ms: int) -> Plan:
    """Raises BadRequest, BadTime."""
    forms = (given.shift, given.spread, given.due_at, given.due_ms, given.delay)
    if sum(one is not None for one in forms) != 1:
        raise BadRequest("expected exactly one of shift, spread, due_at, due_ms and delay")
    if given.shift is not None:
        return Plan("shift", by_ms=wire.span_ms(given.shift))
    if given.spread is not None:
        return Plan("spread", by_ms=wire.delay_ms(given.spread))
    when = wire.When(due_at=given.due_at, due_ms=given.due_ms, delay=given.delay)
    return Plan("move", to_ms=when.resolve(now_ms=now_ms))


@router.get(
    "/v1/audit",
    tags=["audit"],
    **documented("List who changed what, latest first.", answers={200: "Audit"}),
)
def audit(
    request: Request,
    id: str | None = Query(
        None, description="Of these, only what changed this schedule; also with many others."
    ),
    limit: int = Query(50, ge=1, le=500),
    skip: int = Query(0, ge=0, le=100_000),
) -> Response:
    """Changes made through REST or the page."""
    require(request.scope, Role.READ)
    of = None if id is None else query_bytes(request, "id")
    return answer(
        {"items": list(server_state(request).audited.trail(first=skip, count=limit, of=of))}
    )


@router.post(
    "/v1/audit/{id}:undo",
    tags=["audit"],
    **documented("Undo a change.", answers={200: "Bulk"}),
)
async def undo(request: Request, id: str) -> Response:
    """Schedules again what was cancelled and moves back what was moved, unless changed since."""
    who, at = require(request.scope, Role.ADMIN), server_state(request)
    return answer(await at.waiting.run(at.undoing.undo, who.name, id))
