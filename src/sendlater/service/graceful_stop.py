"""A graceful stop: lanes end their batches early, and their deliveries are settled."""

import json
import time
from collections.abc import Sequence

import structlog
from pyspark.sql.streaming.query import StreamingQuery

from sendlater.service.supervision import Worker
from sendlater.store import Batch, Pending

LOOK_PAUSE_S = 0.025
"""Pause between two checks whether the lanes are done."""

_log = structlog.get_logger()


def drain(pending: Pending, workers: Sequence[Worker], *, owner: int, within_s: float) -> None:
    """Ask lanes to claim no more, and settle what Spark commits, within `within_s`.

    The next start releases what is left. Raises StoreUnavailable, Fenced.
    """
    pending.drain(owner=owner)
    settle_drained(pending, workers, owner=owner, within_s=within_s)


def settle_drained(
    pending: Pending, workers: Sequence[Worker], *, owner: int, within_s: float
) -> None:
    """The same for lanes that have been asked already, or may not claim any more."""
    deadline = time.monotonic() + within_s
    lanes = [w for w in workers if w.lane is not None and w.query is not None]
    while lanes and time.monotonic() < deadline:
        lanes = [worker for worker in lanes if not _settled(pending, worker, owner)]
        time.sleep(LOOK_PAUSE_S)
    for worker in lanes:
        _log.warning(
            "lane did not end in time; its batch is released at the next start",
            query=worker.name,
        )


def _settled(pending: Pending, worker: Worker, owner: int) -> bool:
    """Settle what Spark has committed of a draining lane; whether that was all.

    A stopping query never tells the source that its last batch is committed.
    """
    query = worker.query
    assert isinstance(query, StreamingQuery)
    mine = {
        batch
        for shard in pending.shards
        for batch in map(Batch.named, shard.batches())
        if (batch.lane, batch.run) == (worker.lane, worker.run)
    }
    if not mine or not query.isActive:
        return True
    progress = query.lastProgress
    if progress is None:
        return False
    committed = int(json.loads(progress.sources[0].endOffset)["batch"])
    for batch in mine:
        if batch.order <= committed:
            pending.settle(batch, owner=owner)
    return max(batch.order for batch in mine) <= committed
