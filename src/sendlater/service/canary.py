"""A message a minute through the whole pipeline, and how late it came, as users would see it."""

import threading

import structlog
from ulid import ULID

from sendlater.brokers.broker import Arrived, Broker
from sendlater.brokers.open import open_broker
from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.dialects import encode_headers
from sendlater.dialects.names import DUE
from sendlater.errors import SendlaterError
from sendlater.model import Record
from sendlater.store import Admin, Pending

EVERY_S = 60.0
AHEAD_MS = 5_000
"""Delay of each message: longer than intake takes."""
RETRY_S = 5.0
"""Pause before the topic is read again after the broker failed."""

_log = structlog.get_logger()


class Canary:
    """Sends and watches in two threads; metrics `sendlater_canary_*` show the result."""

    def __init__(
        self,
        settings: Settings,
        *,
        redis_url: str,
        clock: Clock | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self._settings, self._every_s = settings, every_s
        self._clock = clock or SystemClock()
        self._inbox = next(i.topic for i in settings.inboxes if i.dialect == "headers")
        self._broker: Broker = open_broker(settings, redis_url=redis_url)
        self._admin = Admin(Pending.open(redis_url, space=settings.space, shards=settings.shards))
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=work, name="canary", daemon=True)
            for work in (self._send, self._watch)
        ]

    def start(self) -> None:
        """Begin; create the topic if it is missing."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End both threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._broker.close()

    def _send(self) -> None:
        told = False
        while not self._stop.is_set():
            try:
                if not told:
                    self._admin.note({"canary-since-ms": self._clock.now_ms()})
                    told = True
                record = Record(topic=self._settings.canary_topic, value=b"canary")
                due_ms = self._clock.now_ms() + AHEAD_MS
                self._broker.send(
                    encode_headers(
                        record, inbox=self._inbox, id=f"canary-{ULID()}".encode(), due_ms=due_ms
                    )
                )
                self._broker.flush()
            except SendlaterError as error:
                _log.warning("the canary could not be sent", cause=str(error))
            self._stop.wait(self._every_s)

    def _watch(self) -> None:
        while not self._stop.is_set():
            try:
                self._create()
                for arrived in self._broker.follow(self._settings.canary_topic, stop=self._stop):
                    if arrived:
                        self._note(arrived[-1])
            except Exception as error:
                _log.warning("the canary is not being watched", cause=str(error))
                self._stop.wait(RETRY_S)

    def _create(self) -> None:
        try:
            self._broker.ends(self._settings.canary_topic)
        except Exception:
            self._broker.create(self._settings.canary_topic, partitions=1)

    def _note(self, arrived: Arrived) -> None:
        """If we created the topic, the broker writes the timestamps when it appends."""
        due = arrived.header(DUE)
        if due is not None:
            self._admin.note(
                {
                    "canary-at-ms": arrived.timestamp_ms,
                    "canary-late-ms": max(0, arrived.timestamp_ms - int(due)),
                }
            )
