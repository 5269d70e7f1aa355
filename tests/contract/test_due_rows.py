"""The streaming source for users, driven as Spark drives it, without Spark: copies and restarts."""

import pickle
import time

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType
from servers import wait_until

from sendlater import Scheduler
from sendlater.errors import BadRequest, BadSettings, Fenced
from sendlater.spark.datasource.due_reader import DueRowsReader
from sendlater.spark.datasource.schedule_writer import ScheduleStreamWriter

ALL = ReadMaxRows(1_000_000)


class Run:
    """One run of a query: the reader, and the copy that Spark sends to tasks before it is used."""

    def __init__(self, options, *, start=None):
        self.reader = DueRowsReader(options)
        self.copy = pickle.loads(pickle.dumps(self.reader))
        self.start = self.reader.initialOffset() if start is None else start

    def batch(self, *, end=None, limit=ALL, committed=True):
        """Ids of the next batch, [] when nothing is due; `end` repeats one."""
        end = self.reader.latestOffset(self.start, limit) if end is None else end
        self.end = end
        if end == self.start:
            return []
        parts = self.reader.partitions(self.start, end)
        rows = [
            name
            for part in pickle.loads(pickle.dumps(parts))
            for batch in self.copy.read(part)
            for name in batch.column("id").to_pylist()
        ]
        if committed:
            self.start = end
        return sorted(rows)


@pytest.fixture
def options(redis_url, space):
    return {"redis.url": redis_url, "space": space}


@pytest.fixture
def scheduler(redis_url, space):
    with Scheduler(redis_url, space=space) as opened:
        yield opened


def send(scheduler, *names, delay=0.0):
    scheduler.send_many({"topic": "t", "value": n, "id": n, "delay": delay} for n in names)


def claimed(scheduler):
    return scheduler.pending.counts()["claimed"]


def test_what_is_due_comes_once_and_is_dropped_when_committed(options, scheduler):
    send(scheduler, "a", "b")
    send(scheduler, "later", delay=600)
    run = Run(options)
    assert run.batch() == ["a", "b"]
    assert claimed(scheduler) == 2
    run.reader.commit(run.start)
    assert claimed(scheduler) == 0
    assert run.batch() == []
    send(scheduler, "c")
    assert run.batch() == ["c"]
    run.reader.stop()
    assert scheduler.get("later") is not None


def test_a_task_that_is_run_again_gives_the_same_rows_first(options, scheduler):
    send(scheduler, "a", "b")
    run = Run(options)
    assert run.batch(committed=False) == ["a", "b"]
    assert run.batch(end=run.end) == ["a", "b"]


def test_a_run_that_ended_without_a_word_has_its_last_batch_settled(options, scheduler):
    """Spark never tells a source that the last batch was committed; the checkpoint does."""
    send(scheduler, "a")
    first = Run(options)
    assert first.batch() == ["a"]
    send(scheduler, "b")
    second = Run(options, start=first.start)
    assert second.batch() == ["b"]
    assert claimed(scheduler) == 1


def test_a_batch_that_was_not_committed_comes_again(options, scheduler):
    send(scheduler, "a", "b")
    first = Run(options)
    assert first.batch(committed=False) == ["a", "b"]
    second = Run(options, start=first.start)
    assert second.batch(end=first.end) == ["a", "b"]
    second.reader.commit(second.start)
    assert second.batch() == []
    assert claimed(scheduler) == 0


def test_without_a_checkpoint_what_was_not_settled_comes_again(options, scheduler):
    send(scheduler, "a")
    first = Run(options)
    assert first.batch() == ["a"]
    assert Run(options).batch() == ["a"]


def test_an_older_run_can_claim_no_more(options, scheduler):
    first, second = Run(options), Run(options)
    send(scheduler, "a")
    with pytest.raises(Fenced):
        first.batch()
    assert second.batch() == ["a"]


