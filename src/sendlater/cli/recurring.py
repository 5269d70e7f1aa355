"""Flags of recurring schedules; commands: next (when one would come), pause, resume, trigger."""

import json
import time
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from sendlater.cli.connection import HERE, OK, Connection, Json, Whole, app, out
from sendlater.cli.output import text_of
from sendlater.cli.reschedule import each
from sendlater.errors import BadRequest
from sendlater.limits import PREVIEW_COUNT_MAX


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """A schedule that comes again and again: docs/recurring.md."""

    every: str | None = None
    "It comes again after each of these intervals; in the forms of --delay."
    cron: str | None = None
    "It comes again then; five fields: '0 9 * * MON-FRI'."
    zone: str | None = None
    "Time zone of --cron, such as Europe/Paris. Default: UTC."
    start: str | None = None
    "It begins at this instant; in the forms of --at, or +15m from now."
    end: str | None = None
    "Nothing is planned after this instant."
    count: Whole | None = None
    "How often it comes. Default: without end."
    jitter: str | None = None
    "Moves each occurrence by a part of this, which its id decides; in the forms of --delay."
    missed: str | None = None
    "What becomes of missed occurrences: one (default), none or all of them is delivered late."

    def given(self) -> dict[str, Any]:
        """The words that were given."""
        return {word: value for word, value in asdict(self).items() if value is not None}


ONCE = Recurrence()


@app.command(name="next")
def next_(
    cron: str | None = None,
    *,
    every: str | None = None,
    zone: str | None = None,
    start: str | None = None,
    end: str | None = None,
    count: Annotated[Whole, Parameter(validator=Number(gte=1, lte=PREVIEW_COUNT_MAX))] = 10,
    json_: Json = False,
) -> int:
    """Show when a recurring schedule that is sent now would come, without jitter.

    Args:
        cron: Five fields: '0 9 * * MON-FRI'.
        every: Instead of it, an interval: 15m.
        zone: Time zone of cron, such as Europe/Paris. Default: UTC.
        start: It begins at this instant, 2030-01-31T17:00:00+01:00, or +15m from now.
        end: Nothing is planned after this instant.
        count: How many times to show.
    """
    from sendlater.dialects.cron import clock_notes
    from sendlater.dialects.recurrence import preview, shown_at
    from sendlater.operations.arguments import planned

    given = {"cron": cron, "every": every, "zone": zone, "start": start, "end": end}
    plan = planned(given, now_ms=time.time_ns() // 1_000_000)
    if plan is None:
        raise BadRequest("next: expected CRON, or --every")
    times = preview(plan, count)
    shown = [shown_at(ms, plan.zone) for ms in times]
    notes = clock_notes(times, plan.zone)
    if json_:
        out.print(json.dumps({"times": shown, "times_ms": times, "notes": notes}))
    else:
        rows = zip(shown, notes, strict=True)
        out.print("\n".join(f"{one}  {note}" if note else one for one, note in rows))
    return OK


@app.command
def pause(*ids: str, json_: Json = False, connection: Connection = HERE) -> int:
    """Deliver nothing of recurring schedules until they are resumed.

    Answers paused, unchanged (it was), delivering or unknown.
    """
    return each(ids, lambda scheduler, name: scheduler.pause(name), json_, connection)


@app.command
def resume(*ids: str, json_: Json = False, connection: Connection = HERE) -> int:
    """Go on with recurring schedules, each with its first time after now.

    Answers resumed, unchanged (it was not paused), ended (it has no time left), delivering or
    unknown.
    """
    return each(ids, lambda scheduler, name: scheduler.resume(name), json_, connection)


@app.command
def trigger(*ids: str, json_: Json = False, connection: Connection = HERE) -> int:
    """Send an occurrence of recurring schedules now, beside their plans.

    Answers the id of the occurrence, or unknown.
    """

    def one(scheduler: Any, name: str) -> str:
        found = scheduler.trigger(name)
        return "unknown" if found is None else str(text_of(found.schedule.id))

    return each(ids, one, json_, connection)
