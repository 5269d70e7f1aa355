"""What a lane yields where no journal is: the records that leave, all of a claim at once."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendlater.dialects.deliver import leaving
from sendlater.limits import CLAIM_COUNT_MAX
from sendlater.model import DUE_MS_MAX, Expiry, Headers, Origin, Record, Schedule
from sendlater.spark import arrow_rows
from sendlater.spark.arrow_rows import (
    ARROW_SCHEMA,
    SENT_ARROW_SCHEMA,
    filler,
    to_sent,
    unpack_columns,
)
from sendlater.spark.datasource.format import DUE_SCHEMA, SENT_SCHEMA, SendLater
from sendlater.spark.delivery.warm_rows import warm_rows
from sendlater.store.codec import pack, with_due

SQL = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.int32(): "int",
    pa.int64(): "bigint",
    arrow_rows.HEADERS: "array<struct<key:string,value:binary>>",
}
"""Spark's types by Arrow's."""
MS = st.integers(0, DUE_MS_MAX)
NAMES = st.text(min_size=1, max_size=9)
OWN = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=9)), max_size=4)
RECORDS = st.builds(
    Record,
    topic=NAMES,
    value=st.none() | st.binary(max_size=9),
    key=st.none() | st.binary(max_size=9),
    headers=OWN,
    partition=st.none() | st.integers(0, 2**31 - 1),
)
ORIGINS = st.builds(
    Origin,
    topic=NAMES,
    partition=st.integers(0, 9),
    position=st.integers(0, 2**62),
    timestamp_ms=st.integers(-1, DUE_MS_MAX),
)
SCHEDULES = st.builds(
    Schedule,
    id=st.binary(min_size=1, max_size=9),
    due_ms=MS,
    record=RECORDS,
    dialect=st.sampled_from(["", "headers", "envelope", "rejected", "few"]),
    origin=st.none() | ORIGINS,
    expiry=st.none() | st.builds(Expiry, MS, st.booleans()),
    tags=st.just(()) | st.just(("a", "b")),
)


@given(st.lists(SCHEDULES, min_size=1, max_size=9))
def test_they_are_the_records_that_python_tells(schedules: list[Schedule]) -> None:
    packed = [with_due(one.due_ms, pack(one)) for one in schedules]
    rows = to_sent([one.id for one in schedules], unpack_columns(packed)).to_pylist()
    for schedule, row in zip(schedules, rows, strict=True):
        headers = [(header["key"], header["value"]) for header in row.pop("headers")]
        assert Record(**row, headers=headers) == leaving(schedule)[0]


@pytest.mark.parametrize("headers", [[], [("own", b"1")]])
def test_there_may_be_more_than_a_claim_has(headers: Headers) -> None:
    one = Schedule(id=b"id", due_ms=1, record=Record(topic="t", value=b"v", headers=headers))
    count = CLAIM_COUNT_MAX + 1
    packed = [with_due(1, pack(one))] * count
    rows = to_sent([one.id] * count, unpack_columns(packed))["headers"].to_pylist()
    assert [(header["key"], header["value"]) for header in rows[-1]] == leaving(one)[0].headers
    assert len(rows) == count
    assert rows[0] == rows[-1]


def test_spark_has_the_same_columns() -> None:
    for text, schema in ((DUE_SCHEMA, ARROW_SCHEMA), (SENT_SCHEMA, SENT_ARROW_SCHEMA)):
        assert text == ", ".join(f"{one.name} {SQL[one.type]}" for one in schema)


def test_only_lanes_with_journals_have_more_columns() -> None:
    assert SendLater({"owner": "1", "journals": ""}).schema() == SENT_SCHEMA
    assert SendLater({"pending": "buckets"}).schema() == SENT_SCHEMA
    assert SendLater({"owner": "1", "journals": "a,b"}).schema() == DUE_SCHEMA


def test_all_batches_of_a_task_have_the_same_columns() -> None:
    for sent, schema in ((True, SENT_ARROW_SCHEMA), (False, ARROW_SCHEMA)):
        batches = [*warm_rows(sent=sent, filler_rows=2), filler(0, sent=sent)]
        assert {batch.num_rows for batch in batches} == {20, 2, 0}
        assert all(batch.schema.equals(schema) for batch in batches)
