"""Who is at work on a space, for people only: services, and the workers that handle events.

{<space>:0}:lease      the active service
{<space>:0}:standby    sorted set, service -> when it last asked for the lease
{<space>:0}:handovers  list of "when service", latest first: who took over
<space>:handlers       hash, worker -> JSON: when it told, and its tally of each event type
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from sendlater.limits import HANDLERS_HEARD_MS
from sendlater.store.connection import answering
from sendlater.store.pending import Pending

LEASE = "lease"
STANDBY_MS = 5_000
"""A service that has not asked for the lease for this long stands by no more."""
HANDOVERS_MAX = 10


@dataclass(frozen=True, slots=True)
class Services:
    """The active service (empty: none), those that stand by, and who became active when, latest
    first."""

    active: str
    standby: list[str]
    handovers: list[tuple[int, str]]


def lease_keys(space: str, lease: str = LEASE) -> dict[str, Any]:
    """The keys of lua/lease.lua."""
    names = {"lease": lease, "standby": "standby", "handovers": "handovers"}
    return {name: f"{{{space}:0}}:{key}" for name, key in names.items()}


def services(pending: Pending, *, now_ms: int) -> Services:
    """Who is active, who stands by, who took over. Raises StoreUnavailable."""
    client, keys = pending.shards[0].client, lease_keys(pending.space)
    with answering():
        active = (client.get(keys["lease"]) or b"").decode()
        heard = client.zrangebyscore(keys["standby"], now_ms - STANDBY_MS, "+inf")
        told = client.lrange(keys["handovers"], 0, HANDOVERS_MAX - 1)
    split = [one.decode().partition(" ") for one in told]
    return Services(
        active,
        sorted(name.decode() for name in heard if name.decode() != active),
        [(int(at_ms), name) for at_ms, _, name in split],
    )


@dataclass(frozen=True, slots=True)
class Report:
    """What one worker told of its group last: by event type, its tally."""

    at_ms: int
    group: str
    types: dict[str, dict[str, Any]]


class Handling:
    """What workers tell about the events they handle: each its own numbers, every few seconds."""

    def __init__(self, pending: Pending) -> None:
        self._client, self._key = pending.client, f"{pending.space}:handlers"

    def tell(
        self, worker: str, group: str, types: dict[str, dict[str, Any]], *, now_ms: int
    ) -> None:
        """Replace what a worker told before. Raises StoreUnavailable."""
        with answering():
            self._client.hset(self._key, worker, msgspec.json.encode(Report(now_ms, group, types)))

    def forget(self, *workers: str) -> None:
        """They handle nothing any more. Raises StoreUnavailable."""
        with answering():
            self._client.hdel(self._key, *workers)

    def told(self, *, now_ms: int) -> dict[str, Report]:
        """By worker, of those heard of lately; the others are forgotten. Raises
        StoreUnavailable."""
        with answering():
            found = self._client.hgetall(self._key)
        every = {
            name.decode(): msgspec.json.decode(told, type=Report) for name, told in found.items()
        }
        gone = [name for name, one in every.items() if one.at_ms < now_ms - HANDLERS_HEARD_MS]
        if gone:
            self.forget(*gone)
        return {name: every[name] for name in sorted(every.keys() - {*gone})}
