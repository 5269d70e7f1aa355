"""Lets only one service, the newest, serve these buckets.

Each service joins a consumer group as the same static member (KIP-345). The broker accepts the
newest and fences the one before, which learns that with its next heartbeat.
"""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from sendlater.errors import Fenced

HEARTBEAT_MS = 1_000
"""Pause between two heartbeats, by which an overtaken service notices that."""
SESSION_MS = 30_000


class Owner:
    """The membership of one running service. `require` must be called regularly."""

    def __init__(self, client_options: Mapping[str, str], *, space: str, topic: str) -> None:
        self._space = space
        options: dict[str, Any] = {
            **client_options,
            "group.id": f"{space}-buckets-owner",
            "group.instance.id": "service",
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "session.timeout.ms": SESSION_MS,
            "enable.auto.commit": False,
            "log_level": 0,
        }
        self._consumer = Consumer(options)
        # Only the membership is needed: nothing is read.
        self._consumer.subscribe([topic], on_assign=lambda consumer, _: consumer.assign([]))

    def require(self) -> None:
        """Raises Fenced when a newer service serves these buckets."""
        try:
            message = self._consumer.poll(0)
            error = message.error() if message is not None else None
        except KafkaException as raised:
            error = raised.args[0]
        if error is not None and error.code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL):
            raise Fenced(f"a newer service has taken over space {self._space!r}; this one stops")

    def close(self) -> None:
        """Close without leaving the group, as static members do: the next one takes its place."""
        self._consumer.close()
