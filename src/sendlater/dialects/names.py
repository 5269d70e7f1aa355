"""The names of all headers that sendlater reads or writes."""

from sendlater.model import Headers

EPOCH = "scheduler-epoch"
"""In: due time, whole seconds since 1970 (etf1)."""
TARGET_TOPIC = "scheduler-target-topic"
"""In: the target topic (etf1)."""
TARGET_KEY = "scheduler-target-key"
"""In: the key on the target topic; absent or null: a null key; empty: an empty key (etf1)."""
DUE_MS = "sendlater-due-ms"
"""In: due time, milliseconds since 1970."""
AT = "sendlater-at"
"""In: due time, RFC 3339 with a zone."""
DELAY = "sendlater-delay"
"""In: due time counted from the record's timestamp: seconds, ISO 8601 or 2h30m."""
EXPIRES = "sendlater-expires"
"""In: the last instant at which it may be delivered: RFC 3339, or milliseconds since 1970."""
EXPIRES_AFTER = "sendlater-expires-after"
"""In: the same, counted from the due time: a duration as in `sendlater-delay`."""
CE_EXPIRYTIME = "ce_expirytime"
"""In, with setting `ce_expirytime`: the same, RFC 3339 (CloudEvents' extension `expirytime`)."""
SPREAD = "sendlater-spread"
"""In: moves the due time by a part of this duration, which the id decides."""
EVERY = "sendlater-every"
"""In: it comes again after each of these intervals; a duration as in `sendlater-delay`."""
CRON = "sendlater-cron"
"""In: it comes again at the times of this cron expression of five fields."""
ZONE = "sendlater-zone"
"""In, beside it: the time zone, such as Europe/Paris; without it UTC."""
START = "sendlater-start"
"""In, beside both: it begins at this instant, RFC 3339."""
END = "sendlater-end"
"""In, beside both: nothing is planned after this instant, RFC 3339."""
COUNT = "sendlater-count"
"""In, beside both: how often it comes."""
JITTER = "sendlater-jitter"
"""In, beside both: moves each occurrence by a part of this duration, which its id decides."""
MISSED = "sendlater-missed"
"""In, beside both: what becomes of missed occurrences: one, none, all."""
PLAN = "sendlater-plan"
"""In, written by sendlater: a whole plan, see dialects/recurrence.py; `sendlater-due-ms` beside it
is when the next occurrence is due."""
EXTRA = b"extra"
"""Value of that header on an occurrence beside a plan; `sendlater-schedule` names the schedule."""
SCHEDULE = "sendlater-schedule"
"""Out, on occurrences of a recurring schedule: its id."""
RETRY = "sendlater-retry"
"""In: the record could not be handled and comes again; a policy, see dialects/retry.py."""
ERROR = "sendlater-error"
"""In, beside it: why the record could not be handled; it is on the dead letter."""
TARGET_PARTITION = "sendlater-target-partition"
"""In: the target's partition; if absent, the producer chooses."""
TAGS = "sendlater-tags"
"""In: words that it is selected by besides its id, with commas between them."""
IF = "sendlater-if"
"""In: the condition under which it becomes a schedule; otherwise the record is dropped."""
CHANGE = "sendlater-change"
"""In: id of the change that this record is a copy of; the store that made the change ignores it."""
COPIED = "sendlater-copied"
"""In, on a journal: `topic/partition/offset` of the record this is a copy of; not passed on."""
OWN = "sendlater-own"
"""In, on a journal, written by sendlater: the headers behind it are the record's own, whatever they
are called."""
AGAIN = "sendlater-again"
"""In, on a journal: `topic/partition/offset` of the schedule that this record is a copy of, written
after the tombstone of an older one. It is not a new version."""
UNREADABLE = "sendlater-unreadable-headers"
UNREADABLE_BECAUSE = "a header's name is not UTF-8"
"""Name and value in place of headers that cannot be read; such a record is rejected."""
CALLER_SERVICE = "CALLER_SERVICE"
"""In and out: the sender of a JSON envelope."""

SCHEDULER_TIMESTAMP = "scheduler-timestamp"
"""Out: the schedule record's timestamp, whole seconds since 1970 (etf1)."""
SCHEDULER_KEY = "scheduler-key"
"""Out: the schedule's id (etf1)."""
SCHEDULER_TOPIC = "scheduler-topic"
"""Out: the inbox the schedule was read from (etf1)."""
ID = "sendlater-id"
"""Out: the schedule's id, the same on all duplicates after a crash."""
DUE = "sendlater-due"
"""Out: the due time, milliseconds since 1970."""