def test_rows_are_limited_and_come_in_due_order(options, scheduler):
    for n in range(20):
        send(scheduler, f"{n:02}")
        # Each due in a millisecond of its own, so that a batch can end between any two.
        began = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == began:
            pass
    run, found = Run(options), []
    while some := run.batch(limit=ReadMaxRows(6)):
        assert len(some) <= 12
        found += some
    assert found == [f"{n:02}" for n in range(20)]


def test_available_now_ends_where_it_began(options, scheduler):
    send(scheduler, "a")
    run = Run(options)
    run.reader.prepareForTriggerAvailableNow()
    began = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == began:
        pass
    send(scheduler, "b")
    assert run.batch() == ["a"]
    assert run.batch() == []


def test_a_service_is_not_stopped_unasked(options, scheduler):
    scheduler.pending.fence()
    with pytest.raises(BadRequest, match="belongs to a service"):
        Run(options)
    Run(options | {"takeover": "true"})
    Run(options)  # it is ours now


def test_options_that_spark_passes_on_are_let_through_and_others_refused(options):
    """Without this every stream with a checkpoint would be refused."""
    schema = StructType([StructField("value", StringType())])
    more = {"checkpointlocation": "/c", "queryname": "q", "topic": "t", "delay": "1h"}
    writer = ScheduleStreamWriter(options | more, schema)
    assert (writer.topic, writer.delay_ms) == ("t", 3_600_000)
    DueRowsReader(options | {"checkpointlocation": "/c"})
    with pytest.raises(BadSettings, match="topik"):
        ScheduleStreamWriter(options | more | {"topik": "t"}, schema)


def test_what_has_expired_comes_as_the_row_for_the_dead_letter_topic(options, scheduler):
    """Its expiry has passed before the query claims it."""
    scheduler.send_later("t", "code", delay=0, expires_after=0, id="code")
    scheduler.send_later("t", "letter", delay=0, id="letter")
    time_ms = scheduler.get("code").due_ms
    wait_until(lambda: scheduler.now_ms() > time_ms, "it has expired")
    run = Run(options)
    ids = run.batch()
    assert ids[0] == "letter"
    assert ids[1].startswith("rejected-")
    assert claimed(scheduler) == 2
    run.reader.stop()


def test_what_recurs_comes_as_its_occurrences(options, scheduler):
    """And waits for its next time, while this one is claimed."""
    scheduler.send_later("t", "v", every="1s", count=2, missed="all", id="i")
    first_ms = scheduler.get("i").due_ms
    wait_until(lambda: scheduler.now_ms() > first_ms, "it is due")
    run = Run(options)
    assert run.batch() == [f"i@{first_ms}"]
    assert scheduler.get("i").due_ms == first_ms + 1_000
    wait_until(lambda: scheduler.now_ms() > first_ms + 1_000, "it is due again")
    assert run.batch() == [f"i@{first_ms + 1_000}"]
    assert scheduler.get("i") is None
    run.reader.stop()


def test_columns_say_the_expiry_and_the_spread_of_a_row():
    row = {"topic": "t", "value": "v", "id": "customer-17", "due": "2035-01-31T17:00:00Z"}
    columns = [StructField(name, StringType()) for name in (*row, "spread", "expires_after")]
    writer = ScheduleStreamWriter({"redis.url": "redis://nobody:1"}, StructType(columns))
    plain = writer._schedule(row, default_id="x", now_ms=1_900_000_000_000)
    told = writer._schedule(
        row | {"spread": "1h", "expires_after": "10m"}, default_id="x", now_ms=1_900_000_000_000
    )
    assert told.due_ms - plain.due_ms == 590_096
    assert told.expires_ms == told.due_ms + 600_000
    assert plain.expiry is None
    at = writer._schedule(
        row | {"expires": "2036-01-31T17:00:00Z"}, default_id="x", now_ms=1_900_000_000_000
    )
    assert at.expires_ms == 2_085_411_600_000
    with pytest.raises(BadRequest, match="expires"):
        writer._schedule(
            row | {"expires": "2030-01-31T17:00:00Z"}, default_id="x", now_ms=1_900_000_000_000
        )
