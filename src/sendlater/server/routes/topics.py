"""REST: the last and the new records of a topic; scheduling rejected and dead ones again."""

from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from sendlater.limits import (
    FOLLOW_WAIT_S_MAX,
    PAGE_COUNT_MAX,
)
from sendlater.model import DUE_MS_MAX
from sendlater.operations.read_topics import records_behind
from sendlater.server import json_shapes as wire
from sendlater.server.auth import Role, require
from sendlater.server.openapi import documented
from sendlater.server.problems import Problem
from sendlater.server.routes.schedules import JSON, answer, server_state
from sendlater.server.topic_records import redrive, show_record

router = APIRouter()


@router.get(
    "/v1/records",
    tags=["looking back"],
    **documented("List the last records of a topic, latest first.", answers={200: "Records"}),
)
def records(
    request: Request,
    topic: str | None = Query(None, description="Default: the rejected topic."),
    search: str = Query("", max_length=200, description="Part of key, a header or value."),
    key: str | None = Query(None, description="Only this key; searches more records."),
    id: str | None = Query(None, description="Deliveries of this schedule; needs `since_ms`."),
    since_ms: int | None = Query(None, ge=0, le=DUE_MS_MAX, description="With `id`: from then on."),
    limit: int = Query(100, ge=1, le=PAGE_COUNT_MAX),
) -> Response:
    """Rejected and dead records have the reason in headers; `place` identifies a record."""
    who, at = require(request.scope, Role.READ), server_state(request)
    payload = at.shows_payload(who)
    if (search or key is not None) and not payload:
        raise Problem(403, "search, key: expected a role that is shown payloads")
    if (id is None) != (since_ms is None) or sum((bool(search), key is not None, bool(id))) > 1:
        raise Problem(422, "expected one of search, key, and id with since_ms")
    name = topic or at.settings.rejected_topic
    if not wire.is_topic(name):
        raise Problem(422, f"topic: expected a topic name, got {name[:80]!r}")
    if id is not None and since_ms is not None:
        named = id.encode(errors="surrogateescape")
        found = at.records.delivered(name, schedule_id=named, since_ms=since_ms, count=limit)
    elif key is not None:
        named = key.encode(errors="surrogateescape")
        found = at.records.versions(name, key=named, count=limit)
    else:
        found = at.records.last(name, count=limit, search=search)
    return answer({"items": [show_record(one, payload=payload) for one in found]})


@router.get(
    "/v1/records:follow",
    tags=["looking back"],
    **documented("Wait for new records of a topic.", answers={200: "Following"}),
)
async def follow_records(
    request: Request,
    topic: str = Query(description="Any topic."),
    cursor: str | None = Query(
        None, description="From the previous call. Default: from now on.", pattern=wire.POSITIONS
    ),
    from_start: bool = Query(False, description="Without a cursor: from the first record kept."),
    limit: int = Query(500, ge=1, le=PAGE_COUNT_MAX),
    wait: float = Query(1, ge=1, le=FOLLOW_WAIT_S_MAX, description="Seconds to wait for a record."),
) -> Response:
    """Answers once there are records, or with none after `wait`. Call again with the cursor."""
    who, at = require(request.scope, Role.READ), server_state(request)
    if not wire.is_topic(topic):
        raise Problem(422, f"topic: expected a topic name, got {topic[:80]!r}")

    def work() -> dict[str, Any]:
        if not at.records.exists(topic):
            raise Problem(404, f"there is no topic {topic}")
        if cursor is not None:
            starts = wire.from_positions(cursor)
        else:
            starts = {n: 0 if from_start else end for n, end in at.broker.ends(topic).items()}
        found, following = records_behind(
            at.broker, topic, starts=starts, count_max=limit, wait_s=wait
        )
        payload = at.shows_payload(who)
        items = [show_record(one, payload=payload) for one in found]
        return {"items": items, "cursor": wire.to_positions(following)}

    # Separate threads: requests that wait for records must not block other requests.
    return answer(await to_thread.run_sync(work, limiter=at.followers))


@router.post(
    "/v1/records:redrive",
    tags=["looking back"],
    **documented(
        "Schedule records of a topic again.", body={JSON: "Redrive"}, answers={200: "Redriven"}
    ),
)
async def redrive_records(request: Request) -> Response:
    """The records stay on their topic; each schedule gets a new id. Dead events go to their
    handlers and get all attempts again."""
    who, at = require(request.scope, Role.ADMIN), server_state(request)
    given = wire.decode(wire.Redrive, await request.body())
    due_ms = at.clock.now_ms() + wire.delay_ms(given.delay)

    def work() -> dict[str, Any]:
        result = redrive(
            at.operations,
            at.records,
            topic=given.topic,
            places=given.places,
            target=given.target,
            due_ms=due_ms,
        )
        at.bulk.note(
            who.name,
            "redrive",
            {"topic": given.topic, "places": given.places[:5]},
            count=result["redriven"],
        )
        return result

    return answer(await run_in_threadpool(work))
