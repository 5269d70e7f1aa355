"""Plans of recurring schedules in the JSON of requests."""

from typing import Any

from sendlater.dialects.recurrence import Plan
from sendlater.operations.arguments import planned


def plan_in(given: Any, *, schedule_id: bytes, now_ms: int) -> Plan | None:
    """The plan of a body that has one; its fields are the words. Raises BadRequest, BadTime."""
    words = {name: getattr(given, name) for name in given.__struct_fields__}
    count = words["count"]
    if isinstance(count, float) and count.is_integer():  # to JSON 3.0 is a whole number
        words["count"] = int(count)
    return planned(words, schedule_id=schedule_id, now_ms=now_ms)
