"""Inboxes as a Spark streaming source that passes records on as they come.

Its batches last as long as a run of intake, because between two batches nothing would be read for
half a second. What a batch has read need not be remembered: positions are in the store, written
together with the rows. So neither Spark's offsets nor its commits mean anything here.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from sendlater.spark.intake.share import InboxShare
from sendlater.spark.work_name import name_work

if TYPE_CHECKING:
    import pyarrow as pa

# What only tasks need is imported there: Spark starts a process for each step of planning.


class InboxSource(DataSourceStreamReader):
    """Lives on the driver, except `read`, which runs in tasks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Options: redis.url, space, shards, inboxes (topics with commas between), plain (rules as
        text), tasks, warm_up (true or false), run, heir (an owner number: nothing is read before it
        owns the space), and broker.url: Kafka client options as JSON, empty for topics on Redis.
        Spark hides options with `url` in their name in its plans."""
        self._options = dict(options.items())

    def initialOffset(self) -> dict[str, int]:
        """Nothing is read before the first batch."""
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002
        """There is always a next batch."""
        return {"batch": start["batch"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InboxShare]:
        """One per task."""
        tasks = int(self._options["tasks"]) if start != end else 0
        return [InboxShare(task, tasks) for task in range(tasks)]

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do: positions are in the store."""

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Read until the end of the batch."""
        from sendlater.clock import SystemClock
        from sendlater.dialects.plain import PlainRules
        from sendlater.spark.intake.inbox_task import InboxTask, open_reader
        from sendlater.store import Pending
        from sendlater.store.connection import connect

        assert isinstance(partition, InboxShare), partition
        name_work("sl-intake")
        options = self._options
        pending = Pending(
            connect(options["redis.url"]), space=options["space"], shards=int(options["shards"])
        )
        reader = open_reader(options)
        plain = PlainRules.of_text(options["plain"])
        try:
            task = InboxTask(reader, pending, partition, SystemClock(), plain)
            heir = int(options.get("heir") or 0)
            if not heir:
                task.start()
            if options["warm_up"] == "true":
                yield from task.warm_up()
            if heir:
                yield from task.await_space(heir)
                yield from task.read_along(int(options["run"]))
            yield from task.chunks()
        finally:
            reader.close()
            pending.close()
