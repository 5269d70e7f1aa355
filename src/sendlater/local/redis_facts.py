"""Reads the facts about a Redis server that matter for the store."""

import time
from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from sendlater.errors import BadSettings, StoreUnavailable
from sendlater.redis_client import REDIS_ERRORS, open_client, primaries

ANSWER_TIMEOUT_S = 5.0
CLOCK_SAMPLES_COUNT = 5
"""Number of measurements; the fastest one is the most exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisFacts:
    """Facts about one server; of a cluster, about the master that is worst off."""

    product: str
    version: tuple[int, ...]
    appends: bool
    eviction: str
    used_bytes: int
    max_bytes: int
    """0: no limit."""
    ahead_ms: float
    """How far its clock is ahead of ours, ± `ahead_error_ms`."""
    ahead_error_ms: float


def redis_facts(url: str) -> RedisFacts:
    """Ask the server at `url`. Raises StoreUnavailable, or BadSettings for an invalid URL."""
    try:
        client = open_client(
            url,
            socket_connect_timeout=ANSWER_TIMEOUT_S,
            socket_timeout=ANSWER_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError:
        # Without the cause: it may quote the URL, password included.
        raise BadSettings("redis: expected a Redis URL, got one that cannot be read") from None
    except (*REDIS_ERRORS, OSError) as error:
        raise StoreUnavailable(f"Redis does not answer: {error}") from error
    try:
        return max((_facts(server) for server in primaries(client)), key=_trouble)
    except (*REDIS_ERRORS, OSError) as error:
        raise StoreUnavailable(f"Redis does not answer: {error}") from error
    finally:
        client.close()


def _trouble(facts: RedisFacts) -> tuple[bool, bool, float]:
    full = facts.used_bytes / facts.max_bytes if facts.max_bytes else 0.0
    return not facts.appends, facts.eviction != "noeviction", full


def _facts(client: redis.Redis) -> RedisFacts:
    info: dict[str, Any] = dict(client.info())
    ahead_ms, error_ms = _clock(client)
    # Valkey reports redis_version 7.2 for compatibility, and its own version separately.
    is_valkey = "valkey_version" in info
    version = str(info["valkey_version" if is_valkey else "redis_version"])
    return RedisFacts(
        product="Valkey" if is_valkey else "Redis",
        version=tuple(int(part) for part in version.split(".") if part.isdigit()),
        appends=bool(info.get("aof_enabled")),
        eviction=str(info.get("maxmemory_policy", "unknown")),
        used_bytes=int(info.get("used_memory", 0)),
        max_bytes=int(info.get("maxmemory", 0)),
        ahead_ms=ahead_ms,
        ahead_error_ms=error_ms,
    )


def _clock(client: "redis.Redis") -> tuple[float, float]:
    """How far the server's clock is ahead, and the possible error, in ms."""
    samples = []
    for _ in range(CLOCK_SAMPLES_COUNT):
        before_ms = time.time_ns() / 1e6
        seconds, micros = client.time()
        after_ms = time.time_ns() / 1e6
        theirs_ms = seconds * 1e3 + micros / 1e3
        samples.append(((after_ms - before_ms) / 2, theirs_ms - (before_ms + after_ms) / 2))
    error_ms, ahead_ms = min(samples)
    return ahead_ms, error_ms