DELIVERED_TO = "sendlater-topic"
"""Out: the topic it was delivered to; a retry is delivered there again."""
EXPIRY = "sendlater-expiry"
"""Out, if it has an expiry: that instant, milliseconds since 1970."""

REJECTED = "sendlater-rejected"
"""Out, on rejected records: a `Reason`."""
REJECTED_DETAIL = "sendlater-rejected-detail"
"""Out, on rejected records: what was expected and what was received."""
ORIGIN = "sendlater-origin"
"""Out: `topic/partition/offset` of the record a schedule was read from, its version.
In, on a null value of a journal: the version that was delivered; a newer one is not cancelled."""
REJECTED_TARGET = "sendlater-rejected-target"
"""Out, on records whose target does not accept them: that target."""
REJECTED_ID = "sendlater-rejected-id"
"""Out, on the same records, as the last header: the schedule's id."""
ORIGIN_TIMESTAMP_MS = "sendlater-origin-timestamp-ms"
"""Out, on rejected records: the record's timestamp."""

RETRY_ATTEMPT = "retry-attempt"
"""Of records that come again: number of retries so far, decimal (etf1)."""
RETRY_ORIGINAL_TIMESTAMP = "retry-original-timestamp"
"""Of the same: time of the first failure, whole seconds since 1970 (etf1)."""
RETRY_OF = "retry-of"
"""Of the same, on all attempts: what failed first, `ID@DUE` of its delivery, else its place."""
RETRY_ORIGIN = "retry-origin"
"""Of the same: `topic/partition/offset` of the record that failed first, if its consumer says."""

EVENT_ID = "event-id"
"""Of events: the id given to `enqueue`, or generated by it."""
EVENT_ERROR = "event-error"
"""Of dead events: why the last attempt failed."""
EVENT_TYPE = "event-type"
"""Of dead events: the topic it came from."""
EVENT_CUT = "event-cut"
"""Of dead events that could not be kept whole: how many bytes the value had."""

TIMES = (DUE_MS, AT, DELAY, EPOCH)
"""The headers with the due time. The first of these that is present decides."""
EXPIRIES = (EXPIRES, EXPIRES_AFTER)
"""The headers with the expiry. The first of these that is present decides."""
PLANS = (PLAN, EVERY, CRON)
"""The headers of recurring schedules. The first of these that is present decides."""
STALE = (ID, DUE, DELIVERED_TO, EXPIRY, ORIGIN, CHANGE, AGAIN, SCHEDULE)
"""Never passed on: left by an earlier delivery, which appends its own, or of no use later."""
CONTROL = (
    *TIMES,
    *EXPIRIES,
    SPREAD,
    *PLANS,
    ZONE,
    START,
    END,
    COUNT,
    JITTER,
    MISSED,
    RETRY,
    ERROR,
    TAGS,
    IF,
    TARGET_TOPIC,
    TARGET_KEY,
    TARGET_PARTITION,
    COPIED,
    OWN,
    *STALE,
)
"""Headers for sendlater, not for the receiver."""
PREFIXES = ("scheduler-", "sendlater-")
"""Names that belong to schedulers: removed when a delivered record is scheduled again."""


TOPIC = r"[a-zA-Z0-9._-]{1,249}"
"""Kafka's rule for topic names; `.` and `..` are not allowed either."""
CHANGE_NAME = r"[0-9A-Za-z-]{1,64}"
"""Allowed ids of changes; ours are ULIDs."""
CONDITION = r"absent|earlier|later|once|version=[0-9A-Za-z-]{1,64}"
"""A condition about what stands under the schedule's id: see operations/conditions.py."""
CONDITION_EXPECTED = "absent, earlier, later, once or version=V"
ONCE = "once"
"""The condition of a retry, so that a consumer that dies before it commits makes no second one."""
WHOLE_MS = "[0-9]{1,16}"
"""Milliseconds since 1970, as sendlater writes them."""
VERSION = TOPIC + r"/[0-9]{1,10}/[0-9]{1,19}"
"""A version: `topic/partition/offset`."""


def foreign(headers: Headers) -> Headers:
    """The headers that do not belong to a scheduler: ours are written again, old ones are wrong."""
    return [(name, value) for name, value in headers if not name.startswith(PREFIXES)]
