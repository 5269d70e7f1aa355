"""The command `cancel`: schedules by their ids, or all that match."""

import json
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from sendlater.cli.connection import (
    HERE,
    NOT_FOUND,
    OK,
    PARTLY,
    Connection,
    Json,
    app,
    err,
    open_scheduler,
    out,
)
from sendlater.cli.output import id_of
from sendlater.errors import BadRequest
from sendlater.model import Cancelled


@app.command
def cancel(
    *ids: str,
    due_from: str | None = None,
    due_to: str | None = None,
    id_prefix: str | None = None,
    topic: str | None = None,
    tag: str | None = None,
    caller: str | None = None,
    all: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    yes: Annotated[bool, Parameter(alias="-y", negative="")] = False,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """Cancel schedules by id, or all that match. Answers cancelled, delivering or unknown.

    Args:
        ids: Ids, as `send` printed them.
        due_from: All due from then: an instant, `+15m` from now, or epoch seconds; included.
        due_to: All due before then; not included.
        id_prefix: All whose id begins so.
        topic: All with this target topic.
        tag: All with this tag.
        caller: All whose header CALLER_SERVICE is this.
        all: Everything.
        dry_run: Only count what matches.
        yes: Do not ask before cancelling what matches.
    """
    wanted = {"due_from": due_from, "due_to": due_to, "id_prefix": id_prefix, "topic": topic}
    wanted |= {"tag": tag, "caller": caller}
    chosen: dict[str, Any] = {name: one for name, one in wanted.items() if one is not None}
    if all and chosen:
        raise BadRequest("cancel: expected either --all or a filter such as --tag, got both")
    chosen |= {"all": True} if all else {}
    if bool(ids) == bool(chosen):
        raise BadRequest("cancel: expected either ids, or --all or a filter such as --id-prefix")
    if ids and (dry_run or yes):
        raise BadRequest("cancel: --dry-run and --yes are for --all or a filter, got ids")
    with open_scheduler(connection) as scheduler:
        if chosen:
            return _matching(scheduler, chosen, dry_run=dry_run, yes=yes, json_=json_)
        answers = {name: scheduler.cancel(id_of(name)) for name in ids}
    for name, answer in answers.items():
        if not json_:
            out.print(f"{name}\t{answer}")
    if json_:
        out.print(json.dumps(answers))
    done = sum(answer is Cancelled.CANCELLED for answer in answers.values())
    return _code(done, of=len(answers))


def _matching(
    scheduler: Any, chosen: dict[str, Any], *, dry_run: bool, yes: bool, json_: bool
) -> int:
    """Tell how many match, ask, and cancel them."""
    told = scheduler.cancel_matching(**chosen, dry_run=True)
    if told.matched and not dry_run:
        if not yes:
            _ask(told.matched)
        told = scheduler.cancel_matching(**chosen)
    if json_:
        shown = {"matched": told.matched, "cancelled": told.cancelled, "audit_id": told.audit_id}
        out.print(json.dumps({**shown, "later": told.later}))
    else:
        undo = f"; POST /v1/audit/{told.audit_id}:undo takes it back" if told.audit_id else ""
        out.print(f"{told.matched} matched, {told.cancelled} cancelled{undo}")
        if told.later:
            err.print(f"{told.later} are due beyond the horizon: no filter sees them")
    return OK if dry_run else _code(told.cancelled, of=told.matched)


def _ask(count: int) -> None:
    """Raises BadRequest unless somebody at a terminal says yes."""
    if not sys.stdin.isatty():
        raise BadRequest(f"cancel: {count} match, and nobody can be asked: expected --yes")
    err.print(f"{count} match. Cancel them? [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise BadRequest("cancel: expected y as the answer; nothing is cancelled")


def _code(done: int, *, of: int) -> int:
    return NOT_FOUND if not done else OK if done == of else PARTLY
