"""The column `tags` of a DataFrame that becomes schedules; the rest is in tests/story."""

import pytest
from pyspark.sql.types import ArrayType, StringType, StructType

from sendlater.errors import BadRequest
from sendlater.spark.datasource import schedule_writer


def columns(kind):
    return StructType().add("value", StringType()).add("tags", kind)


def test_tags_are_an_array_of_text():
    check = schedule_writer._check
    check(columns(ArrayType(StringType())), has_topic=True, has_time=True)
    with pytest.raises(BadRequest, match=r"column tags: expected .*array.*, got string"):
        check(columns(StringType()), has_topic=True, has_time=True)


def test_a_row_has_the_tags_of_its_column():
    writer = object.__new__(schedule_writer._Scheduling)
    writer.topic, writer.due_ms, writer.delay_ms = "t", 5, None

    def made(tags):
        row = {"value": "v", "tags": tags}
        return writer._schedule(row, default_id="i", now_ms=1).tags

    assert made(["order-17", "mail", "mail"]) == ("order-17", "mail")
    assert made([]) == made(None) == ()
    with pytest.raises(BadRequest, match="tag: expected"):
        made(["a b"])
