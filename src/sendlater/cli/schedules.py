"""Commands about schedules: send, cancel, get, list, stats."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.progress import Progress
from rich.table import Table

from sendlater.cli.door import (
    FAILED,
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
from sendlater.cli.show import as_json, time_of
from sendlater.errors import BadRequest
from sendlater.limits import PAGE_COUNT_MAX
from sendlater.model import Cancelled


@app.command
def send(
    topic: str | None = None,
    value: str | None = None,
    *,
    key: Annotated[str | None, Parameter(alias="-k")] = None,
    header: Annotated[list[str] | None, Parameter(alias="-H", negative="")] = None,
    delay: str | None = None,
    at: str | None = None,
    id: str | None = None,
    partition: int | None = None,
    jsonl: Path | None = None,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """Schedule a message, or many from a file.

    Parameters
    ----------
    topic: Target topic.
    value: Payload; `-` reads standard input.
    header: `name=value`; may be repeated.
    delay: 90, 1.5, 15m, 2h30m or PT15M.
    at: An instant with a time zone, 2026-12-01T09:00:00+01:00, or epoch seconds.
    id: Identity of the schedule: the same id again replaces it. Default: a new one.
    jsonl: One JSON object a line: topic, value, and optionally key, headers, delay or at, id,
        partition. `-` reads standard input.
    """
    from sendlater.client.send import SendRequest, read_lines

    with open_scheduler(connection) as scheduler:
        if jsonl is not None:
            return _send_file(scheduler, jsonl, read_lines)
        if topic is None or value is None:
            raise BadRequest("send: expected TOPIC and VALUE, or --jsonl FILE")
        payload = sys.stdin.buffer.read() if value == "-" else value.encode()
        request = SendRequest(
            topic=topic,
            value=payload,
            key=key,
            headers=header or [],
            delay=delay,
            at=at,
            id=id,
            partition=partition,
        )
        sent = request.send(scheduler)
        scheduler.flush()
    if json_:
        out.print(json.dumps({"id": sent.id, "due_ms": sent.due_ms}), highlight=False)
    else:
        out.print(sent.id, highlight=False)
        err.print(f"due {time_of(sent.due_ms)}")
    return OK


def _send_file(scheduler: Any, path: Path, read_lines: Any) -> int:
    """Send every good line; bad ones are told with their number."""
    stream = sys.stdin.buffer if str(path) == "-" else path.open("rb")
    size = None if str(path) == "-" else path.stat().st_size
    sent, bad = 0, 0
    with Progress(console=err, transient=True) as progress:
        bar = progress.add_task("sending", total=size)
        for number, line, request in read_lines(stream):
            progress.advance(bar, len(line))
            try:
                if isinstance(request, BadRequest):
                    raise request
                request.send(scheduler)
                sent += 1
            except BadRequest as error:
                bad += 1
                err.print(f"line {number}: {error}", style="red", highlight=False)
        scheduler.flush()
    err.print(f"{sent} sent, {bad} refused")
    out.print(sent, highlight=False)
    return OK if not bad else PARTLY if sent else FAILED


@app.command
def cancel(*ids: str, json_: Json = False, connection: Connection = HERE) -> int:
    """Take schedules back: cancelled, delivering (too late) or unknown."""
    if not ids:
        raise BadRequest("cancel: expected at least one id")
    with open_scheduler(connection) as scheduler:
        answers = {name: scheduler.cancel(name) for name in ids}
    for name, answer in answers.items():
        if not json_:
            out.print(f"{name}\t{answer}", highlight=False)
    if json_:
        out.print(json.dumps(answers), highlight=False)
    done = sum(answer is Cancelled.CANCELLED for answer in answers.values())
    return OK if done == len(answers) else PARTLY if done else NOT_FOUND


@app.command
def get(id: str, *, json_: Json = False, connection: Connection = HERE) -> int:
    """Show one pending or claimed schedule."""
    with open_scheduler(connection) as scheduler:
        found = scheduler.get(id)
    if found is None:
        err.print(f"{id}: neither pending nor claimed", highlight=False)
        return NOT_FOUND
    shown = as_json(found.schedule)
    if json_:
        out.print(json.dumps(shown), highlight=False)
    else:
        for name, value in shown.items():
            out.print(f"{name:14} {value}", highlight=False)
    return OK


@app.command(name="list")
def list_(
    *,
    due_after: str | None = None,
    due_before: str | None = None,
    limit: int = 100,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """Pending schedules in due order.

    Parameters
    ----------
    due_after: An instant, `+15m` from now, or epoch seconds.
    due_before: The same; not included.
    limit: Most to show.
    """
    from sendlater.dialects import instant_ms

    now_ms = time.time_ns() // 1_000_000
    low = instant_ms(due_after, now_ms=now_ms) if due_after else 0
    high = instant_ms(due_before, now_ms=now_ms) - 1 if due_before else None
    table = Table("id", "due", "target", "bytes", box=None)
    shown = 0
    after: tuple[int, bytes] | None = None
    with open_scheduler(connection) as scheduler:
        while shown < limit:
            page = scheduler.pending.list(
                count_max=min(limit - shown, PAGE_COUNT_MAX), from_ms=low, to_ms=high, after=after
            )
            if not page:
                break
            for schedule in page:
                size = len(schedule.record.value or b"")
                if json_:
                    out.print(json.dumps(as_json(schedule)), highlight=False)
                else:
                    name = schedule.id.decode(errors="backslashreplace")
                    table.add_row(name, time_of(schedule.due_ms), schedule.record.topic, str(size))
            shown += len(page)
            after = (page[-1].due_ms, page[-1].id)
    if not json_ and shown:
        out.print(table)
    err.print(f"{shown} shown")
    return OK


@app.command
def stats(*, json_: Json = False, connection: Connection = HERE) -> int:
    """True counts of the pending store."""
    with open_scheduler(connection) as scheduler:
        counts: dict[str, Any] = scheduler.pending.counts()
        counts["oldest_due_ms"] = scheduler.pending.oldest_due_ms()
    counts["delivered"] = max(0, counts["settled"] - counts["rejected"])
    if json_:
        out.print(json.dumps(counts), highlight=False)
    else:
        for name, value in counts.items():
            out.print(f"{name:14} {value}", highlight=False)
    return OK
