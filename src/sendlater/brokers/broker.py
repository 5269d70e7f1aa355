"""One small interface for Kafka and topics on Redis: send records, follow a topic."""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from sendlater.model import Headers, Record

ACK_TIMEOUT_S = 30.0
"""Longest wait for a broker's acknowledgement."""
POLL_S = 0.1
FOLLOW_COUNT_MAX = 5_000
"""Most records per read of a followed topic."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A record read from a topic. `timestamp_ms` is the broker's if the topic has append times."""

    topic: str
    partition: int
    position: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def header(self, name: str) -> bytes | None:
        """The value of the last header of that name: sendlater adds its headers last."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


Acknowledged = Callable[[Exception | None, int, int], None]
"""Called with an error or None, the partition, and the position."""

Failed = Callable[[Exception], None]
"""Called with the error of a record that was refused."""


class Broker(Protocol):
    """Kafka, or topics on Redis."""

    def send(
        self, record: Record, *, on_done: Acknowledged | None = None, on_error: Failed | None = None
    ) -> None:
        """Send a record; `on_done` is called once the broker has accepted or refused it.

        Without `on_done` it costs less: `on_error` is called only if the record was refused, at
        the latest while `flush` waits; without both, the error belongs to whoever flushes next.
        """

    def has_room(self) -> bool:
        """Whether `send` would return without waiting."""

    def flush(self) -> None:
        """Wait until all records sent are acknowledged; raises BrokerUnavailable."""

    def create(self, topic: str, *, partitions: int) -> None:
        """Create a topic whose timestamps are the broker's append times."""

    def ensure(self, topic: str, *, partitions: int) -> None:
        """Create a topic unless it exists."""

    def delete(self, topic: str) -> None:
        """Remove a topic."""

    def ends(self, topic: str) -> dict[int, int]:
        """Per partition the position after the last readable record; records of an uncommitted
        transaction are not readable."""

    def follow(
        self, topic: str, *, stop: threading.Event, starts: Mapping[int, int] | None = None
    ) -> Iterator[list[Arrived]]:
        """Records of a topic from its start, or from the positions `starts`, in small lists, some
        of them empty."""

    def back(self, end: int, *, count: int) -> int:
        """A position at least `count` records before `end`, or the first position."""

    def close(self) -> None:
        """Flush and disconnect."""
