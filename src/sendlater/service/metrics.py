"""Prometheus metrics of one installation, read from its store on each request.

All numbers are in the store: every process of an installation shows the same, and a restart of the
service resets none. docs/reference/metrics.md explains each.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from sendlater.addresses import host_and_port
from sendlater.brokers.broker import Broker
from sendlater.brokers.redis import open_topics
from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.errors import BadSettings, Unavailable
from sendlater.limits import LATE_BUCKETS_MS, OVERDUE_AFTER_MS
from sendlater.model import Reason
from sendlater.store import Admin, Pending

HORIZONS_MS = {"1m": 60_000, "1h": 3_600_000, "1d": 86_400_000}
"""How far `sendlater_due` looks ahead, by its label."""
LAG_S_MAX = 3.0
"""Longest that an answer waits for how far intake is behind."""
LAG_COUNT_MAX = 1_000
"""At most so many unread records are counted per partition of a topic on Redis."""

COUNTERS = {
    "parked": "Schedules written to the store.",
    "replaced": "Schedules that took the place of an older one with the same id.",
    "outdated": "Records dropped because their id has a newer version on another partition.",
    "unmet": "Records dropped because the condition in their header sendlater-if did not hold, and "
    "retries that had been asked for before.",
    "cancelled": "Schedules taken back.",
    "settled": "Schedules whose delivery the broker has acknowledged.",
}

Lag = Callable[[], dict[str, int]]
"""Records that intake has not read, per inbox."""


class Patient:
    """Asks for a lag in a thread, so that a broker that is away costs the lag only, and not all
    that Prometheus asks for: that waits for 10 s."""

    def __init__(self, lag: Lag) -> None:
        self._ask = lag
        self._lock = threading.Lock()
        self._answer: Future[dict[str, int]] | None = None

    def __call__(self) -> dict[str, int]:
        """The lag, if it is known within LAG_S_MAX; of an earlier question if that took so long.
        Raises Unavailable."""
        with self._lock:
            answer = self._answer
            if answer is None:
                self._answer = answer = Future()
                threading.Thread(target=self._tell, args=(answer,), daemon=True).start()
        if not wait((answer,), LAG_S_MAX).done:
            return {}
        with self._lock:
            if self._answer is answer:
                self._answer = None
        return answer.result()

    def _tell(self, answer: "Future[dict[str, int]]") -> None:
        try:
            answer.set_result(self._ask())
        except Exception as error:
            answer.set_exception(error)


class StoreMetrics(Collector):
    """Numbers of the store as Prometheus metrics; `sendlater_up` is 0 if it does not answer."""

    def __init__(
        self, pending: Pending, *, lag: Lag, dead_topic: str = "", clock: Clock | None = None
    ) -> None:
        self._admin = Admin(pending)
        self._dead_topic = dead_topic
        self._lag = Patient(lag)
        self._clock = clock or SystemClock()

    def describe(self) -> list[Metric]:
        """Nothing, because registering must not ask the store."""
        return []

    def collect(self) -> Iterator[Metric]:
        """A few calls, each O(log n) in the store."""
        try:
            found = [*self._gauges(), *self._counters(), *self._told()]
        except Unavailable:
            found = []
        yield GaugeMetricFamily("sendlater_up", "Whether the store answers.", bool(found))
        yield from found
        if not found:
            return  # what intake has read is in the store, too
        with suppress(Unavailable):
            yield from list(self._memory())  # a node of a cluster may be away that nothing needs
        with suppress(Unavailable):
            behind = GaugeMetricFamily(
                "sendlater_intake_lag_records", "Records not read yet.", labels=["inbox"]
            )
            for inbox, count in self._lag().items():
                behind.add_metric([inbox], count)
            yield behind

    def _gauges(self) -> Iterator[Metric]:
        now_ms, admin = self._clock.now_ms(), self._admin
        counts = admin.pending.counts()
        for name, told in (
            ("pending", "Schedules waiting for their time."),
            ("claimed", "Schedules on their way to the broker."),
            ("limited", "Schedules that are due and wait for the limit of their topic."),
            ("aside", "Schedules whose target topic is being looked up."),
        ):
            yield GaugeMetricFamily(f"sendlater_{name}", told, counts[name])
        due = GaugeMetricFamily("sendlater_due", "Schedules due within.", labels=["within"])
        for label, ms in HORIZONS_MS.items():
            due.add_metric([label], admin.count(to_ms=now_ms + ms))
        yield due
        overdue = admin.count(to_ms=now_ms - OVERDUE_AFTER_MS)
        yield GaugeMetricFamily("sendlater_overdue", "Schedules due a second ago or more.", overdue)
        oldest_ms = admin.pending.oldest_due_ms()
        age_ms = max(0, now_ms - oldest_ms) if overdue and oldest_ms is not None else 0
        yield GaugeMetricFamily(
            "sendlater_oldest_overdue_seconds", "Age of the oldest of them.", age_ms / 1000
        )

    def _counters(self) -> Iterator[Metric]:
        counts = self._admin.pending.counts()
        for name, told in COUNTERS.items():
            yield CounterMetricFamily(f"sendlater_{name}", told, counts[name])

    def _told(self) -> Iterator[Metric]:
        tally = self._admin.tally()
        yield CounterMetricFamily(
            "sendlater_rescheduled", "Changes of a due time.", tally["rescheduled"]
        )
        yield CounterMetricFamily(
            "sendlater_held_seconds",
            "Time in which something was due and waited for intake.",
            tally["held-ms"] / 1000,
        )
        yield CounterMetricFamily(
            "sendlater_dead",
            "Records for the dead-letter topic.",
            tally[f"delivered:{self._dead_topic}"],
        )
        for name, label, told in (
            ("delivered", "topic", "Records handed to the producer."),
            ("rejected", "reason", "Records that could not be scheduled."),
            ("expired", "topic", "Schedules that had expired when they were to be delivered."),
        ):
            family = CounterMetricFamily(f"sendlater_{name}", told, labels=[label])
            # A series that begins with its first value has no increase: alerts would miss that.
            known: dict[str, int] = dict.fromkeys(Reason, 0) if name == "rejected" else {}
            for key, count in tally.items():
                kind, colon, what = key.partition(":")
                if kind == name and colon:
                    known[what or "other"] = count
            for what in sorted(known):
                family.add_metric([what], known[what])
            yield family
        held = CounterMetricFamily(
            "sendlater_limited_seconds",
            "Time in which delivered schedules waited for the limit of their topic.",
            labels=["topic"],
        )
        for key, ms in sorted(tally.items()):
            if key.startswith("limited-ms:"):
                held.add_metric([key.partition(":")[2] or "other"], ms / 1000)
        yield held
        yield _lateness(tally)
        if tally["canary-at-ms"]:
            yield GaugeMetricFamily(
                "sendlater_canary_lateness_seconds",
                "How late the last canary arrived on its topic.",
                tally["canary-late-ms"] / 1000,
            )
        # Also counted from the start of the service, so that a missing first canary is noticed.
        if since_ms := max(tally["canary-at-ms"], tally["canary-since-ms"]):
            yield GaugeMetricFamily(
                "sendlater_canary_age_seconds",
                "Time since a canary arrived.",
                max(0, self._clock.now_ms() - since_ms) / 1000,
            )

    def _memory(self) -> Iterator[Metric]:
        name, label = "sendlater_redis_memory", ["server"]
        used = GaugeMetricFamily(f"{name}_bytes", "Memory Redis uses.", labels=label)
        most = GaugeMetricFamily(f"{name}_max_bytes", "Its `maxmemory`; 0: no limit.", labels=label)
        for server, (used_bytes, max_bytes) in self._admin.memory().items():
            used.add_metric([server], used_bytes)
            most.add_metric([server], max_bytes)
        yield used
        yield most


def _lateness(tally: Counter[str]) -> Metric:
    total, buckets = 0, []
    for edge in LATE_BUCKETS_MS:
        total += tally[f"late:{edge}"]
        buckets.append((str(edge / 1000), float(total)))
    buckets.append(("+Inf", float(total + tally["late:inf"])))
    return HistogramMetricFamily(
        "sendlater_lateness_seconds",
        "From due time until the record was handed to the producer.",
        buckets=buckets,
        sum_value=tally["late-sum-ms"] / 1000,
    )


def intake_lag(settings: Settings, *, redis_url: str, pending: Pending, broker: Broker) -> Lag:
    """A function that gives, per inbox, the number of records that intake has not read.

    On Kafka the difference of offsets; on Redis a count, up to LAG_COUNT_MAX per partition.
    """

    def on_kafka() -> dict[str, int]:
        seen = pending.positions()
        return {
            inbox.topic: sum(
                max(0, end - seen.get(f"{inbox.topic}/{number}", 0))
                for number, end in broker.ends(inbox.topic).items()
            )
            for inbox in settings.inboxes
        }

    topics = None if settings.on_kafka else open_topics(redis_url, settings)

    def on_redis() -> dict[str, int]:
        assert topics is not None
        seen, found = pending.positions(), {}
        for inbox in settings.inboxes:
            unread = 0
            for number in topics.end_positions(inbox.topic):
                after = max(0, seen.get(f"{inbox.topic}/{number}", 0) - 1)
                unread += len(
                    topics.read(
                        inbox.topic,
                        number,
                        after_position=after,
                        count_max=LAG_COUNT_MAX,
                        block_ms=0,
                    )
                )
            found[inbox.topic] = unread
        return found

    return on_kafka if settings.on_kafka else on_redis


class MetricsServer:
    """`GET /metrics` on its own address, in a thread."""

    def __init__(self, address: str, collector: Collector) -> None:
        """Raises BadSettings for an address that cannot be used."""
        cannot = f"metrics_addr: cannot listen on {address!r}"
        try:
            host, port = host_and_port(address, setting="metrics_addr")
        except BadSettings as error:
            raise BadSettings(f"{cannot}: expected host:port") from error
        registry = CollectorRegistry()
        registry.register(collector)
        try:
            self._server, self._thread = start_http_server(port, host, registry=registry)
        except OSError as error:
            raise BadSettings(f"{cannot}: {error}") from error

    @property
    def port(self) -> int:
        """The port it listens on: the requested one, or a free one for 0."""
        bound: Any = self._server.server_address
        return int(bound[1])

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
