"""`format("sendlater-topics")`: topics on Redis, used like Spark's Kafka source and sink.

Options and columns are in docs/topics-on-redis.md. An offset is the next position to read.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from sendlater.errors import BadRequest
from sendlater.model import Record

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from sendlater.topics import TopicRecord, Topics

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, headers array<struct<key: string, value: binary>>"
)
"""As Spark's Kafka source with `includeHeaders`."""
LOG_APPEND_TIME = 1
"""`timestampType`: Redis gave the time, not the producer."""
IDLE_BLOCK_MS = 200
"""How long the source waits for something new; otherwise Spark would ask every 10 ms."""
EARLIEST, LATEST = -2, -1
FIRST_READ_COUNT, READ_COUNT_MAX, READ_BYTES_MAX = 100, 2_000, 8 * 1024 * 1024
"""Records of a task's first read; limits of later ones: records (Redis is busy 1 ms), payload."""
LIMITS = {
    "partitions": "partitions_default",
    "retention.ms": "retention_ms",
    "length.max": "length_max",
    "write.attempts.max": "write_attempts_max",
}
"""Options of the sink and the arguments of `Topics` they set."""
SINK_COLUMNS = {"topic", "key", "value", "headers", "partition", "filler"}
"""`filler` (boolean): rows with true are dropped. They make the JVM pass on the rows before them:
it passes on `spark.sql.execution.arrow.maxRecordsPerBatch` rows when it has seen one more."""

Offsets = dict[str, dict[str, int]]


