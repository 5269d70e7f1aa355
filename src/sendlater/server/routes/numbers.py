"""REST: statistics, the histogram of due times, the last deliveries."""

import itertools
from functools import partial

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sendlater.limits import (
    BUCKETS_COUNT_MAX,
    OVERDUE_AFTER_MS,
    RECENT_COUNT_MAX,
    SEARCH_CHARS_MAX,
)
from sendlater.server import json_shapes as wire
from sendlater.server.auth import Role, require
from sendlater.server.openapi import documented
from sendlater.server.prediction import spikes_late_ms
from sendlater.server.routes.schedules import answer, query_bytes, server_state
from sendlater.server.selections import to_filter
from sendlater.server.timeline_view import round_edges
from sendlater.store import timeline

router = APIRouter()


@router.get("/v1/stats", tags=["numbers"], **documented("Statistics.", answers={200: "Stats"}))
def stats(request: Request) -> Response:
    """Current counts, recent rates and lateness, and why something is late."""
    require(request.scope, Role.READ)
    return answer(server_state(request).watch.stats())


@router.get("/v1/trend", tags=["numbers"], **documented("The last hour.", answers={200: "Trend"}))
def trend(request: Request) -> Response:
    """Lateness, rate, pending and overdue every 15 seconds, since this process has started."""
    require(request.scope, Role.READ)
    return answer(server_state(request).watch.hour.trend())


@router.get(
    "/v1/histogram",
    tags=["numbers"],
    **documented("How many schedules are due when.", answers={200: "Histogram"}),
)
def histogram(
    request: Request,
    due_from: str | None = Query(None, description="Default: now."),
    due_to: str | None = Query(None, description="Default: the last due time."),
    buckets: int = Query(60, ge=1, le=BUCKETS_COUNT_MAX),
    rounded: bool = Query(
        False, alias="round", description="Begin and end on round instants; fewer buckets then."
    ),
) -> Response:
    """Exact counts per time span, counts by topic, and how late each span will be."""
    require(request.scope, Role.READ)
    at = server_state(request)
    now_ms, admin = at.clock.now_ms(), at.operations.admin
    wanted = to_filter(due_from=due_from, due_to=due_to, id_prefix=None, topic=None, now_ms=now_ms)
    from_ms = wanted.from_ms if due_from else now_ms
    last_ms = wanted.to_ms if wanted.to_ms is not None else admin.last_due_ms()
    end_ms = max(from_ms + buckets, (last_ms or from_ms) + 1)
    span = end_ms - from_ms
    edges = [from_ms + span * n // buckets for n in range(buckets + 1)]
    if rounded:
        edges = round_edges(from_ms, end_ms, bars=buckets)
    got = timeline.timeline(admin.pending, edges)
    before = admin.count(to_ms=edges[0] - 1) if edges[0] <= now_ms else 0
    ahead = [max(edge, now_ms) for edge in edges]  # what is past delivers nothing any more
    late = spikes_late_ms(
        got.counts,
        ahead,
        counts=partial(timeline.counts, admin.pending),
        waiting=before,
        drain_per_s=at.watch.drain_per_s,
    )
    return answer(
        {
            "now_ms": now_ms,
            "edges_ms": edges,
            "counts": got.counts,
            "topics": got.topics,
            "recurring": got.recurring,
            "held": at.watch.let_go(edges, now_ms=now_ms),
            "estimated": got.estimated,
            "sampled": any(got.estimated),
            "before": before,
            "last_due_ms": last_ms if wanted.to_ms is None else admin.last_due_ms(),
            "overdue": admin.count(to_ms=now_ms - OVERDUE_AFTER_MS),
            "drain_per_s": round(at.watch.drain_per_s),
            "drain_measured": at.watch.drain_measured,
            "late_ms": late,
        }
    )


@router.get(
    "/v1/deliveries",
    tags=["looking back"],
    **documented("List the last deliveries, latest first.", answers={200: "Deliveries"}),
)
def deliveries(
    request: Request,
    search: str = Query(
        "", max_length=SEARCH_CHARS_MAX, description="Part of the id or of the topic."
    ),
    id: str | None = Query(None, description="Only of this schedule."),
    limit: int = Query(100, ge=1, le=1_000),
) -> Response:
    """What the lanes gave to the producer, and how late; at high rates a sample."""
    require(request.scope, Role.READ)
    at = server_state(request)
    wanted = search.encode(errors="surrogateescape")
    named = None if id is None else query_bytes(request, "id")
    every = at.operations.admin.recent(
        count_max=RECENT_COUNT_MAX * at.settings.shards if search or named else limit
    )
    found = (
        one
        for one in every
        if (wanted in one.id or search in one.topic) and named in (None, one.id)
    )
    items = [
        {
            **wire.show_id(one.id),
            "topic": one.topic,
            "due_ms": one.due_ms,
            "at_ms": one.at_ms,
            "at": wire.to_time(one.at_ms),
            "late_ms": one.at_ms - one.due_ms - one.held_ms,
            "held_ms": one.held_ms,
        }
        for one in itertools.islice(found, limit)
    ]
    return answer({"items": items})
