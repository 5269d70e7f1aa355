"""Converts packed rows of the store to Arrow batches of Spark: to the records that leave, in the
columns of SENT_SCHEMA, or to what SQL makes such records of, in those of DUE_SCHEMA."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import pyarrow as pa

from sendlater.dialects import names
from sendlater.limits import CLAIM_COUNT_MAX
from sendlater.store.codec import (
    DIALECTS,
    EXPIRES,
    FIELDS,
    as_bytes,
    dialect_of,
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
SENT_ARROW_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
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
ADDED = (
    *(names.SCHEDULER_TIMESTAMP, names.SCHEDULER_KEY, names.SCHEDULER_TOPIC),
    *(names.DELIVERED_TO, names.ID, names.DUE),
)
"""Headers that a delivered record gets behind its own: as `leaving` in dialects/deliver.py."""
ALWAYS, FEW = 3, 2
"""So many of them, the last ones, where the dialect is not `headers`; where it is `few`."""
_COUNTS = {b"headers": len(ADDED), b"few": FEW}
TIMESTAMP_MS_MAX = 253_402_300_799_999
"""Last instant of year 9999. Later ones, which rejected records may have, are shown as this."""


@cache
def filler(count: int, *, sent: bool) -> pa.RecordBatch:
    """A batch of `count` null rows, which makes the JVM pass on the rows before it; in SENT_SCHEMA
    if these are `sent`, else in DUE_SCHEMA.

    0: the JVM passes a batch on only when it has seen the next one. More: for a Python sink (the
    development outbox) the JVM first gathers a number of rows; the sink drops the null ones.
    """
    schema = SENT_ARROW_SCHEMA if sent else ARROW_SCHEMA
    columns = [pa.nulls(count, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


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
    return (*(headers or ()), names.EXPIRY.encode(), b"%d" % expiry.at_ms(due_ms))


def to_sent(ids: Sequence[bytes], columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """One Arrow batch in SENT_SCHEMA: for rows that were read from no journal, which is all there
    is to send of each. A chunk of a few rows costs by the column, and SQL in the JVM by the row."""
    due, topic, partition, key, value, headers, kind, origin, _, _, stamp = columns
    seconds, due_ms = [b"%d" % (ms // 1_000) for ms in stamp], [b"%d" % ms for ms in due]
    added = zip(seconds, ids, origin, topic, ids, due_ms, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(topic, pa.binary()).view(pa.string()),
            pa.array(partition, pa.int32()),
            pa.array(key, pa.binary()),
            pa.array(value, pa.binary()),
            _with_added(headers, added, kind),
        ],
        schema=SENT_ARROW_SCHEMA,
    )


@cache
def _names(each: int) -> pa.Array:
    """The names of the last `each` of ADDED for each of CLAIM_COUNT_MAX rows."""
    return pa.array(ADDED[-each:] * CLAIM_COUNT_MAX, pa.string())


def _with_added(
    rows: Sequence[Sequence[Any] | None],
    added: Iterable[tuple[bytes | None, ...]],
    kinds: Sequence[int],
) -> pa.Array:
    """Their own headers, flat [name, value, ...] or null, and behind them those of ADDED."""
    if len(rows) <= CLAIM_COUNT_MAX and len(set(kinds)) == 1 and not any(rows):
        each = _count(kinds[0])
        values = [value for row in added for value in row[-each:]]
        offsets = range(0, len(values) + 1, each)
        return header_lists(offsets, _names(each).slice(0, len(values)), values)
    ends, names_of, values = [0], list[Any](), list[Any]()
    for own, kind, row in zip(rows, kinds, added, strict=True):
        each = _count(kind)
        if own:
            names_of += own[::2]
            values += own[1::2]
        names_of += ADDED[-each:]
        values += row[-each:]
        ends.append(len(values))
    return header_lists(ends, pa.array(names_of, pa.binary()).view(pa.string()), values)


def _count(kind: int) -> int:
    """How many of ADDED a row gets, from the end."""
    return _COUNTS.get(dialect_of(kind), ALWAYS)


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
