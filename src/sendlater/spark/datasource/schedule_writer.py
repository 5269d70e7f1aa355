"""Rows become schedules: `df.write` and `df.writeStream` with `format("sendlater")`.

Each task sends its rows to an installation, as any other client does. The service need not run on
this Spark.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from sendlater.clock import SystemClock
from sendlater.dialects import duration_ms, instant_ms, share_of
from sendlater.dialects.recurrence import PLAN_HEADERS
from sendlater.dialects.tags import checked_tags
from sendlater.errors import BadRequest, BadTime, ConditionFailed
from sendlater.model import Expiry, Record, Schedule
from sendlater.operations.acceptance import check_due
from sendlater.operations.arguments import EPOCH, checked_expiry, planned, span_ms, to_ms
from sendlater.operations.conditions import ONLY_IF, checked_condition
from sendlater.operations.local_transport import LocalTransport, open_local
from sendlater.spark.datasource.options import installation

if TYPE_CHECKING:
    import pyarrow as pa

OPTIONS = ("topic", "delay", "due", "inbox")
COLUMNS = (
    *("id", "topic", "partition", "key", "value", "headers", "due", "due_ms", "delay"),
    *("spread", "expires", "expires_after", "tags", ONLY_IF, *PLAN_HEADERS),
)
TIMES = ("due_ms", "due", "delay")
"""The first of these columns that is not null in a row decides; then the options due, delay."""
INSTANTS = ("due", "expires", "start", "end")
SPANS = ("delay", "spread", "expires_after", "every", "jitter")
NUMBERS = (ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, DecimalType)
BATCH_ID_PROPERTY = "streaming.sql.batchId"
QUERY_ID_PROPERTY = "sql.streaming.queryId"
"""Spark's names (MicroBatchExecution.BATCH_ID_KEY, StreamExecution.QUERY_ID_KEY)."""


class _Scheduling:
    """What both writers do. Created on the driver, which checks options and columns."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.settings = installation(options, known=OPTIONS)
        self.topic = options.get("topic")
        self.delay_ms = _checked(options.get("delay"), duration_ms)
        now_ms = SystemClock().now_ms()
        self.due_ms = _checked(options.get("due"), lambda text: instant_ms(text, now_ms=now_ms))
        self.run = uuid.uuid4().hex
        _check(
            schema,
            has_topic=bool(self.topic),
            has_time=self.delay_ms is not None or self.due_ms is not None,
        )

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Runs in a task. Raises Unavailable or BadRequest, and Spark tries the task again."""
        redis_url = self.settings.redis.get_secret_value()
        reached = open_local(self.settings, redis_url=redis_url)
        try:
            reached.send_many(self._unconditional(reached, iterator))
        finally:
            reached.close()
        return WriterCommitMessage()

    def _unconditional(
        self, reached: LocalTransport, iterator: "Iterator[pa.RecordBatch]"
    ) -> Iterator[Schedule]:
        """The rows without a condition; the others are created one by one, or dropped."""
        for schedule, only_if in self._schedules(iterator):
            if only_if is None:
                yield schedule
            else:
                with suppress(ConditionFailed):
                    reached.create(schedule, only_if=only_if)

    def _schedules(
        self, iterator: "Iterator[pa.RecordBatch]"
    ) -> Iterator[tuple[Schedule, str | None]]:
        """Each row's schedule and its condition."""
        context = TaskContext.get()
        assert context is not None, "write runs in a task"
        query = context.getLocalProperty(QUERY_ID_PROPERTY) or self.run
        batch = context.getLocalProperty(BATCH_ID_PROPERTY) or "0"
        # The same for a task or a batch that runs again, so that it replaces its schedules.
        stem, number = f"{query}-{batch}-{context.partitionId()}", 0
        now_ms = SystemClock().now_ms()
        for rows in iterator:
            for row in _as_rows(rows):
                only_if = row.get(ONLY_IF)
                if only_if is not None:
                    checked_condition(only_if)
                yield self._schedule(row, default_id=f"{stem}-{number}", now_ms=now_ms), only_if
                number += 1

    def _schedule(self, row: dict[str, Any], *, default_id: str, now_ms: int) -> Schedule:
        topic = self.topic or row.get("topic")
        if not topic:
            raise BadRequest("expected a topic in each row or in option topic, got null")
        value = _as_bytes(row["value"])
        if value is None:
            raise BadRequest("expected a value in each row, got null")
        name = row.get("id")
        schedule_id = _as_bytes(default_id if name is None else name) or b""
        plan = planned(_words(row), schedule_id=schedule_id, now_ms=now_ms)
        due_ms = plan.due_ms(schedule_id) if plan else self._due_ms(row, now_ms)
        if (spread := row.get("spread")) is not None:
            due_ms += share_of(_span_ms("spread", spread), schedule_id)
        self._check_reach(row, due_ms, now_ms)
        return Schedule(
            id=schedule_id,
            due_ms=due_ms,
            expiry=_expiry(row, due_ms, now_ms),
            plan=plan.text if plan else "",
            tags=checked_tags(row.get("tags")),
            record=Record(
                topic=topic,
                value=value,
                key=_as_bytes(row.get("key")),
                headers=_headers(row.get("headers")),
                partition=row.get("partition"),
            ),
        )

    def _check_reach(self, row: dict[str, Any], due_ms: int, now_ms: int) -> None:
        """Raises BadTime if intake would reject the due time as too far away."""
        try:
            check_due(due_ms, settings=self.settings, now_ms=now_ms)
        except BadTime as error:
            named = (
                name for name in ("start", *TIMES, "every", "cron") if row.get(name) is not None
            )
            name = next(named, None)
            told = "option due or delay" if name is None else f"{name}: {row[name]!r}"
            raise BadTime(f"{error}, from {told}") from None

    def _due_ms(self, row: dict[str, Any], now_ms: int) -> int:
        for name in TIMES:
            given = row.get(name)
            if given is None:
                continue
            if name == "due_ms":
                return max(now_ms, int(given))
            if name == "due":
                return max(now_ms, _instant_ms("due", given, now_ms))
            return now_ms + _span_ms("delay", given)
        if self.due_ms is not None:
            return max(now_ms, self.due_ms)
        if self.delay_ms is not None:
            return now_ms + self.delay_ms
        raise BadRequest("expected due, due_ms or delay in each row or in an option, got null")


