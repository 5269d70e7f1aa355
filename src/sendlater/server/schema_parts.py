"""Parts of the JSON Schemas of the REST interface."""

from typing import Any

from sendlater.dialects.names import CONDITION, TOPIC
from sendlater.dialects.recurrence import MISSED
from sendlater.dialects.tags import TAG as TAG_PATTERN
from sendlater.limits import BULK_IDS_MAX, TAGS_COUNT_MAX
from sendlater.model import DUE_MS_MAX, State

Json = dict[str, Any]
BASE64 = {"type": "string", "contentEncoding": "base64"}


def object_of(
    required: list[str] | None = None, /, *, example: Any = None, **properties: Any
) -> Json:
    """An object with these properties and no others, and an example."""
    made: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        made["required"] = required
    if example is not None:
        made["examples"] = [example]
    return made


def or_null(kind: str, **more: Any) -> Json:
    """A value of a kind, or null."""
    return {"type": [kind, "null"], **more}


def ref(name: str) -> Json:
    """A reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


MS = {"type": "integer", "minimum": 0, "maximum": DUE_MS_MAX}
COUNT = {"type": "integer", "minimum": 0}
TEXT = {"type": "string"}
SPAN: Json = {
    "type": ["number", "string"],
    "description": "Seconds, or text: 90, 1.5, 15m, 2h30m, PT15M.",
}
SPAN_OR_NULL: Json = {**SPAN, "type": ["number", "string", "null"]}
WHEN: Json = {
    "due_at": or_null(
        "string", description="RFC 3339 with a zone, +15m from now, or seconds since 1970."
    ),
    "due_ms": {**MS, "type": ["integer", "null"], "description": "Milliseconds since 1970."},
    "delay": SPAN_OR_NULL,
}
EXPIRY: Json = {
    "expires": or_null(
        "string", description="Not delivered after this instant; in the forms of due_at."
    ),
    "expires_after": {**SPAN_OR_NULL, "description": "The same, counted from the due time."},
}
EXPIRY_SHOWN: Json = {
    "expires_ms": {**MS, "description": "Only if there is an expiry."},
    "expires_after_ms": or_null("integer", description="If it counts from the due time."),
}
HELD_SHOWN: Json = {
    "held_since_ms": {**MS, "description": "Only while it waits for a limit: since when."}
}
TAG: Json = {"type": "string", "pattern": f"^{TAG_PATTERN}$"}
TAGS: Json = {
    "tags": {
        "type": ["array", "null"],
        "items": TAG,
        "maxItems": TAGS_COUNT_MAX,
        "description": "It can be listed, cancelled and moved by each of them.",
    }
}
ONLY_IF: Json = {
    "only_if": or_null(
        "string",
        pattern=f"^({CONDITION})$",
        description="Create it only if nothing has its id (absent), or it is due before (earlier) "
        "or after (later) what has, or that is version=V; otherwise 412.",
    )
}
STANDING = object_of(
    ["id", "version", "due_ms", "state"],
    id=TEXT,
    version=TEXT,
    due_ms=MS,
    state={"enum": [State.PENDING.value, State.CLAIMED.value]},
) | {"description": "With 412: what has the id of the schedule that was not created."}
RECURRENCE: Json = {
    "every": {**SPAN_OR_NULL, "description": "It comes again after each of these intervals."},
    "cron": or_null("string", description="It comes again then; five fields: 0 9 * * MON-FRI."),
    "zone": or_null("string", description="Of cron, such as Europe/Paris. Default: UTC."),
    "start": or_null("string", description="It begins then; in the forms of due_at."),
    "end": or_null("string", description="Nothing is planned after it."),
    "count": or_null("integer", minimum=1, description="How often it comes."),
    "jitter": {**SPAN_OR_NULL, "description": "Moves each occurrence by a part of it."},
    "missed": {"enum": [*MISSED, None], "description": "What becomes of missed occurrences."},
}
PLAN_SHOWN: Json = {
    "type": "object",
    "description": "Only if it recurs.",
    "required": ["planned_ms"],
    "properties": {
        "every_ms": MS,
        "cron": TEXT,
        "zone": TEXT,
        "end_ms": MS,
        "left": {**COUNT, "description": "How often it still comes."},
        "jitter_ms": MS,
        "missed": {"enum": list(MISSED)},
        "planned_ms": {**MS, "description": "When the next occurrence is planned."},
        "overdue": COUNT,
        "paused": {"type": "boolean", "description": "Whether it waits to be resumed."},
        "changes": {**COUNT, "description": "Pauses and resumes since the last occurrence."},
    },
}
NEXT_TIMES: Json = object_of(
    ["times", "times_ms", "notes"],
    example={
        "times": ["2026-12-01T09:00:00.000+01:00"],
        "times_ms": [1796112000000],
        "notes": [None],
    },
    times={"type": "array", "items": TEXT, "description": "As the zone's clocks show them."},
    times_ms={"type": "array", "items": MS},
    notes={
        "type": "array",
        "items": or_null("string"),
        "description": "Where daylight saving touches a time, in words; else null.",
    },
)
NOT_GIVEN: Json = {"type": "null"}


def one_of(*fields: str) -> Json:
    """Exactly one of these fields is given; null counts as not given."""
    return {
        "oneOf": [
            {
                "required": [one],
                "properties": {
                    **dict.fromkeys(fields, NOT_GIVEN),
                    one: {"not": NOT_GIVEN},
                },
            }
            for one in fields
        ]
    }


TOPIC_NAME = {"type": "string", "pattern": f"^{TOPIC}$"}
HEADER = {
    "oneOf": [
        {
            "type": "array",
            "items": or_null("string"),
            "minItems": 2,
            "maxItems": 2,
        },
        object_of(
            ["name"],
            name={"type": "string", "minLength": 1},
            value=or_null("string"),
            value_base64={**BASE64, "type": ["string", "null"]},
        ),
    ],
    "description": "[name, text or null], or an object if the value is bytes.",
}
SELECTION: Json = {
    "ids": {
        "type": ["array", "null"],
        "items": {"type": "string", "minLength": 1},
        "maxItems": BULK_IDS_MAX,
    },
    "versions": {
        "type": ["array", "null"],
        "items": {"type": "string"},
        "maxItems": BULK_IDS_MAX,
        "description": "Beside ids, in their order: the version each must have, empty: any. What "
        "has another answers changed, and stays.",
    },
    "due_from": or_null("string"),
    "due_to": or_null("string", description="Not included."),
    "id_prefix": or_null("string"),
    "topic": or_null("string"),
    "tag": {**TAG, "type": ["string", "null"], "description": "One of its tags."},
    "caller": or_null("string", description="Value of header CALLER_SERVICE."),
    "all": {
        "type": "boolean",
        "default": False,
        "description": "Everything that is pending; without it an empty filter is refused.",
    },
    "dry_run": {"type": "boolean", "default": False, "description": "Count only."},
}
SCHEDULE: Json = {
    "id": "order-7",
    "topic": "orders",
    "due_ms": 1796112000000,
    "due_at": "2026-12-01T08:00:00.000Z",
    "state": "pending",
    "partition": None,
    "value_bytes": 12,
    "version": "0a1b2c3d4e5f6071",
    "key": "7",
    "value": '{"order": 7}',
    "headers": [["tenant", "a"]],
}
RECORD: Json = {
    "place": "0/17",
    "topic": "rejected",
    "at_ms": 1796112000003,
    "at": "2026-12-01T08:00:00.003Z",
    "value_bytes": 12,
    "reason": "no-time",
    "detail": "expected sendlater-delay or another time, got none",
    "origin": "schedules/1/4711",
    "key": "7",
    "value": '{"order": 7}',
    "headers": [["sendlater-rejected", "no-time"]],
}
BULK: Json = object_of(
    ["matched", "changed", "answers", "dry_run", "audit_id"],
    example={
        "matched": 12000,
        "changed": 12000,
        "answers": {"cancelled": 12000},
        "dry_run": False,
        "audit_id": "01KAJ6",
    },
    matched=COUNT,
    changed=COUNT,
    answers={"type": "object", "additionalProperties": COUNT},
    dry_run={"type": "boolean"},
    audit_id=or_null("string", description="For undo."),
    later={**COUNT, "description": "Due beyond the horizon of a journal: no filter sees these."},
)

TREND = object_of(
    ["at_ms", "late_p99_ms", "delivered_per_s", "pending", "overdue"],
    example={
        "at_ms": [1796112000000],
        "late_p99_ms": [34.0],
        "delivered_per_s": [2000.0],
        "pending": [120345],
        "overdue": [0],
    },
    at_ms={"type": "array", "items": MS},
    late_p99_ms={"type": "array", "items": {"type": ["number", "null"]}},
    delivered_per_s={"type": "array", "items": {"type": "number"}},
    pending={"type": "array", "items": COUNT},
    overdue={"type": "array", "items": COUNT},
)
"""A point every 15 seconds of the last hour."""

LIMITS: Json = {
    "type": "object",
    "description": "Of each topic with a limit, how many wait for it, by caller.",
    "additionalProperties": object_of(
        ["per_second", "waiting"],
        per_second={"type": "number"},
        waiting={"type": "object", "additionalProperties": COUNT},
    ),
}

HISTOGRAM_PARTS: Json = {
    "recurring": {
        "type": "array",
        "items": COUNT,
        "description": "Those among the counts that recur; estimated where `estimated`.",
    },
    "held": {
        "type": "array",
        "items": COUNT,
        "description": "Beside the counts: what waits for limits, when they will let it go.",
    },
    "estimated": {
        "type": "array",
        "items": {"type": "boolean"},
        "description": "Of each count, whether its split by topic comes from a sample.",
    },
    "sampled": {"type": "boolean", "description": "Whether any of them does."},
}
"""Of a histogram."""

RUNNING: Json = object_of(
    ["services", "handlers"],
    example={
        "services": {
            "active": {"name": "host-a-4711", "since_ms": 1796112000000},
            "standby": ["host-b-4712"],
            "handovers": [{"name": "host-a-4711", "at_ms": 1796112000000}],
        },
        "handlers": [
            {
                "group": "billing",
                "type": "orders.reminder",
                "workers": 2,
                "ready": 0,
                "in_flight": 3,
                "succeeded": 12000,
                "retried": 7,
                "dead": 1,
                "skipped": 0,
                "seconds": 240.5,
                "errors": [],
            }
        ],
    },
    services=object_of(
        ["active", "standby", "handovers"],
        active=object_of(["name", "since_ms"], name=TEXT, since_ms=MS)
        | {"type": ["object", "null"]},
        standby={"type": "array", "items": TEXT},
        handovers={
            "type": "array",
            "items": object_of(["name", "at_ms"], name=TEXT, at_ms=MS),
            "description": "Who became active when, latest first; the last ten.",
        },
    ),
    handlers={
        "type": "array",
        "description": "Of each group and event type, the sums over its workers: now, and since "
        "each has started.",
        "items": object_of(
            ["group", "type", "workers", "ready", "in_flight", "retried", "dead", "errors"],
            group=TEXT,
            type=TEXT,
            **dict.fromkeys(("workers", "ready", "in_flight"), COUNT),
            **dict.fromkeys(("succeeded", "retried", "dead", "skipped"), COUNT),
            seconds={"type": "number", "description": "Spent in the handler."},
            errors={"type": "array", "items": TEXT},
        ),
    },
)
"""Who is at work."""
