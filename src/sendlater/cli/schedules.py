"""Commands about schedules: send, get, list, stats."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from cyclopts import Parameter
from rich.progress import Progress
from rich.table import Column, Table

from sendlater.cli.connection import (
    FAILED,
    HERE,
    NOT_FOUND,
    OK,
    PARTLY,
    AtLeastOne,
    Connection,
    Json,
    Whole,
    app,
    err,
    open_scheduler,
    out,
)
from sendlater.cli.output import as_json, id_of, text_of, time_of
from sendlater.cli.recurring import ONCE, Recurrence
from sendlater.config import Settings
from sendlater.errors import BadRequest, ConditionFailed
from sendlater.limits import PAGE_COUNT_MAX
from sendlater.model import Schedule
from sendlater.store.admin import Admin, Filter

FILE_COLUMNS = 4_000
"""Width of a table written to a file or a pipe, so that nothing is cut off."""


@app.command
def send(
    topic: str | None = None,
    value: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    *,
    key: Annotated[str | None, Parameter(alias="-k")] = None,
    header: Annotated[list[str] | None, Parameter(alias="-H", negative="")] = None,
    delay: str | None = None,
    at: str | None = None,
    spread: str | None = None,
    expires: str | None = None,
    expires_after: str | None = None,
    id: str | None = None,
    partition: Whole | None = None,
    tag: Annotated[list[str] | None, Parameter(negative="")] = None,
    only_if: str | None = None,
    jsonl: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    recurrence: Recurrence = ONCE,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """Schedule a message, or many from a file.

    Args:
        topic: Target topic.
        value: Payload; `-` reads standard input.
        key: Key of the delivered record. Default: none.
        header: `name=value`; may be repeated.
        delay: 90, 1.5, 15m, 2h30m or PT15M.
        at: An instant with a time zone, 2026-12-01T09:00:00+01:00, or epoch seconds.
        spread: Moves the due time by a part of this, which the id decides; in the forms of --delay.
        expires: Not delivered after this instant; in the forms of --at, or +15m from now.
        expires_after: The same, counted from the due time; in the forms of --delay.
        id: Id of the schedule: a new schedule with the same id replaces it. Default: a new id.
        partition: Partition of the target topic. Default: the producer chooses.
        tag: A word it can be found and cancelled by; may be repeated.
        only_if: absent, earlier, later, once or version=V: only if what has this id allows it.
        jsonl: File with a JSON object per line: topic, value, delay or at or the words of a
            recurring schedule, and optionally key, headers, spread, expires... `-`: standard input.
    """
    from sendlater.cli.send_request import SendRequest

    given = (topic, value, key, header, delay, at, spread, expires, expires_after, id, partition)
    if jsonl is not None:
        if any(one is not None for one in (*given, tag, only_if)) or recurrence != ONCE:
            raise BadRequest("send: expected --jsonl alone, got a message besides")
        return _send_file(jsonl, connection)
    if topic is None or value is None:
        raise BadRequest("send: expected TOPIC and VALUE, or --jsonl FILE")
    request = SendRequest(
        topic=topic,
        value=sys.stdin.buffer.read() if value == "-" else os.fsencode(value),
        key=key,
        headers=header or [],
        delay=delay,
        at=at,
        spread=spread,
        expires=expires,
        expires_after=expires_after,
        id=id,
        partition=partition,
        tags=tag,
        only_if=only_if,
        **recurrence.given(),
    )
    request.check(connection.settings())
    with open_scheduler(connection) as scheduler:
        with _standing_told(json_=json_):
            sent = request.send(scheduler)
        scheduler.flush()
    return _tell(sent.id, sent.due_ms, json_=json_)


@contextmanager
def _standing_told(*, json_: bool) -> Iterator[None]:
    """What stands instead as JSON, if a condition does not hold inside."""
    try:
        yield
    except ConditionFailed as error:
        if json_:
            standing = None if error.standing is None else asdict(error.standing)
            out.print(json.dumps({"error": str(error), "standing": standing}))
        raise


def _tell(id: str, due_ms: int, *, json_: bool) -> int:
    if json_:
        out.print(json.dumps({"id": id, "due_ms": due_ms}))
    else:
        out.print(id)
        err.print(f"due {time_of(due_ms)}")
    return OK


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int | None]]:
    """A file, or standard input for `-`, and its size. Raises BadRequest if it cannot be read."""
    if str(path) == "-":
        yield sys.stdin.buffer, None
        return
    try:
        stream = path.open("rb")
    except OSError as error:
        raise BadRequest(f"--jsonl: cannot read {path}: {error.strerror}") from error
    with stream:
        yield stream, os.fstat(stream.fileno()).st_size


def _send_file(path: Path, connection: Connection) -> int:
    """Send every valid line; report the others with their line number."""
    from sendlater.cli.send_request import read_lines

    sent, bad = 0, 0
    with (
        _opened(path) as (stream, size),
        open_scheduler(connection) as scheduler,
        Progress(console=err, transient=True) as progress,
    ):
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
                err.print(f"line {number}: {error}", style="red")
        scheduler.flush()
    err.print(f"{sent} sent, {bad} refused")
    out.print(sent)
    return OK if not bad else PARTLY if sent else FAILED


@app.command
def get(id: str, *, json_: Json = False, connection: Connection = HERE) -> int:
    """Show one pending or claimed schedule.

    Args:
        id: The id, as `send` printed it.
    """
    with open_scheduler(connection) as scheduler:
        found = scheduler.get(id_of(id))
    if found is None:
        err.print(f"{id}: neither pending nor claimed")
        return NOT_FOUND
    shown = as_json(found.schedule)
    if json_:
        out.print(json.dumps(shown))
    else:
        for name, value in shown.items():
            out.print(f"{name:14} {value}")
    return OK


@app.command(name="list")
def list_(
    *,
    due_from: Annotated[str | None, Parameter(alias="--due-after")] = None,
    due_to: Annotated[str | None, Parameter(alias="--due-before")] = None,
    tag: str | None = None,
    limit: AtLeastOne = 100,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """List pending schedules in due order.

    Args:
        due_from: An instant, `+15m` from now, or epoch seconds; included.
        due_to: The same; not included.
        tag: Only those with this tag.
        limit: Most to show.
    """
    from sendlater.dialects import instant_ms
    from sendlater.dialects.tags import checked_tag
    from sendlater.dialects.when import check_span

    now_ms = time.time_ns() // 1_000_000
    low = instant_ms(due_from, now_ms=now_ms) if due_from else 0
    until = instant_ms(due_to, now_ms=now_ms) if due_to else None
    check_span(low, until, given=(due_from, due_to))
    high = None if until is None else until - 1
    tag = tag and checked_tag(tag)
    table = Table(Column("id", overflow="fold"), "due", "target", "bytes", box=None)
    shown = 0
    with open_scheduler(connection, store_alone=True) as scheduler:
        found = _pending(scheduler, low=low, high=high, tag=tag, limit=limit)
        for schedule in islice(found, limit):
            size = len(schedule.record.value or b"")
            if json_:
                out.print(json.dumps(as_json(schedule)))
            else:
                name = text_of(schedule.id)
                table.add_row(name, time_of(schedule.due_ms), schedule.record.topic, str(size))
            shown += 1
    if not json_ and shown:
        out.print(table, width=None if out.is_terminal else FILE_COLUMNS)
    err.print(f"{shown} shown")
    return OK


def _pending(
    scheduler: Any, *, low: int, high: int | None, tag: str | None, limit: int
) -> Iterator[Schedule]:
    """Pending schedules page by page, from the store or through REST."""
    from sendlater.operations.arguments import to_datetime

    count = min(limit, PAGE_COUNT_MAX)
    if scheduler.remote is not None:
        cursor, more = None, True
        until = None if high is None else to_datetime(high + 1)
        while more:
            page = scheduler.list(
                due_from=to_datetime(low), due_to=until, tag=tag, limit=count, cursor=cursor
            )
            yield from (one.schedule for one in page.items)
            cursor = page.next_cursor
            more = cursor is not None
        return
    wanted = Filter(from_ms=low, to_ms=high, tag=tag or "")
    yield from Admin(scheduler.pending).all(wanted, count_max=limit)


@app.command
def stats(*, json_: Json = False, connection: Connection = HERE) -> int:
    """Show exact counts of the pending store, or of every bucket."""
    settings = connection.settings()
    if settings.pending == "buckets":
        return _bucket_stats(settings, json_)
    with open_scheduler(connection, store_alone=True) as scheduler:
        counts: dict[str, Any]
        if scheduler.remote is not None:
            counts = scheduler.remote.stats()
        else:
            counts = scheduler.pending.counts()
            counts["oldest_due_ms"] = scheduler.pending.oldest_due_ms()
            counts["delivered"] = max(0, counts["settled"] - counts["rejected"])
    if json_:
        out.print(json.dumps(counts))
    else:
        for name, value in counts.items():
            out.print(f"{name:14} {value}")
    return OK


def _bucket_stats(settings: Settings, json_: bool) -> int:
    """Show number and oldest record of every bucket; the table omits empty buckets."""
    from sendlater.spark.buckets.counts import bucket_counts

    counts = bucket_counts(settings)
    rows = sum(one.rows for one in counts)
    if json_:
        out.print(
            json.dumps({"pending": rows, "buckets": [one._asdict() for one in counts]}),
            highlight=False,
        )
        return OK
    table = Table("bucket", "from s", "to s", "rows", "oldest", box=None)
    for one in counts:
        if one.rows:
            oldest = "" if one.oldest_ms is None else time_of(one.oldest_ms)
            seconds = (str(one.lower_ms // 1_000), str(one.upper_ms // 1_000))
            table.add_row(one.topic, *seconds, str(one.rows), oldest)
    out.print(table)
    out.print(f"pending        {rows}", highlight=False)
    return OK
