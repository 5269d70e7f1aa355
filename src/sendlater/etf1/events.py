"""The event counter for etf1's dashboards."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily

from sendlater.etf1.mini import Mini
from sendlater.store import Pending

COUNTER = "kafka_scheduler_event_total"
HELP = "The number of event triggered by type"


class Events:
    """The counter `kafka_scheduler_event_total{type}`, read from the store at each scrape."""

    def __init__(self, pending: "Pending | Mini") -> None:
        self._pending = pending

    def collect(self) -> Iterator[CounterMetricFamily]:
        """For prometheus_client. As in etf1's scheduler, a type appears with its first event."""
        counts = self._pending.counts()
        missed = counts["missed"]
        types = {
            "invalid_schedule": counts["rejected"],
            "deleted_schedule": counts["tombstones"],
            "planned_schedule": counts["parked"] - counts["rejected"],
            "missed_schedule": missed,
            "triggered_schedule": counts["settled"] - counts["rejected"] - missed,
        }
        family = CounterMetricFamily(COUNTER, HELP, labels=["type"])
        for name, count in types.items():
            if count > 0:
                family.add_metric([f"kafka_scheduler_{name}"], count)
        yield family
