"""What a start waits for, and what does not wait for what."""

import threading
from unittest.mock import Mock, PropertyMock

import pytest
from pyspark.sql.streaming.query import StreamingQuery
from structlog.testing import capture_logs

from sendlater.config import Settings
from sendlater.errors import Fenced
from sendlater.service import takeover
from sendlater.service.service import Service
from sendlater.service.supervision import Worker


def query(**told: object) -> Mock:
    """A query that shows one thing after another, each time it is asked."""
    made = Mock(spec=StreamingQuery)
    for name, values in told.items():
        setattr(type(made), name, PropertyMock(side_effect=values))
    return made


def waited_for(made: Mock, stop: threading.Event) -> None:
    Worker("intake", lambda: made, query=made).await_first_batch(stop)


def test_a_start_waits_until_the_first_batch_is_over() -> None:
    made = query(isActive=[True] * 3, lastProgress=[None, None, {"batchId": 0}])
    waited_for(made, threading.Event())
    with pytest.raises(StopIteration):  # it has looked as often as told above
        _ = made.lastProgress


@pytest.mark.parametrize("reason", ["ended", "stopped"])
def test_it_waits_no_longer_than_there_is_a_batch_to_come(reason: str) -> None:
    """With one answer to each question, one more look would fail."""
    stop = threading.Event()
    if reason == "stopped":
        stop.set()
    waited_for(query(isActive=[reason != "ended"], lastProgress=[None]), stop)


class Watching(Service):
    """A service whose queries have all just ended; the store and Spark are not asked."""

    def __init__(self, *workers: Worker) -> None:
        self.settings, self._workers, self._lost = Settings(), list(workers), False
        self._lanes_error = self._targets = None
        self._lanes_lock, self._intake_lock = threading.Lock(), threading.Lock()

    def _look_after_store(self, stop: threading.Event) -> None:
        pass

    def _hands_over(self) -> bool:
        return False


class Reading(Watching):
    """A service whose intake reads."""

    def _reads(self) -> bool:
        return True


@pytest.mark.parametrize(("longest_s", "warned"), [(60.0, False), (-1.0, True)])
def test_ready_is_told_when_all_is_warm(
    monkeypatch: pytest.MonkeyPatch, longest_s: float, warned: bool
) -> None:
    """A lane that needs long is waited for, but not for ever."""
    monkeypatch.setattr(takeover, "WARM_S_MAX", longest_s)
    monkeypatch.setattr(takeover, "FIRST_BATCH_WATCH_S", 0)
    lane = Mock(spec=Worker, query=query())
    warm = PropertyMock(side_effect=[False] if warned else [False, False, True])
    type(lane).is_warm = warm
    with capture_logs() as logs:
        Reading(lane)._await_warm(threading.Event())
    assert [one["log_level"] for one in logs] == ["warning"] * warned
    assert warm.call_count == (1 if warned else 3)


def test_what_has_ended_is_not_waited_for() -> None:
    """The store went back, for example: that is mended by who watches, after this wait."""
    lane = Worker("lane-0", Mock(), query=query(isActive=[False], lastProgress=[None]), lane=0)
    with capture_logs() as logs:
        Reading(lane)._await_warm(threading.Event())
    assert logs == []


def test_intake_does_not_wait_for_what_a_lane_looks_up_before_it_starts() -> None:
    """After an outage that would keep cancellations away from what is delivered then."""
    stop, reads = threading.Event(), threading.Event()
    read_meanwhile = []

    def start_lane() -> Mock:
        read_meanwhile.append(reads.wait(5))
        stop.set()
        return query()

    def start_intake() -> Mock:
        reads.set()
        return query(isActive=[True] * 10_000)

    Watching(Worker("lane-0", start_lane, lane=0), Worker("intake", start_intake)).watch(stop)
    assert read_meanwhile == [True]


def test_what_ends_the_thread_of_the_lanes_ends_the_service() -> None:
    class Overtaken(Watching):
        def _look_after(self, worker: Worker, now_s: float) -> None:
            if worker.lane is not None:
                raise Fenced("a newer service has taken over")

    with pytest.raises(Fenced):
        Overtaken(Worker("lane-0", Mock(), lane=0)).watch(threading.Event())


@pytest.mark.parametrize(
    ("told", "refused", "cause"),
    [
        (
            "Job aborted\norg.apache.kafka.common.errors.RecordTooLargeException: too large",
            True,
            "org.apache.kafka.common.errors.RecordTooLargeException: too large",
        ),
        (
            "[PYTHON_EXCEPTION] Traceback:\nsendlater.errors.NotLookedUp: b'id' may be",
            True,
            "sendlater.errors.NotLookedUp: b'id' may be",
        ),
        ("Python worker exited unexpectedly", False, "Python worker exited unexpectedly"),
    ],
)
def test_what_a_broker_or_a_second_attempt_does_not_take_is_sent_record_by_record(
    told: str, refused: bool, cause: str
) -> None:
    made = query(isActive=[False])
    made.exception.return_value = RuntimeError(told)
    worker = Worker("lane-0", lambda: made, query=made, lane=0)
    with capture_logs() as logs:
        worker.look_after(0.0, delay_s_max=1.0)
    assert (worker.refused, logs[0]["cause"]) == (refused, cause)
