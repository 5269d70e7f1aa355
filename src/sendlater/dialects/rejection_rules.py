"""Why an inbox record cannot be scheduled: reason and detail, as Spark SQL text."""

from typing import TYPE_CHECKING

from sendlater.dialects import names, sql, when
from sendlater.dialects.recurrence import once_only
from sendlater.dialects.retry import POLICY_EXPECTED
from sendlater.dialects.tags import BAD_TAGS
from sendlater.dialects.tags import EXPECTED as TAGS_EXPECTED
from sendlater.limits import EPOCH_SECONDS_MAX, ID_BYTES_MAX
from sendlater.model import DUE_MS_MAX, Reason

if TYPE_CHECKING:
    from sendlater.config import Settings

LONG_AGO_MS = 31_536_000_000
"""A record that is told to be from before 1971 has a producer that sets no timestamps."""
# The ASCII characters that Go's strings.TrimSpace removes.
_BLANKS = sql.text(" \t\n\v\f\r")


def _latest_ms(settings: "Settings") -> str:
    days_ms = min(settings.max_delay_days * 86_400_000, DUE_MS_MAX)
    return f"least(timestamp_ms + {days_ms}L, {DUE_MS_MAX}L)"


def reason_of(settings: "Settings") -> str:
    """Why the record cannot be scheduled; null for a schedule and for a cancellation."""
    bytes_count = (
        "coalesce(octet_length(value), 0) + coalesce(octet_length(key), 0) + coalesce("
        "octet_length(concat_ws('', names, CAST(headers.value AS ARRAY<STRING>))), 0)"
    )
    epoch_max_ms = EPOCH_SECONDS_MAX * 1_000
    rules: dict[str, Reason | None] = {
        "done": None,
        f"retry_text IS NOT NULL AND ({_bad_retry(settings)})": Reason.BAD_RETRY,
        f"if_text IS NOT NULL AND ({_bad_condition(settings)})": Reason.BAD_CONDITION,
        "retry_attempt > retry_attempts": Reason.NO_ATTEMPTS_LEFT,
        f"id IS NULL OR btrim(CAST(id AS STRING), {_BLANKS}) = ''": Reason.NO_ID,
        f"dialect = 'headers' AND octet_length(id) > {ID_BYTES_MAX}": Reason.ID_TOO_LONG,
        "dialect = 'headers' AND value IS NULL": None,
        f"CAST({sql.header(sql.text(names.UNREADABLE))} AS STRING) "
        f"= {sql.text(names.UNREADABLE_BECAUSE)}": Reason.BAD_HEADERS,
        "dialect = 'envelope' AND envelope.message IS NULL": Reason.BAD_ENVELOPE,
        **_cannot_recur(settings),
        "time_name IS NULL": Reason.NO_TIME,
        "due_ms IS NULL OR due_ms < 0": Reason.BAD_TIME,
        f"time_name = {sql.text(names.EPOCH)} AND due_ms >= {epoch_max_ms}": Reason.MILLISECONDS,
        f"due_ms > {_latest_ms(settings)}": Reason.TOO_FAR,
        f"expiry_name IS NOT NULL AND ({_bad_expiry(settings)})": Reason.BAD_EXPIRY,
        BAD_TAGS: Reason.BAD_TAGS,
        **(
            {
                "expiry_name IS NOT NULL": Reason.CANNOT_EXPIRE,
                "tags_text IS NOT NULL": Reason.CANNOT_TAG,
            }
            if settings.pending == "buckets"
            else {}
        ),
        **({_past(settings): Reason.PAST} if settings.past == "reject" else {}),
        "target IS NULL OR target = ''": Reason.NO_TARGET,
        f"target IN ('.', '..') OR NOT {sql.matches('target', names.TOPIC)} "
        "OR (target_partition IS NOT NULL AND partition_number IS NULL)": Reason.BAD_TARGET,
        # It is larger by the headers that mark it.
        f"{bytes_count} > {settings.max_payload_bytes} AND NOT {_is_copy(settings)}": (
            Reason.TOO_LARGE
        ),
    }
    told = " ".join(
        f"WHEN {rule} THEN {sql.text(reason) if reason else 'NULL'}"
        for rule, reason in rules.items()
    )
    return f"CASE {told} END"


_IS_CHANGE = f"dialect = 'headers' AND {sql.has(names.CHANGE)}"


def _bad_expiry(settings: "Settings") -> str:
    """Unreadable, or over before the schedule is due; a retry or what was moved will expire. One
    before 1970 would never do so: packed, it is a number without a sign."""
    is_retry = f"retry_text IS NOT NULL OR {sql.has(names.RETRY_ATTEMPT)}"
    return (
        "(expires_ms IS NULL AND expires_after_ms IS NULL) "
        f"OR expires_ms < 0 OR expires_ms > {DUE_MS_MAX} "
        f"OR (expires_ms < due_ms AND NOT ({is_retry}) AND NOT {_is_copy(settings)})"
    )


