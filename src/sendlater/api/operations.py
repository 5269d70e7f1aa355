"""REST: bulk changes, the audit trail, numbers, looking at topics, health."""

import asyncio
import itertools
from typing import Any

import msgspec
from anyio import to_thread
from fastapi import APIRouter, Query, Request
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from sendlater.api import wire
from sendlater.api.access import Role, require
from sendlater.api.bulk import Plan, plan_move
from sendlater.api.documented import IDEMPOTENCY_KEY, documented
from sendlater.api.problems import Problem
from sendlater.api.records import redrive, show_record
from sendlater.api.schedules import JSON, answer, desktop, once
from sendlater.api.watch import predicted_late_ms
from sendlater.client.reading import records_behind
from sendlater.errors import SendlaterError
from sendlater.limits import (
    BUCKETS_COUNT_MAX,
    FOLLOW_WAIT_S_MAX,
    OVERDUE_AFTER_MS,
    PAGE_COUNT_MAX,
    RECENT_COUNT_MAX,
)
from sendlater.model import DUE_MS_MAX
from sendlater.pending import Filter

router = APIRouter()
BULK = (IDEMPOTENCY_KEY,)


async def _bulk(request: Request, kind: Any, plan_of: Any) -> Response:
    who = require(request.scope, Role.ADMIN)
    at = desktop(request)
    body = await request.body()

    async def work() -> Response:
        given = wire.decode(kind, body)
        now_ms = at.clock.now_ms()
        plan = plan_of(given, now_ms)
        if given.ids is not None and given.has_filter:
            raise Problem(422, "expected either ids or a filter, got both")
        wanted: Filter | list[bytes]
        if given.ids is not None:
            wanted = [i.encode() for i in given.ids]
        else:
            wanted = given.filter(now_ms=now_ms)
        what = {k: v for k, v in msgspec.structs.asdict(given).items() if v is not None}
        what.pop("dry_run")
        if given.ids is not None:
            what["ids"] = given.ids[:5] + (["..."] if len(given.ids) > 5 else [])
        result = await run_in_threadpool(
            at.bulk.run, who.name, plan, wanted, what=what, dry_run=given.dry_run
        )
        return answer(result)

    return await once(request, who, body, work)


@router.post(
    "/v1/schedules:cancel",
    tags=["bulk"],
    **documented("Take many back.", body={JSON: "BulkCancel"}, answers={200: "Bulk"}, headers=BULK),
)
async def bulk_cancel(request: Request) -> Response:
    """All that match, up to 100,000; with dry_run only their count."""
    return await _bulk(request, wire.BulkCancel, lambda _given, _now: Plan("cancel"))


@router.post(
    "/v1/schedules:deliver-now",
    tags=["bulk"],
    **documented(
        "Make many due at once.", body={JSON: "BulkCancel"}, answers={200: "Bulk"}, headers=BULK
    ),
)
async def bulk_deliver_now(request: Request) -> Response:
    """All that match, up to 100,000; it cannot be undone."""
    return await _bulk(request, wire.BulkCancel, lambda _given, _now: Plan("deliver-now"))


@router.post(
    "/v1/schedules:reschedule",
    tags=["bulk"],
    **documented(
        "Give many other due times.", body={JSON: "BulkMove"}, answers={200: "Bulk"}, headers=BULK
    ),
)
async def bulk_move(request: Request) -> Response:
    """Shifted by so much, spread evenly over so long, or all to one time."""
    return await _bulk(
        request, wire.BulkMove, lambda given, now_ms: plan_move(given, now_ms=now_ms)
    )


@router.get(
    "/v1/audit",
    tags=["audit"],
    **documented("Who changed what, latest first.", answers={200: "Audit"}),
)
def audit(
    request: Request,
    limit: int = Query(50, ge=1, le=500),
    skip: int = Query(0, ge=0, le=100_000),
) -> Response:
    """Each change made through REST or the page."""
    require(request.scope, Role.READ)
    return answer({"items": list(desktop(request).bulk.trail(first=skip, count=limit))})


@router.post(
    "/v1/audit/{id}:undo",
    tags=["audit"],
    **documented("Undo a change.", answers={200: "Bulk"}),
)
def undo(request: Request, id: str) -> Response:
    """Brings back what was cancelled and moves back what was moved, unless changed since."""
    who = require(request.scope, Role.ADMIN)
    return answer(desktop(request).bulk.undo(who.name, id))


@router.get("/v1/stats", tags=["numbers"], **documented("Numbers.", answers={200: "Stats"}))
def stats(request: Request) -> Response:
    """Counts now, rates and lateness of the last minutes, and why something is late."""
    require(request.scope, Role.READ)
    return answer(desktop(request).watch.stats())


