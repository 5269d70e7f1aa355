"""What a journal keeps of a recurring schedule: how far its plan has come.

Beside each occurrence goes a copy of the schedule to its journal, in place of a tombstone: the same
version, with the plan that is left. After the last one it is the tombstone. Until it is delivered,
an occurrence has the headers of that copy among its own: `sendlater-schedule`, then the headers
that are only for the journal, of which `sendlater-again` is the last, and the only one where a
tombstone is left. No user has headers of these two names. An occurrence beside the plan (`trigger`)
has a record of its own on the journal, and not the last one.
"""

from dataclasses import replace

from sendlater.dialects import names, sql
from sendlater.dialects.encode import again_headers
from sendlater.model import Headers, Record, Schedule

OWN_HEADERS = f"""filter(slice(headers, size(names) + 1, size(headers)), h -> CASE
WHEN h.key = {sql.text(names.SCHEDULE)} THEN octet_length(h.value) > 0
AND substring(key, 1, octet_length(h.value) + 1) = concat(h.value, CAST('@' AS BINARY))
ELSE h.key NOT IN {sql.texts(names.STALE)} END)"""
"""What a record of a journal has behind `sendlater-own`, as Spark SQL text. Anybody may write there
what only a delivery has, so that is left out; but an occurrence beside a plan, whose id begins with
that of its schedule, keeps the name of it."""


def with_progress(occurrence: Schedule, again: Schedule | None) -> Schedule:
    """An occurrence whose delivery leaves `again` on the journal; None: a tombstone."""
    record = occurrence.record
    left: Headers = again_headers(again) if again else [(names.AGAIN, None)]
    headers = [*record.headers, *left]
    return replace(occurrence, record=replace(record, headers=headers))


def split_progress(headers: Headers) -> tuple[Headers, Headers]:
    """The headers of an occurrence without those for the journal, and these."""
    found = [name for name, _ in headers]
    if names.SCHEDULE not in found or names.AGAIN not in found:
        return headers, []
    first, last = found.index(names.SCHEDULE) + 1, found.index(names.AGAIN) + 1
    return headers[:first] + headers[last:], headers[first:last]


def left_on_journal(schedule: Schedule, about: Headers) -> Record | None:
    """The record that an occurrence leaves on its journal, with the headers `about` its delivery;
    None for what is no occurrence: a tombstone without a key is refused by a compacted topic."""
    headers, origin = schedule.record.headers, schedule.origin
    found = [name for name, _ in headers]
    if origin is None or names.SCHEDULE not in found or names.AGAIN not in found:
        return None
    first = found.index(names.SCHEDULE)
    if not headers[first][1]:
        return None
    progress = [pair for pair in split_progress(headers)[1] if pair != (names.AGAIN, None)]
    return Record(
        topic=origin.topic,
        partition=origin.partition,
        key=headers[first][1],
        value=schedule.record.value if progress else None,
        headers=[*progress, *headers[:first], *about],
    )
