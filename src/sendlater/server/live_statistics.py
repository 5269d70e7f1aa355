"""Rates and lateness of the last minutes, and sentences that say why something is late."""

import itertools
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from sendlater.clock import Clock
from sendlater.config_tables import Limit
from sendlater.errors import SendlaterError, Unavailable
from sendlater.limits import OVERDUE_AFTER_MS, REDIS_MEMORY_SHARE_MAX
from sendlater.server.last_hour import LastHour, quantile_ms
from sendlater.service.metrics import HORIZONS_MS, Lag
from sendlater.store import Admin
from sendlater.store.waiting import waiting

SAMPLE_S = 2.0
"""Pause between two samples of the counters."""
WINDOW_MS = 300_000
"""Period of the lateness statistics."""
RATE_MS = 10_000
"""Period of the "per second" numbers."""
BEAT_MS_MAX = 10_000
"""A service without a heartbeat for this long is not running."""
LAG_WORTH_TELLING = 1_000
NO_LIMITS: Mapping[str, Limit] = {}
DRAIN_DEFAULT_PER_S = 50_000.0
"""Assumed until the rate has been measured while something was overdue."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters at one instant."""

    at_ms: int
    tally: Counter[str]
    counts: dict[str, int]


@dataclass(slots=True)
class Facts:
    """The input of `why`; the defaults mean that all is well."""

    store_answers: bool = True
    beat_age_ms: int | None = 0
    starting: bool = False
    failed: list[str] = field(default_factory=list)
    overdue: int = 0
    delivered_per_s: float = 0.0
    drain_per_s: float = DRAIN_DEFAULT_PER_S
    aside: int = 0
    lag: dict[str, int] | None = field(default_factory=dict)
    memory_share: float = 0.0
    limited: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Of each limited topic: messages per second, and how many wait."""


def why(facts: Facts) -> list[str]:
    """Sentences that say what is wrong, the most serious first.

    >>> why(Facts())
    []
    >>> why(Facts(beat_age_ms=40_000, overdue=2))
    ['No service is running (last sign of life 40 s ago): nothing is delivered.']
    >>> why(Facts(beat_age_ms=None, starting=True))
    ['The service is starting: nothing is delivered yet.']
    >>> why(Facts(beat_age_ms=500, overdue=120_000, delivered_per_s=60_000, drain_per_s=60_000))
    ['120,000 are overdue and delivered at 60,000 a second: the last in 2 s.']
    >>> why(Facts(beat_age_ms=500, limited={"sms": (50, 400), "mail": (9, 0)}))
    ['400 wait for the limit of sms, 50 a second: the last in 8 s.']
    """
    if not facts.store_answers:
        return ["Redis does not answer: nothing can be delivered or changed."]
    told = []
    if facts.starting:
        told.append("The service is starting: nothing is delivered yet.")
    elif facts.beat_age_ms is None:
        told.append("No service has run on this store yet: nothing is delivered.")
    elif facts.beat_age_ms > BEAT_MS_MAX:
        age_s = facts.beat_age_ms // 1_000
        told.append(
            f"No service is running (last sign of life {age_s} s ago): nothing is delivered."
        )
    else:
        told += [f"{name} has failed and is being restarted." for name in facts.failed]
        if facts.overdue and facts.delivered_per_s > 0:
            left_s = facts.overdue / max(facts.delivered_per_s, 1)
            told.append(
                f"{facts.overdue:,} are overdue and delivered at {facts.delivered_per_s:,.0f} "
                f"a second: the last in {left_s:,.0f} s."
            )
        elif facts.overdue and not facts.failed:
            told.append(
                f"{facts.overdue:,} are overdue and nothing is delivered: see the service's log."
            )
    if facts.aside:
        told.append(f"{facts.aside:,} wait until the broker answers for their target topic.")
    if facts.lag is None:
        told.append("The broker does not answer: new schedules are not read.")
    elif (behind := sum(facts.lag.values())) >= LAG_WORTH_TELLING:
        told.append(f"Intake is {behind:,} records behind: they may be late when it reads them.")
    if facts.memory_share > REDIS_MEMORY_SHARE_MAX:
        told.append(
            f"Redis uses {facts.memory_share:.0%} of its memory: at 100% it accepts no schedules."
        )
    told += [
        f"{count:,} wait for the limit of {topic}, {per_second:,g} a second: "
        f"the last in {count / per_second:,.0f} s."
        for topic, (per_second, count) in facts.limited.items()
        if count
    ]
    return told


class Watch:
    """Samples the counters regularly, in a thread, and makes statistics of the samples."""

    def __init__(
        self,
        admin: Admin,
        *,
        lag: Lag,
        dead_topic: str,
        clock: Clock,
        limits: Mapping[str, Limit] = NO_LIMITS,
        starting: bool = False,
    ) -> None:
        """`starting`: its service has just been started, and will be heard when it can deliver."""
        self._admin, self._lag, self._clock, self._limits = admin, lag, clock, limits
        self._dead = f"delivered:{dead_topic}"
        self._samples: deque[Sample] = deque(maxlen=int(WINDOW_MS / 1_000 / SAMPLE_S))
        self.hour = LastHour()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.drain_per_s = DRAIN_DEFAULT_PER_S
        self.drain_measured = False
        self._lag_seen: dict[str, int] | None = {}
        self._starts_ms = clock.now_ms() if starting else 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.look()
            except Unavailable:
                pass  # `stats` reports it
            except Exception:
                _log.exception("cannot read the counters, will try again")
            self._stop.wait(SAMPLE_S)

    def look(self) -> None:
        """Take one sample."""
        now_ms, admin = self._clock.now_ms(), self._admin
        sample = Sample(now_ms, admin.tally(), admin.pending.counts())
        if self._samples and _sum(sample.tally, "late:") < _sum(self._samples[-1].tally, "late:"):
            # The store was emptied, and counts from the beginning.
            self._samples.clear()
            self.hour.forget()
        if self._samples:
            last = self._samples[-1]
            rate = _rate(last, sample, "delivered:")
            # The rate is the limit only while something is overdue.
            if last.counts["pending"] and rate > 1_000 and self._overdue(last.at_ms):
                self.drain_per_s = 0.7 * self.drain_per_s + 0.3 * rate
                self.drain_measured = True
        self._samples.append(sample)
        if self.hour.due(now_ms):
            pending, overdue = sample.counts["pending"], self._overdue(now_ms)
            self.hour.add(now_ms, sample.tally, pending=pending, overdue=overdue)
        try:
            self._lag_seen = self._lag()
        except SendlaterError:
            self._lag_seen = None

    def _overdue(self, at_ms: int) -> int:
        return self._admin.count(to_ms=at_ms - OVERDUE_AFTER_MS)

    def since(self, window_ms: int) -> tuple[Sample, Sample] | None:
        """The first sample within a window before the latest one, and the latest."""
        samples = list(self._samples)
        if len(samples) < 2:
            return None
        first = next(s for s in samples if s.at_ms >= samples[-1].at_ms - window_ms)
        return (first, samples[-1]) if first is not samples[-1] else (samples[-2], samples[-1])

    def stats(self) -> dict[str, Any]:
        """Current counts, recent rates and lateness, and why something is late."""
        now_ms, admin = self._clock.now_ms(), self._admin
        try:
            counts, tally = admin.pending.counts(), admin.tally()
            oldest_ms = admin.pending.oldest_due_ms()
            overdue = self._overdue(now_ms)
            due = {name: admin.count(to_ms=now_ms + ms) for name, ms in HORIZONS_MS.items()}
            used, limit = admin.fullest()
            limited = self.waiting()
        except Unavailable as error:
            return {
                "at_ms": now_ms,
                "pending": 0,
                "overdue": 0,
                "due": {},
                "late_ms": {},
                "why": why(Facts(store_answers=False)),
                "error": str(error),
            }
        beat_ms = tally["beat-ms"]
        starting = beat_ms < self._starts_ms
        workers = {n.removeprefix("worker:"): n for n in tally if n.startswith("worker:")}
        short = self.since(RATE_MS)
        delivered_per_s = _rate(*short, "delivered:") if short else 0.0
        facts = Facts(
            beat_age_ms=now_ms - beat_ms if beat_ms else None,
            starting=starting,
            failed=sorted(name for name, key in workers.items() if not tally[key]),
            overdue=overdue,
            delivered_per_s=delivered_per_s,
            drain_per_s=self.drain_per_s,
            aside=counts["aside"],
            lag=self._lag_seen,
            memory_share=used / limit if limit else 0.0,
            limited={
                topic: (self._limits[topic].per_second, sum(callers.values()))
                for topic, callers in limited.items()
            },
        )
        return {
            "at_ms": now_ms,
            **counts,
            "delivered": _sum(tally, "delivered:"),
            "rescheduled": tally["rescheduled"],
            "dead": tally[self._dead],
            "due": due,
            "overdue": overdue,
            "oldest_overdue_ms": now_ms - oldest_ms if overdue and oldest_ms is not None else 0,
            "late_ms": self._late(),
            "late_hour_ms": self.hour.late_ms(tally, now_ms=now_ms),
            "delivered_per_s": round(delivered_per_s, 1),
            "parked_per_s": round(_count_rate(short, "parked"), 1),
            "drain_per_s": round(self.drain_per_s),
            "intake_lag": self._lag_seen,
            "redis": {"used_bytes": used, "max_bytes": limit},
            "starting": starting,
            "service_heard_ms": now_ms - beat_ms if beat_ms else None,
            "workers": {name: bool(tally[key]) for name, key in sorted(workers.items())},
            "canary_late_ms": tally["canary-late-ms"] if tally["canary-at-ms"] else None,
            "limits": {
                topic: {"per_second": self._limits[topic].per_second, "waiting": callers}
                for topic, callers in limited.items()
            },
            "why": why(facts),
        }

    def waiting(self) -> dict[str, dict[str, int]]:
        """Of each topic with a limit, how many wait for it, by caller. Raises StoreUnavailable."""
        return {topic: waiting(self._admin.pending, topic) for topic in sorted(self._limits)}

    def let_go(self, edges_ms: Sequence[int], *, now_ms: int) -> list[int]:
        """How many of those that wait now their limits let go in each bucket, from now on.
        Raises StoreUnavailable."""
        told = [0] * (len(edges_ms) - 1)
        for topic, callers in self.waiting().items():
            count, per_ms = sum(callers.values()), self._limits[topic].per_second / 1_000
            gone = [min(count, round(per_ms * max(0, edge - now_ms))) for edge in edges_ms]
            for n, (before, after) in enumerate(itertools.pairwise(gone)):
                told[n] += after - before
        return told

    def _late(self) -> dict[str, Any]:
        both = self.since(WINDOW_MS)
        late: dict[str, int] = {}
        if both:
            first, last = both
            late = {
                name.removeprefix("late:"): count - first.tally[name]
                for name, count in last.tally.items()
                if name.startswith("late:")
            }
        window_ms = both[1].at_ms - both[0].at_ms if both else 0
        return {
            "p50": quantile_ms(late, 0.5),
            "p99": quantile_ms(late, 0.99),
            "window_s": round(window_ms / 1_000),
            "count": sum(late.values()),
        }


def _sum(tally: Mapping[str, int], prefix: str) -> int:
    return sum(count for name, count in tally.items() if name.startswith(prefix))


def _rate(first: Sample, last: Sample, prefix: str) -> float:
    seconds = max(1, last.at_ms - first.at_ms) / 1_000
    return max(0.0, (_sum(last.tally, prefix) - _sum(first.tally, prefix)) / seconds)


def _count_rate(both: tuple[Sample, Sample] | None, name: str) -> float:
    if not both:
        return 0.0
    first, last = both
    return max(
        0.0, (last.counts[name] - first.counts[name]) * 1_000 / max(1, last.at_ms - first.at_ms)
    )
