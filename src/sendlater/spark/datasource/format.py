"""The Spark format "sendlater": Spark finds it through the module pyspark_sendlater."""

from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

# Readers and writers are imported where they are used: Spark starts a process for each step of
# planning, and each imports this module.
DUE_SCHEMA = (
    "id binary, due_ms bigint, topic string, partition int, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>, dialect string, origin_topic string, "
    "origin_partition int, origin_position bigint, origin_timestamp_ms bigint"
)
"""Columns of what a lane reads where it was read from journals; a dialect's decoding ends in the
same columns."""
SENT_SCHEMA = (
    "topic string, partition int, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>"
)
"""Columns of what it reads otherwise: records as they leave."""
INBOX_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)
"""Columns of the service's inboxes: those of Spark's Kafka source that decoding needs."""
OWN, BUCKETS, INBOXES, PRACTICE = "owner", "pending", "inboxes", "practice"
"""Options that only the service gives, for lanes, buckets, intake and practice."""


class SendLater(DataSource):
    """Reads schedules that are pending or fall due; writes rows as schedules: docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """The name that users write in `format(...)`."""
        return "sendlater"

    def schema(self) -> str:
        """Columns of the rows that are read."""
        if INBOXES in self.options:
            return INBOX_SCHEMA
        if self._is_the_services():
            return DUE_SCHEMA if self.options.get("journals") else SENT_SCHEMA
        from sendlater.spark.datasource.pending_reader import PENDING_SCHEMA

        return PENDING_SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002
        """Reads what is pending."""
        from sendlater.spark.datasource.pending_reader import PendingReader

        return PendingReader(self.options)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        """Schedules rows. Raises NotSupported for mode overwrite: nothing is cancelled."""
        from sendlater.errors import NotSupported
        from sendlater.spark.datasource.schedule_writer import ScheduleWriter

        if overwrite:
            raise NotSupported("expected mode append, got overwrite: what is pending stays")
        return ScheduleWriter(self.options, schema)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002
        """The inboxes, a lane, bucket 0, or a user's query that replaces them."""
        if INBOXES in self.options:
            from sendlater.spark.intake.inbox_source import InboxSource

            return InboxSource(self.options)
        if self.options.get(BUCKETS) == "buckets":
            from sendlater.spark.buckets.hold_source import HeldReader
            from sendlater.spark.buckets.holding import Holding

            return HeldReader(Holding.from_options(self.options))
        if PRACTICE in self.options:
            from sendlater.spark.delivery.practice import PracticeReader

            return PracticeReader(self.options[PRACTICE])
        if self._is_the_services():
            from sendlater.spark.delivery.due_source import DueReader
            from sendlater.spark.delivery.lane import Lane

            return DueReader(Lane.from_options(self.options))
        from sendlater.spark.datasource.due_reader import DueRowsReader

        return DueRowsReader(self.options)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002
        """The sink of intake, or of a user's query."""
        if self._is_the_services():
            from sendlater.spark.intake.park_sink import ParkWriter

            return ParkWriter(self.options)
        from sendlater.spark.datasource.schedule_writer import ScheduleStreamWriter

        return ScheduleStreamWriter(self.options, schema)

    def _is_the_services(self) -> bool:
        return any(one in self.options for one in (OWN, BUCKETS, PRACTICE))
