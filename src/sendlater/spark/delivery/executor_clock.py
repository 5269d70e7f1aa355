"""Executors of a cluster run on other hosts: who claims by a wrong clock delivers early."""

from sendlater.clock import Clock
from sendlater.errors import ClockSkew
from sendlater.store import Shard
from sendlater.store.connection import time_ms


def require_clock(shard: Shard, clock: Clock, *, skew_ms_max: int) -> None:
    """Raises ClockSkew if this host's clock is surely further from Redis' clock than that; a slow
    answer excuses it. Raises StoreUnavailable."""
    before_ms = clock.now_ms()
    theirs_ms = time_ms(shard.client, shard.keys["state"])
    after_ms = clock.now_ms()
    apart_ms = max(before_ms - theirs_ms, theirs_ms - after_ms)
    if apart_ms > skew_ms_max:
        raise ClockSkew(
            f"the clock of this executor is {apart_ms:.0f} ms from that of Redis, expected at most "
            f"{skew_ms_max} (clock_skew_ms_max): it claims nothing"
        )
