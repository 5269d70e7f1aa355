"""The records sent for a due schedule, as Spark SQL text: its own, and for a journal two more.

`leaving` is the same in Python, for code that needs their size, and `to_sent` in
spark/arrow_rows.py in Arrow, where no journal is; tests compare them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sendlater.dialects import names, sql
from sendlater.dialects.progress import left_on_journal, split_progress
from sendlater.model import Headers, Record, Schedule

if TYPE_CHECKING:
    from sendlater.config import Settings

VERSION = "concat_ws('/', origin_topic, origin_partition, origin_position)"


def delivered_headers(journals: Sequence[str] = ()) -> str:
    """The headers of a delivered record, an expression of type array<struct<key, value>>. Those of
    a schedule with an expiry end with `sendlater-expiry`: see spark/arrow_rows.py.

    From columns id, due_ms, topic, headers (may be null), dialect, origin_topic,
    origin_timestamp_ms: the user's headers, in dialect `headers` etf1's three, then
    `sendlater-topic` (not in dialect `few`), `sendlater-id`, `sendlater-due` and, if read from a
    journal, `sendlater-origin` (a rejected record already has it). On the hot path: no lambda, so
    that Spark compiles it.
    """
    seconds = "(origin_timestamp_ms - pmod(origin_timestamp_ms, 1000)) DIV 1000"
    s1 = (
        sql.pair(names.SCHEDULER_TIMESTAMP, sql.decimal_text(seconds)),
        sql.pair(names.SCHEDULER_KEY, "id"),
        sql.pair(names.SCHEDULER_TOPIC, "origin_topic"),
    )
    ours = (
        sql.pair(names.DELIVERED_TO, "topic"),
        sql.pair(names.ID, "id"),
        sql.pair(names.DUE, sql.decimal_text("due_ms")),
    )
    added = (
        f"CASE WHEN dialect = 'headers' THEN array({', '.join(s1 + ours)}) "
        f"WHEN dialect = 'few' THEN array({', '.join(ours[1:])}) "
        f"ELSE array({', '.join(ours)}) END"
    )
    if journals:
        read = f"origin_topic IN {sql.texts(tuple(journals))} AND dialect <> 'rejected'"
        added += f", IF({read}, array({sql.pair(names.ORIGIN, VERSION)}), array())"
    return f"concat(coalesce(headers, array()), {added})"


def fingerprint(key: str, value: str, headers: str) -> str:
    """A digest of a whole record, as text; null and empty differ.

    For a due schedule (with `delivered_headers`) it equals that of the record on its topic.
    """
    # A null adds nothing to a hash, so IS NULL is hashed too.
    told = f"transform({headers}, h -> struct(h.key, h.value IS NULL, h.value))"
    return f"concat('#', xxhash64({key} IS NULL, {key}, {value} IS NULL, {value}, {told}))"


def delivered_stages(settings: "Settings", *, owed: bool = False) -> list[list[str]]:
    """Lists for selectExpr, from due rows to topic, partition, key, value, headers.

    A schedule of a journal becomes three records, in this order: the target's; a tombstone for the
    partition it was read from; a copy for the history topic, with the target's key and value. A
    rejected record of a journal is followed by a tombstone that also has the id it waited under and
    its original headers. Every tombstone names the version that is done, so that it does not affect
    a newer one. `owed` leaves out the first record, which has arrived already. A row of dialect
    `record` is a record already, see `as_sent` in spark/delivery/recurring.py.
    """
    headers = delivered_headers(settings.journals)
    if not settings.journals:
        assert not owed, "without a journal nothing follows"
        return [["topic", "partition", "key", "value", f"{headers} AS headers"]]
    target = _record(*_SENT, "sent")
    tombstone = _tombstone("id", "sent")
    history = _record(sql.text(settings.history_topic), _NO_PARTITION, "key", "value", "sent")
    unhistoric = tuple({settings.history_topic, settings.liveness_topic})
    no_history = f"topic IN {sql.texts(unhistoric)}" if settings.history_topic else "true"
    # The last header shows which kind: refusal.py puts the id there, decode.py the time.
    last = "element_at(headers, -1)"
    refused = f"{last}.key = {sql.text(names.REJECTED_ID)}"
    version = sql.pair(names.ORIGIN, VERSION)
    # Ours come first: the headers that it came with may have old ones of the same names.
    came_with = f"slice(headers, 1, size(headers) - if({refused}, 6, 4))"
    about = f"concat(slice(sent, -3, 3), array({version}), {came_with})"
    rejected = _tombstone(f"if({refused}, {last}.value, key)", about)
    return [
        ["*", f"{headers} AS sent"],
        [
            f"""inline(CASE WHEN dialect = 'record' THEN array({_record(*_SENT, "headers")})
            ELSE {"slice(" if owed else ""}CASE
            WHEN NOT origin_topic IN {sql.texts(settings.journals)} THEN array({target})
            WHEN dialect = 'rejected' AND key IS NULL AND NOT {refused} THEN array({target})
            WHEN dialect = 'rejected' THEN array({target}, {rejected})
            WHEN {no_history} THEN array({target}, {tombstone})
            ELSE array({target}, {tombstone}, {history}) END{", 2, 2)" if owed else ""} END)"""
        ],
    ]


def lane_stages(settings: "Settings") -> list[list[str]]:
    """The same for what a lane reads: without a journal, records as they leave."""
    return delivered_stages(settings) if settings.journals else []


_SENT = ("topic", "partition", "key", "value")
_NO_BYTES = "CAST(NULL AS BINARY)"
_NO_PARTITION = "CAST(NULL AS INT)"


def _tombstone(key: str, headers: str) -> str:
    """A tombstone on the journal, in the partition that the schedule was read from."""
    return _record("origin_topic", "origin_partition", key, _NO_BYTES, headers)


def _record(topic: str, partition: str, key: str, value: str, headers: str) -> str:
    columns = {
        "topic": topic,
        "partition": partition,
        "key": key,
        "value": value,
        "headers": headers,
    }
    return "named_struct(" + ", ".join(f"'{name}', {it}" for name, it in columns.items()) + ")"


def leaving(schedule: Schedule, copies: Sequence[str] = ()) -> list[Record]:
    """The records sent for a due schedule, its own first.

    `copies`: for a schedule read from a journal, that journal, and the history topic if any.
    """
    record, origin = schedule.record, schedule.origin
    rejected = schedule.dialect == "rejected"
    place = f"{origin.topic}/{origin.partition}/{origin.position}" if origin else ""
    version: Headers = [(names.ORIGIN, place.encode())] if copies else []
    if not copies:
        return [replace(record, headers=[*record.headers, *_added(schedule)])]
    journal, *history = copies
    refused = rejected and record.headers[-1][0] == names.REJECTED_ID
    # What intake has rejected may have headers of any name.
    left = None
    if refused or not rejected:
        left = left_on_journal(schedule, _added(schedule)[-3:] + version)
    kept = split_progress(record.headers)[0] if left else record.headers
    sent = replace(record, headers=[*kept, *_added(schedule)])
    if rejected:
        if left:
            return [sent, left]
        value = record.headers[-1][1]
        key = value if refused else record.key
        if key is None:
            return [sent]
        came_with = split_rejected(record.headers)[0]
        about = _added(schedule) + version + came_with
        return [sent, Record(topic=journal, key=key, value=None, headers=about)]
    sent = replace(sent, headers=sent.headers + version)
    tombstone = replace(sent, topic=journal, key=schedule.id, value=None, partition=None)
    tombstone = left or tombstone
    after = [topic for topic in history if topic != record.topic]
    return [sent, tombstone, *(replace(sent, topic=topic, partition=None) for topic in after)]


def split_rejected(headers: Headers) -> tuple[Headers, Headers]:
    """The original headers of a rejected record, and those added for its rejection."""
    places = [n for n, (name, _) in enumerate(headers) if name == names.REJECTED]
    last = places[-1] if places else len(headers)
    return headers[:last], headers[last:]


def _added(schedule: Schedule) -> Headers:
    """The headers added to a delivered record."""
    expiry: Headers = []
    if schedule.expires_ms is not None:
        expiry.append((names.EXPIRY, b"%d" % schedule.expires_ms))
    ours: Headers = [
        (names.DELIVERED_TO, schedule.record.topic.encode()),
        (names.ID, schedule.id),
        (names.DUE, b"%d" % schedule.due_ms),
    ]
    if schedule.dialect != "headers":
        return expiry + (ours[1:] if schedule.dialect == "few" else ours)
    origin = schedule.origin
    seconds = (origin.timestamp_ms if origin else 0) // 1_000
    return [
        *expiry,
        (names.SCHEDULER_TIMESTAMP, b"%d" % seconds),
        (names.SCHEDULER_KEY, schedule.id),
        (names.SCHEDULER_TOPIC, origin.topic.encode() if origin else b""),
        *ours,
    ]
