"""A schedule's bytes in Redis do not change: a store outlives versions of sendlater."""

from dataclasses import replace

import pytest

from sendlater.model import Origin, Record
from sendlater.spark.arrow_rows import to_arrow, unpack_columns
from sendlater.store.codec import pack, pack_columns, unpack, written_topics

AT_MS = 1_760_000_000_000
DUE = b"\xcf\x00\x00\x01\x99\xc8,\xc0\x00"
TAIL = b"\x02\xce\x00\x01\x11p" + DUE
BY_INTAKE = (
    b"\x9a\xa6orders\x03\xc4\x02k\xff\xc4\x03\x00\x00v"
    b"\x94\xa5trace\xc4\x03abc\xa5empty\xc0\x01\xa9schedules" + TAIL
)
"""From text, as the package msgpack packed it for version 0.1.0."""
BY_A_CLIENT = (
    b"\x9a\xc4\x06orders\x03\xc4\x02k\xff\xc4\x03\x00\x00v"
    b"\x94\xc4\x05trace\xc4\x03abc\xc4\x05empty\xc0\x01\xc4\x09schedules" + TAIL
)
"""The same from bytes."""
HEADERS = [("trace", b"abc"), ("empty", None)]


@pytest.mark.parametrize("packed", [BY_INTAKE, BY_A_CLIENT])
def test_old_bytes_are_read(packed):
    schedule = unpack(b"id", DUE + packed)
    assert (schedule.due_ms, schedule.dialect) == (AT_MS, "headers")
    record, origin = schedule.record, schedule.origin
    assert record == Record(
        topic="orders", value=b"\x00\x00v", key=b"k\xff", headers=HEADERS, partition=3
    )
    assert origin == Origin(topic="schedules", partition=2, position=70_000, timestamp_ms=AT_MS)
    assert packed[1:].startswith(written_topics("orders")), "a filter by topic finds it"
    assert schedule.tags == ()


def test_old_and_new_bytes_are_rows_of_one_batch():
    columns = unpack_columns([DUE + BY_INTAKE, DUE + BY_A_CLIENT])
    assert columns[1] == [b"orders", b"orders"]
    first, second = to_arrow([b"id", b"id"], columns).to_pylist()
    assert first == second
    assert (first["topic"], first["origin_topic"]) == ("orders", "schedules")
    assert [(h["key"], h["value"]) for h in first["headers"]] == HEADERS


def test_new_bytes_are_the_old_ones():
    assert pack(unpack(b"id", DUE + BY_INTAKE)) == BY_A_CLIENT
    headers = [{"key": name, "value": value} for name, value in HEADERS]
    row = ("orders", 3, b"k\xff", b"\x00\x00v", headers, "headers", None, None)
    assert pack_columns((*row, None, "schedules", 2, 70_000, AT_MS)) == BY_INTAKE
    tagged = b"\x9b\xc4\x0dorder-17,mail" + BY_INTAKE[1:]
    assert pack_columns((*row, "order-17,mail", "schedules", 2, 70_000, AT_MS)) == tagged


@pytest.mark.parametrize("tags", [("order-17", "mail"), tuple(f"{n}" * 64 for n in range(8))])
def test_tags_are_one_more_field_before_all_others(tags):
    plain = unpack(b"id", DUE + BY_INTAKE)
    packed = pack(replace(plain, tags=tags))
    assert packed[0] == BY_INTAKE[0] + 1
    assert packed.endswith(BY_A_CLIENT[1:])
    assert unpack(b"id", DUE + packed) == replace(plain, tags=tags)


@pytest.mark.parametrize("others", [0, 1, 2])
def test_rows_with_tags_are_rows_of_one_batch(others):
    tagged = pack(replace(unpack(b"id", DUE + BY_INTAKE), tags=("mail",)))
    columns = unpack_columns([DUE + tagged] + [DUE + BY_A_CLIENT] * others)
    first, *rest = to_arrow([b"id"] * (1 + others), columns).to_pylist()
    assert rest == [first] * others
    assert first["topic"] == "orders"
