"""Spark SQL text: the expressions that `decode`, `envelope` and `deliver` are made of.

None may raise an error for any input: Spark runs in ANSI mode, and a bad record must not stop it.
"""

from collections.abc import Sequence

from sendlater.dialects import when
from sendlater.model import DUE_MS_MAX


def text(value: str) -> str:
    """A string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def texts(values: tuple[str, ...]) -> str:
    """A list of string literals, for IN."""
    return f"({', '.join(text(value) for value in values)})"


def matches(column: str, pattern: str) -> str:
    r"""Whether the whole column matches. `\z` because `$` would allow a trailing newline."""
    whole_text = rf"^(?:{pattern})\z"
    return f"{column} RLIKE {text(whole_text)}"


def header(name: str) -> str:
    """The value of the first header called `name`, a string expression; null if there is none.

    By position, because filter() is interpreted: one per name would cost more than all the rest.
    """
    return f"get(headers, CAST(array_position(names, {name}) AS INT) - 1).value"


def has(name: str) -> str:
    """Whether there is a header called `name`."""
    return f"array_contains(names, {text(name)})"


def header_text(name: str, pattern: str) -> str:
    """The first header called `name` as a string; null if it does not match the pattern.

    Other bytes must not leave Spark as a string: readers expect UTF-8.
    """
    value = f"CAST({header(text(name))} AS STRING)"
    return f"CASE WHEN {matches(value, pattern)} THEN {value} END"


def pair(name: str, value: str) -> str:
    """One header; `value` is any expression."""
    return f"named_struct('key', {text(name)}, 'value', CAST({value} AS BINARY))"


def decimal_text(column: str) -> str:
    """A number as its decimal digits."""
    return f"CAST({column} AS STRING)"


def excerpt(value: str) -> str:
    """At most 100 characters of a binary or string, quoted and valid UTF-8, for a human reader."""
    # 400 bytes hold 100 characters of UTF-8; a character cut at the end becomes U+FFFD.
    start = f"CAST(substring(CAST({value} AS BINARY), 1, 400) AS STRING)"
    return f"coalesce(concat('\"', left(make_valid_utf8({start}), 100), '\"'), 'nothing')"


def amount_ms(amount: str, unit_ms: int) -> str:
    """`amount` (digits, or null) times a unit, as a decimal rounded up; DUE_MS_MAX if it is huge.

    18 places after the point, and as many before it as keep the product within 38 digits.
    """
    places = 37 - len(str(unit_ms))
    product = f"try_cast({amount} AS DECIMAL({places}, 18)) * {unit_ms}BD"
    return f"ceil(coalesce({product}, {DUE_MS_MAX}BD))"


def span_ms(milliseconds: str) -> str:
    """A decimal as a bigint that a timestamp can be added to."""
    return f"CAST(least({milliseconds}, {DUE_MS_MAX}BD) AS BIGINT)"


def duration_ms(column: str) -> str:
    """Milliseconds of a duration, rounded up; null if it is unreadable."""
    amounts = " + ".join(
        amount_ms(
            f"concat('0', regexp_extract(lower({column}), {text(f'({when.NUMBER}){unit}')}, 1))", ms
        )
        for unit, ms in when.UNITS.items()
    )
    return f"""CASE
        WHEN {matches(column, when.NUMBER)} THEN {span_ms(amount_ms(column, 1_000))}
        WHEN {matches(column, when.DURATION)} THEN {span_ms(amounts)} END"""


def durations_ms(columns: Sequence[str]) -> str:
    """An array of the same for several. It is interpreted: each compiled copy of `duration_ms` is a
    tenth of all that is compiled, for texts that few records have."""
    return f"transform(array({', '.join(columns)}), text -> {duration_ms('text')})"


def instant_ms(column: str) -> str:
    """Milliseconds since 1970 of an RFC 3339 instant, rounded up; null if it is unreadable."""
    micros = f"unix_micros(try_cast(upper({column}) AS TIMESTAMP))"
    finer = f"CAST({column} RLIKE {text(when.BEYOND_MICROSECONDS)} AS INT)"
    return f"CASE WHEN {matches(column, when.INSTANT)} THEN ({micros} + {finer} + 999) DIV 1000 END"


def share_of(span_ms: str, seed: str) -> str:
    """A part of a span, from 0 to below it: see `when.share_of`."""
    number = f"CAST(conv(left(md5({seed}), 15), 16, 10) AS BIGINT)"
    return f"pmod({number}, {span_ms} + CAST({span_ms} = 0 AS BIGINT))"


def whole(column: str, most: int) -> str:
    """A whole number of zero or more as a bigint of at most `most`; null if it is unreadable."""
    # least() skips nulls: a number too large for a bigint becomes `most`.
    number = f"least(try_cast({column} AS BIGINT), {most}L)"
    return f"CASE WHEN {matches(column, when.WHOLE)} THEN {number} END"
