"""Conditions under which a schedule is created, about what stands under its id. No I/O.

`absent`: only if nothing with this id is pending or being delivered. `earlier`, `later`: only if
nothing is, or if the new due time is before or after the standing one. `version=V`: only if a
schedule with that version is pending. `once`: as `absent`, and only if the store remembers none
with this id that was created under `once`, be it delivered or cancelled since (for an hour after
its due time, see limits.ONCE_KEPT_MS); it is not answered.

What is being delivered cannot be replaced any more: it counts for `absent` and `earlier`, which do
not hold then, and not for `later`, where the new schedule is the next one.
"""

import re
from collections.abc import Mapping
from typing import Any

from sendlater.dialects import names
from sendlater.errors import BadRequest, ConditionFailed
from sendlater.model import Schedule, Standing
from sendlater.operations.arguments import id_text, to_datetime

ONLY_IF = "only_if"
"""The argument's name in Python and in JSON."""


def checked_condition(only_if: str) -> str:
    """The same. Raises BadRequest for what is no condition."""
    if not isinstance(only_if, str) or not re.fullmatch(names.CONDITION, only_if):
        given = repr(only_if)[:100]
        raise BadRequest(f"{ONLY_IF}: expected {names.CONDITION_EXPECTED}, got {given}")
    return only_if


def unconditional(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same. Raises BadRequest if it has a condition: many are sent without an answer each."""
    if ONLY_IF in message:
        raise BadRequest(f"{ONLY_IF}: expected one schedule with send_later, got one of many")
    return message


def condition_failed(only_if: str, standing: Schedule | None) -> ConditionFailed:
    """The error that tells what stands instead."""
    if standing is None:
        return ConditionFailed(f"not created: expected {only_if}, but nothing has this id")
    name, due_at = id_text(standing.id), to_datetime(standing.due_ms)
    told = f"{name} is {standing.state}, due {due_at.isoformat(timespec='milliseconds')}"
    return ConditionFailed(
        f"not created: expected {only_if}, but {told}, version {standing.version}",
        standing=Standing(name, standing.version, standing.due_ms, standing.state),
    )
