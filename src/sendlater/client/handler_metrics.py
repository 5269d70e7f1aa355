"""What handlers count, as Prometheus metrics."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sendlater.client.event_worker import Tally


class Tallies(Collector):
    """The tallies as Prometheus metrics."""

    def __init__(self, tallies: Callable[[], dict[str, Tally]]) -> None:
        self._tallies = tallies

    def collect(self) -> Iterator[Metric]:
        """The metrics now; their names are in docs/handlers.md."""
        events = CounterMetricFamily(
            "sendlater_handler_events", "Events by outcome.", labels=["type", "outcome"]
        )
        seconds = CounterMetricFamily(
            "sendlater_handler_seconds", "Time spent in handlers.", labels=["type"]
        )
        ready = GaugeMetricFamily(
            "sendlater_handler_ready", "Events whose handling has not begun.", labels=["type"]
        )
        in_flight = GaugeMetricFamily(
            "sendlater_handler_in_flight", "Events being handled.", labels=["type"]
        )
        for type_, tally in self._tallies().items():
            for outcome in ("taken", "succeeded", "retried", "dead", "skipped"):
                events.add_metric([type_, outcome], getattr(tally, outcome))
            seconds.add_metric([type_], tally.seconds)
            ready.add_metric([type_], tally.ready)
            in_flight.add_metric([type_], tally.in_flight)
        yield from (events, seconds, ready, in_flight)
