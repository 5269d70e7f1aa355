"""Checks that a scheduled message is delivered to the liveness topic."""

import threading

import structlog
from ulid import ULID

from sendlater.brokers.client_options import client_options
from sendlater.brokers.kafka import KafkaBroker
from sendlater.config import Settings
from sendlater.dialects import encode_headers
from sendlater.errors import BrokerUnavailable
from sendlater.model import Record

_log = structlog.get_logger()

LIVENESS_TIMEOUT_S = 5.0
"""Longest wait of `/liveness` for its probe."""
PROBES_KEPT_MAX = 1_000
"""Most arrived probes that are remembered; some are those of other instances."""


class Probe:
    """Sends schedules that are due at once to the liveness topic, and waits until they arrive."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._broker = KafkaBroker(client_options(settings))
        self._stop = threading.Event()
        self._came = threading.Condition()
        self._ids: dict[bytes, None] = {}
        threading.Thread(target=self._follow, name="liveness", daemon=True).start()

    def _follow(self) -> None:
        while not self._stop.wait(1):
            try:
                for arrived in self._broker.follow(self._settings.liveness_topic, stop=self._stop):
                    with self._came:
                        self._ids |= {a.value: None for a in arrived if a.value}
                        while len(self._ids) > PROBES_KEPT_MAX:
                            del self._ids[next(iter(self._ids))]
                        self._came.notify_all()
            except Exception as error:
                _log.warning("cannot read the liveness topic, will try again", cause=str(error))

    def comes_back(self, *, timeout_s: float) -> bool:
        """Send a probe and wait for it; whether it arrived in time."""
        name = f"liveness-{ULID()}".encode()
        record = Record(topic=self._settings.liveness_topic, value=name)
        inbox = self._settings.journals[0]
        try:
            self._broker.send(encode_headers(record, inbox=inbox, id=name, delay_ms=0))
            self._broker.flush()
        except BrokerUnavailable:
            return False
        with self._came:
            return self._came.wait_for(lambda: name in self._ids, timeout_s)

    def close(self) -> None:
        self._stop.set()
