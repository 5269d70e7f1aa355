"""A JVM that hangs is ended, one that is slow or gone is not."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from sendlater.service import watchdog
from sendlater.service.watchdog import Watchdog

WAIT_S = 10.0
SILENT_MS_MAX = 20


class Jvm:
    """Answers each time that the test allows it."""

    def __init__(self) -> None:
        self.asked, self.may_answer = 0, threading.Semaphore(0)
        self.ended = threading.Event()

    def works(self) -> None:
        self.asked += 1
        self.may_answer.acquire()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Watchdog]]:
    """Starts watchdogs that ask every five milliseconds, and stops them."""
    monkeypatch.setattr(watchdog, "ASK_S", 0.005)
    all_of: list[Watchdog] = []

    def start(jvm: Any, works: Any = None) -> Watchdog:
        one = Watchdog(works or jvm.works, jvm.ended.set, silent_ms_max=SILENT_MS_MAX)
        all_of.append(one)
        one.start()
        return one

    yield start
    for one in all_of:
        one.stop()


def test_a_jvm_that_hangs_is_ended_once(started: Any) -> None:
    jvm = Jvm()
    with capture_logs() as logs:
        started(jvm)
        assert jvm.ended.wait(WAIT_S)
    assert jvm.asked == 1
    assert [log["event"] for log in logs] == ["Spark's JVM does not answer: it is ended"]
    jvm.may_answer.release()


@pytest.mark.parametrize("error", [None, OSError("it is gone")])
def test_a_jvm_that_answers_or_is_gone_is_not(started: Any, error: Exception | None) -> None:
    jvm, often = Jvm(), threading.Event()

    def works() -> None:
        jvm.asked += 1
        if jvm.asked > 10 * SILENT_MS_MAX / (1_000 * watchdog.ASK_S):
            often.set()
        if error:
            raise error

    one = started(jvm, works)
    assert often.wait(WAIT_S)
    one.stop()
    assert not jvm.ended.is_set()


def test_one_that_is_stopped_ends_nothing(started: Any) -> None:
    jvm = Jvm()
    started(jvm).stop()
    assert not jvm.ended.wait(10 * SILENT_MS_MAX / 1_000)
    jvm.may_answer.release()
