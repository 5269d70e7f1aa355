"""Converts an inbox record to a schedule, as Spark SQL text: no Python per row.

Each stage is a list for selectExpr. They are separate so that Spark computes each value once.
Ids, keys and payloads are always binary. A record that cannot be scheduled becomes a schedule
for the rejected topic that is due now.
"""

from typing import TYPE_CHECKING

from sendlater.dialects import names, sql
from sendlater.dialects.envelope import NO_ENVELOPE, countdown_ms, envelope_stages
from sendlater.dialects.plain import adding_few
from sendlater.dialects.progress import OWN_HEADERS
from sendlater.dialects.rejection_rules import detail_of, reason_of, undecided
from sendlater.dialects.retry import (
    DEAD,
    RETRY_MS,
    dead_headers,
    retry_headers,
    retry_planned,
    retry_read,
    retry_spans,
    retry_text,
)
from sendlater.dialects.tags import READ_TAGS, tags_text
from sendlater.limits import EPOCH_SECONDS_MAX
from sendlater.model import DUE_MS_MAX, Reason

if TYPE_CHECKING:  # clients import this room too, and need no settings to encode
    from sendlater.config import Settings

SPARK_SETTINGS = {
    # The JVM does not compile methods of more than 8,000 bytes, and decoding would become one: it
    # then ran at 72,000 rows/s per core instead of 115,000.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # What is given to lower() and upper() has matched a pattern of ASCII. Else the first of them
    # makes ICU look up the title case of every character, which takes a second.
    "spark.sql.icu.caseMappings.enabled": "false",
}
"""Settings for every session that decodes."""


DONE = sql.header_text(names.ORIGIN, names.VERSION)
"""For a null value on a journal: the version that was delivered; null if it has none."""


_AGAIN = sql.header_text(names.AGAIN, names.VERSION)


_AGAIN_OFFSET = f"try_cast(substring_index({_AGAIN}, '/', -1) AS BIGINT)"


COPY_OF = f"""CASE WHEN value IS NOT NULL AND {_AGAIN_OFFSET} BETWEEN 0 AND offset
AND {_AGAIN} = concat_ws('/', topic, partition, {_AGAIN_OFFSET}) THEN {_AGAIN_OFFSET} END"""
"""Offset of the version that a record of a journal is a copy of; null for other records. From the
Kafka source's columns, and `names`, the names of the headers."""


_OWN = sql.text(names.OWN)


NAMES = f"""if(array_contains(headers.key, {_OWN}),
slice(headers.key, 1, CAST(array_position(headers.key, {_OWN}) AS INT)), headers.key)"""
"""Of a record of a journal: the names of the headers for sendlater, which stand before its own."""


CONDITIONAL = f"(value IS NOT NULL AND {sql.has(names.IF)})"
"""Whether a record of a journal is a schedule only under a condition. Once intake has decided, what
stands after it is behind it as a copy, which has none, or a tombstone is."""


RECURS = f"time_name IN {sql.texts(names.PLANS)}"
"""Whether a record has a plan; the task that parks it computes its due time."""


_ONLY_WHERE_AND_WHEN = f"""(size(names) = 2 + CAST({sql.has(names.TARGET_KEY)} AS INT)
AND {sql.has(names.TARGET_TOPIC)} AND time_name IN {sql.texts(names.TIMES)})"""
"""Whether a record has no other headers: filter() is interpreted, and was a tenth of the JVM's work
for a record."""


_HEADERS = "ARRAY<STRUCT<key: STRING, value: BINARY>>"


_NO_HEADERS = f"CAST(array() AS {_HEADERS})"


