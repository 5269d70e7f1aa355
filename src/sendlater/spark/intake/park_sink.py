"""The pending store as a Spark sink: rows become schedules, with the place they were read from."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from sendlater.spark.intake.share import ALONG, WARM_UP
from sendlater.spark.plans import PlanReader
from sendlater.spark.work_name import name_work

if TYPE_CHECKING:
    import pyarrow as pa

# What only tasks need is imported there: Spark starts a process for each step of planning.


class ParkWriter(DataSourceStreamArrowWriter):
    """`write` runs in tasks; nothing is left for the driver to commit."""

    def __init__(self, options: Any) -> None:
        self.url = options["redis.url"]
        self.space = options["space"]
        self.shards, self.owner, self.run = (int(options[n]) for n in ("shards", "owner", "run"))
        self.check_targets = options.get("check_targets", "false") == "true"
        self.heir = bool(options.get("heir", ""))
        self.journals = frozenset(filter(None, options.get("journals", "").split(",")))
        self.plans = PlanReader(
            options.get("rejected_topic", "rejected"),
            options.get("keep_input_headers", "false") == "true",
            int(options.get("max_delay_days", PlanReader.max_delay_days)),
            options.get("ce_expirytime", "false") == "true",
        )

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Park Arrow batches in the columns of `sendlater.dialects`, in the order they come."""
        from sendlater.spark.intake.park_task import ParkTask
        from sendlater.store import Pending
        from sendlater.store.connection import connect

        name_work("sl-park")
        context = TaskContext.get()
        assert context is not None, "write runs in a task"
        pending = Pending(connect(self.url), space=self.space, shards=self.shards)
        try:
            task = ParkTask(pending, self.owner, self.check_targets, self.journals)
            task.plans = self.plans
            # The first chunk after the warm-up has no records: it tells where reading begins.
            # Before it comes an empty one, if the space is still another's.
            words = ["warm", "reads"] if self.heir else ["reads"]
            for batch in iterator:
                task.park(batch)
                known = set(batch["origin_partition"].to_pylist()) if words else set()
                if ALONG in known:
                    pending.note("along", self.run, task=context.partitionId())
                elif words and WARM_UP not in known:
                    pending.note(words.pop(0), self.run, task=context.partitionId())
            return WriterCommitMessage()
        finally:
            pending.close()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: rows and positions are written together."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to undo, for the same reason."""
