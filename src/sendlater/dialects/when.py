"""The grammar of times, read here by Python and in `decode` by Spark SQL.

The patterns mean the same to `re.fullmatch` and to Java. They limit the number of digits, so that
hostile input is cheap. Fractions are exact and rounded up to the next millisecond: never early.
"""

import hashlib
import re
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, Context, Decimal

from sendlater.errors import BadTime
from sendlater.limits import EPOCH_SECONDS_MAX
from sendlater.model import DUE_MS_MAX

NUMBER = r"[0-9]{1,40}(?:[.][0-9]{1,40})?"
"""Seconds, whole or fractional, and the amounts in a duration."""
WHOLE = r"[+]?[0-9]{1,40}"
"""Integers as read by Go's ParseInt in base 10, without negative numbers."""
COUNTDOWN = NUMBER + r"(?:[eE][+-]?[0-9]{1,3})?"
"""Seconds as a JSON number."""
_ISO = (
    f"P(?:{NUMBER}W|(?=[0-9T])(?:{NUMBER}D)?"
    f"(?:T(?=[0-9])(?:{NUMBER}H)?(?:{NUMBER}M)?(?:{NUMBER}S)?)?)"
)
_GO = f"(?=[0-9])(?:{NUMBER}d)?(?:{NUMBER}h)?(?:{NUMBER}m)?(?:{NUMBER}s)?(?:{NUMBER}ms)?"
DURATION = rf"(?!.*[.][0-9]+[A-Za-z]+[0-9])(?:{_ISO}|{_GO})"
"""`P1DT2H3.5S`, `P2W`, `2h30m`, `250ms`: largest unit first, a fraction only in the last."""
ITEM = rf"(?:{NUMBER}|(?![^, ]*[.][0-9]+[A-Za-z]+[0-9])(?:{_ISO}|{_GO}))"
"""A duration in a list that is separated by commas."""
INSTANT = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    r"(?:[.][0-9]{1,40})?(?:[Zz]|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])"
)
"""RFC 3339; the zone is required, and less than 18 hours."""
BEYOND_MICROSECONDS = r"[.][0-9]{6}[0-9]*[1-9]"
"""A fraction finer than microseconds; such an instant is rounded up."""

UNITS = {
    r"w": 604_800_000,
    r"d": 86_400_000,
    r"h": 3_600_000,
    r"m(?!s)": 60_000,
    r"s": 1_000,
    r"ms": 1,
}
"""Units of a duration in lower case, in milliseconds."""

DURATION_EXPECTED = "a duration of zero or more: seconds (90, 1.5), ISO 8601 (PT2H3.5S) or 2h30m"
INSTANT_EXPECTED = "an RFC 3339 instant with a zone (2030-01-31T12:00:00.5Z)"
EXPIRY_EXPECTED = (
    "an RFC 3339 instant with a zone or milliseconds since 1970, not before the due time"
)

_EXACT = Context(prec=200, rounding=ROUND_CEILING)


def duration_ms(text: str) -> int:
    """Milliseconds of a duration in any form of header `sendlater-delay`, rounded up.

    Raises BadTime.
    """
    if re.fullmatch(NUMBER, text):
        return _ms(text, 1_000)
    if re.fullmatch(DURATION, text):
        lowered = text.lower()
        found = ((re.search(f"({NUMBER}){unit}", lowered), ms) for unit, ms in UNITS.items())
        return sum(_ms(match[1], ms) for match, ms in found if match)
    raise BadTime(f"expected {DURATION_EXPECTED}, got {text[:100]!r}")


def check_span(from_ms: int, to_ms: int | None, *, given: tuple[object, object]) -> None:
    """Raises BadTime, which tells what was `given`, for due times that end before they begin."""
    if to_ms is not None and to_ms < from_ms:
        raise BadTime(f"expected due_from before due_to, got {given[0]} and {given[1]}")


def rfc3339_ms(text: str) -> int:
    """Milliseconds since 1970 of an RFC 3339 instant, rounded up.

    Raises BadTime if the zone is missing, the day does not exist or it is before 1970.
    """
    if re.fullmatch(INSTANT, text):
        whole, dot, rest = text.upper().partition(".")
        fraction = re.match("[0-9]*", rest)[0] if dot else ""  # type: ignore[index]
        try:
            instant = datetime.fromisoformat(whole + rest[len(fraction) :])
        except ValueError:
            pass  # the day does not exist: raised below
        else:
            since = instant - datetime.fromisoformat("1970-01-01T00:00:00Z")
            instant_ms = since // timedelta(milliseconds=1) + _ms(f"0.{fraction}0", 1_000)
            if instant_ms >= 0:
                return instant_ms
    raise BadTime(f"expected {INSTANT_EXPECTED}, got {text[:100]!r}")


def instant_ms(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of a time in one of the forms for users.

    `2030-01-31T12:00:00Z` is RFC 3339, `+15m` counts from `now_ms`, `1900000000` and `1900000000.5`
    are seconds since 1970. Raises BadTime.
    """
    if text.startswith("+"):
        due_ms = now_ms + duration_ms(text[1:])
    elif re.fullmatch(NUMBER, text):
        due_ms = _ms(text, 1_000)
        if due_ms >= EPOCH_SECONDS_MAX * 1_000:
            raise BadTime(f"expected seconds since 1970, got what looks like milliseconds: {text}")
    elif re.fullmatch(INSTANT, text):
        due_ms = rfc3339_ms(text)
    else:
        raise BadTime(
            f"expected {INSTANT_EXPECTED}, +15m or seconds since 1970, got {text[:100]!r}"
        )
    if due_ms > DUE_MS_MAX:
        raise BadTime(f"expected a time up to {DUE_MS_MAX} ms since 1970, got {text[:100]!r}")
    return due_ms


def share_of(span_ms: int, seed: bytes) -> int:
    """A part of a span, from 0 to below `span_ms` (0 if that is 0): always the same for a seed, and
    even over many seeds."""
    number = int(hashlib.md5(seed, usedforsecurity=False).hexdigest()[:15], 16)
    return number % max(span_ms, 1)


def _ms(amount: str, unit_ms: int) -> int:
    """`amount` units in milliseconds, rounded up."""
    return int(_EXACT.to_integral_exact(_EXACT.multiply(Decimal(amount), Decimal(unit_ms))))