def stages(settings: "Settings") -> list[list[str]]:
    """Lists for selectExpr, to apply one after the other to the records of all inboxes.

    In: the Kafka source's columns with headers (key, value, topic, partition, offset, timestamp,
    headers). Out: id, due_ms (null: cancel the id), topic, partition, key, value, headers (null
    when there are none), dialect (headers, few, envelope, rejected), expires_ms, expires_after_ms
    (both null: no expiry), tags (null: none; commas between them), origin_topic, origin_partition,
    origin_position, origin_timestamp_ms, shard, change (null, but for the copy of a change, and
    `again VERSION` for a copy of that version, `if CONDITION` for a record that is a schedule only
    under that condition, `left DUE_MS` for a tombstone of ours, with ` ID` behind it for one about
    a rejected record that waited under that id, or ` @PLANNED` about an occurrence, and `recurs
    CHANGE`, or `recurs again VERSION`, for a recurring schedule, see spark/plans.py). The value of
    a cancellation is null, or the version that a tombstone of ours is about.
    """
    envelopes = tuple(i.topic for i in settings.inboxes if i.dialect == "envelope")
    # Without a topic it would be null, and what is behind an AND be computed all the same.
    is_envelope = f"coalesce(topic IN {sql.texts(envelopes)}, false)" if envelopes else "false"
    in_journal = f"topic IN {sql.texts(settings.journals)}" if settings.journals else "false"
    copies = tuple(i.topic for i in settings.inboxes if i.copy_to)
    copied = f"topic IN {sql.texts(copies)}" if copies else "false"
    # A tombstone that we wrote. Checked before everything else: it must never be rejected again.
    done = f"value IS NULL AND key IS NOT NULL AND {in_journal} AND {DONE} IS NOT NULL"
    return [
        [
            "*",
            f"if({in_journal}, {NAMES}, headers.key) AS names",
            "unix_millis(timestamp) AS timestamp_ms",
        ],
        ["*", f"{done} AS done", f"CASE WHEN {in_journal} THEN {COPY_OF} END AS copy_of"],
        *(envelope_stages(is_envelope) if envelopes else [["*", f"{NO_ENVELOPE} AS envelope"]]),
        _found(settings, is_envelope, copied),
        _timed(),
        _spans(),
        _measured(settings),
        _due(),
        ["*", f"CASE WHEN timestamp_ms IS NOT NULL THEN {reason_of(settings)} END AS reason"],
        _scheduled(settings, in_journal),
        _finished(settings),
    ]


def _found(settings: "Settings", is_envelope: str, copied: str) -> list[str]:
    """The parts of a schedule, by dialect; records of a `copied` inbox need no key."""
    times = " ".join(
        f"WHEN {sql.has(name)} THEN {sql.text(name)}"
        for name in (names.RETRY, *names.PLANS, *names.TIMES)
    )
    place = "CAST(concat(topic, '-', partition, '-', offset) AS BINARY)"
    topic = f"CAST({sql.header(sql.text(names.TARGET_TOPIC))} AS STRING)"
    partition = f"CAST({sql.header(sql.text(names.TARGET_PARTITION))} AS STRING)"
    has_partition = sql.has(names.TARGET_PARTITION)
    by_dialect = {
        "dialect": ("'envelope'", "'headers'"),
        "id": (place, f"CASE WHEN key IS NULL AND {copied} THEN {place} ELSE key END"),
        "time_name": (
            "CASE WHEN envelope.countdown IS NOT NULL THEN 'countdown' END",
            f"CASE {times} END",
        ),
        "target": ("envelope.topic", topic),
        "target_partition": (
            "CAST(NULL AS STRING)",
            f"CASE WHEN {has_partition} THEN coalesce({partition}, '') END",
        ),
        "target_key": ("key", sql.header(sql.text(names.TARGET_KEY))),
        "body": ("CAST(envelope.message AS BINARY)", "value"),
    }
    expiries = " ".join(
        f"WHEN {sql.has(name)} THEN {sql.text(name)}"
        for name in (*names.EXPIRIES, *((names.CE_EXPIRYTIME,) if settings.ce_expirytime else ()))
    )
    spread, condition = (
        f"coalesce(CAST({sql.header(sql.text(name))} AS STRING), '')"
        for name in (names.SPREAD, names.IF)
    )
    return [
        "*",
        *(
            f"CASE WHEN {is_envelope} THEN {envelope} ELSE {headers} END AS {name}"
            for name, (envelope, headers) in by_dialect.items()
        ),
        f"{retry_text(is_envelope)} AS retry_text",
        f"CASE WHEN {is_envelope} THEN NULL "
        f"WHEN {sql.has(names.EXPIRY)} AND {sql.has(names.RETRY)} "
        f"THEN {sql.text(names.EXPIRY)} {expiries} END AS expiry_name",
        f"CASE WHEN {is_envelope} THEN NULL "
        f"WHEN {sql.has(names.SPREAD)} AND NOT {sql.has(names.RETRY)} "
        f"THEN {spread} END AS spread_text",
        f"CASE WHEN {sql.has(names.IF)} AND NOT {is_envelope} THEN {condition} END AS if_text",
        f"{tags_text(sql.has(names.TAGS))} AS tags_text",
    ]


def _timed() -> list[str]:
    value = f"CAST({sql.header('time_name')} AS STRING)"
    return [
        "* EXCEPT (target, target_key)",
        f"CASE WHEN time_name = 'countdown' THEN envelope.countdown ELSE {value} END AS time_text",
        f"CAST({sql.header('expiry_name')} AS STRING) AS expiry_text",
        *retry_read(),
    ]


