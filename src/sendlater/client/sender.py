"""Sends schedules through a transport: waits for the answer, or goes on and keeps the errors."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from sendlater.client.quiet_log import log
from sendlater.errors import BadRequest, BrokerUnavailable
from sendlater.limits import REPORTER
from sendlater.model import Schedule
from sendlater.operations.conditions import checked_condition
from sendlater.operations.transport import Done, Transport

SEND_TIMEOUT_S = 60.0
"""Longest wait of `send_later` for the acknowledgement."""
SENDER_COUNT = 8
"""Threads for `wait=False` where sending blocks (Redis alone, HTTP)."""
UNDER_WAY_COUNT_MAX = 1_000
"""Most schedules in these threads and their queue; the next `send_later` waits."""
FAILED_COUNT_MAX = 1_000
"""Most errors kept for `flush`, which raises the first: an outage can last as long as it likes."""


class Sender:
    """Safe to share between threads. Whatever a caller's callback does, its thread goes on."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._failed: list[Exception] = []
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._under_way = threading.BoundedSemaphore(UNDER_WAY_COUNT_MAX)

    def submit(self, schedule: Schedule) -> "Future[None]":
        """Send a schedule; the future ends with its acknowledgement, and cannot be cancelled."""
        future: Future[None] = Future()
        # asyncio cancels what it no longer awaits; the report comes all the same, in the one
        # thread that all other reports need.
        future.set_running_or_notify_cancel()

        def done(error: Exception | None) -> None:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self._transport.send(schedule, done=done)
        return future

    def send(self, schedule: Schedule) -> None:
        """Send a schedule and wait. Raises its error, or BrokerUnavailable after a timeout, and
        BadRequest in `on_sent`, where what it waits for cannot be heard."""
        if threading.current_thread().name == REPORTER:
            raise BadRequest("expected wait=False within on_sent: all acknowledgements wait for it")
        try:
            self.submit(schedule).result(SEND_TIMEOUT_S)
        except TimeoutError as error:
            raise unanswered() from error

    def send_one(
        self, schedule: Schedule, *, only_if: str | None, wait: bool, on_sent: Done | None
    ) -> Schedule:
        """Send a schedule in one of three ways; returns it as it was sent. Raises its error."""
        if only_if is not None:
            schedule = self.create(schedule, only_if=only_if, wait=wait)
        elif wait:
            self.send(schedule)
        else:
            self.send_aside(schedule, on_sent)
            return schedule
        if on_sent is not None:
            on_sent(None)
        return schedule

    def create(self, schedule: Schedule, *, only_if: str, wait: bool = True) -> Schedule:
        """Create a schedule under a condition and wait. Raises BadRequest without `wait`: nobody
        would hear the answer; else what Transport.create raises."""
        if not wait:
            raise BadRequest("only_if: expected wait=True with it, as only the answer tells")
        return self._transport.create(schedule, only_if=checked_condition(only_if))

    def send_aside(self, schedule: Schedule, on_sent: Done | None = None) -> None:
        """Send a schedule without waiting; an error goes to `on_sent`, or else `flush` raises
        it."""

        def done(error: Exception | None) -> None:
            if on_sent is not None:
                try:
                    on_sent(error)
                except Exception:
                    log().exception(
                        "on_sent raised an error", id=schedule.id.decode("utf8", "replace")
                    )
            elif error is not None:
                with self._lock:
                    if len(self._failed) < FAILED_COUNT_MAX:
                        self._failed.append(error)

        if self._transport.ready():
            self._transport.send(schedule, done=done)
        else:
            self._send_in_thread(schedule, done)

    def flush(self) -> None:
        """Wait until all schedules are accepted. Raises the first error that no `on_sent` got."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()
        self._transport.flush()
        with self._lock:
            failed, self._failed = self._failed, []
        if failed:
            raise failed[0]

    def _send_in_thread(self, schedule: Schedule, done: Done) -> None:
        def work() -> None:
            try:
                self._transport.send(schedule, done=done)
            except Exception as error:
                done(error)
            finally:
                self._under_way.release()

        self._under_way.acquire()
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(SENDER_COUNT, "sendlater-send")
            self._threads.submit(work)


def unanswered() -> BrokerUnavailable:
    """The error of a schedule that nobody has acknowledged in time."""
    return BrokerUnavailable(f"no acknowledgement within {SEND_TIMEOUT_S:g} s")