@router.get(
    "/v1/histogram",
    tags=["numbers"],
    **documented("What is due when.", answers={200: "Histogram"}),
)
def histogram(
    request: Request,
    due_from: str | None = Query(None, description="Default: now."),
    due_to: str | None = Query(None, description="Default: the last one's due time."),
    buckets: int = Query(60, ge=1, le=BUCKETS_COUNT_MAX),
) -> Response:
    """Counts of equal spans of time, exact and by topic, and how late each will be."""
    require(request.scope, Role.READ)
    at = desktop(request)
    now_ms, desk = at.clock.now_ms(), at.office.desk
    wanted = wire.to_filter(
        due_from=due_from or "+0", due_to=due_to, id_prefix=None, topic=None, now_ms=now_ms
    )
    last_ms = wanted.to_ms if wanted.to_ms is not None else desk.last_due_ms()
    end_ms = max(wanted.from_ms + buckets, (last_ms or wanted.from_ms) + 1)
    span = end_ms - wanted.from_ms
    edges = [wanted.from_ms + span * n // buckets for n in range(buckets + 1)]
    got = desk.timeline(edges)
    before = desk.count(to_ms=edges[0] - 1) if edges[0] <= now_ms else 0
    late = predicted_late_ms(got.counts, edges, waiting=before, drain_per_s=at.watch.drain_per_s)
    return answer(
        {
            "now_ms": now_ms,
            "edges_ms": edges,
            "counts": got.counts,
            "topics": got.topics,
            "sampled": got.sampled,
            "overdue": desk.count(to_ms=now_ms - OVERDUE_AFTER_MS),
            "drain_per_s": round(at.watch.drain_per_s),
            "drain_measured": at.watch.drain_measured,
            "late_ms": late,
        }
    )


@router.get(
    "/v1/deliveries",
    tags=["looking back"],
    **documented("The last deliveries, latest first.", answers={200: "Deliveries"}),
)
def deliveries(
    request: Request,
    search: str = Query("", max_length=200, description="Part of the id or of the topic."),
    limit: int = Query(100, ge=1, le=1_000),
) -> Response:
    """What the lanes handed to the producer, and how late; at high rates a sample."""
    require(request.scope, Role.READ)
    at = desktop(request)
    wanted = search.encode(errors="surrogateescape")
    every = at.office.desk.recent(
        count_max=RECENT_COUNT_MAX * at.settings.shards if search else limit
    )
    found = (one for one in every if wanted in one.id or search in one.topic)
    items = [
        {
            **wire.show_id(one.id),
            "topic": one.topic,
            "due_ms": one.due_ms,
            "at_ms": one.at_ms,
            "at": wire.to_time(one.at_ms),
            "late_ms": one.at_ms - one.due_ms,
        }
        for one in itertools.islice(found, limit)
    ]
    return answer({"items": items})


@router.get(
    "/v1/records",
    tags=["looking back"],
    **documented("The last records of a topic, latest first.", answers={200: "Records"}),
)
def records(
    request: Request,
    topic: str | None = Query(None, description="Default: the rejected topic."),
    search: str = Query("", max_length=200, description="In key, headers or value."),
    key: str | None = Query(None, description="Those with this key; looks further back."),
    id: str | None = Query(None, description="Deliveries of this schedule; with `since_ms`."),
    since_ms: int | None = Query(None, ge=0, le=DUE_MS_MAX, description="With `id`: not before."),
    limit: int = Query(100, ge=1, le=PAGE_COUNT_MAX),
) -> Response:
    """Rejected records and dead letters say why in headers; `place` names one for redriving."""
    who, at = require(request.scope, Role.READ), desktop(request)
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
    **documented("Records of a topic as they come.", answers={200: "Following"}),
)
async def follow_records(
    request: Request,
    topic: str = Query(description="Any topic."),
    cursor: str | None = Query(
        None, description="Of the call before; without: from now on.", pattern=wire.POSITIONS
    ),
    from_start: bool = Query(False, description="Without a cursor: from the first record kept."),
    limit: int = Query(500, ge=1, le=PAGE_COUNT_MAX),
    wait: float = Query(1, ge=1, le=FOLLOW_WAIT_S_MAX, description="Seconds, for the first one."),
) -> Response:
    """Answers as soon as there are any, or with none after `wait`. Ask again with the cursor."""
    who, at = require(request.scope, Role.READ), desktop(request)
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

    # In threads of their own: those who wait for records must not keep others waiting.
    return answer(await to_thread.run_sync(work, limiter=at.followers))


@router.post(
    "/v1/records:redrive",
    tags=["looking back"],
    **documented(
        "Schedule records of a topic anew.", body={JSON: "Redrive"}, answers={200: "Redriven"}
    ),
)
async def redrive_records(request: Request) -> Response:
    """They stay on their topic too; each gets a new id. Dead events go to their handlers, with all
    attempts before them."""
    who, at = require(request.scope, Role.ADMIN), desktop(request)
    given = wire.decode(wire.Redrive, await request.body())
    due_ms = at.clock.now_ms() + wire.delay_ms(given.delay)

    def work() -> dict[str, Any]:
        result = redrive(
            at.office,
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


@router.get(
    "/healthz",
    tags=["health"],
    **documented("Whether this process lives.", answers={200: ""}, open_to_all=True),
)
async def healthz() -> Response:
    """Always 200."""
    return Response("ok\n", media_type="text/plain")


@router.get(
    "/readyz",
    tags=["health"],
    **documented("Whether store and broker answer.", answers={200: ""}, open_to_all=True),
)
async def readyz(request: Request) -> Response:
    """503 with the reason when one does not."""
    at = desktop(request)

    def ask() -> None:
        at.pending.counts()
        at.broker.ends(at.office.inbox)

    try:
        # Not in the threads of other requests, which may all be waiting for intake.
        await asyncio.to_thread(ask)
    except SendlaterError as error:
        raise Problem(503, str(error)) from error
    return Response("ready\n", media_type="text/plain")


@router.get(
    "/metrics",
    tags=["health"],
    **documented("Prometheus metrics.", answers={200: ""}),
)
def metrics(request: Request) -> Response:
    """In Prometheus' text format."""
    require(request.scope, Role.READ)
    registry = CollectorRegistry()
    registry.register(desktop(request).metrics)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
