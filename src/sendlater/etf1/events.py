"""The event counter for etf1's dashboards."""

import threading
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily

from sendlater.etf1.mini import Mini
from sendlater.store import Pending

COUNTER = "kafka_scheduler_event_total"
HELP = "The number of event triggered by type"
COUNTED = ("rejected", "tombstones", "parked", "missed", "settled")
"""Counters of the store that only grow, as long as it keeps its data."""


class Events:
    """The counter `kafka_scheduler_event_total{type}`, read from the store at each scrape."""

    def __init__(self, pending: "Pending | Mini") -> None:
        self._pending = pending
        self._lock = threading.Lock()  # two may scrape at once
        self._counts: dict[str, int] = {}
        self._told: dict[str, int] = {}

    def collect(self) -> Iterator[CounterMetricFamily]:
        """For prometheus_client. As in etf1's scheduler, a type appears with its first event."""
        family = CounterMetricFamily(COUNTER, HELP, labels=["type"])
        with self._lock:
            for name, count in self._grown(self._pending.counts()).items():
                if count > 0:
                    family.add_metric([f"kafka_scheduler_{name}"], count)
        yield family

    def _grown(self, counts: Mapping[str, int]) -> dict[str, int]:
        """The events by type. What is rejected counts before it is parked and settled, so that a
        difference may shrink for a moment; Prometheus would take that for a counter that began
        again, and count all of it twice. Those of a store that began again do."""
        missed = counts["missed"]
        types = {
            "invalid_schedule": counts["rejected"],
            "deleted_schedule": counts["tombstones"],
            "planned_schedule": counts["parked"] - counts["rejected"],
            "missed_schedule": missed,
            "triggered_schedule": counts["settled"] - counts["rejected"] - missed,
        }
        used = {name: counts[name] for name in COUNTED}
        if all(count >= self._counts.get(name, 0) for name, count in used.items()):
            types = {name: max(count, self._told.get(name, 0)) for name, count in types.items()}
        self._counts, self._told = used, types
        return types
