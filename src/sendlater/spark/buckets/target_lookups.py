"""Looks up target topics in a thread, so that the delivering task never waits for the broker.

The same look-ups as in `targets`, but without a store: every worker process keeps its own answers.
"""

import queue
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from sendlater.errors import BrokerUnavailable, TopicUnavailable
from sendlater.model import Reason, Target
from sendlater.spark.delivery.targets import LOOK_UP_ATTEMPTS_MAX, REFRESH_MS, REFUSED_MS, TICK_S

ATTEMPTS_MIN = 3
"""Questions without an answer after which a topic may count as unknown. The time that
LOOK_UP_ATTEMPTS_MAX take must have passed too; with many topics a round takes longer than TICK_S.
"""
KNOWN_COUNT_MAX = 10_000
"""Answers kept, a few megabytes: names of targets may be random. The oldest is forgotten first."""


class Looks(Protocol):
    """What is needed of KafkaTopics."""

    def look_up(self, topic: str) -> Target | Reason | None:
        """What it takes, why it takes nothing, or None: ask again. Raises BrokerUnavailable."""


class TargetLookups:
    """Gives known answers at once; a thread looks up the others.

    `record_bytes_max`: the largest record that the producer sends, whatever a topic takes.
    """

    def __init__(self, topics: Looks, *, rejected_topic: str, record_bytes_max: int) -> None:
        self._topics, self._rejected = topics, rejected_topic.encode()
        self._record_bytes_max = record_bytes_max
        self._known: dict[bytes, tuple[Target | Reason, float]] = {}
        """Per topic the answer, and until when it need not be asked again."""
        self._asked: set[bytes] = set()
        self._queue: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._again: deque[tuple[float, bytes]] = deque()
        """Topics without an answer, and when to ask again."""
        self._attempts: dict[bytes, tuple[int, float]] = {}
        """How often these were asked about, and since when."""
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)
        self._thread.start()
        # It may be needed at any time, and the first request takes longest, as it connects.
        self.ask(self._rejected)

    def ask(self, topic: bytes) -> None:
        """Look a topic up, unless that was done recently or is under way."""
        if topic in self._asked:
            return
        known, now_s = self._known.get(topic), time.monotonic()
        if known is not None:
            answer, until_s = known
            if now_s < until_s:
                return
            if isinstance(answer, Reason) and now_s >= until_s + REFUSED_MS / 1_000:
                # Nobody has asked for it since: it says little, as the topic may be there by now.
                self._known.pop(topic, None)
        self._asked.add(topic)
        self._queue.put(topic)

    def of(self, topic: bytes) -> Target | Reason | None:
        """What it takes, why it takes nothing, or None: not known, or not known any more.

        What it takes holds while it is asked again; a refusal does not, as the topic may be there
        by now. Raises BrokerUnavailable if it is the rejected
        topic and cannot be written.
        """
        self.ask(topic)
        known = self._known.get(topic)
        if known is None:
            return None
        answer, until_s = known
        if not isinstance(answer, Reason):
            return answer
        if topic == self._rejected:
            raise BrokerUnavailable(
                f"the rejected topic {topic.decode()!r} cannot be written: {answer.value}"
            )
        return answer if time.monotonic() < until_s else None

    def _run(self) -> None:
        while True:
            self._round()

    def _round(self) -> None:
        """Ask about a topic that is new, if there is one, and about one that had no answer: one
        attempt each, so that a topic that is missing makes no other wait."""
        wait_s = max(0.0, self._again[0][0] - time.monotonic()) if self._again else None
        with suppress(queue.Empty):
            self._attempt(self._queue.get(timeout=wait_s))
        if self._again and self._again[0][0] <= time.monotonic():
            self._attempt(self._again.popleft()[1])

    def _attempt(self, topic: bytes) -> None:
        answer = self._look_up(topic)
        if answer is None:
            self._again.append((time.monotonic() + TICK_S, topic))
            return
        self._attempts.pop(topic, None)
        trusted_ms = REFUSED_MS if isinstance(answer, Reason) else REFRESH_MS
        if topic not in self._known and len(self._known) >= KNOWN_COUNT_MAX:
            oldest = min(list(self._known.items()), key=lambda known: known[1][1])
            self._known.pop(oldest[0], None)
        self._known[topic] = (answer, time.monotonic() + trusted_ms / 1_000)
        self._asked.discard(topic)

    def _look_up(self, topic: bytes) -> Target | Reason | None:
        """One attempt; after too many without an answer the topic counts as unknown."""
        try:
            answer = self._topics.look_up(topic.decode())
            given_up = Reason.UNKNOWN_TOPIC
        except TopicUnavailable:
            # Nothing can be set aside here: the whole batch would wait for it.
            answer, given_up = None, Reason.REFUSED
        except BrokerUnavailable:
            # Even a long outage says nothing about a topic.
            self._attempts.pop(topic, None)
            return None
        if isinstance(answer, Target):
            bytes_max = min(answer.record_bytes_max, self._record_bytes_max)
            return replace(answer, record_bytes_max=bytes_max)
        if answer is not None:
            return answer
        now_s = time.monotonic()
        count, since_s = self._attempts.get(topic, (0, now_s))
        count += 1
        self._attempts[topic] = count, since_s
        known = self._known.get(topic)
        # Where it was missing before, once is enough: if the broker made topics, it would be there.
        again = known is not None and known[0] is given_up is Reason.UNKNOWN_TOPIC
        enough = count >= ATTEMPTS_MIN and now_s - since_s >= LOOK_UP_ATTEMPTS_MAX * TICK_S
        return given_up if again or enough else None


_of_run: dict[str, TargetLookups] = {}


def lookups_of(
    run: str, *, client: dict[str, str], rejected_topic: str, record_bytes_max: int
) -> TargetLookups:
    """The answers of this worker process; another run of the query starts without any."""
    if run not in _of_run:
        from sendlater.brokers.kafka_topics import KafkaTopics

        _of_run.clear()
        _of_run[run] = TargetLookups(
            KafkaTopics(client), rejected_topic=rejected_topic, record_bytes_max=record_bytes_max
        )
    return _of_run[run]
