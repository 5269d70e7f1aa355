"""Commands that change schedules: reschedule, deliver-now."""

import json
import time
from collections.abc import Callable
from typing import Any

from sendlater.cli.connection import (
    HERE,
    NOT_FOUND,
    OK,
    PARTLY,
    Connection,
    Json,
    app,
    open_scheduler,
    out,
)
from sendlater.cli.output import id_of
from sendlater.errors import BadRequest
from sendlater.model import Moved

UNDONE = (Moved.DELIVERING, Moved.UNKNOWN)
"""Answers after which a schedule is not what was asked for."""
NOT_MOVED = (Moved.PAUSED, *UNDONE)


@app.command
def reschedule(
    *ids: str,
    delay: str | None = None,
    at: str | None = None,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """Give schedules another due time. Answers moved, delivering (too late) or unknown.

    Args:
        ids: At least one id.
        delay: From now: 90, 1.5, 15m, 2h30m or PT15M.
        at: An instant with a time zone, 2026-12-01T09:00:00+01:00, or epoch seconds.
    """
    from sendlater.dialects import duration_ms, instant_ms
    from sendlater.operations.arguments import to_datetime

    if (delay is None) == (at is None):
        raise BadRequest(f"reschedule: expected one of --delay and --at, got {delay!r} and {at!r}")
    now_ms = time.time_ns() // 1_000_000
    due_ms = now_ms + duration_ms(delay) if delay is not None else instant_ms(at or "", now_ms)
    due = to_datetime(due_ms)
    return each(
        ids,
        lambda scheduler, name: scheduler.reschedule(name, at=due),
        json_,
        connection,
        undone=NOT_MOVED,
    )


@app.command(name="deliver-now")
def deliver_now(*ids: str, json_: Json = False, connection: Connection = HERE) -> int:
    """Make schedules due at once. Answers moved, delivering (they already are) or unknown."""
    return each(
        ids,
        lambda scheduler, name: scheduler.deliver_now(name),
        json_,
        connection,
        undone=NOT_MOVED,
    )


def each(
    ids: tuple[str, ...],
    change: Callable[[Any, str], str],
    json_: bool,
    connection: Connection,
    *,
    undone: tuple[str, ...] = UNDONE,
) -> int:
    """Change each of these schedules, and show the answers; `undone`: those that are failures."""
    if not ids:
        raise BadRequest("expected at least one id")
    with open_scheduler(connection) as scheduler:
        answers = {name: change(scheduler, id_of(name)) for name in ids}
    if json_:
        out.print(json.dumps(answers), highlight=False)
    else:
        for name, answer in answers.items():
            out.print(f"{name}\t{answer}", highlight=False, markup=False)
    done = sum(answer not in undone for answer in answers.values())
    return OK if done == len(answers) else PARTLY if done else NOT_FOUND