def _bad_retry(settings: "Settings") -> str:
    """An unreadable policy, nothing to deliver again, or a journal: it keeps one record per key."""
    journal = f"topic IN {sql.texts(settings.journals)}" if settings.journals else "false"
    return f"retry_attempts IS NULL OR value IS NULL OR {journal}"


def undecided(settings: "Settings") -> str:
    """Whether a record is from an inbox about whose ids nobody knows what stands."""
    if settings.pending == "buckets":
        return "true"
    if settings.horizon_ms is None:
        return "false"
    elsewhere = tuple(i.topic for i in settings.inboxes if i.journal or i.copy_to)
    return f"topic IN {sql.texts(elsewhere)}" if elsewhere else "false"


def _bad_condition(settings: "Settings") -> str:
    """An unknown word, a cancellation, or where intake cannot decide."""
    unknown = f"NOT {sql.matches('if_text', names.CONDITION)}"
    undecided_ = f"({undecided(settings)} AND if_text <> {sql.text(names.ONCE)})"
    return f"{unknown} OR value IS NULL OR {undecided_}"


def _cannot_recur(settings: "Settings") -> dict[str, Reason | None]:
    """A plan on an inbox whose schedules cannot recur."""
    if not (inboxes := once_only(settings)):
        return {}
    recurs = f"time_name IN {sql.texts(names.PLANS)}"
    return {f"{recurs} AND topic IN {sql.texts(inboxes)}": Reason.CANNOT_RECUR}


def _past(settings: "Settings") -> str:
    """Due before the second it was written in: etf1's times are whole seconds."""
    second_ms = "timestamp_ms - pmod(timestamp_ms, 1000)"
    limit_ms = f"{second_ms} - {settings.past_grace_s * 1_000}L"
    return f"due_ms < {limit_ms} AND NOT {_is_copy(settings)}"


def _is_copy(settings: "Settings") -> str:
    """Whether a record is a copy of one that was accepted before: a change by a client, or on a
    journal what was on another inbox."""
    kinds = ["copy_of IS NOT NULL", _IS_CHANGE]
    if journals := sorted({inbox.copy_to for inbox in settings.inboxes if inbox.copy_to}):
        copied = sql.has(names.COPIED)
        kinds.append(f"topic IN {sql.texts(tuple(journals))} AND {copied}")
    return "(" + " OR ".join(f"({kind})" for kind in kinds) + ")"


def _bad_time() -> str:
    """What was expected of the header for the time."""
    cases = " ".join(
        f"WHEN {sql.text(name)} THEN {sql.text(expected)}"
        for name, expected in {
            names.DUE_MS: f"{names.DUE_MS}: milliseconds since 1970",
            names.AT: f"{names.AT}: {when.INSTANT_EXPECTED}",
            names.DELAY: f"{names.DELAY}: {when.DURATION_EXPECTED}",
            names.EPOCH: f"{names.EPOCH}: seconds since 1970",
            "countdown": "countdown: seconds, zero or more",
        }.items()
    )
    return f"CASE time_name {cases} END"


def _time_details(settings: "Settings") -> dict[Reason, tuple[str, str]]:
    """What was expected and what was received, of a time."""
    time = sql.excerpt("time_text")
    # What is readable, but counts from a record's own time, and that is before 1970.
    by_delay = f"time_name IN {sql.texts((names.DELAY, 'countdown'))} AND due_ms IS NOT NULL"
    by_plan = f"time_name IN {sql.texts((names.RETRY, *names.PLANS))}"
    bad_stamp = f"timestamp_ms < 0 AND ({by_delay} OR {by_plan})"
    stamp = sql.text("a record timestamp since 1970")
    bad_spread = "spread_text IS NOT NULL AND spread_ms IS NULL"
    spread = sql.text(f"{names.SPREAD}: {when.DURATION_EXPECTED}")
    return {
        Reason.BAD_TIME: (
            f"CASE WHEN {bad_stamp} THEN {stamp} WHEN {bad_spread} THEN {spread} "
            f"ELSE {_bad_time()} END",
            f"CASE WHEN {bad_stamp} THEN CAST(timestamp_ms AS STRING) "
            f"WHEN {bad_spread} THEN {sql.excerpt('spread_text')} ELSE {time} END",
        ),
        Reason.MILLISECONDS: (f"'{names.EPOCH} in seconds'", f"concat('milliseconds ', {time})"),
        Reason.TOO_FAR: (
            f"concat(time_name, ' within {settings.max_delay_days} days', "
            f"if(timestamp_ms > {LONG_AGO_MS}L, '', "
            "concat(' of the record timestamp ', timestamp_ms)))",
            f"concat({time}, if(spread_text IS NULL, '', "
            f"concat(' and {names.SPREAD} ', {sql.excerpt('spread_text')})))",
        ),
    }