def _expiry(row: dict[str, Any], due_ms: int, now_ms: int) -> Expiry | None:
    """From column expires or expires_after; the first that is not null counts."""
    if (at := row.get("expires")) is not None:
        return checked_expiry(Expiry(_instant_ms("expires", at, now_ms)), due_ms=due_ms)
    if (span := row.get("expires_after")) is not None:
        return Expiry(_span_ms("expires_after", span), after_due=True)
    return None


def _words(row: dict[str, Any]) -> dict[str, Any]:
    """What a row says about recurring, and the columns that cannot stand beside that."""
    words: dict[str, Any] = {
        name: row.get(name) for name in (*PLAN_HEADERS, *TIMES, "spread", "expires")
    }
    for name in ("every", "jitter"):
        if words[name] is not None:
            words[name] = timedelta(milliseconds=_span_ms(name, words[name]))
    for name in ("start", "end"):
        if isinstance(words[name], int):
            words[name] = EPOCH + timedelta(microseconds=words[name])
    return words


def _instant_ms(column: str, given: Any, now_ms: int) -> int:
    """Milliseconds since 1970, rounded up, of text or of microseconds since 1970."""
    if isinstance(given, str):
        return to_ms(given, what=column, now_ms=now_ms)
    return max(0, -int(-given // 1_000))


def _span_ms(column: str, given: Any) -> int:
    """Milliseconds of an interval, of text, or of a number of seconds."""
    return span_ms(str(given) if isinstance(given, Decimal) else given, what=column)


class ScheduleWriter(_Scheduling, DataSourceArrowWriter):
    """`df.write`."""


class ScheduleStreamWriter(_Scheduling, DataSourceStreamArrowWriter):
    """`df.writeStream`: tasks write directly, so commit and abort have nothing to do."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Every task has waited for the acknowledgements."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was written stays; the repeated batch replaces it."""


def _check(schema: StructType, *, has_topic: bool, has_time: bool) -> None:
    names = set(schema.names)
    if unknown := names - set(COLUMNS):
        raise BadRequest(f"columns: expected {list(COLUMNS)}, got also {sorted(unknown)}")
    if "value" not in names or not ("topic" in names or has_topic):
        raise BadRequest(f"expected columns value and topic, got {sorted(names)}")
    if not (names & {*TIMES, "every", "cron"} or has_time):
        raise BadRequest(
            f"expected a column or option due or delay, or a column every or cron, "
            f"got columns {sorted(names)}"
        )
    for name, kinds in {
        **dict.fromkeys(INSTANTS, (TimestampType, StringType)),
        **dict.fromkeys(("topic", "cron", "zone", "missed", ONLY_IF), (StringType,)),
        "due_ms": (LongType,),
        "count": (IntegerType, LongType),
        "partition": (IntegerType,),
        "tags": (ArrayType,),
    }.items():
        found = schema[name].dataType if name in names else None
        if found is not None and not isinstance(found, kinds):
            told = [kind.typeName() for kind in kinds]
            raise BadRequest(f"column {name}: expected {told}, got {found.simpleString()}")
    for name in names & set(SPANS):
        _check_span(name, schema[name].dataType)


def _check_span(name: str, kind: DataType) -> None:
    if not isinstance(kind, (*NUMBERS, StringType, DayTimeIntervalType)):
        raise BadRequest(
            f"column {name}: expected a number of seconds, text such as 15m, or a day-time "
            f"interval, got {kind.simpleString()}"
        )


def _checked(text: str | None, read: Callable[[str], int]) -> int | None:
    return None if text is None else read(text)


def _as_rows(batch: "pa.RecordBatch") -> Iterator[dict[str, Any]]:
    """Rows as Python values; timestamps as microseconds, which do not depend on a time zone."""
    import pyarrow as pa

    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            columns.append(
                column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
            )
        else:
            columns.append(column.to_pylist())
        assert name in COLUMNS, name
    for row in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, row, strict=True))


def _headers(given: Any) -> list[tuple[str, bytes | None]]:
    """From an array of structs, or from a map, which Arrow gives as pairs."""
    return [
        (one["key"], _as_bytes(one["value"]))
        if isinstance(one, dict)
        else (one[0], _as_bytes(one[1]))
        for one in given or ()
    ]


def _as_bytes(cell: Any) -> bytes | None:
    return cell.encode() if isinstance(cell, str) else cell
