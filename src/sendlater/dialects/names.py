"""The names on the wire: every header sendlater reads or writes, once."""

from sendlater.model import Headers

EPOCH = "scheduler-epoch"
"""In: due time, whole seconds since 1970 (S1)."""
TARGET_TOPIC = "scheduler-target-topic"
"""In: where the record goes (S1)."""
TARGET_KEY = "scheduler-target-key"
"""In: its key; absent or null means a null key, empty means an empty one (S1)."""
DUE_MS = "sendlater-due-ms"
"""In: due time, milliseconds since 1970."""
AT = "sendlater-at"
"""In: due time, RFC 3339 with a zone."""
DELAY = "sendlater-delay"
"""In: due time counted from the record's timestamp: seconds, ISO 8601 or 2h30m."""
TARGET_PARTITION = "sendlater-target-partition"
"""In: the target's partition; absent lets the producer choose."""
CHANGE = "sendlater-change"
"""In: names the change that this record is a copy of; a store that has made it passes it over."""
COPIED = "sendlater-copied"
"""In, on a journal: `topic/partition/offset` of the record this is a copy of; not passed on."""
AGAIN = "sendlater-again"
"""In, on a journal: `topic/partition/offset` of the schedule that this record is a copy of, written
behind the tombstone of an older one. It is no new version."""
CALLER_SERVICE = "CALLER_SERVICE"
"""In and out: who sent the envelope (S0)."""

SCHEDULER_TIMESTAMP = "scheduler-timestamp"
"""Out: the schedule record's timestamp, whole seconds since 1970 (S1)."""
SCHEDULER_KEY = "scheduler-key"
"""Out: the schedule's id (S1)."""
SCHEDULER_TOPIC = "scheduler-topic"
"""Out: the inbox the schedule was read from (S1)."""
ID = "sendlater-id"
"""Out: the schedule's id, the same on every copy a crash may cause."""
DUE = "sendlater-due"
"""Out: the due time, milliseconds since 1970."""

REJECTED = "sendlater-rejected"
"""Out, on rejected records: a `Reason`."""
REJECTED_DETAIL = "sendlater-rejected-detail"
"""Out, on rejected records: what was expected and what came."""
ORIGIN = "sendlater-origin"
"""Out: `topic/partition/offset` of the record a schedule was read from, its version.
In, on a null value of a journal: the version that was delivered; a newer one is not cancelled."""
REJECTED_TARGET = "sendlater-rejected-target"
"""Out, on records whose target takes nothing: that target."""
REJECTED_ID = "sendlater-rejected-id"
"""Out, on the same, and last: the schedule's id."""
ORIGIN_TIMESTAMP_MS = "sendlater-origin-timestamp-ms"
"""Out, on rejected records: the record's timestamp."""

EVENT_ID = "event-id"
"""Of events: the id the event was enqueued with, or the one it got."""
EVENT_ERROR = "event-error"
"""Of dead events: why the last attempt failed."""
EVENT_TYPE = "event-type"
"""Of dead events: the topic it came from."""

TIMES = (DUE_MS, AT, DELAY, EPOCH)
"""The headers that tell when. The first of these that is present decides."""
STALE = (ID, DUE, ORIGIN, CHANGE, AGAIN)
"""Left by an earlier delivery or of no use later; never passed on, as ours are appended."""
CONTROL = (*TIMES, TARGET_TOPIC, TARGET_KEY, TARGET_PARTITION, COPIED, *STALE)
"""Addressed to sendlater, not to the receiver."""
PREFIXES = ("scheduler-", "sendlater-")
"""Names that belong to schedulers: removed when a delivered record is scheduled again."""


TOPIC = r"[a-zA-Z0-9._-]{1,249}"
"""Kafka's rule for topic names, besides that `.` and `..` are none."""
CHANGE_NAME = r"[0-9A-Za-z-]{1,64}"
"""What a change may be called; ours are called by ULIDs."""
VERSION = TOPIC + r"/[0-9]{1,10}/[0-9]{1,19}"
"""A version: `topic/partition/offset`."""


def foreign(headers: Headers) -> Headers:
    """Headers that belong to no scheduler: ours are written anew, and an old one would lie."""
    return [(name, value) for name, value in headers if not name.startswith(PREFIXES)]
