"""What tasks of a lane yield, row by row, for tests without Spark."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from sendlater.dialects import names
from sendlater.spark.arrow_rows import ADDED, ALWAYS


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """The rows of Arrow batches; see `told`."""
    return [told(row) for batch in batches for row in batch.to_pylist()]


def told(row: dict[str, Any]) -> dict[str, Any]:
    """A row with `id`, `due_ms` and `dialect`, and its own `headers`. Records as they leave, whose
    headers are in `sent` then, tell them by those that they got; rows that only warm up do not."""
    if "id" in row or row["topic"] is None:
        return row
    sent = row["headers"]
    headers = {header["key"]: header["value"] for header in sent}
    all_six = [header["key"] for header in sent[-len(ADDED) :]] == [*ADDED]
    dialect, own = ("headers", sent[: -len(ADDED)]) if all_six else ("", sent[:-ALWAYS])
    if names.REJECTED in headers:
        dialect = "rejected"
    facts = {"id": headers[names.ID], "due_ms": int(headers[names.DUE]), "dialect": dialect}
    return row | facts | {"headers": own, "sent": sent}