def _spans() -> list[str]:
    """Durations besides that of `sendlater-delay`; few records have one."""
    after = f"expiry_name = {sql.text(names.EXPIRES_AFTER)}"
    texts = ("spread_text", f"CASE WHEN {after} THEN expiry_text END", *retry_spans())
    has = f"spread_text IS NOT NULL OR {after} OR retry_text IS NOT NULL"
    return ["*", f"CASE WHEN {has} THEN {sql.durations_ms(texts)} END AS spans_ms"]


def _measured(settings: "Settings") -> list[str]:
    """The durations of `_spans` by name, what a retry makes of its own, and the condition."""
    once = sql.text(names.ONCE)
    spread_ms, expires_after_ms, *of_retry = (f"get(spans_ms, {n})" for n in range(5))
    return [
        *retry_planned(*of_retry),
        f"{spread_ms} AS spread_ms",
        f"{expires_after_ms} AS expires_after_ms",
        f"nullif(coalesce(if_text, if(retry_text IS NULL, NULL, {once})), "
        f"if({undecided(settings)}, {once}, NULL)) AS only_if",
    ]


def _due() -> list[str]:
    """`due_ms` and `expires_ms`, as written; null if it is unreadable, out of range if it is too
    large."""
    due_ms = sql.whole("time_text", DUE_MS_MAX + 1)
    epoch = f"{sql.whole('time_text', EPOCH_SECONDS_MAX)} * 1000"
    at_ms = f"nullif(greatest({sql.instant_ms('time_text')}, -1L), -1L)"
    moved_ms = sql.share_of("spread_ms", "id")
    expires_ms = sql.whole("expiry_text", DUE_MS_MAX + 1)
    instant_ms = sql.instant_ms("expiry_text")
    return [
        "*",
        f"""CASE time_name
        WHEN {sql.text(names.RETRY)} THEN timestamp_ms + {RETRY_MS}
        {" ".join(f"WHEN {sql.text(name)} THEN timestamp_ms" for name in names.PLANS)}
        WHEN {sql.text(names.DUE_MS)} THEN {due_ms}
        WHEN {sql.text(names.AT)} THEN {at_ms}
        WHEN {sql.text(names.DELAY)} THEN timestamp_ms + {sql.duration_ms("time_text")}
        WHEN {sql.text(names.EPOCH)} THEN ({epoch})
        WHEN 'countdown' THEN timestamp_ms + {countdown_ms("time_text")} END
        + CASE WHEN spread_text IS NULL THEN 0L ELSE {moved_ms} END AS due_ms""",
        f"""CASE expiry_name
        WHEN {sql.text(names.EXPIRES)} THEN coalesce({expires_ms}, {instant_ms})
        WHEN {sql.text(names.EXPIRY)} THEN {expires_ms}
        WHEN {sql.text(names.CE_EXPIRYTIME)} THEN {instant_ms} END AS expires_ms""",
        f"try_cast(CASE WHEN {sql.matches('target_partition', '[0-9]{1,10}')} "
        "THEN target_partition END AS INT) AS partition_number",
    ]


