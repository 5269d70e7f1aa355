"""REST: liveness, readiness, metrics."""

import asyncio

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from sendlater.errors import Unavailable
from sendlater.limits import READY_S_MAX
from sendlater.server.auth import Role, require
from sendlater.server.openapi import documented
from sendlater.server.routes.schedules import server_state

router = APIRouter()


@router.get(
    "/healthz",
    tags=["health"],
    **documented("Whether this process is running.", answers={200: ""}, open_to_all=True),
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
    """503 with the reason if one of them does not."""
    at = server_state(request)
    try:
        # Shielded: one look answers all who ask meanwhile, so that they occupy one thread.
        await asyncio.wait_for(asyncio.shield(at.ready()), READY_S_MAX)
    except TimeoutError as error:
        raise Unavailable(f"no answer of store and broker within {READY_S_MAX} s") from error
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
    registry.register(server_state(request).metrics)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
