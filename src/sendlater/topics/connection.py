"""A connection to the Redis behind topics, which decides how commands are retried."""

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import ResponseError
from redis.retry import Retry

from sendlater.addresses import redis_urls
from sendlater.errors import BadSettings, BrokerUnavailable
from sendlater.redis_client import REDIS_ERRORS, open_client

RETRY_DELAY_S = 0.05
RETRY_DELAY_S_MAX = 2.0
GROUP_ERRORS = ("NOGROUP", "BUSYGROUP", "UNBLOCKED")
"""Redis' errors if a group does not exist, exists already, or was deleted meanwhile."""
RAW_REPLIES = (
    *("XADD", "XRANGE", "XREVRANGE", "XREAD", "XREADGROUP", "XAUTOCLAIM", "XCLAIM", "XPENDING"),
)

Command = tuple[Any, ...]
T = TypeVar("T")


class Connection:
    """Sends commands to the first of the servers; safe to share between threads.

    A command that Redis refuses or does not answer is sent up to `attempts_max` times, with growing
    pauses (50 ms, doubled, at most 2 s); then BrokerUnavailable is raised. Only errors about
    consumer groups are raised as redis' own ResponseError.
    """

    def __init__(self, redis_url: str, *, attempts_max: int) -> None:
        assert attempts_max > 0, f"attempts_max must be positive, got {attempts_max}"
        # By default redis-py would repeat an XADD if the reply was lost.
        once = Retry(NoBackoff(), 0)
        first, *_ = redis_urls(redis_url)
        try:
            self._redis = open_client(first, retry=once, protocol=2)
        except ValueError as error:
            raise BadSettings(f"redis: expected a Redis URL, got one that says: {error}") from error
        except (*REDIS_ERRORS, OSError) as error:
            raise BrokerUnavailable(f"topics on Redis: no cluster there: {error}") from error
        self.is_cluster = isinstance(self._redis, RedisCluster)
        self._attempts_max = attempts_max
        self._closed = threading.Event()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    def command(self, *command: Any) -> Any:
        """The reply to one command that is safe to repeat."""
        return self._attempt(lambda: self._raw_redis().execute_command(*command))

    def commands(self, commands: Sequence[Command]) -> list[Any]:
        """The replies to commands that are safe to repeat, in one round trip."""
        return self._attempt(lambda: _all_good(self.send(commands))) if commands else []

    def transaction(self, commands: Sequence[Command]) -> list[Any]:
        """The same in a transaction, for commands on one key."""
        return self._attempt(lambda: _all_good(self.send(commands, transaction=True)))

    def append(self, commands: Sequence[Command]) -> list[Any]:
        """The replies to commands; only those refused or unanswered are repeated."""
        replies: list[Any] = [None] * len(commands)
        left = list(range(len(commands)))
        for attempt in itertools.count(1):
            try:
                answers = self.send([commands[i] for i in left])
            except (*REDIS_ERRORS, OSError) as error:
                answers = [error] * len(left)
            for i, answer in zip(left, answers, strict=True):
                replies[i] = answer
            left = [i for i in left if isinstance(replies[i], Exception)]
            if not left:
                break
            self._give_up_or_pause(attempt, replies[left[0]])
        return replies

    def send(self, commands: Sequence[Command], *, transaction: bool = False) -> list[Any]:
        """Send once, without retries. Returns the replies; errors are exceptions in the list."""
        pipeline = self._raw_redis().pipeline(transaction=transaction)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        return replies

    def pause(self, seconds: float) -> None:
        """Wait, unless closed."""
        self._closed.wait(seconds)

    def close(self) -> None:
        """End pauses and close connections."""
        self._closed.set()
        self._redis.close()

    def _raw_redis(self) -> Any:
        """The client, set to return raw replies. In a cluster this is done each time, as nodes
        change."""
        if self.is_cluster:
            nodes = [self._redis.get_redis_connection(n) for n in self._redis.get_nodes()]
        else:
            nodes = [self._redis]
        for client in nodes:
            for command in RAW_REPLIES:
                # redis-py would convert an entry to a dict, and lose duplicate headers.
                client.set_response_callback(command, _raw)
        return self._redis

    def _attempt(self, call: Callable[[], T]) -> T:
        for attempt in itertools.count(1):
            try:
                return call()
            except (*REDIS_ERRORS, OSError) as error:
                if isinstance(error, ResponseError) and str(error).startswith(GROUP_ERRORS):
                    raise
                self._give_up_or_pause(attempt, error)
        raise AssertionError("the loop returns or raises")

    def _give_up_or_pause(self, attempt: int, error: Exception) -> None:
        if attempt >= self._attempts_max or self.closed:
            raise BrokerUnavailable(
                f"topics on Redis: gave up after {attempt} attempts: {error}"
            ) from error
        self.pause(min(RETRY_DELAY_S * 2 ** (attempt - 1), RETRY_DELAY_S_MAX))


def _all_good(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _raw(reply: Any, **_: Any) -> Any:
    return reply
