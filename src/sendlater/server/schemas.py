"""JSON Schemas of the REST interface, with examples, for the OpenAPI document."""

from sendlater.limits import BULK_IDS_MAX, ID_BYTES_MAX
from sendlater.model import State
from sendlater.server.schema_parts import (
    BASE64,
    COUNT,
    HEADER,
    MS,
    RECORD,
    SCHEDULE,
    SELECTION,
    SPAN,
    SPAN_OR_NULL,
    TEXT,
    TOPIC_NAME,
    WHEN,
    Json,
    object_of,
    one_of,
    or_null,
    ref,
)
from sendlater.store import Answer

_IDBASE64 = {**BASE64, "description": "Only if the id is not UTF-8."}
SCHEMAS: dict[str, Json] = {
    "Problem": {
        "type": "object",
        "description": "RFC 9457.",
        "examples": [
            {
                "type": "about:blank",
                "title": "The request is not valid",
                "status": 422,
                "detail": "expected exactly one of due_at, due_ms and delay",
            }
        ],
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": TEXT,
            "title": TEXT,
            "status": {"type": "integer"},
            "detail": {**TEXT, "description": "What was expected, and what was received."},
        },
    },
    "NewSchedule": object_of(
        ["topic"],
        example={"topic": "orders", "value": {"order": 7}, "key": "7", "delay": "15m"},
        topic={**TOPIC_NAME, "description": "The target topic."},
        value={"description": "Text, or any JSON value except null, delivered exactly as written."},
        value_base64={**BASE64, "type": ["string", "null"]},
        key=or_null("string"),
        key_base64={**BASE64, "type": ["string", "null"]},
        headers={"type": "array", "items": HEADER, "default": []},
        id=or_null(
            "string",
            minLength=1,
            maxLength=ID_BYTES_MAX,
            description="A new schedule with the same id replaces it. Default: a new id.",
        ),
        partition=or_null("integer", minimum=0, maximum=2**31 - 1),
        **WHEN,
    )
    | one_of(*WHEN),
    "NewTime": object_of(example={"delay": "2h"}, **WHEN) | one_of(*WHEN),
    "Schedule": object_of(
        ["id", "topic", "due_ms", "due_at", "state", "partition", "value_bytes"],
        example=SCHEDULE,
        id=TEXT,
        id_base64=_IDBASE64,
        topic=TEXT,
        due_ms=MS,
        due_at=or_null("string", format="date-time", description="Null after the year 9999."),
        state={"enum": [state.value for state in State]},
        partition=or_null("integer"),
        value_bytes=COUNT,
        version={**TEXT, "description": "New after every change; the ETag."},
        caller=TEXT,
        origin=object_of(
            ["topic", "partition", "position", "timestamp_ms", "place"],
            topic=TEXT,
            partition=COUNT,
            position=COUNT,
            timestamp_ms=COUNT,
            place={**TEXT, "description": "partition/position, as positions can exceed 2^53."},
        ),
        key=or_null("string"),
        key_base64=BASE64,
        value=or_null("string"),
        value_base64=BASE64,
        headers={"type": "array", "items": HEADER},
    ),
    "Page": object_of(
        ["items", "next_cursor"],
        example={"items": [SCHEDULE], "next_cursor": "MTc5NjExMjAwMDAwMDpvcmRlci03"},
        items={"type": "array", "items": ref("Schedule")},
        next_cursor=or_null(
            "string", description="For the next page; null at the end. A page may be short."
        ),
    ),
    "Accepted": object_of(
        ["accepted", "ids", "refused"],
        example={
            "accepted": 1,
            "ids": ["a", None],
            "refused": [{"line": 2, "status": 422, "detail": "..."}],
        },
        accepted=COUNT,
        ids={"type": "array", "items": or_null("string"), "description": "One per line."},
        refused={
            "type": "array",
            "items": object_of(["line", "status", "detail"], line=COUNT, status=COUNT, detail=TEXT),
        },
    ),
    "Answer": object_of(
        ["answer"],
        example={"answer": "moved", "due_ms": 1796112000000, "due_at": "2026-12-01T08:00:00.000Z"},
        answer={"enum": [answer.value for answer in Answer]},
        due_ms=MS,
        due_at=or_null("string"),
    ),
    "BulkCancel": object_of(example={"topic": "orders", "dry_run": True}, **SELECTION),
    "BulkMove": object_of(
        example={"due_from": "2026-12-01T08:00:00Z", "due_to": "+1h", "shift": "2h"},
        shift={**SPAN_OR_NULL, "description": "Moves each by this span; negative: earlier."},
        spread={
            **SPAN_OR_NULL,
            "description": "Spreads all evenly over this span, from the first one's due time on.",
        },
        **WHEN,
        **SELECTION,
    )
    | one_of("shift", "spread", *WHEN),
    "Bulk": object_of(
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
    ),
    "Stats": {
        "type": "object",
        "description": "Current counts, recent rates, and why something is late.",
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
            "at_ms": MS,
            "pending": COUNT,
            "claimed": COUNT,
            "overdue": COUNT,
            "oldest_overdue_ms": COUNT,
            "due": {"type": "object", "additionalProperties": COUNT},
            "late_ms": {"type": "object"},
            "delivered_per_s": {"type": "number"},
            "drain_per_s": {"type": "number"},
            "dead": COUNT,
            "why": {"type": "array", "items": TEXT},
        },
    },
    "Histogram": object_of(
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
        now_ms=MS,
        edges_ms={"type": "array", "items": MS},
        counts={"type": "array", "items": COUNT, "description": "Due in [edge, next edge)."},
        topics={
            "type": "object",
            "additionalProperties": {"type": "array", "items": COUNT},
            "description": "The counts by target topic; estimated if `sampled`.",
        },
        sampled={"type": "boolean"},
        overdue=COUNT,
        drain_per_s={"type": "number"},
        drain_measured={"type": "boolean", "description": "If false, drain_per_s is assumed."},
        late_ms={"type": "array", "items": COUNT, "description": "Predicted, at drain_per_s."},
    ),
    "Audit": object_of(
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
                    "state": "done",
                }
            ]
        },
        items={
            "type": "array",
            "items": object_of(
                [
                    *("id", "at_ms", "who", "action", "what", "count"),
                    *("can_undo", "undo_until_ms", "state"),
                ],
                id=TEXT,
                at_ms=MS,
                who=TEXT,
                action=TEXT,
                what={"type": "object"},
                count=COUNT,
                can_undo={"type": "boolean"},
                undo_until_ms=MS,
                state={
                    "enum": ["begun", "done", "failed"],
                    "description": "begun: still going on, or its process died.",
                },
            ),
        },
    ),
    "Deliveries": object_of(
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
            "items": object_of(
                ["id", "topic", "due_ms", "at_ms", "at", "late_ms"],
                id=TEXT,
                id_base64=_IDBASE64,
                topic=TEXT,
                due_ms=MS,
                at_ms=MS,
                at=or_null("string"),
                late_ms={"type": "integer"},
            ),
        },
    ),
    "Record": object_of(
        ["place", "topic", "at_ms", "at", "value_bytes"],
        example=RECORD,
        place={**TEXT, "description": "partition/position: identifies it for redriving."},
        topic=TEXT,
        at_ms={"type": "integer"},
        at=or_null("string"),
        value_bytes=COUNT,
        reason={**TEXT, "description": "For rejected records."},
        detail=TEXT,
        origin={**TEXT, "description": "topic/partition/position of a rejected record."},
        target={**TEXT, "description": "The intended target topic."},
        id=TEXT,
        due_ms=TEXT,
        event_type={**TEXT, "description": "For dead events, as the two below."},
        event_id=TEXT,
        event_error=TEXT,
        key=or_null("string"),
        key_base64=BASE64,
        value=or_null("string"),
        value_base64=BASE64,
        headers={"type": "array", "items": HEADER},
    ),
    "Records": object_of(
        ["items"],
        example={"items": [RECORD]},
        items={"type": "array", "items": ref("Record")},
    ),
    "Following": object_of(
        ["items", "cursor"],
        example={"items": [RECORD], "cursor": "0/18,1/5"},
        items={"type": "array", "items": ref("Record")},
        cursor={**TEXT, "description": "For the next call."},
    ),
    "Redriven": object_of(
        ["redriven", "skipped"],
        example={"redriven": 1, "skipped": [{"place": "0/1", "detail": "no such record"}]},
        redriven=COUNT,
        skipped={"type": "array", "items": object_of(["place", "detail"], place=TEXT, detail=TEXT)},
    ),
    "Redrive": object_of(
        ["topic", "places"],
        example={"topic": "rejected", "places": ["0/17"], "target": "orders"},
        topic=TOPIC_NAME,
        places={
            "type": "array",
            "items": {"type": "string", "pattern": "^[0-9]{1,9}/[0-9]{1,19}$"},
            "minItems": 1,
            "maxItems": BULK_IDS_MAX,
        },
        target={
            **TOPIC_NAME,
            "type": ["string", "null"],
            "description": "Default: the intended target.",
        },
        delay={**SPAN, "description": "Default: at once."},
    ),
}
