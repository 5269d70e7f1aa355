"""Rows without a topic: they pass what a delivery passes, as far as the sink, and go nowhere."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sendlater.model import Origin, Record, Schedule
from sendlater.spark.arrow_rows import filler, to_arrow, to_sent, unpack_columns
from sendlater.spark.pipe import pass_on
from sendlater.store.codec import pack, with_due

if TYPE_CHECKING:
    import pyarrow as pa

CHUNKS, CHUNK_ROWS = 100, 20
"""Chunks of a task and rows of a chunk: the JVM compiles what it has done some hundred times."""
ID = b"warm-up"
TOPIC = 1
"""Place of the topics in what `unpack_columns` returns."""


def warm_rows(*, sent: bool, filler_rows: int = 0) -> "Iterator[pa.RecordBatch]":
    """Arrow batches as a lane's task yields them: in SENT_SCHEMA or, with journals, DUE_SCHEMA.
    `filler_rows` as in its Lane."""
    origin = Origin(topic="warm-up", partition=0, position=0, timestamp_ms=0)
    records = [
        Record(topic="", key=b"k", value=b"{}" * 50, headers=[("name", b"kept"), ("null", None)]),
        Record(topic="", key=None, value=b"{}" * 50, headers=[]),
    ]
    packed = [
        with_due(0, pack(Schedule(id=ID, due_ms=0, record=record, dialect=dialect, origin=origin)))
        for record in records
        for dialect in ("headers", "envelope")
    ] * (CHUNK_ROWS // 4)
    for _ in range(CHUNKS):
        columns = unpack_columns(packed)
        columns[TOPIC] = [None] * len(packed)
        yield (to_sent if sent else to_arrow)([ID] * len(packed), columns)
        if filler_rows:
            yield filler(filler_rows, sent=sent)
        yield filler(0, sent=sent)
        pass_on()
