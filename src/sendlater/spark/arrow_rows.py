"""Converts packed rows of the store to Arrow batches of Spark, in the columns of DUE_SCHEMA."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pyarrow as pa

from sendlater.dialects.names import EXPIRY
from sendlater.store.codec import (
    DIALECTS,
    EXPIRES,
    FIELDS,
    as_bytes,
    expiry_of,
    unpack_many,
)

KIND = 6
"""Place of the kinds in what `unpack_columns` returns."""
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS = pa.list_(_HEADER)
"""Headers of a row in every Arrow batch of ours."""
ARROW_SCHEMA = pa.schema(
    [
        ("id", pa.binary()),
        ("due_ms", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("dialect", pa.string()),
        ("origin_topic", pa.string()),
        ("origin_partition", pa.int32()),
        ("origin_position", pa.int64()),
        ("origin_timestamp_ms", pa.int64()),
    ]
)
PENDING_ARROW_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("due", pa.timestamp("us", tz="UTC")),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("due_ms", pa.int64()),
    ]
)
TIMESTAMP_MS_MAX = 253_402_300_799_999
"""Last instant of year 9999. Later ones, which rejected records may have, are shown as this."""


@cache
def filler(count: int) -> pa.RecordBatch:
    """A batch of `count` null rows, which makes the JVM pass on the rows before it.

    0: the JVM passes a batch on only when it has seen the next one. More: for a Python sink (the
    development outbox) the JVM first gathers a number of rows; the sink drops the null ones.
    """
    columns = [pa.nulls(count, field.type) for field in ARROW_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def unpack_columns(packed: Sequence[bytes]) -> list[Sequence[Any]]:
    """Rows of the scripts as columns: due_ms, then ten fields of the record (no tags: nothing that
    is delivered tells them). Topics are bytes; names of headers are text or bytes. Headers of a row
    that expires end with the header that tells its receiver."""
    stream = unpack_many(packed)
    try:
        columns = list(zip(*stream[1::2], strict=True))
    except ValueError:  # some have tags, a field before all others
        columns = list(zip(*(row[-FIELDS:] for row in stream[1::2]), strict=True))
    columns = columns[-FIELDS:]
    assert len(columns) == FIELDS, len(columns)
    topics, partitions, keys, values, headers, kinds, origins, *place = columns
    if max(kinds) >= EXPIRES:
        headers = tuple(map(_with_expiry, stream[::2], headers, kinds))
    return [
        stream[::2],
        as_bytes(topics),
        *(partitions, keys, values, headers, kinds),
        as_bytes(origins),
        *place,
    ]


def _with_expiry(due_ms: int, headers: Sequence[Any] | None, kind: int) -> Sequence[Any] | None:
    expiry = expiry_of(kind)
    if expiry is None:
        return headers
    return (*(headers or ()), EXPIRY.encode(), b"%d" % expiry.at_ms(due_ms))


def to_arrow(ids: Sequence[bytes], columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """One Arrow batch in DUE_SCHEMA."""
    due, topic, partition, key, value, headers, kind, origin, from_partition, at, stamp = columns
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids, pa.binary()),
            pa.array(due, pa.int64()),
            pa.array(topic, pa.binary()).view(pa.string()),
            pa.array(partition, pa.int32()),
            pa.array(key, pa.binary()),
            pa.array(value, pa.binary()),
            _headers(headers),
            # As `dialect_of`, without a call for each row.
            pa.array([DIALECTS[one & EXPIRES - 1] for one in kind], pa.binary()).view(pa.string()),
            pa.array(origin, pa.binary()).view(pa.string()),
            pa.array(from_partition, pa.int32()),
            pa.array(at, pa.int64()),
            pa.array(stamp, pa.int64()),
        ],
        schema=ARROW_SCHEMA,
    )


def to_table(ids: Sequence[bytes], columns: Sequence[Sequence[Any]]) -> pa.Table:
    """The same as a table, of which Spark makes a data frame."""
    return pa.Table.from_batches([to_arrow(ids, columns)])


def pending_arrow(
    ids: Sequence[bytes],
    due_ms: Sequence[int],
    topics: Sequence[str],
    partitions: Sequence[int | None],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Sequence[str | bytes | None] | None],
) -> pa.RecordBatch:
    """One Arrow batch in PENDING_SCHEMA."""
    instants = [min(ms, TIMESTAMP_MS_MAX) * 1_000 for ms in due_ms]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([one.decode(errors="replace") for one in ids], pa.string()),
            pa.array(instants, pa.timestamp("us", tz="UTC")),
            pa.array(topics, pa.string()),
            pa.array(partitions, pa.int32()),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            _headers(headers),
            pa.array(due_ms, pa.int64()),
        ],
        schema=PENDING_ARROW_SCHEMA,
    )


def _headers(rows: Sequence[Sequence[str | bytes | None] | None]) -> pa.Array:
    """Flat [name, value, ...] per row to a list of structs; null if a row has none."""
    if not any(rows):
        return pa.nulls(len(rows), HEADERS)
    offsets = [0]
    flat: list[Any] = []
    for row in rows:
        flat += row or ()
        offsets.append(len(flat) // 2)
    names = pa.array(flat[::2], pa.binary()).view(pa.string())
    return header_lists(offsets, names, flat[1::2])


def header_lists(
    offsets: Sequence[int], names: pa.Array, values: Sequence[bytes | None]
) -> pa.Array:
    """Headers of rows: those of row n are the names and values from offset n to n + 1."""
    entries = pa.StructArray.from_arrays(
        [names, pa.array(values, pa.binary())], fields=list(_HEADER)
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), entries, type=HEADERS)