def _scheduled(settings: "Settings", in_journal: str) -> list[str]:
    """The schedule, a cancellation, or the record itself for the rejected topic."""
    told = (
        sql.pair(names.REJECTED, "reason"),
        sql.pair(names.REJECTED_DETAIL, detail_of(settings)),
        sql.pair(names.ORIGIN, "concat_ws('/', topic, partition, offset)"),
        sql.pair(names.ORIGIN_TIMESTAMP_MS, sql.decimal_text("timestamp_ms")),
    )
    removed = names.STALE if settings.keep_input_headers else names.CONTROL
    nothing = "false" if settings.keep_input_headers else _ONLY_WHERE_AND_WHEN
    kept = {
        "headers": f"if({nothing}, {_NO_HEADERS}, "
        f"filter(headers, h -> h.key NOT IN {sql.texts(removed)}))",
        "envelope": f"filter(headers, h -> h.key NOT IN {sql.texts((*names.STALE, names.TAGS))})",
    }
    place = "CAST(concat(topic, '-', partition, '-', offset) AS BINARY)"
    is_dead = f"reason = {sql.text(Reason.NO_ATTEMPTS_LEFT)}"
    cancels = "dialect = 'headers' AND value IS NULL"
    # Due at the record's timestamp; the sink corrects one that is ahead of our clock. Not now():
    # a new constant in each batch makes Spark compile the whole decoding again (600 ms).
    now_ms = "greatest(timestamp_ms, 0L)"
    change = (
        f"CASE WHEN only_if IS NOT NULL AND (reason IS NULL OR {is_dead}) AND NOT done "
        f"THEN concat('if ', if({is_dead}, {sql.text(names.ONCE)}, only_if)) "
        f"ELSE {sql.header_text(names.CHANGE, names.CHANGE_NAME)} END"
    )
    by_fate = {
        "id": (f"if({is_dead}, concat(CAST('{DEAD}' AS BINARY), id), {place})", "id", "id"),
        "due_ms": (now_ms, "CAST(NULL AS BIGINT)", "due_ms"),
        "target": (
            f"if({is_dead}, {sql.text(settings.dead_topic)}, {sql.text(settings.rejected_topic)})",
            "CAST(NULL AS STRING)",
            "target",
        ),
        "partition_number": ("CAST(NULL AS INT)", "CAST(NULL AS INT)", "partition_number"),
        "target_key": ("key", "CAST(NULL AS BINARY)", "target_key"),
        "body": ("value", f"CASE WHEN done THEN CAST({DONE} AS BINARY) END", "body"),
        "kept": (
            f"concat(coalesce(headers, {_NO_HEADERS}), "
            f"if({is_dead}, {dead_headers()}, {_NO_HEADERS}), array({', '.join(told)}))",
            f"CAST(NULL AS {_HEADERS})",
            f"CASE WHEN {RECURS} THEN headers "  # the task that reads the plan needs all
            f"WHEN {in_journal} AND {sql.has(names.OWN)} THEN {OWN_HEADERS} "
            f"WHEN retry_text IS NOT NULL THEN {retry_headers()} "
            f"WHEN dialect = 'headers' THEN {kept['headers']} ELSE {kept['envelope']} END",
        ),
        "fate": ("'rejected'", "dialect", _fate(settings)),
        "expires_ms": ("CAST(NULL AS BIGINT)", "CAST(NULL AS BIGINT)", "expires_ms"),
        "expires_after_ms": ("CAST(NULL AS BIGINT)", "CAST(NULL AS BIGINT)", "expires_after_ms"),
        "tags": ("CAST(NULL AS STRING)", "CAST(NULL AS STRING)", READ_TAGS),
    }
    return [
        "topic",
        "partition",
        "offset",
        "timestamp_ms",
        *(
            f"CASE WHEN reason IS NOT NULL THEN {rejected} WHEN {cancels} THEN {cancelled} "
            f"ELSE {asked} END AS {name}"
            for name, (rejected, cancelled, asked) in by_fate.items()
        ),
        "CASE WHEN reason IS NULL AND copy_of IS NOT NULL "
        f"THEN concat(if({RECURS}, 'recurs again ', 'again '), "
        "concat_ws('/', topic, partition, copy_of)) "
        f"WHEN done THEN {_left()} "
        f"WHEN {RECURS} AND reason IS NULL AND value IS NOT NULL "
        f"THEN concat('recurs ', coalesce({change}, '')) ELSE {change} END AS change",
    ]


def _fate(settings: "Settings") -> str:
    """The dialect, which also tells what a delivery gets."""
    few = adding_few(settings)
    return f"if(topic IN {sql.texts(few)}, 'few', dialect)" if few else "dialect"


def _left() -> str:
    """What a tombstone of ours tells: when its record was due (empty if it does not say), and the
    id that this waited under, if that is not its key. Of a rejected record that is its place, of an
    occurrence either with the planned time (and that of its schedule as @PLANNED)."""
    told_id = sql.header(sql.text(names.ID))
    planned = f"CAST(substring({told_id}, octet_length(key) + 1) AS STRING)"
    occurred = f"""substring({told_id}, 1, octet_length(key)) = key
    AND {sql.matches(planned, "@[0-9]+")}"""
    # Of a rejected occurrence, its place with the planned time.
    place = f"CAST(translate({DONE}, '/', '-') AS BINARY)"
    behind = f"CAST(substring({told_id}, octet_length({place}) + 1) AS STRING)"
    waited = f"""substring({told_id}, 1, octet_length({place})) = {place}
    AND {sql.matches(behind, "(-[0-9]+)?")}"""
    id = f"CASE WHEN {waited} THEN CAST({told_id} AS STRING) WHEN {occurred} THEN {planned} END"
    due_ms = sql.header_text(names.DUE, names.WHOLE_MS)
    return f"concat_ws(' ', 'left', coalesce({due_ms}, ''), {id})"


def _finished(settings: "Settings") -> list[str]:
    return [
        *("id", "due_ms", "target AS topic", "partition_number AS partition"),
        *("target_key AS key", "body AS value"),
        "CASE WHEN size(kept) > 0 THEN kept END AS headers",
        "fate AS dialect",
        "expires_ms",
        "expires_after_ms",
        "tags",
        *("topic AS origin_topic", "partition AS origin_partition"),
        *("offset AS origin_position", "timestamp_ms AS origin_timestamp_ms"),
        f"CAST(crc32(id) % {settings.shards} AS INT) AS shard",
        "change",
    ]
