"""A lane: one of the delivering queries, and when its batches begin and end."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from sendlater.limits import (
    BATCH_BYTES_MAX,
    BATCH_COUNT_MAX,
    CLAIM_COUNT_MAX,
    WHOLE_BATCH_BYTES_MAX,
    WHOLE_BATCH_COUNT_MAX,
)

if TYPE_CHECKING:
    from sendlater.config import Settings


LEAD_MS = 200
"""Shortest batch: planning and starting one takes this long."""
PAUSES_A_LEAD, PAUSES_A_BATCH = 5, 12
"""The same, and the length of a batch, as multiples of the pause before its planning: about a
fourth of the pause between two batches. Otherwise a slow machine would only plan batches."""
RISK_COUNT = 20_000
"""Rows up to which a batch is longer than `window_ms`: what is doubled at worst if they must be
delivered again, and their look-up fails. A batch costs as much as a hundred rows."""
PAUSE_TIMES, POLL_TIMES_MAX = 2, 2
"""The pause after a claim as a multiple of what a claim takes, and its maximum as one of `poll_ms`:
a claim costs as much as fifty rows, so where claims take long, fewer are made."""
MANY_COUNT = 5
"""Rows of a claim from which on that holds: with less, a longer pause saves next to nothing."""
WARM_UP_BATCHES, WARM_UP_WINDOW_MS = 3, 500
"""A lane begins with so many short batches. The first ones are planned slowly, which nobody should
notice later, when another lane is between two batches at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What a lane's reader and tasks need; passed in Spark options, which are strings."""

    redis_url: str
    space: str
    shards: int
    owner: int
    lane: int
    lanes: int
    run: int
    window_ms: int
    idle_window_ms: int
    poll_ms: int
    standby_poll_ms: int
    claim_count: int
    check_targets: bool
    prefetch_ms: int = 0
    prefetch_bytes_max: int = 0
    filler_rows: int = 0
    dead_topic: str = ""
    """Topic for what has expired; empty: it is dropped."""
    rejected_topic: str = ""
    partitions: int = 0
    """Of a topic on Redis that nobody has created yet."""
    journals: str = ""
    """Separated by commas."""
    history_topic: str = ""
    limits: str = ""
    """See `rates_text`."""
    inherits: bool = False
    """Whether another owner may deliver beside this lane for a while."""
    broker_url: str = ""
    """Kafka client options as JSON; empty for the development outbox."""
    clock_skew_ms_max: int = 0
    """0: tasks run in the service's own host, and its clock is theirs."""

    @classmethod
    def of(
        cls,
        settings: "Settings",
        *,
        redis_url: str,
        owner: int,
        lane: int,
        run: int,
        inherits: bool = False,
    ) -> "Lane":
        """A lane of an installation."""
        # Here, as a process for each step of planning reads lanes, and needs neither.
        from sendlater.brokers.client_options import client_options
        from sendlater.store.waiting import rates_text

        same = ("space", "shards", "lanes", "window_ms", "idle_window_ms")
        more = ("poll_ms", "standby_poll_ms", "claim_count", "prefetch_ms", "prefetch_bytes_max")
        return cls(
            redis_url=redis_url,
            owner=owner,
            lane=lane,
            run=run,
            check_targets=settings.on_kafka,
            dead_topic=settings.expired_topic,
            rejected_topic=settings.rejected_topic,
            partitions=settings.topic_partitions,
            journals=",".join(settings.journals),
            history_topic=settings.history_topic,
            limits=rates_text(settings.limits),
            inherits=inherits,
            broker_url=json.dumps(client_options(settings)) if settings.on_kafka else "",
            clock_skew_ms_max=settings.clock_skew_ms_max if settings.spark_master else 0,
            **{name: getattr(settings, name) for name in (*same, *more)},
        )

    @classmethod
    def from_options(cls, options: Any) -> "Lane":
        """Read the options that `to_options` wrote."""
        numbers = ("shards", "owner", "lane", "lanes", "run", "window_ms", "idle_window_ms")
        return cls(
            redis_url=options["redis.url"],
            space=options["space"],
            poll_ms=int(options.get("poll_ms", 2)),
            standby_poll_ms=int(options.get("standby_poll_ms", 2)),
            claim_count=int(options.get("claim_count", CLAIM_COUNT_MAX)),
            prefetch_ms=int(options.get("prefetch_ms", 0)),
            prefetch_bytes_max=int(options.get("prefetch_bytes_max", 0)),
            check_targets=options.get("check_targets", "false") == "true",
            filler_rows=int(options.get("filler_rows", 0)),
            dead_topic=options.get("dead_topic", ""),
            rejected_topic=options.get("rejected_topic", ""),
            partitions=int(options.get("partitions", 0)),
            journals=options.get("journals", ""),
            history_topic=options.get("history_topic", ""),
            limits=options.get("limits", ""),
            inherits=options.get("inherits", "false") == "true",
            broker_url=options.get("broker.url", ""),
            clock_skew_ms_max=int(options.get("clock_skew_ms_max", 0)),
            **{name: int(options[name]) for name in numbers},
        )

    def to_options(self) -> dict[str, str]:
        """Spark options; `url` in their names makes Spark hide them in plans."""
        hidden = ("redis_url", "broker_url")
        options = {name: str(getattr(self, name)) for name in self.__slots__ if name not in hidden}
        return options | {
            "redis.url": self.redis_url,
            "broker.url": self.broker_url,
            "check_targets": str(self.check_targets).lower(),
            "inherits": str(self.inherits).lower(),
        }

    @property
    def batch_max(self) -> tuple[int, int]:
        """Most rows that a batch claims on a shard, and their payload in bytes."""
        if self.journals or not self.broker_url:
            return WHOLE_BATCH_COUNT_MAX, WHOLE_BATCH_BYTES_MAX
        return BATCH_COUNT_MAX, BATCH_BYTES_MAX

    def broker_options(self) -> dict[str, str]:
        """Options of a Kafka client (librdkafka's names)."""
        found: dict[str, str] = json.loads(self.broker_url)
        return found


