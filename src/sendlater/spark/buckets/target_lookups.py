"""Looks up target topics in a thread, so that the delivering task never waits for the broker.

The same look-ups as in `targets`, but without a store: every worker process keeps its own answers.
"""

import queue
import threading
import time
from typing import Protocol

from sendlater.errors import BrokerUnavailable, TopicUnavailable
from sendlater.model import Reason, Target
from sendlater.spark.delivery.targets import LOOK_UP_ATTEMPTS_MAX, REFRESH_MS, REFUSED_MS, TICK_S


class Looks(Protocol):
    """What is needed of KafkaTopics."""

    def look_up(self, topic: str) -> Target | Reason | None:
        """What it takes, why it takes nothing, or None: ask again. Raises BrokerUnavailable."""


class TargetLookups:
    """Gives known answers at once; a thread looks up the others."""

    def __init__(self, topics: Looks, *, rejected_topic: str) -> None:
        self._topics, self._rejected = topics, rejected_topic.encode()
        self._known: dict[bytes, tuple[Target | Reason, float]] = {}
        self._asked: set[bytes] = set()
        self._queue: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)
        self._thread.start()
        # It may be needed at any time, and the first request takes longest, as it connects.
        self.ask(self._rejected)

    def ask(self, topic: bytes) -> None:
        """Look a topic up, unless that was done recently or is under way."""
        known = self._known.get(topic)
        if topic not in self._asked and (known is None or time.monotonic() >= known[1]):
            self._asked.add(topic)
            self._queue.put(topic)

    def of(self, topic: bytes) -> Target | Reason | None:
        """What it takes, why it takes nothing, or None: not known yet.

        Raises BrokerUnavailable if it is the rejected topic and cannot be written.
        """
        self.ask(topic)
        known = self._known.get(topic)
        if known is None:
            return None
        answer, until_s = known
        if isinstance(answer, Reason):
            if topic == self._rejected:
                raise BrokerUnavailable(
                    f"the rejected topic {topic.decode()!r} cannot be written: {answer.value}"
                )
            if time.monotonic() >= until_s:
                return None
        return answer

    def _run(self) -> None:
        while True:
            topic = self._queue.get()
            answer = self._look_up(topic.decode())
            trusted_ms = REFUSED_MS if isinstance(answer, Reason) else REFRESH_MS
            self._known[topic] = (answer, time.monotonic() + trusted_ms / 1_000)
            self._asked.discard(topic)

    def _look_up(self, topic: str) -> Target | Reason:
        left, given_up = LOOK_UP_ATTEMPTS_MAX, Reason.UNKNOWN_TOPIC
        while left:
            try:
                answer = self._topics.look_up(topic)
                given_up = Reason.UNKNOWN_TOPIC
            except TopicUnavailable:
                # Nothing can be set aside here: the whole batch would wait for it.
                answer, given_up = None, Reason.REFUSED
            except BrokerUnavailable:
                # Even a long outage says nothing about a topic.
                time.sleep(TICK_S)
                continue
            if answer is not None:
                return answer
            left -= 1
            time.sleep(TICK_S)
        return given_up


_of_run: dict[str, TargetLookups] = {}


def lookups_of(run: str, *, client: dict[str, str], rejected_topic: str) -> TargetLookups:
    """The answers of this worker process; another run of the query starts without any."""
    if run not in _of_run:
        from sendlater.brokers.kafka_topics import KafkaTopics

        _of_run.clear()
        _of_run[run] = TargetLookups(KafkaTopics(client), rejected_topic=rejected_topic)
    return _of_run[run]
