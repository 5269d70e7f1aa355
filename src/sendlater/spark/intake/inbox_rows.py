"""Records of inboxes as Arrow batches, in the columns of Spark's Kafka source."""

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sendlater.limits import TIMESTAMP_SPAN_MS_MAX
from sendlater.spark.arrow_rows import HEADERS, header_lists
from sendlater.spark.pipe import PASS_BYTES

if TYPE_CHECKING:
    from sendlater.brokers.partition_reader import Place, Read

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", HEADERS),
    ]
)
"""INBOX_SCHEMA of `spark.datasource.format`."""
NOTHING = pa.RecordBatch.from_arrays([pa.nulls(0, one.type) for one in SCHEMA], schema=SCHEMA)
"""The JVM passes a batch on only when it has seen the next one."""
_FILLER: list[Any] = [bytes(PASS_BYTES), None]
"""Values of the last two rows of a chunk, which are null otherwise: the JVM asks for one row more
before it passes on what is full."""


def chunk(read: "Read", ends: "dict[Place, int]") -> pa.RecordBatch:
    """Records and bundles, then a marker per place (a row without a timestamp), then fillers
    (without a topic).

    A marker's offset is the next position to read: everything before it has come.
    """
    fillers: list[Any] = [None] * len(_FILLER)
    markers: list[Any] = [None] * len(ends) + fillers
    micros = [None if ms is None else _micros(ms) for ms in read.timestamps_ms]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(read.keys + markers, pa.binary()),
            pa.array(read.values + [None] * len(ends) + _FILLER, pa.binary()),
            pa.array([*read.topics, *(topic for topic, _ in ends), *fillers], pa.string()),
            pa.array([*read.partitions, *(number for _, number in ends), *fillers], pa.int32()),
            pa.array([*read.positions, *ends.values(), *fillers], pa.int64()),
            pa.array([*micros, *markers], pa.int64()).view(SCHEMA.field("timestamp").type),
            _headers([*read.headers, *markers]),
        ],
        schema=SCHEMA,
    )


def _micros(ms: int) -> int:
    return 1_000 * max(-TIMESTAMP_SPAN_MS_MAX, min(ms, TIMESTAMP_SPAN_MS_MAX))


def _headers(rows: list[Any]) -> pa.Array:
    """Lists of (name, value) to lists of structs; null if a row has none."""
    if not any(rows):
        return pa.nulls(len(rows), HEADERS)
    offsets = [0]
    flat: list[tuple[str, bytes | None]] = []
    for row in rows:
        flat += row or ()
        offsets.append(len(flat))
    names = pa.array([name for name, _ in flat], pa.string())
    return header_lists(offsets, names, [value for _, value in flat])
