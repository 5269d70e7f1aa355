"""Converts the words of a recurring schedule, from any door, to a plan. No I/O."""

from collections.abc import Mapping
from typing import Any

from sendlater.dialects.recurrence import PLAN_HEADERS, Plan, check_id, make_plan
from sendlater.errors import BadRequest
from sendlater.operations.arguments import span_ms, to_ms

ONCE = ("delay", "at", "due_at", "due_ms", "spread", "expires")
"""Words that make no sense beside a plan."""


def planned(words: Mapping[str, Any], *, schedule_id: bytes, now_ms: int) -> Plan:
    """The plan at its first occurrence: `words` are those of PLAN_HEADERS, and others that were
    given with them; None counts as not given. Raises BadRequest, BadTime."""
    given = {word: value for word, value in words.items() if value is not None}
    for word in ONCE:
        if word in given:
            raise BadRequest(f"expected every or cron without {word}: that is for what comes once")
    check_id(schedule_id)
    return plan_of(given, now_ms=now_ms)


def plan_of(given: Mapping[str, Any], *, now_ms: int) -> Plan:
    """The same, of the words alone."""

    def span(word: str) -> int | None:
        return span_ms(given[word], what=word) if word in given else None

    def instant(word: str) -> int | None:
        return to_ms(given[word], what=word, now_ms=now_ms) if word in given else None

    count = given.get("count")
    if not isinstance(count, int | None) or isinstance(count, bool):
        raise BadRequest(f"count: expected a whole number, got {count!r}")
    for word in ("cron", "zone", "missed"):
        if not isinstance(given.get(word, ""), str):
            raise BadRequest(f"{word}: expected text, got {given[word]!r}")
    return make_plan(
        now_ms=now_ms,
        every_ms=span("every"),
        cron=given.get("cron"),
        zone=given.get("zone"),
        start_ms=instant("start"),
        end_ms=instant("end"),
        count=count,
        jitter_ms=span("jitter") or 0,
        missed=given.get("missed"),
    )


def recurs(words: Mapping[str, Any]) -> bool:
    """Whether one of the words of a plan was given."""
    return any(words.get(word) is not None for word in PLAN_HEADERS)
