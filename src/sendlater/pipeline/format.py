"""The Spark format "sendlater": Spark finds it through the module pyspark_sendlater."""

from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter

from sendlater.pipeline.rows import DUE_SCHEMA
from sendlater.pipeline.sink import ParkWriter
from sendlater.pipeline.source import DueReader, Lane


class SendLater(DataSource):  # type: ignore[misc]
    """Reads schedules as they fall due; writes rows as schedules."""

    @classmethod
    def name(cls) -> str:
        """The short name users write in `format(...)`."""
        return "sendlater"

    def schema(self) -> str:
        """Columns of rows as they fall due."""
        return DUE_SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002
        """A lane."""
        return DueReader(Lane.from_options(self.options))

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002
        """The intake's sink."""
        return ParkWriter(self.options)
