"""What a start waits for."""

import threading
from unittest.mock import Mock, PropertyMock

import pytest
from pyspark.sql.streaming.query import StreamingQuery

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
