"""Reads `sendlater-retry` in Spark SQL: a record that a consumer could not handle comes back to it.

A policy is a list of pauses (`5s,30s,5m`), `exponential 1s..10m x8` (each pause twice the one
before), or `none`; `jitter 20%` behind it makes each pause up to that much shorter. What a record
carries decides where, when and under which id it comes again, so that the same call made twice is
one schedule. `client/backoff.py` and `client/retries.py` do the same in Python.
"""

from sendlater.dialects import names, sql, when
from sendlater.limits import (
    RETRIES_MAX,
    RETRY_ERROR_BYTES_MAX,
    RETRY_PAUSES_MAX,
    RETRY_TEXT_BYTES_MAX,
)
from sendlater.model import DUE_MS_MAX

PAUSES = rf"{when.ITEM}(?: *, *{when.ITEM}){{0,{RETRY_PAUSES_MAX - 1}}}"
EXPONENTIAL = r"exponential +([0-9A-Za-z.]+?)[.][.]([0-9A-Za-z.]+) +x([0-9]{1,4})"
JITTER = r" +jitter +([0-9]{1,3})%"
NONE = "none"
POLICY_EXPECTED = (
    f"up to {RETRY_PAUSES_MAX} pauses (5s,30s,5m), exponential 1s..10m x8 with at most "
    f"{RETRIES_MAX} retries, or none; behind it jitter 20%, if any"
)
ATTEMPT = r"[0-9]{1,9}"
"""A number of attempts in a header; anything else counts as 0."""
DEAD = "dead:"
"""Beginning of a dead letter's id; the id that its next attempt would have had follows."""


def retry_text(is_envelope: str) -> str:
    """The policy of a record that comes again; null for every other record."""
    has_retry = sql.has(names.RETRY)
    # Longer is no policy: to search it would take time that grows with its square.
    fits = f"octet_length({_header(names.RETRY)}) <= {RETRY_TEXT_BYTES_MAX}"
    text = f"IF({fits}, CAST({_header(names.RETRY)} AS STRING), '')"
    return f"CASE WHEN {is_envelope} THEN NULL WHEN {has_retry} THEN {text} END"


def retry_read() -> list[str]:
    """What a retry says, from columns of `_found`: `retry_body`, `retry_jitter`, `retry_of`,
    `retry_attempt`; and the target and the key of every record."""
    jitter = rf"^.*{JITTER}\z"
    attempt = f"CAST({_header(names.RETRY_ATTEMPT)} AS STRING)"
    place = "CAST(concat_ws('/', topic, partition, offset) AS BINARY)"
    id, due = _header(names.ID), _header(names.DUE)
    delivery = (
        f"CASE WHEN octet_length({id}) > 0 AND octet_length({due}) > 0 "
        f"THEN concat({id}, CAST('@' AS BINARY), {due}) END"
    )
    return [
        f"CASE WHEN retry_text IS NULL OR target IS NOT NULL THEN target "
        f"ELSE CAST({_header(names.DELIVERED_TO)} AS STRING) END AS target",
        f"CASE WHEN retry_text IS NULL OR {sql.has(names.TARGET_KEY)} "
        "THEN target_key ELSE key END AS target_key",
        _if_retry(f"regexp_replace(retry_text, {sql.text(rf'{JITTER}$')}, '')", "retry_body"),
        _if_retry(
            f"coalesce(try_cast(regexp_extract(retry_text, {sql.text(jitter)}, 1) AS INT), 0)",
            "retry_jitter",
        ),
        _if_retry(
            f"coalesce(nullif({_header(names.RETRY_OF)}, X''), {delivery}, "
            f"nullif({_header(names.RETRY_ORIGIN)}, X''), {place})",
            "retry_of",
        ),
        _if_retry(
            f"1 + coalesce(CASE WHEN {sql.matches(attempt, ATTEMPT)} "
            f"THEN CAST({attempt} AS INT) END, 0)",
            "retry_attempt",
        ),
    ]