def _retry_details() -> dict[Reason, tuple[str, str]]:
    """The same of a retry."""
    return {
        Reason.BAD_RETRY: (
            "CASE WHEN value IS NULL THEN 'a value besides sendlater-retry' "
            "WHEN retry_attempts IS NULL "
            f"THEN {sql.text(f'{names.RETRY}: {POLICY_EXPECTED}')} "
            f"ELSE '{names.RETRY} on an inbox that is not a journal' END",
            f"if(value IS NULL, 'null', {sql.excerpt('retry_text')})",
        ),
        Reason.NO_ATTEMPTS_LEFT: (
            f"concat('at most ', retry_attempts, ' retries (', {sql.excerpt('retry_text')}, ')')",
            "concat('a failure after ', retry_attempt - 1)",
        ),
    }


_TAGS_DETAILS = {
    Reason.BAD_TAGS: (sql.text(f"{names.TAGS}: {TAGS_EXPECTED}"), sql.excerpt("tags_text")),
    Reason.CANNOT_TAG: (
        "'a schedule without tags, as one in buckets cannot be selected by them'",
        sql.excerpt("tags_text"),
    ),
}


def _condition_detail(settings: "Settings") -> tuple[str, str]:
    expected = sql.text(f"{names.IF}: {names.CONDITION_EXPECTED}")
    return (
        f"CASE WHEN value IS NULL THEN 'a value besides {names.IF}' "
        f"WHEN {undecided(settings)} "
        f"THEN '{names.IF} on an inbox of which Redis holds all schedules' ELSE {expected} END",
        f"if(value IS NULL, 'null', {sql.excerpt('if_text')})",
    )


def detail_of(settings: "Settings") -> str:
    """A sentence that says what was expected and what was received."""
    time = sql.excerpt("time_text")
    told = {
        **_time_details(settings),
        **_retry_details(),
        **_TAGS_DETAILS,
        Reason.BAD_CONDITION: _condition_detail(settings),
        Reason.NO_ID: ("'a record key as id'", sql.excerpt("id")),
        Reason.ID_TOO_LONG: (f"'an id of at most {ID_BYTES_MAX} bytes'", "octet_length(id)"),
        Reason.BAD_ENVELOPE: (
            """'a JSON object with topic, message and countdown, in UTF-8'""",
            sql.excerpt("value"),
        ),
        Reason.BAD_HEADERS: ("'headers with names in UTF-8'", "'other bytes'"),
        Reason.NO_TIME: (
            f"if(dialect = 'envelope', 'countdown', 'one of {', '.join(names.TIMES)}')",
            "'nothing'",
        ),
        Reason.BAD_EXPIRY: (
            f"if(expiry_name = {sql.text(names.EXPIRES_AFTER)}, "
            f"{sql.text(f'{names.EXPIRES_AFTER}: {when.DURATION_EXPECTED}')}, "
            f"concat(expiry_name, {sql.text(f': {when.EXPIRY_EXPECTED}')}))",
            sql.excerpt("expiry_text"),
        ),
        Reason.CANNOT_EXPIRE: (
            "'a schedule without an expiry, as one in buckets cannot expire'",
            f"concat(expiry_name, ' ', {sql.excerpt('expiry_text')})",
        ),
        Reason.CANNOT_RECUR: (
            "'a schedule that is due once, as one in buckets cannot recur'",
            f"concat(time_name, ' ', {time})",
        ),
        Reason.PAST: (
            f"'a time at most {settings.past_grace_s} s before it was written'",
            "concat(due_ms - timestamp_ms, ' ms')",
        ),
        Reason.NO_TARGET: (
            f"CASE WHEN dialect = 'envelope' THEN 'topic' WHEN retry_text IS NULL "
            f"THEN '{names.TARGET_TOPIC}' "
            f"ELSE '{names.TARGET_TOPIC} or {names.DELIVERED_TO}' END",
            sql.excerpt("target"),
        ),
        Reason.BAD_TARGET: (
            "'a topic name of 1 to 249 of a-z A-Z 0-9 . _ -, and a partition of zero or more'",
            f"concat({sql.excerpt('target')}, if(target_partition IS NULL, '', "
            f"concat(', partition ', {sql.excerpt('target_partition')})))",
        ),
        Reason.TOO_LARGE: (
            f"'at most {settings.max_payload_bytes} bytes of value, key and headers'",
            "concat(coalesce(octet_length(value), 0), ' bytes of value')",
        ),
    }
    cases = " ".join(
        f"WHEN {sql.text(reason)} THEN concat('expected ', {expected}, ', got ', {got})"
        for reason, (expected, got) in told.items()
    )
    return f"CASE reason {cases} END"
