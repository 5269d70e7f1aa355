"""Commands about records on topics: tail, dead list, dead redrive, rejected list."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from cyclopts import App

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
from sendlater.cli.output import text_of, time_of
from sendlater.errors import BadRequest, SendlaterError

dead_app = App(name="dead", help="Events that their handler has given up on.")
rejected_app = App(name="rejected", help="Records that could not be scheduled.")
app.command(dead_app)
app.command(rejected_app)


@app.command
def tail(
    topic: str,
    *,
    from_start: bool = False,
    count: AtLeastOne | None = None,
    connection: Connection = HERE,
) -> int:
    """Follow a topic: print each record as a line of JSON, until interrupted.

    Args:
        topic: Any topic.
        from_start: Start at the first record kept instead of now.
        count: End after this many records.
    """
    left = count
    with open_scheduler(connection) as scheduler:
        for some in _coming(scheduler, topic, from_start=from_start):
            for record in some:
                if left == 0:
                    break
                out.file.write(json.dumps(_as_json(record)) + "\n")
                left = None if left is None else left - 1
            out.file.flush()
            if left == 0:
                return OK
    return OK


@dead_app.command(name="list")
def dead_list(
    *,
    topic: str | None = None,
    limit: Whole = 100,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """The last dead events and expired schedules, oldest first.

    Args:
        topic: The dead-letter topic of the handlers. Default: setting `dead_topic`.
        limit: Most to show.
    """
    topic = topic or connection.settings().dead_topic
    columns = {
        "type": ("sendlater-rejected-target", "event-type"),
        "id": ("event-id", "sendlater-rejected-id"),
        "error": ("event-error", "sendlater-rejected-detail"),
    }
    with open_scheduler(connection) as scheduler:
        return _show(_last(scheduler, topic, limit), columns, json_)


@dead_app.command
def redrive(
    *places: str,
    topic: str | None = None,
    all: bool = False,
    limit: Whole = 1_000,
    connection: Connection = HERE,
) -> int:
    """Send dead events to their handlers again, with all attempts, and what has expired to its
    target.

    Args:
        places: `partition/position`, as `dead list` shows them.
        topic: The dead-letter topic of the handlers. Default: setting `dead_topic`.
        all: All of the last `limit`. They stay on the topic: a second run sends them again.
        limit: How many of the last records to search.
    """
    if bool(places) == all:
        raise BadRequest("dead redrive: expected places (partition/position) or --all")
    from sendlater.client.events import alive_again

    topic = topic or connection.settings().dead_topic
    done, failed, missing = 0, 0, set(places)
    with open_scheduler(connection) as scheduler:
        events = {}
        for record in _last(scheduler, topic, limit):
            place = f"{record.partition}/{record.position}"
            if not all and place not in missing:
                continue
            missing.discard(place)
            again = alive_again(record)
            if again is None:
                told = "no header event-type or sendlater-rejected-target, or it was cut"
                err.print(f"{place}: cannot be sent again: {told}", highlight=False)
                failed += 1
            else:
                events[place] = again
        skipped = _send_again(scheduler, topic, events)
        for place, event in events.items():
            if place in skipped:
                err.print(f"{place}: {skipped[place]}", highlight=False)
                failed += 1
            else:
                out.print(f"{place}\t{event.topic}", highlight=False, markup=False)
                done += 1
    for place in sorted(missing):
        err.print(f"{place}: not among the last {limit} of {topic}", highlight=False)
    if not (failed or missing):
        return OK
    return PARTLY if done else FAILED if failed else NOT_FOUND


@rejected_app.command(name="list")
def rejected_list(*, limit: Whole = 100, json_: Json = False, connection: Connection = HERE) -> int:
    """The last rejected records, oldest first, with the reason.

    Args:
        limit: Most to show.
    """
    columns = {
        "reason": ("sendlater-rejected",),
        "from": ("sendlater-origin",),
        "detail": ("sendlater-rejected-detail",),
    }
    with open_scheduler(connection) as scheduler:
        return _show(_last(scheduler, None, limit), columns, json_)


def _last(scheduler: Any, topic: str | None, limit: int) -> list[Any]:
    """The last records of a topic; None means the rejected topic."""
    from sendlater.operations.read_topics import last_records

    if limit < 1:
        raise BadRequest(f"limit: expected 1 or more, got {limit}")
    if scheduler.remote is not None:
        found: list[Any] = scheduler.remote.last_records(topic, count_max=limit)
        return found
    name = scheduler.settings.rejected_topic if topic is None else topic
    return last_records(scheduler.broker, name, count_max=limit)


def _coming(scheduler: Any, topic: str, *, from_start: bool) -> Iterator[list[Any]]:
    from sendlater.operations.read_topics import coming_records

    if scheduler.remote is not None:
        coming: Iterator[list[Any]] = scheduler.remote.coming_records(topic, from_start=from_start)
        return coming
    return coming_records(scheduler.broker, topic, stop=threading.Event(), from_start=from_start)


def _send_again(scheduler: Any, topic: str, events: dict[str, Any]) -> dict[str, str]:
    """Send events to their handlers. Returns the places that were skipped, and why."""
    if scheduler.remote is not None:
        skipped: dict[str, str] = scheduler.remote.redrive(topic, list(events))
        return skipped
    skipped = dict.fromkeys(events, "not acknowledged")

    def answered(place: str, error: Exception | None, *_: int) -> None:
        if error is None:
            skipped.pop(place, None)
        else:
            skipped[place] = str(error)

    for place, event in events.items():
        try:
            scheduler.broker.send(event, on_done=partial(answered, place))
        except SendlaterError as error:  # of this one, or of those it has written with it
            answered(place, error)
    with suppress(SendlaterError):  # each is told for itself
        scheduler.broker.flush()
    return skipped


def _show(records: list[Any], columns: Mapping[str, tuple[str, ...]], json_: bool) -> int:
    """One line each; a column has the first of its headers that is there."""
    for record in records:
        if json_:
            line = json.dumps(_as_json(record))
        else:
            cells = [
                next(filter(None, (text_of(record.header(name)) for name in names)), "-")
                for names in columns.values()
            ]
            place = f"{record.partition}/{record.position}"
            size = f"{len(record.value or b'')} bytes"
            line = "\t".join((place, time_of(record.timestamp_ms), *cells, size))
        # Not through rich: it would shorten places, which users copy.
        out.file.write(line + "\n")
    err.print(f"{len(records)} shown")
    return OK


def _as_json(record: Any) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "place": f"{record.partition}/{record.position}",
        "time": time_of(record.timestamp_ms),
        "key": text_of(record.key),
        "value": text_of(record.value),
        "headers": [[name, text_of(value)] for name, value in record.headers],
    }
