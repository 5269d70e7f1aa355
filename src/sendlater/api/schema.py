"""The shapes of the REST interface as JSON Schema, with examples: what OpenAPI shows."""

from typing import Any

from sendlater.dialects.names import TOPIC
from sendlater.limits import BULK_IDS_MAX, ID_BYTES_MAX
from sendlater.model import DUE_MS_MAX, State
from sendlater.pending import Answer

Json = dict[str, Any]


def _object(
    required: list[str] | None = None, /, *, example: Any = None, **properties: Any
) -> Json:
    made: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        made["required"] = required
    if example is not None:
        made["examples"] = [example]
    return made


def _or_null(kind: str, **more: Any) -> Json:
    return {"type": [kind, "null"], **more}


def ref(name: str) -> Json:
    """A reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


_MS = {"type": "integer", "minimum": 0, "maximum": DUE_MS_MAX}
_COUNT = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}
_BASE64 = {"type": "string", "contentEncoding": "base64"}
_SPAN: Json = {
    "type": ["number", "string"],
    "description": "Seconds, or text: 90, 1.5, 15m, 2h30m, PT15M.",
}
_SPAN_OR_NULL: Json = {**_SPAN, "type": ["number", "string", "null"]}
_WHEN: Json = {
    "due_at": _or_null(
        "string", description="RFC 3339 with a zone, +15m from now, or seconds since 1970."
    ),
    "due_ms": {**_MS, "type": ["integer", "null"], "description": "Milliseconds since 1970."},
    "delay": _SPAN_OR_NULL,
}
_NOT_GIVEN: Json = {"type": "null"}


def _one_of(*fields: str) -> Json:
    """Exactly one of these fields is given; null is as good as none."""
    return {
        "oneOf": [
            {
                "required": [one],
                "properties": {
                    **dict.fromkeys(fields, _NOT_GIVEN),
                    one: {"not": _NOT_GIVEN},
                },
            }
            for one in fields
        ]
    }


_TOPIC = {"type": "string", "pattern": f"^{TOPIC}$"}
_HEADER = {
    "oneOf": [
        {
            "type": "array",
            "items": _or_null("string"),
            "minItems": 2,
            "maxItems": 2,
        },
        _object(
            ["name"],
            name={"type": "string", "minLength": 1},
            value=_or_null("string"),
            value_base64={**_BASE64, "type": ["string", "null"]},
        ),
    ],
    "description": "[name, text or null], or an object where the value is bytes.",
}
_SELECTION: Json = {
    "ids": {
        "type": ["array", "null"],
        "items": {"type": "string", "minLength": 1},
        "maxItems": BULK_IDS_MAX,
    },
    "due_from": _or_null("string"),
    "due_to": _or_null("string", description="Not included."),
    "id_prefix": _or_null("string"),
    "topic": _or_null("string"),
    "caller": _or_null("string", description="As header CALLER_SERVICE says."),
    "dry_run": {"type": "boolean", "default": False, "description": "Count only."},
}
_SCHEDULE: Json = {
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
_RECORD: Json = {
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
_ID_BASE64 = {**_BASE64, "description": "Where the id is no UTF-8."}

SCHEMAS: dict[str, Json] = {
    "Problem": {
        "type": "object",
        "description": "RFC 9457.",
        "examples": [
            {
                "type": "about:blank",
                "title": "The request cannot be meant",
                "status": 422,
                "detail": "expected exactly one of due_at, due_ms and delay",
            }
        ],
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": _TEXT,
            "title": _TEXT,
            "status": {"type": "integer"},
            "detail": {**_TEXT, "description": "What was expected, what came."},
        },
    },
    "NewSchedule": _object(
        ["topic"],
        example={"topic": "orders", "value": {"order": 7}, "key": "7", "delay": "15m"},
        topic={**_TOPIC, "description": "Where it is delivered."},
        value={"description": "Text, or any JSON value but null, delivered as it is written."},
        value_base64={**_BASE64, "type": ["string", "null"]},
        key=_or_null("string"),
        key_base64={**_BASE64, "type": ["string", "null"]},
        headers={"type": "array", "items": _HEADER, "default": []},
        id=_or_null(
            "string",
            minLength=1,
            maxLength=ID_BYTES_MAX,
            description="The same id again replaces; without, a new one.",
        ),
        partition=_or_null("integer", minimum=0, maximum=2**31 - 1),
        **_WHEN,
    )
    | _one_of(*_WHEN),
    "NewTime": _object(example={"delay": "2h"}, **_WHEN) | _one_of(*_WHEN),
    "Schedule": _object(
        ["id", "topic", "due_ms", "due_at", "state", "partition", "value_bytes"],
        example=_SCHEDULE,
        id=_TEXT,
        id_base64=_ID_BASE64,
        topic=_TEXT,
        due_ms=_MS,
        due_at=_or_null("string", format="date-time", description="Null beyond the year 9999."),
        state={"enum": [state.value for state in State]},
        partition=_or_null("integer"),
        value_bytes=_COUNT,
        version={**_TEXT, "description": "Changes with every change; the ETag."},
        caller=_TEXT,
        origin=_object(
            ["topic", "partition", "position", "timestamp_ms", "place"],
            topic=_TEXT,
            partition=_COUNT,
            position=_COUNT,
            timestamp_ms=_COUNT,
            place={**_TEXT, "description": "partition/position, for clients without big numbers."},
        ),
        key=_or_null("string"),
        key_base64=_BASE64,
        value=_or_null("string"),
        value_base64=_BASE64,
        headers={"type": "array", "items": _HEADER},
    ),
    "Page": _object(
        ["items", "next_cursor"],
        example={"items": [_SCHEDULE], "next_cursor": "MTc5NjExMjAwMDAwMDpvcmRlci03"},
        items={"type": "array", "items": ref("Schedule")},
        next_cursor=_or_null(
            "string", description="Ask again with it; null at the end. A page may be short."
        ),
    ),
    "Accepted": _object(
        ["accepted", "ids", "refused"],
        example={
            "accepted": 1,
            "ids": ["a", None],
            "refused": [{"line": 2, "status": 422, "detail": "..."}],
        },
        accepted=_COUNT,
        ids={"type": "array", "items": _or_null("string"), "description": "One for each line."},
        refused={
            "type": "array",
            "items": _object(
                ["line", "status", "detail"], line=_COUNT, status=_COUNT, detail=_TEXT
            ),
        },
    ),
    "Answer": _object(
        ["answer"],
        example={"answer": "moved", "due_ms": 1796112000000, "due_at": "2026-12-01T08:00:00.000Z"},
        answer={"enum": [answer.value for answer in Answer]},
        due_ms=_MS,
        due_at=_or_null("string"),
    ),
    "BulkCancel": _object(example={"topic": "orders", "dry_run": True}, **_SELECTION),
    "BulkMove": _object(
        example={"due_from": "2026-12-01T08:00:00Z", "due_to": "+1h", "shift": "2h"},
        shift={**_SPAN_OR_NULL, "description": "Each by so much; negative moves towards now."},
        spread={**_SPAN_OR_NULL, "description": "Evenly, from the first one's due time on."},
        **_WHEN,
        **_SELECTION,
    )
    | _one_of("shift", "spread", *_WHEN),
    "Bulk": _object(
        ["matched", "changed", "answers", "dry_run", "audit_id"],
        example={
            "matched": 12000,
            "changed": 12000,
            "answers": {"cancelled": 12000},
            "dry_run": False,
            "audit_id": "01KAJ6",
        },
        matched=_COUNT,
        changed=_COUNT,
        answers={"type": "object", "additionalProperties": _COUNT},
        dry_run={"type": "boolean"},
        audit_id=_or_null("string", description="For undoing."),
    ),
    "Stats": {
        "type": "object",
        "description": "Counts, rates of the last minutes, and why something is late.",
        "required": ["at_ms", "pending", "overdue", "late_ms", "due", "why"],
        "examples": [
            {
                "at_ms": 1796112000000,
                "pending": 120345,
                "claimed": 12,
                "overdue": 0,
                "oldest_overdue_ms": 0,
                "due": {"1m": 12000, "1h": 90000, "1d": 120000},
                "late_ms": {"p50": 7, "p99": 34},
                "delivered_per_s": 2000.0,
                "drain_per_s": 80000,
                "why": [],
            }
        ],
        "properties": {
            "at_ms": _MS,
            "pending": _COUNT,
            "claimed": _COUNT,
            "overdue": _COUNT,
            "oldest_overdue_ms": _COUNT,
            "due": {"type": "object", "additionalProperties": _COUNT},
            "late_ms": {"type": "object"},
            "delivered_per_s": {"type": "number"},
            "drain_per_s": {"type": "number"},
            "dead": _COUNT,
            "why": {"type": "array", "items": _TEXT},
        },
    },
    "Histogram": _object(
        ["edges_ms", "counts", "topics", "sampled", "overdue", "drain_per_s", "late_ms", "now_ms"],
        example={
            "now_ms": 1796112000000,
            "edges_ms": [1796112000000, 1796115600000, 1796119200000],
            "counts": [12000, 3],
            "topics": {"orders": [11000, 3], "reminders": [1000, 0]},
            "sampled": True,
            "overdue": 0,
            "drain_per_s": 80000,
            "late_ms": [0, 0],
        },
        now_ms=_MS,
        edges_ms={"type": "array", "items": _MS},
        counts={"type": "array", "items": _COUNT, "description": "Due in [edge, next edge)."},
        topics={
            "type": "object",
            "additionalProperties": {"type": "array", "items": _COUNT},
            "description": "The counts by target topic; estimated where `sampled`.",
        },
        sampled={"type": "boolean"},
        overdue=_COUNT,
        drain_per_s={"type": "number"},
        drain_measured={"type": "boolean", "description": "Else it is a guess."},
        late_ms={"type": "array", "items": _COUNT, "description": "Predicted, at drain_per_s."},
    ),
    "Audit": _object(
        ["items"],
        example={
            "items": [
                {
                    "id": "01KAJ6",
                    "at_ms": 1796112000000,
                    "who": "ann",
                    "action": "cancel",
                    "what": {"topic": "orders"},
                    "count": 12000,
                    "can_undo": True,
                    "undo_until_ms": 1796198400000,
                }
            ]
        },
        items={
            "type": "array",
            "items": _object(
                ["id", "at_ms", "who", "action", "what", "count", "can_undo", "undo_until_ms"],
                id=_TEXT,
                at_ms=_MS,
                who=_TEXT,
                action=_TEXT,
                what={"type": "object"},
                count=_COUNT,
                can_undo={"type": "boolean"},
                undo_until_ms=_MS,
            ),
        },
    ),
    "Deliveries": _object(
        ["items"],
        example={
            "items": [
                {
                    "id": "order-7",
                    "topic": "orders",
                    "due_ms": 1796112000000,
                    "at_ms": 1796112000004,
                    "at": "2026-12-01T08:00:00.004Z",
                    "late_ms": 4,
                }
            ]
        },
        items={
            "type": "array",
            "items": _object(
                ["id", "topic", "due_ms", "at_ms", "at", "late_ms"],
                id=_TEXT,
                id_base64=_ID_BASE64,
                topic=_TEXT,
                due_ms=_MS,
                at_ms=_MS,
                at=_or_null("string"),
                late_ms={"type": "integer"},
            ),
        },
    ),
    "Record": _object(
        ["place", "topic", "at_ms", "at", "value_bytes"],
        example=_RECORD,
        place={**_TEXT, "description": "partition/position: names it for redriving."},
        topic=_TEXT,
        at_ms={"type": "integer"},
        at=_or_null("string"),
        value_bytes=_COUNT,
        reason={**_TEXT, "description": "Of a rejected record."},
        detail=_TEXT,
        origin={**_TEXT, "description": "Where a rejected record stands."},
        target={**_TEXT, "description": "Where it was meant to go."},
        id=_TEXT,
        due_ms=_TEXT,
        event_type={**_TEXT, "description": "Of a dead event, as the two below."},
        event_id=_TEXT,
        event_error=_TEXT,
        key=_or_null("string"),
        key_base64=_BASE64,
        value=_or_null("string"),
        value_base64=_BASE64,
        headers={"type": "array", "items": _HEADER},
    ),
    "Records": _object(
        ["items"],
        example={"items": [_RECORD]},
        items={"type": "array", "items": ref("Record")},
    ),
    "Following": _object(
        ["items", "cursor"],
        example={"items": [_RECORD], "cursor": "0/18,1/5"},
        items={"type": "array", "items": ref("Record")},
        cursor={**_TEXT, "description": "Where the next call goes on."},
    ),
    "Redriven": _object(
        ["redriven", "skipped"],
        example={"redriven": 1, "skipped": [{"place": "0/1", "detail": "no such record"}]},
        redriven=_COUNT,
        skipped={"type": "array", "items": _object(["place", "detail"], place=_TEXT, detail=_TEXT)},
    ),
    "Redrive": _object(
        ["topic", "places"],
        example={"topic": "rejected", "places": ["0/17"], "target": "orders"},
        topic=_TOPIC,
        places={
            "type": "array",
            "items": {"type": "string", "pattern": "^[0-9]{1,9}/[0-9]{1,19}$"},
            "minItems": 1,
            "maxItems": BULK_IDS_MAX,
        },
        target={**_TOPIC, "type": ["string", "null"], "description": "Default: as it was meant."},
        delay={**_SPAN, "description": "Default: at once."},
    ),
}
