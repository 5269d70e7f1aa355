"""What runs beside the queries: metrics, the canary, the interface of an etf1 scheduler."""

from collections.abc import Mapping

import structlog

from sendlater.brokers.open import open_broker
from sendlater.config import Settings
from sendlater.etf1.http import Etf1Server
from sendlater.service.canary import Canary
from sendlater.service.metrics import MetricsServer, StoreMetrics, intake_lag
from sendlater.store import Pending

_log = structlog.get_logger()


class Sidecars:
    """Each runs if its setting is given; deliveries need none of them."""

    def __init__(self, settings: Settings, pending: Pending, *, redis_url: str) -> None:
        self._settings, self._pending, self._redis_url = settings, pending, redis_url
        self._metrics: MetricsServer | None = None
        self._canary: Canary | None = None
        self._etf1: Etf1Server | None = None
        self.started = False

    def answer_as_etf1(self, environment: Mapping[str, str]) -> None:
        """Serve the etf1 interface, also while another service is active: it reads the store."""
        self._etf1 = Etf1Server(self._settings, self._pending, environment=environment)

    def start(self) -> None:
        """Start metrics and canary; call it when this service is the active one."""
        settings = self._settings
        if settings.metrics_addr and self._metrics is None:
            broker = open_broker(settings, redis_url=self._redis_url)
            lag = intake_lag(
                settings, redis_url=self._redis_url, pending=self._pending, broker=broker
            )
            store = StoreMetrics(self._pending, lag=lag, dead_topic=settings.dead_topic)
            try:
                self._metrics = MetricsServer(settings.metrics_addr, store)
            except BaseException:
                broker.close()
                raise
            _log.info("metrics are served", port=self._metrics.port)
        if settings.canary_topic:
            canary = Canary(settings, redis_url=self._redis_url)
            canary.start()
            self._canary = canary
        self.started = True

    def close(self) -> None:
        """End them."""
        if self._metrics is not None:
            self._metrics.close()
        if self._canary is not None:
            self._canary.stop()
        if self._etf1 is not None:
            self._etf1.close()