def retry_spans() -> tuple[str, str, str]:
    """Texts of durations, from columns of `retry_read`: the first and the longest pause of an
    exponential policy, and the next one of a list."""
    return (
        _part(1),
        _part(2),
        "trim(get(split(retry_body, ','), retry_attempt - 1))",
    )


def _part(number: int) -> str:
    return f"regexp_extract(retry_body, {sql.text(EXPONENTIAL)}, {number})"


def retry_planned(base_ms: str, most_ms: str, pause_ms: str) -> list[str]:
    """The stage after that: the id of every record, `retry_attempts` (null: the policy is
    unreadable) and `retry_whole_ms`, the pause without jitter (null: no attempt is left).

    It is given the columns with what `retry_spans` mean.
    """
    own_id = "md5(concat(CAST(coalesce(target, '') AS BINARY), X'00', retry_of))"
    exponential, count = f"({sql.matches('retry_body', EXPONENTIAL)})", _part(3)
    doubled = f"({base_ms}) * power(2D, least(retry_attempt - 1, 60))"
    return [
        "* EXCEPT (id)",
        f"CASE WHEN retry_text IS NULL THEN id "
        f"ELSE CAST(concat('retry-', {own_id}, '-', retry_attempt) AS BINARY) END AS id",
        f"CASE WHEN retry_text IS NULL OR retry_text LIKE '%\\n%' OR retry_jitter > 100 THEN NULL "
        f"WHEN retry_body = '{NONE}' THEN 0 "
        f"WHEN {exponential} THEN CASE WHEN CAST({count} AS INT) <= {RETRIES_MAX} "
        f"AND ({base_ms}) <= ({most_ms}) THEN CAST({count} AS INT) END "
        f"WHEN {sql.matches('retry_body', PAUSES)} THEN size(split(retry_body, ',')) "
        "END AS retry_attempts",
        f"CASE WHEN retry_text IS NULL THEN NULL WHEN {exponential} "
        f"THEN least({most_ms}, CAST(least({doubled}, {DUE_MS_MAX}D) AS BIGINT)) "
        f"ELSE {pause_ms} END AS retry_whole_ms",
    ]


RETRY_MS = "retry_whole_ms - " + sql.share_of("(retry_whole_ms * retry_jitter DIV 100)", "id")
"""The pause; from columns of `retry_planned`."""


def retry_headers() -> str:
    """The headers of a record that comes again: the user's own, and what counts the attempts."""
    ours = (names.RETRY_OF, names.RETRY_ORIGINAL_TIMESTAMP, names.RETRY_ATTEMPT)
    foreign = " AND ".join(f"NOT startswith(h.key, {sql.text(one)})" for one in names.PREFIXES)
    seconds = sql.decimal_text("(timestamp_ms - pmod(timestamp_ms, 1000)) DIV 1000")
    first = f"coalesce({_header(names.RETRY_ORIGINAL_TIMESTAMP)}, CAST({seconds} AS BINARY))"
    return (
        f"concat(filter(headers, h -> {foreign} AND h.key NOT IN {sql.texts(ours)}), array("
        f"{sql.pair(names.RETRY_OF, 'retry_of')}, "
        f"{sql.pair(names.RETRY_ORIGINAL_TIMESTAMP, first)}, "
        f"{sql.pair(names.RETRY_ATTEMPT, sql.decimal_text('retry_attempt'))}))"
    )


def dead_headers() -> str:
    """What a record without attempts left gets besides its reason, as a dead event has it."""
    error = f"substring(coalesce({_header(names.ERROR)}, X''), 1, {RETRY_ERROR_BYTES_MAX})"
    return (
        f"array({sql.pair(names.EVENT_TYPE, 'target')}, {sql.pair(names.EVENT_ERROR, error)}, "
        f"{sql.pair(names.EVENT_ID, 'retry_of')})"
    )


def _header(name: str) -> str:
    return sql.header(sql.text(name))


def _if_retry(value: str, name: str) -> str:
    return f"CASE WHEN retry_text IS NOT NULL THEN {value} END AS {name}"
