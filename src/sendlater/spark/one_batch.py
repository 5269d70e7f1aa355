"""A streaming source of one batch with one task, for what a start runs only once."""

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition


class OneBatch(DataSourceStreamReader):
    """Who derives from it says in `read` what the task yields."""

    def initialOffset(self) -> dict[str, int]:
        """Before the batch."""
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: ARG002
        """After it."""
        return {"batch": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One task."""
        return [] if start == end else [InputPartition(0)]
