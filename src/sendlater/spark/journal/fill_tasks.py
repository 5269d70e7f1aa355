"""Spark jobs that write the journals' current schedules to the store."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from zlib import crc32

from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F

from sendlater.config import Settings
from sendlater.dialects import names, sql, stages
from sendlater.limits import PARK_COUNT_MAX
from sendlater.model import DUE_MS_MAX
from sendlater.spark.plans import RECURS, PlanReader
from sendlater.store import Pending
from sendlater.store.codec import pack_columns
from sendlater.store.connection import connect
from sendlater.store.scripts import script

if TYPE_CHECKING:
    import pyarrow as pa
from sendlater.spark.journal.standing import Ends, records, standing
from sendlater.spark.journal.torn import Place, without
from sendlater.spark.session import BUFFER

PLAN_BUFFER_BYTES = "262144"
"""Bytes of the buffer between the JVM and a Python worker that writes schedules."""
PROGRESS_PAUSE_S = 0.25
"""Pause between two checks of a job's progress."""


@dataclass(frozen=True, kw_only=True)
class FillTask:
    """Writes decoded rows to the store, unless it has something newer; runs in tasks."""

    redis_url: str
    space: str
    shards: int
    owner: int
    seen: tuple[Mapping[str, int], ...] | None = None
    """Positions that intake has read, per shard; intake itself reads what comes later."""
    plans: PlanReader = field(default_factory=PlanReader)

    def __call__(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """Per Arrow batch one row: how many schedules were written."""
        import pyarrow as pa

        pending = Pending(connect(self.redis_url), space=self.space, shards=self.shards)
        try:
            for batch in batches:
                count = self._write_batch(pending, batch)
                yield pa.RecordBatch.from_pydict({"count": pa.array([count], pa.int64())})
        finally:
            pending.close()

    def _write_batch(self, pending: Pending, batch: "pa.RecordBatch") -> int:
        columns = (batch.column(i).to_pylist() for i in range(batch.num_columns))
        # Here the record of a change is one like any other.
        ids, due, *fields, shards, changes = columns
        if not ids:
            return 0
        pending.shards[0].want({topic.encode() for topic in fields[0]})
        rows: list[list[Any]] = [[] for _ in pending.shards]
        rejected = [0] * len(rows)
        now_ms = time.time_ns() // 1_000_000
        count = 0
        for schedule_id, due_ms, shard, change, row in zip(
            ids, due, shards, changes, zip(*fields, strict=True), strict=True
        ):
            plan = ""
            if change is not None and change.startswith(RECURS):
                schedule_id, due_ms, _, row, plan, _ = self.plans.read(schedule_id, change, row)
                shard = crc32(schedule_id) % len(rows)
            dialect, origin = row[5], row[-4:]
            if self.seen is not None and origin[2] >= self._seen(shard, origin):
                continue
            if dialect == "rejected":
                rejected[shard] += 1
                due_ms = min(due_ms, now_ms)
            version = f"{origin[0]}/{origin[1]}/{origin[2]}"
            rows[shard] += (schedule_id, due_ms, pack_columns(row, plan), version)
            if len(rows[shard]) >= 4 * PARK_COUNT_MAX:
                count += self._write(pending, shard, rows[shard], rejected[shard])
                rows[shard], rejected[shard] = [], 0
        return count + sum(self._write(pending, n, rows[n], rejected[n]) for n in range(len(rows)))

    def _seen(self, shard: int, origin: Sequence[Any]) -> int:
        assert self.seen is not None
        return self.seen[shard].get(f"{origin[0]}/{origin[1]}", 0)

    def _write(self, pending: Pending, number: int, rows: list[Any], rejected: int) -> int:
        if not rows:
            return 0
        shard = pending.shards[number]
        count: int = script("plan")(
            shard.client,
            **shard._keys("due", "record", "state", "wake", "touched", "beyond"),
            owner=self.owner,
            rejected_count=rejected,
            rest=rows,
        )
        return count


@dataclass(frozen=True, slots=True)
class Planned:
    """Result of reading the journals: how many schedules were written, and are due later, and how
    many records have a condition."""

    written: int
    later: int
    conditional: int = 0


def plan(
    spark: SparkSession,
    settings: Settings,
    *,
    fill_task: FillTask,
    ends: Ends,
    tasks: int,
    after_ms: int = -1,
    until_ms: int = DUE_MS_MAX,
    torn: Sequence[Place] = (),
) -> Planned:
    """Write the journals' current schedules that are due within (after_ms, until_ms]. Records that
    are `torn` do not count.

    Returns when everything is written. What cannot be scheduled counts as due at once.
    With one task it uses one core, and leaves the others to the running service.
    """
    if not any(end for partitions in ends.values() for end in partitions.values()):
        return Planned(0, 0)
    # Streams need small buffers between the JVM and Python; a whole journal needs large ones.
    spark = spark.newSession()
    spark.conf.set(BUFFER, PLAN_BUFFER_BYTES)
    read = without(records(spark, settings, ends=ends, tasks=tasks), torn)
    asked = Observation()
    conditional = f"count_if(array_contains(headers.key, {sql.text(names.IF)})) AS count"
    # With a horizon nobody can decide: such a record is rejected.
    decided = settings.horizon_ms is None
    found = standing(read.observe(asked, F.expr(conditional)), tasks=tasks, decided=decided)
    for stage in stages(settings):
        found = found.selectExpr(*stage)
    counted = Observation()
    found = found.observe(
        counted, F.expr(f"count_if(due_ms > {until_ms} AND dialect <> 'rejected')").alias("later")
    )
    wanted = found.filter(f"due_ms > {after_ms}L AND due_ms <= {until_ms}L")
    written = wanted.mapInArrow(fill_task, "count bigint").agg(F.sum("count")).first()
    count = int(written[0] or 0) if written else 0
    return Planned(count, int(counted.get["later"]), int(asked.get["count"]))


class TaskProgress:
    """Calls `tell`, a few times a second, with the share of a Spark job's tasks that is done."""

    def __init__(self, spark: SparkSession, *, tasks: int, tell: Callable[[float], None]) -> None:
        self._spark, self._tasks, self._tell = spark, tasks, tell
        self._group = f"journal-{time.time_ns()}"
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._spark.sparkContext.setJobGroup(self._group, "reading the journals")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        tracker = self._spark.sparkContext.statusTracker()
        completed: dict[int, int] = {}
        while not self._done.wait(PROGRESS_PAUSE_S):
            for job in tracker.getJobIdsForGroup(self._group):
                info = tracker.getJobInfo(job)
                for stage in info.stageIds if info else ():
                    told = tracker.getStageInfo(stage)
                    if told is not None:
                        completed[stage] = max(completed.get(stage, 0), told.numCompletedTasks)
            self._tell(min(1.0, sum(completed.values()) / self._tasks))
