"""Notices inboxes that are deleted and recreated while the service runs."""

import time

import structlog

from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.brokers.own_topics import inbox_facts
from sendlater.config import Settings
from sendlater.errors import BrokerUnavailable
from sendlater.store import Pending
from sendlater.store.inbox_ids import recognise

WATCH_S = 10.0
"""Pause between two requests to the broker about the inboxes."""

_log = structlog.get_logger()


class InboxWatch:
    """Knows the Kafka ids of the topics that intake reads."""

    def __init__(self, topics: KafkaTopics, settings: Settings, pending: Pending) -> None:
        self._topics, self._settings, self._pending = topics, settings, pending
        self._ids: dict[str, str] = {}
        self._asked_s = 0.0

    def begin(self, *, owner: int) -> None:
        """Call it before each start of intake.

        For a recreated plain inbox the store forgets its positions; a recreated journal is read as
        a whole, when the store is filled again. Raises Unavailable, Fenced.
        """
        facts = inbox_facts(self._topics, self._settings)
        self._ids = {topic: told.id for topic, told in facts.items()}
        plain = {i.topic for i in self._settings.taken_in if not i.journal}
        recognise(self._pending, {t: self._ids[t] for t in plain}, owner=owner)

    def made_anew(self) -> set[str]:
        """Inboxes recreated since intake began; asks the broker once in WATCH_S."""
        now_s = time.monotonic()
        if not self._ids or now_s - self._asked_s < WATCH_S:
            return set()
        self._asked_s = now_s
        try:
            facts = inbox_facts(self._topics, self._settings)
        except BrokerUnavailable as error:
            _log.warning("the inboxes cannot be checked", cause=str(error))
            return set()
        return {topic for topic, told in facts.items() if told.id != self._ids.get(topic)}
