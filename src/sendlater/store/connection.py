"""Connections to what a Redis URL names, or to several servers that know nothing of each other:
shard n lies on server n modulo their number, what belongs to no shard on the first."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from sendlater.addresses import redis_urls, server_name
from sendlater.errors import BadSettings, StoreUnavailable
from sendlater.redis_client import REDIS_ERRORS, open_client

Clients = tuple[Any, ...]
"""A client of each server, in the order of the setting `redis`; of a cluster there is one."""
DISK_S, DISK_MS = 2.0, 4_000
"""How long a server takes to write to its disk with appendfsync everysec; longest wait for it."""
T = TypeVar("T")


class Once(Retry):
    """Repeats nothing; an error tells which server it is about.

    A claim whose answer was lost has moved its rows; a blind repeat would move the next ones, and
    nobody would deliver the first.
    """

    def __init__(self, server: str = "") -> None:
        super().__init__(NoBackoff(), 0)
        self.server = server

    def call_with_retry(self, do: Callable[[], T], *args: Any, **named: Any) -> T:
        """See Retry."""
        try:
            return super().call_with_retry(do, *args, **named)
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
            if self.server not in str(error):
                error.args = (f"{self.server}: {error}",)
            raise


def connect(urls: str) -> Clients:
    """Clients for a Redis URL, or for several separated by commas, see redis_client.py. No client
    repeats a command by itself.

    Raises BadSettings for a URL that cannot be read, and StoreUnavailable without such a cluster.
    """
    try:
        with answering():
            return tuple(open_client(url, retry=Once(server_name(url))) for url in redis_urls(urls))
    except ValueError as error:
        raise BadSettings(f"redis: expected a Redis URL: {error}") from error


def server_of(client: Any, key: str) -> Any:
    """A client of the server that has this key."""
    if isinstance(client, RedisCluster):
        node = client.get_node_from_key(key)  # type: ignore[no-untyped-call]
        return client.get_redis_connection(node)
    return client


def time_ms(client: Any, key: str) -> float:
    """Milliseconds since 1970 by the clock of the server that has this key. Raises
    StoreUnavailable."""
    with answering():
        seconds, micros = server_of(client, key).time()
    return float(seconds * 1_000 + micros / 1_000)


@contextmanager
def answering(server: str = "") -> Iterator[None]:
    """Turns the driver's errors into StoreUnavailable; scripts do that themselves.

    `server`: whose connection it is, where one is used without its client.
    """
    try:
        yield
    except REDIS_ERRORS as error:
        told = f"{server}: {error}" if server else error
        raise StoreUnavailable(f"Redis does not answer: {told}") from error


def await_disk(clients: Clients) -> None:
    """Wait until what these servers were told is on their disks. Raises StoreUnavailable."""
    asked = True
    with answering():
        for client in clients:
            try:
                written, _ = client.execute_command("WAITAOF", 1, 0, DISK_MS)
            except (redis.exceptions.ResponseError, redis.exceptions.RedisClusterException):
                asked = False  # older than 7.2, a cluster, or without an append-only file
                continue
            if not written:
                raise StoreUnavailable(f"Redis has not written to its disk within {DISK_MS} ms")
    if not asked:
        time.sleep(DISK_S)
