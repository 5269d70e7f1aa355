"""Reads the JSON envelope in Spark SQL: `{"topic": "T", "message": <string or any JSON>, ...}`.

from_json alone is not enough. It changes 1.10 to 1.1 and 1e400 to "Infinity", ignores text after
the object, and replaces bytes that are not UTF-8. So numbers are first put in quotes, with a mark
that cannot occur in the value (its hash), and a sentinel after the object shows that the parser
reached the end. White space and escapes in a message that is not a string are normalised.
"""

from sendlater.dialects import sql
from sendlater.dialects.when import COUNTDOWN

NO_ENVELOPE = "CAST(NULL AS STRUCT<topic: STRING, message: STRING, countdown: STRING>)"
"""Column `envelope` if no inbox has envelopes."""

_SCHEMA = "ARRAY<STRUCT<topic: STRING, message: STRING, countdown: STRING>>"
_OPTIONS = "map('allowSingleQuotes', 'false', 'allowNonNumericNumbers', 'false')"
# All quantifiers are possessive (++, *+): otherwise Java's matcher recurses, and a long payload
# overflows its stack. \G: each match begins where the last one ended, never inside a string.
_BEFORE_NUMBER = r'\G((?:[^"0-9-]++|"(?:[^"\\]++|\\.)*+")*+)'
_NUMBER = r"(-?(?:0|[1-9][0-9]*+)(?:[.][0-9]++)?+(?:[eE][+-]?+[0-9]++)?+)(?!\s*+:)"
_ESCAPED_BACKSLASH_OR_PAIR = r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_SURROGATE = r"\\u[dD][89a-fA-F]"


def envelope_stages(is_envelope: str) -> list[list[str]]:
    """selectExpr lists that add column `envelope`, null if there is none or it is unreadable."""
    raw = "CAST(value AS STRING)"
    lone = (
        rf"(contains({raw}, '\\ud') OR contains({raw}, '\\uD')) AND regexp_replace({raw}, "
        f"{sql.text(_ESCAPED_BACKSLASH_OR_PAIR)}, ' ') RLIKE {sql.text(_SURROGATE)}"
    )
    readable = f"is_valid_utf8({raw}) AND NOT ({lone})"
    marked = (
        f"regexp_replace(json, {sql.text(_BEFORE_NUMBER + _NUMBER)}, "
        """concat('$1"', mark, '<$2>', mark, '"'))"""
    )
    ended = """concat('[', marked, ',{"topic":"', mark, '"}]')"""
    topic, countdown = (
        f"replace(replace(parsed[0].{name}, concat(mark, '<'), ''), concat('>', mark), '')"
        for name in ("topic", "countdown")
    )
    nested = """replace(replace(parsed[0].message, concat('"', mark, '<'), ''),
        concat('>', mark, '"'), '')"""
    bare = f"replace(replace({nested}, concat(mark, '<'), ''), concat('>', mark), '')"
    message = f"""CASE
        WHEN parsed[0].message IS NULL AND array_contains(json_object_keys(json), 'message')
        THEN 'null'
        WHEN contains(parsed[0].message, mark) THEN {bare}
        ELSE parsed[0].message END"""
    return [
        [
            "*",
            f"CASE WHEN {is_envelope} AND {readable} THEN {raw} END AS json",
            f"CASE WHEN {is_envelope} THEN md5(value) END AS mark",
        ],
        ["*", f"{marked} AS marked"],
        ["*", f"from_json({ended}, '{_SCHEMA}', {_OPTIONS}) AS parsed"],
        [
            "* EXCEPT (json, mark, marked, parsed)",
            f"""CASE WHEN size(parsed) = 2 AND parsed[1].topic = mark THEN struct({topic} AS topic,
                {message} AS message, {countdown} AS countdown) END AS envelope""",
        ],
    ]


def countdown_ms(column: str) -> str:
    """Milliseconds of a countdown in seconds, rounded up; null if it is unreadable."""
    readable = sql.matches(column, COUNTDOWN)
    return f"CASE WHEN {readable} THEN {sql.span_ms(sql.amount_ms(column, 1_000))} END"
