"""A change of one schedule, and what became of it."""

from dataclasses import dataclass
from enum import StrEnum


class Answer(StrEnum):
    """The result of a requested change."""

    MOVED = "moved"
    CANCELLED = "cancelled"
    DELIVERING = "delivering"
    UNKNOWN = "unknown"
    PAUSED = "paused"
    RESUMED = "resumed"
    TRIGGERED = "triggered"
    UNCHANGED = "unchanged"
    ENDED = "ended"
    CHANGED = "changed"
    BUSY = "busy"
    RESERVED = "reserved"


@dataclass(frozen=True, slots=True)
class Move:
    """A new due time for an id; `version` makes it conditional, `change` names its copy. What is
    moved `at_once` waits for no limit of its topic. `instead` is its packed record from then on, if
    that changes too: without it, what is paused does not move. `again`: its copy is a copy of the
    version that stands, see names.AGAIN, and has no name."""

    id: bytes
    due_ms: int
    version: str = ""
    change: str = ""
    at_once: bool = False
    instead: bytes = b""
    again: bool = False