@dataclass(frozen=True, slots=True)
class ShardSlice(InputPartition):
    """One task: one shard until the end of the batch, at most `length_ms` long."""

    shard: int
    end_ms: int
    number: int
    length_ms: int


def batch_end_ms(
    now_ms: int, *, lane: int, lanes: int, window_ms: int, length_ms: int, lead_ms: int = LEAD_MS
) -> int:
    """The lane's first possible end at least `lead_ms` away. There is one in each `length_ms`, an
    odd number of windows: so those of two lanes are half of that apart.

    >>> batch_end_ms(10_000, lane=0, lanes=2, window_ms=2_000, length_ms=2_000)
    12000
    >>> batch_end_ms(10_000, lane=1, lanes=2, window_ms=2_000, length_ms=2_000)
    11000
    >>> batch_end_ms(10_000, lane=1, lanes=2, window_ms=2_000, length_ms=2_000, lead_ms=1_500)
    13000
    >>> [batch_end_ms(11_000, lane=n, lanes=2, window_ms=2_000, length_ms=10_000) for n in (0, 1)]
    [20000, 15000]
    """
    windows = length_ms // window_ms | 1
    phase = lane * window_ms // lanes + lane * windows // lanes * window_ms
    return ((now_ms + lead_ms - phase) // (windows * window_ms) + 1) * windows * window_ms + phase


def leads_in_ms(now_ms: int, *, end_ms: int, lanes: int, window_ms: int) -> int:
    """How long until a lane leads, 0 while it does: it is in the middle of its batch, when no other
    is, and claims most.

    The others, near a pause, only look now and then, in case the leader does not work. A batch of
    several windows (nothing is due soon) leads in the middle of each window.

    >>> [
    ...     leads_in_ms(at, end_ms=4_000, lanes=2, window_ms=2_000)
    ...     for at in (2_000, 2_499, 2_500, 3_499, 3_500)
    ... ]
    [500, 1, 0, 0, 1000]
    """
    share_ms = window_ms // lanes
    margin_ms = (window_ms - share_ms) // 2
    began_ms = end_ms - margin_ms - share_ms
    since_ms = (now_ms - began_ms) % window_ms
    return 0 if since_ms < share_ms else window_ms - since_ms


def pause_ms(poll_ms: int, *, count: int, took_ms: float) -> int:
    """How long a task that leads waits after a claim of so many rows, where claims take so long.

    >>> [pause_ms(10, count=20, took_ms=took) for took in (1.5, 8, 60)]
    [10, 16, 20]
    >>> pause_ms(10, count=2, took_ms=60)
    10
    """
    if count < MANY_COUNT:
        return poll_ms
    return max(poll_ms, min(round(PAUSE_TIMES * took_ms), POLL_TIMES_MAX * poll_ms))
