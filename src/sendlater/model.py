"""The nouns: a Record is what a broker carries, a Schedule a Record with an id and a due time."""

from dataclasses import dataclass, field
from enum import StrEnum

DUE_MS_MAX = 2**52 - 1
"""Largest due time: scores in Redis are float64, exact up to here (year 287396)."""
PAUSED_MS = 253_370_764_800_000
"""Due time of a recurring schedule that is paused, the year 9999: no clock comes to it, and every
client can show it."""

Headers = list[tuple[str, bytes | None]]
"""Record headers in order; names may repeat, a value may be null (KIP-82)."""


class State(StrEnum):
    """Where a schedule is. The same words in keys, API and metrics."""

    PENDING = "pending"
    CLAIMED = "claimed"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


class Cancelled(StrEnum):
    """What became of a cancellation."""

    CANCELLED = "cancelled"
    DELIVERING = "delivering"
    UNKNOWN = "unknown"


class Moved(StrEnum):
    """What became of a change of the due time."""

    MOVED = "moved"
    PAUSED = "paused"
    DELIVERING = "delivering"
    UNKNOWN = "unknown"


class Paused(StrEnum):
    """What became of a pause, or of a resume. `unchanged`: it was so already; `ended`: its plan has
    no time any more, so that it is cancelled."""

    PAUSED = "paused"
    RESUMED = "resumed"
    UNCHANGED = "unchanged"
    ENDED = "ended"
    DELIVERING = "delivering"
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """Why a record was rejected; the value is in header `sendlater-rejected`."""

    NO_TIME = "no-time"
    BAD_TIME = "bad-time"
    BAD_EXPIRY = "bad-expiry"
    CANNOT_EXPIRE = "cannot-expire"
    EXPIRED = "expired"
    BAD_PLAN = "bad-plan"
    CANNOT_RECUR = "cannot-recur"
    BAD_RETRY = "bad-retry"
    BAD_CONDITION = "bad-condition"
    BAD_TAGS = "bad-tags"
    CANNOT_TAG = "cannot-tag"
    NO_ATTEMPTS_LEFT = "no-attempts-left"
    MILLISECONDS = "milliseconds"
    TOO_FAR = "too-far"
    PAST = "past"
    NO_TARGET = "no-target"
    BAD_TARGET = "bad-target"
    NO_KEY = "no-key"
    NO_ID = "no-id"
    ID_TOO_LONG = "id-too-long"
    TOO_LARGE = "too-large"
    BAD_ENVELOPE = "bad-envelope"
    BAD_HEADERS = "bad-headers"
    UNKNOWN_TOPIC = "unknown-topic"
    NOT_AUTHORISED = "not-authorised"
    CANNOT_CANCEL = "cannot-cancel"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a schedule was read from: a record's place and time on its inbox.

    `position` is the offset on Kafka; on Redis topics it is `ms << 20 | sequence` of the entry id.
    """

    topic: str
    partition: int
    position: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a broker carries. `partition` None lets the producer choose."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = field(default_factory=list)
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Expiry:
    """The last instant at which a schedule may be delivered: milliseconds since 1970 or, with
    `after_due`, counted from its due time."""

    ms: int
    after_due: bool = False

    def at_ms(self, due_ms: int) -> int:
        """That instant for a schedule with this due time, milliseconds since 1970."""
        return min(due_ms + self.ms, DUE_MS_MAX) if self.after_due else self.ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A promise: publish `record` at or soon after `due_ms`, but not after its expiry."""

    id: bytes
    due_ms: int
    record: Record
    dialect: str = ""
    origin: Origin | None = None
    expiry: Expiry | None = None
    plan: str = ""
    """Of a recurring schedule: when it comes again, see dialects/recurrence.py."""
    tags: tuple[str, ...] = ()
    """What it is selected by besides its id: see dialects/tags.py."""
    state: State = State.PENDING
    version: str = field(default="", compare=False)
    """Changes with every change: a digest of what the store holds; empty outside of it."""
    held_since_ms: int | None = field(default=None, compare=False)
    """Since when it has waited for the limit of its topic; None if it does not wait now."""

    def __post_init__(self) -> None:
        if not 0 <= self.due_ms <= DUE_MS_MAX:
            raise ValueError(f"due_ms must be within 0..{DUE_MS_MAX}, got {self.due_ms}")
        if not self.id:
            raise ValueError("id must not be empty")

    @property
    def expires_ms(self) -> int | None:
        """The last instant at which it may be delivered, milliseconds since 1970."""
        return None if self.expiry is None else self.expiry.at_ms(self.due_ms)


@dataclass(frozen=True, slots=True)
class Standing:
    """What has an id, when a condition about it does not hold: its version, when it is due
    (milliseconds since 1970), and whether it is pending or claimed."""

    id: str
    version: str
    due_ms: int
    state: State


@dataclass(frozen=True, slots=True)
class Target:
    """A topic that takes records from us, and which ones.

    `copies` is of what was read from this topic: a journal gets a tombstone for each delivery, the
    history topic behind it a copy.
    """

    record_bytes_max: int
    partitions: int
    compacted: bool = False
    copies: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: bytes) -> "Target":
        """Read what `str` wrote."""
        record_bytes_max, partitions, compacted, *copies = text.decode().split()
        return cls(int(record_bytes_max), int(partitions), compacted == "1", tuple(copies))

    def __str__(self) -> str:
        numbers = (self.record_bytes_max, self.partitions, int(self.compacted))
        return " ".join((*map(str, numbers), *self.copies))