class TopicsSource(DataSource):
    """Found by Spark through `pyspark_sendlater_topics`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "sendlater-topics"

    def schema(self) -> str:
        """What the source yields."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reads `subscribe`."""
        return TopicsReader(dict(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: ARG002
        """Writes rows of `value` and, if needed, `topic`, `key`, `headers`, `partition`."""
        return TopicsStreamWriter(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        """The same for a batch."""
        return TopicsWriter(dict(self.options), schema)


@dataclass(frozen=True)
class Span(InputPartition):
    """The part of one stream that one task reads: from `start` to before `end`."""

    topic: str
    partition: int
    start: int
    end: int


class TopicsReader(DataSourceStreamReader):
    """Lives on the driver, except `read`, which runs on an executor."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._subscribed = [
            t.strip() for t in _needed(options, "subscribe").split(",") if t.strip()
        ]
        self._rows_max = int(options.get("maxoffsetspertrigger", 0))
        self._topics: Topics | None = None

    def initialOffset(self) -> Offsets:
        """Where a query without a checkpoint begins."""
        asked = self._options.get("startingoffsets", "earliest")
        if asked == "earliest":
            return {topic: {} for topic in self._subscribed}
        ends = self._ends()
        if asked == "latest":
            return ends
        starts: Offsets = json.loads(asked)
        for topic, positions in starts.items():
            for p, position in positions.items():
                latest = ends.get(topic, {}).get(p, 0)
                positions[p] = {EARLIEST: 0, LATEST: latest}.get(position, position)
        return {topic: starts.get(topic, {}) for topic in self._subscribed}

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxOffsetsPerTrigger`."""
        return ReadMaxRows(self._rows_max) if self._rows_max else ReadAllAvailable()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """The end of the next batch; `start` if nothing came within IDLE_BLOCK_MS."""
        end = self._after(start, limit)
        if end == start and self._wait(start):
            end = self._after(start, limit)
        return end

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """One per stream that has something new."""
        return [
            Span(topic, int(p), start.get(topic, {}).get(p, 0), last)
            for topic, ends in end.items()
            for p, last in ends.items()
            if last > start.get(topic, {}).get(p, 0)
        ]

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        """Record batches of one span, without what retention has removed meanwhile."""
        from pyspark.sql.pandas.types import to_arrow_schema

        assert isinstance(partition, Span)
        arrow_schema = to_arrow_schema(self._schema, timezone="UTC")
        start, count = partition.start, FIRST_READ_COUNT
        with _topics(self._options) as topics:
            while start < partition.end:
                records = _read(topics, partition, start=start, count_max=count)
                if records:
                    yield _to_arrow(records, arrow_schema)
                if len(records) < count:
                    return
                start = records[-1].position + 1
                count = _next_count(records)

    def stop(self) -> None:
        """Close the connection."""
        if self._topics:
            self._topics.close()

    def _connected(self) -> "Topics":
        self._topics = self._topics or _topics(self._options)
        return self._topics

    def _ends(self) -> Offsets:
        """The next position of every partition that exists now."""
        topics = self._connected()
        return {
            topic: {str(p): last + 1 for p, last in topics.end_positions(topic).items() if last}
            for topic in self._subscribed
        }

    def _after(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """The end of what is there, never before `start`, within `limit`."""
        ends = {topic: dict(start.get(topic, {})) for topic in self._subscribed}
        for topic, found in self._ends().items():
            ends[topic] |= {p: max(end, ends[topic].get(p, 0)) for p, end in found.items()}
        spans = [span for span in self.partitions(start, ends) if isinstance(span, Span)]
        if isinstance(limit, ReadMaxRows) and spans:
            share = max(1, limit.max_rows // len(spans))
            for span in spans:
                ends[span.topic][str(span.partition)] = self._cut(span, share)
        return ends

    def _cut(self, span: Span, rows_max: int) -> int:
        """The end of `span` or, if it has more rows, of its first `rows_max`."""
        start = span.start
        while rows_max and start < span.end:
            count = min(rows_max, READ_COUNT_MAX)
            records = _read(self._connected(), span, start=start, count_max=count)
            if len(records) < count:
                return span.end
            start = records[-1].position + 1
            rows_max -= count
        return start

    def _wait(self, start: Offsets) -> bool:
        topics = self._connected()
        after = {
            (topic, p): max(0, start.get(topic, {}).get(str(p), 0) - 1)
            for topic in self._subscribed
            for p in range(topics.partitions(topic))
        }
        if after:
            return topics.wait(after, block_ms=IDLE_BLOCK_MS)
        topics.connection.pause(IDLE_BLOCK_MS / 1000)
        return False


class _Writer:
    """Appends each Arrow batch as it comes: rows do not wait for the end of the stream's batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        columns = set(schema.names)
        if unknown := columns - SINK_COLUMNS:
            raise BadRequest(f"columns: expected {sorted(SINK_COLUMNS)}, got {sorted(unknown)} too")
        if "value" not in columns or not ("topic" in columns or options.get("topic")):
            raise BadRequest(f"expected columns value and topic, got {sorted(columns)}")
        self._options = options

    def write(self, iterator: "Iterator[RecordBatch]") -> WriterCommitMessage:
        """Runs on an executor. Raises BrokerUnavailable, and Spark tries the task again."""
        with _topics(self._options) as topics:
            for batch in iterator:
                topics.produce_many(_from_arrow(batch, self._options.get("topic")))
        return WriterCommitMessage()


class TopicsStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Tasks write directly, so commit and abort have nothing to do."""


class TopicsWriter(_Writer, DataSourceArrowWriter):
    """The same for `df.write`."""


def _topics(options: Mapping[str, str]) -> "Topics":
    from sendlater.topics import Topics

    limits: dict[str, int] = {LIMITS[o]: int(options[o]) for o in LIMITS if o in options}
    return Topics(_needed(options, "redis.url"), space=_needed(options, "space"), **limits)


def _read(topics: "Topics", span: Span, **limits: int) -> "list[TopicRecord]":
    return topics.read_range(span.topic, span.partition, end=span.end, **limits)


def _needed(options: Mapping[str, str], name: str) -> str:
    if not options.get(name):
        raise BadRequest(f"sendlater-topics: expected option {name}, got {sorted(options)}")
    return options[name]


def _next_count(records: "Sequence[TopicRecord]") -> int:
    """How many records to read next, so that their payloads stay below READ_BYTES_MAX."""
    payload_bytes = sum(len(record.value or b"") for record in records) + 1
    return max(1, min(READ_BYTES_MAX * len(records) // payload_bytes, READ_COUNT_MAX))


def _to_arrow(records: "Sequence[TopicRecord]", arrow_schema: Any) -> "RecordBatch":
    import pyarrow

    columns: list[list[Any]] = [
        [r.key for r in records],
        [r.value for r in records],
        [r.topic for r in records],
        [r.partition for r in records],
        [r.position for r in records],
        [r.timestamp_ms * 1000 for r in records],
        [LOG_APPEND_TIME] * len(records),
        [[{"key": k, "value": v} for k, v in r.headers] or None for r in records],
    ]
    typed = zip(columns, arrow_schema.types, strict=True)
    arrays = [pyarrow.array(column, type=kind) for column, kind in typed]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=arrow_schema)


def _from_arrow(batch: "RecordBatch", topic: str | None) -> Iterator[Record]:
    nulls: list[Any] = [None] * batch.num_rows
    columns = [
        batch.column(name).to_pylist() if name in batch.schema.names else nulls
        for name in ("topic", "key", "value", "headers", "partition", "filler")
    ]
    for row_topic, key, value, headers, partition, filler in zip(*columns, strict=True):
        if filler:
            continue
        target = topic or row_topic
        if not target:
            raise BadRequest("sendlater-topics: expected a topic in each row, got null")
        yield Record(
            topic=target,
            key=_as_bytes(key),
            value=_as_bytes(value),
            headers=[(h["key"], h["value"]) for h in headers or ()],
            partition=partition,
        )


def _as_bytes(cell: Any) -> bytes | None:
    """Strings are accepted too, as by Spark's Kafka sink."""
    return cell.encode() if isinstance(cell, str) else cell
