"""A Kafka client that is replaced when it gets no answer any more."""

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import TopicMetadata

SILENT_S = 30.0
"""A client that has had no answer for so long is replaced: librdkafka 2.13 to 2.16 never connects
again after a broker that comes back has told it of no brokers (its issue 5301)."""

Client = TypeVar("Client")
"""An AdminClient, Producer or Consumer."""
T = TypeVar("T")


class LastingClient(Generic[Client]):
    """`client` is the one to ask now. It notices by `ask` and `topics` that nobody answers."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make, self._lock = make, threading.Lock()
        self.client, self._answered_s = make(), time.monotonic()
        self._retired: Client | None = None
        """The futures of requests under way need it."""

    def topics(self, topic: str | None = None, *, timeout_s: float) -> dict[str, TopicMetadata]:
        """What the brokers tell of a topic, or of all. Raises KafkaException."""

        def told(client: Any) -> dict[str, TopicMetadata]:
            found: dict[str, TopicMetadata] = client.list_topics(topic, timeout=timeout_s).topics
            return found

        return self.ask(told)

    def ask(self, request: Callable[[Client], T]) -> T:
        """What `request` returns; it must wait for the answer. Raises what it raises."""
        asked = self.client
        try:
            found = request(asked)
        except (KafkaException, TimeoutError):
            with self._lock:
                if asked is self.client and time.monotonic() - self._answered_s > SILENT_S:
                    self._retired, self.client = asked, self._make()
                    self._answered_s = time.monotonic()
            raise
        self._answered_s = time.monotonic()
        return found
