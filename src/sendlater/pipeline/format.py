"""The Spark format "sendlater": Spark finds it through the module pyspark_sendlater."""

from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter

# What reads and writes is imported where it is used: Spark starts a process for each step of
# planning, and this module is in all of them.
DUE_SCHEMA = (
    "id binary, due_ms bigint, topic string, partition int, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>, dialect string, origin_topic string, "
    "origin_partition int, origin_position bigint, origin_timestamp_ms bigint"
)
"""What `readStream.format("sendlater")` yields; a dialect's decoding ends in the same columns."""


class SendLater(DataSource):
    """Reads schedules as they fall due; writes rows as schedules."""

    @classmethod
    def name(cls) -> str:
        """The short name users write in `format(...)`."""
        return "sendlater"

    def schema(self) -> str:
        """Columns of rows as they fall due."""
        return DUE_SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002
        """A lane, or bucket 0."""
        if self.options.get("pending") == "buckets":
            from sendlater.pipeline.holder import HeldReader, Holding

            return HeldReader(Holding.from_options(self.options))
        from sendlater.pipeline.source import DueReader, Lane

        return DueReader(Lane.from_options(self.options))

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002
        """The intake's sink."""
        from sendlater.pipeline.sink import ParkWriter

        return ParkWriter(self.options)
