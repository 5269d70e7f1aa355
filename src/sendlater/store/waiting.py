"""Limits of topics, as a lane's task keeps them: tokens are reserved here, spent in lua/claim.lua.

Each limited topic has a home shard, where lua/reserve.lua gives its tokens out, each once, for
moments one interval apart. A shard where rows wait asks for as many as it has rows, and for more
when these are used up. So the rate holds over shards, lanes and hosts; a task that dies takes its
tokens along.
"""

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sendlater.limits import LIMIT_AHEAD_MS, LIMIT_CHUNK_MS, LIMIT_KEPT_MS, RELEASE_COUNT_MAX
from sendlater.store.connection import answering
from sendlater.store.scripts import script

if TYPE_CHECKING:
    from sendlater.config_tables import Limit
    from sendlater.store.batch import Claim
    from sendlater.store.pending import Pending
    from sendlater.store.shard import Shard


@dataclass(frozen=True, slots=True)
class Rate:
    """The limit of one topic: `burst` tokens at most, one more every `interval_ms`; callers share
    by weight, 1 where none is named."""

    topic: str
    interval_ms: float
    burst: int
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Tokens:
    """What a task has reserved and not yet handed to its shard."""

    from_ms: str = "0"
    count: int = 0
    ask_ms: float = 0.0
    """When to ask again, if there were none."""


class Waiting:
    """The limits of one shard's task. Without limits it costs nothing."""

    def __init__(self, shard: "Shard", rates: list[Rate], *, owner: int, shards: int) -> None:
        self.shard, self.rates, self.owner, self.shards = shard, rates, owner, shards
        self.tokens = {rate.topic.encode(): Tokens() for rate in rates}
        self.by_topic = {rate.topic.encode(): rate for rate in rates}
        self.next_ms: float = math.inf
        """When the next token counts, or can be asked for."""

    def given(self) -> list[Any]:
        """Arguments of a claim: the limits, and tokens reserved since the last one."""
        flat: list[Any] = []
        for rate in self.rates:
            tokens = self.tokens[rate.topic.encode()]
            kept_ms = (rate.burst - 1) * rate.interval_ms + LIMIT_KEPT_MS
            flat += (rate.topic, rate.interval_ms, kept_ms, tokens.from_ms, tokens.count)
            flat += (len(rate.weights), *(part for one in rate.weights.items() for part in one))
            tokens.count = 0
        return flat

    def reserved(self, got: "Claim", now_ms: int) -> bool:
        """Reserve tokens for what waits without any; whether there are some to be handed on.

        Raises Fenced, StoreUnavailable.
        """
        self.next_ms = math.inf
        for topic, count, next_ms in got.waiting:
            tokens = self.tokens[topic]
            if not count:
                continue
            if next_ms is None and now_ms >= tokens.ask_ms:
                self._reserve(self.by_topic[topic], tokens, now_ms=now_ms, wanted=count)
            self.next_ms = min(self.next_ms, tokens.ask_ms if next_ms is None else next_ms)
        return any(tokens.count for tokens in self.tokens.values())

    def sooner(self, due_ms: int | None) -> int | None:
        """When to claim next: at a due time, or when the next token counts or can be asked for."""
        if self.next_ms == math.inf:
            return due_ms
        return math.ceil(self.next_ms if due_ms is None else min(due_ms, self.next_ms))

    def _reserve(self, rate: Rate, tokens: Tokens, *, now_ms: int, wanted: int) -> None:
        home = self.shard.beside(zlib.crc32(rate.topic.encode()) % self.shards)
        from_ms, count = script("reserve")(
            home.client,
            **home._keys("state", "limits"),
            owner=self.owner,
            topic=rate.topic,
            now_ms=now_ms,
            interval_ms=rate.interval_ms,
            burst=rate.burst,
            # So far that each shard may hold a token, however slow the limit is.
            ahead_ms=max(LIMIT_AHEAD_MS, self.shards * rate.interval_ms),
            chunk_ms=LIMIT_CHUNK_MS,
            wanted=wanted,
        )
        tokens.from_ms, tokens.count = from_ms.decode(), count
        tokens.ask_ms = 0.0 if count else math.ceil(float(from_ms))


def rates_text(limits: Mapping[str, "Limit"]) -> str:
    """Limits as an option of Spark; empty for none."""
    flat = [
        (topic, 1_000 / one.per_second, one.burst or max(1, int(one.per_second)), one.weights)
        for topic, one in sorted(limits.items())
    ]
    return json.dumps(flat) if flat else ""


def rates_of(text: str) -> list[Rate]:
    """What `rates_text` wrote."""
    return [Rate(*one) for one in json.loads(text or "[]")]


def unlimit(pending: "Pending", topics: list[str], *, owner: int) -> None:
    """Let go what waits for the limit of any other topic than these: that one is limited no more.

    Raises Fenced, StoreUnavailable.
    """
    for shard in pending.shards:
        left = 1
        while left:
            left = script("unlimit")(
                shard.client,
                **shard._keys("due", "state", "limits", "wake"),
                owner=owner,
                count_max=RELEASE_COUNT_MAX,
                rest=topics,
            )


def waiting(pending: "Pending", topic: str) -> dict[str, int]:
    """How many rows wait for the limit of a topic, by caller. Some that were cancelled or changed
    since are counted until their turn comes."""
    found: dict[str, int] = {}
    with answering():
        for shard in pending.shards:
            round_key = f"{shard.keys['limits']}:{topic}"
            for name in shard.client.hkeys(round_key):
                if name[:1] == b":":
                    count = int(shard.client.zcard(round_key.encode() + name))
                    caller = name[1:].decode(errors="replace")
                    found[caller] = found.get(caller, 0) + count
    return {caller: count for caller, count in sorted(found.items()) if count}
