"""Connections to Redis, Valkey and Redis Cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from sendlater.errors import BadSettings, StoreUnavailable

CLUSTER_PREFIX = "redis+cluster://"


def connect(url: str) -> redis.Redis:
    """A client for a Redis URL; `redis+cluster://host:port` names any node of a cluster.

    The client never repeats a command by itself. A claim whose answer was lost has moved its rows;
    a blind repeat would move the next ones, and nobody would deliver the first.
    Raises BadSettings for a URL that cannot be read.
    """
    retry = Retry(NoBackoff(), 0)
    try:
        if url.startswith(CLUSTER_PREFIX):
            plain = "redis://" + url.removeprefix(CLUSTER_PREFIX)
            return RedisCluster.from_url(plain, retry=retry)  # type: ignore[return-value]
        return redis.Redis.from_url(url, retry=retry)
    except ValueError as error:
        raise BadSettings(f"redis: expected a Redis URL: {error}") from error


def server_of(client: Any, key: str) -> Any:
    """A client of the server that has this key."""
    if isinstance(client, RedisCluster):
        node = client.get_node_from_key(key)  # type: ignore[no-untyped-call]
        return client.get_redis_connection(node)
    return client


@contextmanager
def answering() -> Iterator[None]:
    """Turns the driver's errors into StoreUnavailable; scripts do that themselves."""
    try:
        yield
    except redis.exceptions.RedisError as error:
        raise StoreUnavailable(f"Redis does not answer: {error}") from error
