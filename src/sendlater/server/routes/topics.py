"""REST: the last and the new records of a topic; scheduling rejected and dead ones again."""

from typing import Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sendlater.limits import (
    FOLLOW_WAIT_S_MAX,
    PAGE_COUNT_MAX,
    SEARCH_CHARS_MAX,
)
from sendlater.model import DUE_MS_MAX
from sendlater.operations.read_topics import records_behind
from sendlater.server import json_shapes as wire
from sendlater.server import positions
from sendlater.server.auth import Identity, Role, require
from sendlater.server.openapi import documented
from sendlater.server.problems import Problem
from sendlater.server.routes.schedules import JSON, answer, query_bytes, server_state
from sendlater.server.state import ServerState
from sendlater.server.topic_records import redrive, show_record

router = APIRouter()


@router.get(
    "/v1/records",
    tags=["looking back"],
    **documented("List the last records of a topic, latest first.", answers={200: "Records"}),
)
async def records(
    request: Request,
    topic: str | None = Query(None, description="Default: the rejected topic."),
    search: str = Query(
        "", max_length=SEARCH_CHARS_MAX, description="Part of key, a header or value."
    ),
    key: str | None = Query(None, description="Only this key; searches more records."),
    id: str | None = Query(
        None, description="What was rejected of this schedule; with `since_ms` its deliveries."
    ),
    since_ms: int | None = Query(None, ge=0, le=DUE_MS_MAX, description="With `id`: from then on."),
    limit: int = Query(100, ge=1, le=PAGE_COUNT_MAX),
) -> Response:
    """Rejected and dead records have the reason in headers; `place` identifies a record. Roles
    below admin see topics of this installation only."""
    who, at = require(request.scope, Role.READ), server_state(request)
    payload = at.shows_payload(who)
    if (search or key is not None) and not payload:
        raise Problem(403, "search, key: expected a role that is shown payloads")
    if (since_ms is not None and id is None) or (
        sum((bool(search), key is not None, id is not None)) > 1
    ):
        raise Problem(422, "expected one of search, key, and id, with since_ms or without")
    name = topic or at.settings.rejected_topic
    if not wire.is_topic(name):
        raise Problem(422, f"topic: expected a topic name, got {name[:80]!r}")

    def work() -> Response:
        _require_readable(at, who, name)
        if since_ms is not None:
            named = query_bytes(request, "id")
            found = at.records.delivered(name, schedule_id=named, since_ms=since_ms, count=limit)
        elif id is not None:
            named = query_bytes(request, "id")
            found = at.records.rejected(name, schedule_id=named, count=limit)
        elif key is not None:
            found = at.records.versions(name, key=query_bytes(request, "key"), count=limit)
        else:
            found = at.records.last(name, count=limit, search=search)
        return answer({"items": [show_record(one, payload=payload) for one in found]})

    return await at.readers.run(work)


def _require_readable(at: ServerState, who: Identity, topic: str) -> None:
    """Raises Problem 403 for a topic of others, unless an admin asks."""
    if who.role < Role.ADMIN and not at.records.is_ours(topic):
        raise Problem(
            403,
            f"topic {topic}: expected an inbox, a target that schedules have named, the rejected, "
            "dead or history topic, or one of http_topics; any other takes role admin",
        )


@router.get(
    "/v1/records:follow",
    tags=["looking back"],
    **documented("Wait for new records of a topic.", answers={200: "Following"}),
)
async def follow_records(
    request: Request,
    topic: str = Query(description="As in /v1/records."),
    cursor: str | None = Query(
        None,
        description="From the previous call. Default: from now on.",
        pattern=positions.POSITIONS,
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
        _require_readable(at, who, topic)
        if not at.records.exists(topic):
            raise Problem(404, f"there is no topic {topic}")
        if cursor is not None:
            starts = positions.from_positions(cursor)
        else:
            starts = {n: 0 if from_start else end for n, end in at.broker.ends(topic).items()}
        found, following = records_behind(
            at.broker, topic, starts=starts, count_max=limit, wait_s=wait
        )
        payload = at.shows_payload(who)
        items = [show_record(one, payload=payload) for one in found]
        return {"items": items, "cursor": positions.to_positions(following)}

    return answer(await at.followers.run(work))


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
        what = {"topic": given.topic, "places": given.places[:5]}
        with at.audited.recorded(at.audited.entry(who.name, "redrive", what)) as answers:
            return redrive(
                at.operations,
                at.records,
                topic=given.topic,
                places=given.places,
                target=given.target,
                due_ms=due_ms,
                answers=answers,
            )

    return answer(await at.waiting.run(work))
