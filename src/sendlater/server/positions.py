"""Where following a topic goes on, as text: the cursor of a request."""

import re

from sendlater.server.problems import Problem

POSITIONS = r"^[0-9]{1,9}/[0-9]{1,19}(,[0-9]{1,9}/[0-9]{1,19})*$"
"""Pairs of partition and next position to read."""


def from_positions(cursor: str) -> dict[int, int]:
    """Positions by partition. Raises Problem 400."""
    if not re.match(POSITIONS, cursor):
        raise Problem(400, f"cursor: expected one from an earlier call, got {cursor[:80]!r}")
    pairs = (place.split("/") for place in cursor.split(","))
    return {int(partition): min(int(position), 2**63 - 1) for partition, position in pairs}


def to_positions(positions: dict[int, int]) -> str:
    """Positions by partition, as text."""
    return ",".join(f"{partition}/{position}" for partition, position in positions.items())
