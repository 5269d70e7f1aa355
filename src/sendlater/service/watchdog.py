"""Ends the JVM of a service if it hangs: then the service ends too, and its supervisor starts
another one. Until then it would hold its place, and nobody would notice."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Self

import structlog
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sendlater.config import Settings
from sendlater.spark.session import require_jvm
from sendlater.spark.warm_up import scala_module

ASK_S = 1.0
"""Pause between two questions to the JVM."""
_log = structlog.get_logger()


class Watchdog:
    """Asks whether something works, and calls `end` once if there is no answer for long."""

    def __init__(
        self, works: Callable[[], object], end: Callable[[], object], *, silent_ms_max: int
    ) -> None:
        """`works` may hang; if it raises, that is an answer, which others hear too."""
        self._works, self._end, self._silent_ms_max = works, end, silent_ms_max
        self._stop, self._answered = threading.Event(), threading.Event()

    def start(self) -> Self:
        """Ask and wait in threads, until `stop`."""
        for what in (self._ask, self._wait):
            threading.Thread(target=what, name="watchdog", daemon=True).start()
        return self

    def stop(self) -> None:
        """Ask no more."""
        self._stop.set()

    def _ask(self) -> None:
        while not self._stop.wait(ASK_S):
            try:
                self._works()
            except Exception as error:
                _log.debug("the JVM answers with an error", cause=str(error)[:500])
            self._answered.set()

    def _wait(self) -> None:
        # Counts its own rounds: of a pause of this process, or of the whole machine, it knows none.
        silent_ms = 0.0
        while not self._stop.wait(ASK_S):
            silent_ms = 0.0 if self._answered.is_set() else silent_ms + 1_000 * ASK_S
            self._answered.clear()
            if silent_ms >= self._silent_ms_max:
                _log.error("Spark's JVM does not answer: it is ended", silent_ms=round(silent_ms))
                self._end()
                return


def watch_jvm(spark: SparkSession, settings: Settings) -> Watchdog:
    """Kill the JVM of `spark` if it hangs: who waits for it goes on with an error."""
    gateway = SparkContext._gateway
    assert gateway is not None
    if gateway.proc:
        pid = gateway.proc.pid
    else:  # spark-submit has started it: Java says pid@host
        pid = int(
            scala_module(gateway.jvm.org.apache.spark.util, "Utils").getProcessName().split("@")[0]
        )
    return Watchdog(
        lambda: require_jvm(spark),
        lambda: os.kill(pid, signal.SIGKILL),
        silent_ms_max=settings.jvm_silent_ms_max,
    ).start()
