"""Real servers for tests: one Redis and one Kafka a session, and a way to wait without sleeping."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from sendlater.local.kafka_server import KafkaServer
from sendlater.local.redis_server import RedisServer

T = TypeVar("T")
POLL_S = 0.01


def wait_until(condition: Callable[[], T], what: str, *, timeout_s: float = 30.0) -> T:
    """The first true value of `condition`; fails, naming `what` was awaited, after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(POLL_S)
    return value


@contextmanager
def own_redis(directory: Path) -> Iterator[RedisServer]:
    """A Redis of its own for a test that stops or kills it."""
    with RedisServer(directory) as server:
        yield server


@contextmanager
def own_kafka(directory: Path, **extra: str) -> Iterator[KafkaServer]:
    """A Kafka on a free port, by default without topics that appear by themselves.

    `extra`: broker properties, with `_` for `.`.
    """
    properties = {"auto.create.topics.enable": "false"}
    properties |= {name.replace("_", "."): value for name, value in extra.items()}
    with KafkaServer(directory, port=0, extra=properties) as server:
        yield server
