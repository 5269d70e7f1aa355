"""From a decoded schedule to the record that waits in a bucket (see record.py), as Spark SQL text.

A cancellation becomes a rejected record: nothing in a bucket can be cancelled. So does what a
bucket does not take whole. What is rejected is cut then, as it is elsewhere where the rejected
topic takes less (see spark/delivery/refusal.py): one record that Kafka refuses would stop intake.
"""

from sendlater.config import Settings
from sendlater.dialects import names, sql
from sendlater.limits import REJECTED_VALUE_BYTES_MAX
from sendlater.model import Reason

HEADER_BYTES_MAX = 10
"""Two lengths in front of a header's name and value."""
TOLD_COUNT = 4
"""Headers that decoding adds to a rejected record, after those that it came with."""
ORIGIN = ("origin_topic", "origin_partition", "origin_position", "origin_timestamp_ms")
CUT = REJECTED_VALUE_BYTES_MAX


def bucket_stages(settings: Settings, *, now_ms: str, room_bytes: int) -> list[list[str]]:
    """Lists for selectExpr, to apply after those of decoding. Out: key, value, due_ms, headers.

    `now_ms` is SQL. `room_bytes`: the largest record that is kept whole, without what is added.
    """
    control = f"concat_ws(' ', due_ms, dialect, {', '.join(ORIGIN)}, topic, partition)"
    return [
        _measured(room_bytes),
        _decided(settings, now_ms=now_ms, room_bytes=room_bytes),
        [
            "id AS key",
            "value",
            "due_ms",
            f"concat(array({sql.pair('schedule', control)}, {sql.pair('key', 'target_key')}), "
            "coalesce(kept, array())) AS headers",
        ],
    ]


def _measured(room_bytes: int) -> list[str]:
    """What becomes of a record: `asks` and `rejected` are kept as they are, `cancels` and `large`
    are rejected here, and `cut` was rejected already, but is larger than a bucket takes."""
    headers_bytes = (
        "coalesce(octet_length(concat_ws('', headers.key, CAST(headers.value AS ARRAY<STRING>))), "
        f"0L) + coalesce(size(headers), 0) * {HEADER_BYTES_MAX}"
    )
    size = f"{_size('id')} + {_size('key')} + {_size('value')} + {headers_bytes}"
    fits = f"{size} <= {room_bytes}"
    return [
        "*",
        f"{headers_bytes} AS headers_bytes",
        f"{size} AS bytes_count",
        f"""CASE WHEN due_ms IS NULL THEN 'cancels' WHEN {fits} THEN 'asks'
        WHEN dialect = 'rejected' THEN 'cut' ELSE 'large' END AS fate""",
    ]


def _decided(settings: Settings, *, now_ms: str, room_bytes: int) -> list[str]:
    # Due now, even if the sender's clock is ahead.
    at_once = f"least(coalesce(due_ms, greatest(origin_timestamp_ms, 0L)), {now_ms})"
    place = "CAST(concat_ws('-', origin_topic, origin_partition, origin_position) AS BINARY)"
    rejected_topic = sql.text(settings.rejected_topic)
    start = f"substring(value, 1, {CUT})"
    key_of_large = "if(dialect = 'envelope', key, id)"
    clear = _told(
        Reason.CANNOT_CANCEL,
        sql.text("expected a schedule, as buckets cannot cancel one, got a null value"),
    )
    large = _told(
        Reason.TOO_LARGE,
        f"concat('expected at most {room_bytes} bytes with all headers, got ', bytes_count, "
        f"{_left_out(key_of_large, 'size(headers)')})",
    )
    # By position: what decoding has told stands last.
    first, detail, *rest = (f"get(headers, size(headers) - {n})" for n in range(TOLD_COUNT, 0, -1))
    more = _left_out("key", f"size(headers) - {TOLD_COUNT}")
    longer = sql.pair(names.REJECTED_DETAIL, f"concat(CAST({detail}.value AS STRING), {more})")
    by_fate = {
        "value": ("value", "value", start, start),
        "partition": ("partition", "partition", "NULL", "NULL"),
        "id": (place, "id", f"if({_size('id')} <= {CUT}, id, {place})", place),
        "due_ms": (at_once, f"if(dialect = 'rejected', {at_once}, due_ms)", at_once, at_once),
        "topic": (rejected_topic, "topic", "topic", rejected_topic),
        "target_key": ("id", "key", _short("key", place), _short(key_of_large, place)),
        "kept": (clear, "headers", f"array({', '.join((first, longer, *rest))})", large),
        "dialect": ("'rejected'", "dialect", "dialect", "'rejected'"),
    }
    return [
        *ORIGIN,
        *(
            f"CASE fate WHEN 'cancels' THEN {cancels} WHEN 'asks' THEN {asks} "
            f"WHEN 'cut' THEN {cut} ELSE {large} END AS {name}"
            for name, (cancels, asks, cut, large) in by_fate.items()
        ),
    ]


def _told(reason: Reason, detail: str) -> str:
    """The headers of a record that is rejected here."""
    told = (
        sql.pair(names.REJECTED, sql.text(reason)),
        sql.pair(names.REJECTED_DETAIL, detail),
        sql.pair(names.ORIGIN, "concat_ws('/', origin_topic, origin_partition, origin_position)"),
        sql.pair(names.ORIGIN_TIMESTAMP_MS, sql.decimal_text("origin_timestamp_ms")),
    )
    return f"array({', '.join(told)})"


def _left_out(key: str, headers_count: str) -> str:
    """More of a detail: what is cut."""
    return (
        f"concat('; left out: all but {CUT} bytes of ', {_size('value')}, ' bytes of value, and ', "
        f"coalesce({headers_count}, 0), ' headers; headers have ', headers_bytes, ' bytes', "
        f"if({_size(key)} <= {CUT}, '', "
        f"concat('; in place of a key of ', {_size(key)}, ' bytes is the place of the record')))"
    )


def _short(key: str, place: str) -> str:
    return f"if({_size(key)} <= {CUT}, {key}, {place})"


def _size(column: str) -> str:
    return f"coalesce(octet_length({column}), 0L)"
