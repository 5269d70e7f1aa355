"""REST: who is at work: services, and the workers that handle events."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from sendlater.server.auth import Role, require
from sendlater.server.openapi import documented
from sendlater.server.routes.schedules import answer, server_state
from sendlater.store.at_work import Handling, Report, Services, services

router = APIRouter()
SUMS = ("ready", "in_flight", "succeeded", "retried", "dead", "skipped", "seconds")


@router.get(
    "/v1/running",
    tags=["numbers"],
    **documented("Services and handlers.", answers={200: "Running"}),
)
def running(request: Request) -> Response:
    """Which service is active, which stand by; and per event type what its handlers count."""
    require(request.scope, Role.READ)
    at = server_state(request)
    now_ms = at.clock.now_ms()
    reports = Handling(at.pending).told(now_ms=now_ms).values()
    return answer(
        {
            "services": show_services(services(at.pending, now_ms=now_ms)),
            "handlers": show_handlers(reports, shared=not at.settings.on_kafka),
        }
    )


def show_services(found: Services) -> dict[str, Any]:
    """Names without the instant that makes each unique."""
    since_ms = next((at_ms for at_ms, name in found.handovers if name == found.active), 0)
    active = {"name": _short(found.active), "since_ms": since_ms} if found.active else None
    return {
        "active": active,
        "standby": [_short(name) for name in found.standby],
        "handovers": [{"name": _short(name), "at_ms": at_ms} for at_ms, name in found.handovers],
    }


def show_handlers(reports: Iterable[Report], *, shared: bool) -> list[dict[str, Any]]:
    """The sums over workers, by group and event type. `shared`: each counts what is ready for its
    whole group, as on Redis, so that a sum would count it again for each."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for report in reports:
        for type_, tally in report.types.items():
            found[report.group, type_].append(tally)
    shown = []
    for (group, type_), tallies in sorted(found.items()):
        sums = {name: sum(tally.get(name, 0) for tally in tallies) for name in SUMS}
        if shared:
            sums["ready"] = max(tally.get("ready", 0) for tally in tallies)
        errors = sorted({tally.get("error", "") for tally in tallies} - {""})
        shown.append(
            {"group": group, "type": type_, "workers": len(tallies), **sums, "errors": errors}
        )
    return shown


def _short(name: str) -> str:
    return name.rpartition("-")[0] or name
