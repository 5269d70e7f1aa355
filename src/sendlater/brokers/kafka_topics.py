"""Creates and looks up Kafka topics: the service's own, and targets."""

import re
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import structlog
from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicMetadata,
)

from sendlater.brokers.client_options import ASKING, isolation
from sendlater.brokers.in_sync import in_sync_min, lack
from sendlater.brokers.lasting_client import LastingClient
from sendlater.dialects import names
from sendlater.errors import BadSettings, BrokerUnavailable, TopicUnavailable
from sendlater.limits import TARGET_TIMESTAMP_MS_MIN, TIMESTAMP_SPAN_MS_MAX
from sendlater.model import Reason, Target

REQUEST_S = 10.0
"""Longest wait for one answer of a broker."""
INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""The broker's internal topics: listed like others, but no producer may write to them."""
TIMESTAMP_BOUNDS = (
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms",
)
"""How far a producer's clock may be from the broker's; the third is an older name for both."""
FAILED = (KafkaException, TimeoutError)
"""Errors of a request; the latter when its answer does not come."""
CREATING = (KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART)
STARTING = (*CREATING, KafkaError.NOT_LEADER_FOR_PARTITION)
"""What a broker answers about a partition that has just been made, or has just got its leader."""
STARTING_COUNT_MAX, STARTING_PAUSE_S = 10, 0.1
"""How often it is asked again then, and the pause before."""

_log = structlog.get_logger()


class TopicFacts(NamedTuple):
    """A topic's Kafka id, which changes if it is created again, and its number of partitions."""

    id: str
    partitions: int


class KafkaTopics:
    """Creates and looks up topics. It keeps the admin client alive, which its futures need."""

    def __init__(self, client_options: Mapping[str, str]) -> None:
        options = dict(client_options)
        self._asking = LastingClient(lambda: AdminClient({**options, **ASKING}))
        # Looks up a topic as the delivering producer does, so the broker may create it.
        self._producing = LastingClient(lambda: Producer(options))
        self._isolation = isolation(client_options)
        self._in_sync_min: dict[str, int] = {}
        """How many replicas of a topic must be in sync, as of its last look-up."""

    @property
    def _admin(self) -> AdminClient:
        return self._asking.client

    def require_answer(self) -> None:
        """Raises BrokerUnavailable when Kafka does not answer."""
        self._topics()

    def _topics(self) -> dict[str, TopicMetadata]:
        try:
            return self._asking.topics(timeout_s=REQUEST_S)
        except KafkaException as error:
            raise BrokerUnavailable(f"Kafka does not answer: {error}") from error

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """Partition counts of the topics that exist. Raises BrokerUnavailable."""
        known = self._topics()
        return {t: len(known[t].partitions) for t in topics if t in known and not known[t].error}

    def create(self, topic: str, *, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic unless it exists; replication is the broker's default."""
        new = NewTopic(topic, partitions, config=dict(config))
        try:
            self._admin.create_topics([new], operation_timeout=REQUEST_S)[topic].result(REQUEST_S)
        except FAILED as error:
            if _code(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BrokerUnavailable(f"cannot create topic {topic!r}: {_told(error)}") from error

    def ends(self, topics: Iterable[str], *, open_too: bool = False) -> dict[str, dict[int, int]]:
        """Per topic and partition the offset after the last readable record.

        `open_too`: after the last record of all, including records of and after open transactions,
        which are not readable yet. Raises BrokerUnavailable.
        """
        isolation = IsolationLevel.READ_UNCOMMITTED if open_too else self._isolation
        asked, left = list(topics), STARTING_COUNT_MAX
        while True:
            try:
                return self._ends(asked, isolation)
            except FAILED as error:
                left -= 1
                if not left or _code(error) not in STARTING:
                    what = f"Kafka does not return offsets: {_told(error)}"
                    raise BrokerUnavailable(what) from error
            time.sleep(STARTING_PAUSE_S)

    def _ends(self, topics: Iterable[str], isolation: IsolationLevel) -> dict[str, dict[int, int]]:
        asked = {
            TopicPartition(topic, number): OffsetSpec.latest()  # type: ignore[no-untyped-call]
            for topic, count in self.partitions(topics).items()
            for number in range(count)
        }
        if not asked:
            return {}
        futures = self._admin.list_offsets(
            asked, isolation_level=isolation, request_timeout=REQUEST_S
        )
        ends: dict[str, dict[int, int]] = {}
        for place, future in futures.items():
            told = future.result(2 * REQUEST_S)
            ends.setdefault(place.topic, {})[place.partition] = told.offset
        return ends

    def facts(self, topics: Iterable[str]) -> dict[str, TopicFacts]:
        """Facts about topics, in one request. Raises BrokerUnavailable if one does not exist."""
        found = self._admin.describe_topics(TopicCollection(sorted(topics)))
        facts: dict[str, TopicFacts] = {}
        for topic, future in found.items():
            try:
                told = future.result(REQUEST_S)
            except FAILED as error:
                raise BrokerUnavailable(
                    f"Kafka does not describe {topic!r}: {_told(error)}"
                ) from error
            facts[topic] = TopicFacts(str(told.topic_id), len(told.partitions))
        return facts

    def identity(self, topics: Iterable[str]) -> str:
        """Names and ids of topics: a topic deleted and created again has another id."""
        return ",".join(
            f"{topic}={facts.id}" for topic, facts in sorted(self.facts(topics).items())
        )

    def missing_and_silent(
        self, topics: Iterable[str], *, anew: bool
    ) -> tuple[set[str], set[str]] | None:
        """Of these topics those that the broker does not know, and those that take nothing for the
        moment; None if it does not answer. `anew`: their settings may have changed.

        It is called all the time, and asks about each by itself: a description of several leaves
        the id of each in memory (confluent-kafka 2.16).
        """
        asked = sorted(topics)
        settings = self._ask_configs(asked) if anew else {}
        gone, silent = set(), set()
        try:
            for topic in asked:
                told = self._asking.topics(topic, timeout_s=REQUEST_S)[topic]
                if told.error is not None:
                    if told.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                        gone.add(topic)
                    continue
                if anew:
                    config = self._config_of(settings[topic], topic)
                    self._in_sync_min[topic] = in_sync_min(config)
                needed = self._in_sync_min.get(topic, 1)
                if lack(told, in_sync_min=needed, at_most_all=True):
                    silent.add(topic)
        except (KafkaException, BrokerUnavailable):
            return None
        return gone, silent

    def silent(self, topics: Iterable[str]) -> set[str]:
        """Of these topics those that take nothing for the moment. Raises BrokerUnavailable."""
        known = self._topics()
        there = [topic for topic in topics if topic in known and not known[topic].error]
        settings = self._ask_configs(there)
        needed = {topic: in_sync_min(self._config_of(settings[topic], topic)) for topic in there}
        return {
            topic
            for topic in there
            if lack(known[topic], in_sync_min=needed[topic], at_most_all=True)
        }

    def may_read(self, topic: str) -> bool:
        """False if the broker says that we may not read, or there is no such topic."""
        return self._may(AclOperation.READ, topic, untold=False)

    def config(self, topic: str) -> dict[str, str]:
        """The settings of a topic by name; empty if the broker hides them."""
        return self._config_of(self._ask_configs([topic])[topic], topic)

    def _ask_configs(self, topics: Iterable[str]) -> dict[str, Future[Any]]:
        """In one request."""
        resources = {topic: ConfigResource(ResourceType.TOPIC, topic) for topic in topics}
        asked = self._admin.describe_configs(list(resources.values())) if resources else {}
        return {topic: asked[resource] for topic, resource in resources.items()}

    def _config_of(self, asked: Future[Any], topic: str) -> dict[str, str]:
        try:
            found = asked.result(REQUEST_S)
        except KafkaException as error:
            if error.args[0].code() < 0 or error.args[0].code() == KafkaError.REQUEST_TIMED_OUT:
                told = f"Kafka does not tell the settings of {topic!r}: {error}"
                raise BrokerUnavailable(told) from error
            return {}
        except TimeoutError as error:
            raise BrokerUnavailable(f"Kafka does not tell the settings of {topic!r}") from error
        return {name: str(entry.value) for name, entry in found.items()}

    def require_compacted(self, topic: str) -> None:
        """Raises BadSettings for a journal that is not compacted, which could lose records; the
        message says how to fix it."""
        policy = self.config(topic).get("cleanup.policy", "compact")
        if "compact" not in policy or "delete" in policy:
            raise BadSettings(
                f"journal {topic!r}: expected cleanup.policy=compact, got {policy!r}; mend it with "
                f"kafka-configs --alter --topic {topic} --add-config cleanup.policy=compact"
            )

    def bound_timestamps(self, topic: str, *, alter: bool) -> None:
        """Have the broker refuse records with a timestamp outside Spark's range (microseconds).

        A single one would stop intake permanently. If we may not `alter` the topic's settings, the
        log says what to set by hand.
        """
        config = self.config(topic)
        most = TIMESTAMP_SPAN_MS_MAX
        wide = [name for name in TIMESTAMP_BOUNDS if int(config.get(name, 0)) > most]
        if config.get("message.timestamp.type") == "LogAppendTime" or not wide:
            return
        set_to = [
            ConfigEntry(name, str(most), incremental_operation=AlterConfigOpType.SET)
            for name in wide
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=set_to)
        cause = "create_topics is off"
        if alter:
            try:
                self._admin.incremental_alter_configs([resource])[resource].result(REQUEST_S)
            except FAILED as error:
                cause = _told(error)
            else:
                _log.info("impossible timestamps are refused from now on", topic=topic)
                return
        mend = ",".join(f"{name}={most}" for name in wide)
        told = "one record with an impossible timestamp would stop intake: bound them"
        how = f"kafka-configs --alter --topic {topic} --add-config {mend}"
        _log.warning(told, topic=topic, mend=how, cause=cause)

    def look_up(self, topic: str) -> Target | Reason | None:
        """Facts about a target topic, or why it cannot be a target; None: ask again soon.

        The look-up is that of a producer, so a broker with auto.create.topics.enable creates a
        missing topic. Raises BrokerUnavailable, TopicUnavailable for one that takes nothing for the
        moment.
        """
        if topic in (".", "..") or not re.fullmatch(names.TOPIC, topic):
            return Reason.BAD_TARGET
        try:
            found = self._producing.topics(topic, timeout_s=REQUEST_S)[topic]
        except KafkaException as error:
            raise BrokerUnavailable(f"Kafka does not describe {topic!r}: {error}") from error
        if found.error is not None:
            if found.error.code() in CREATING:
                return None
            if found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return Reason.NOT_AUTHORISED
            return Reason.UNKNOWN_TOPIC
        asked = self._ask_configs([topic])[topic]
        if not self._may_write(topic):
            return Reason.NOT_AUTHORISED
        # If the broker hides a setting, assume no limit.
        config = self._config_of(asked, topic)
        if _refuses_timestamps(config):
            return Reason.REFUSED
        self._in_sync_min[topic] = in_sync_min(config)
        if told := lack(found, in_sync_min=self._in_sync_min[topic]):
            raise TopicUnavailable(told)
        return Target(
            record_bytes_max=int(config.get("max.message.bytes", 2**31)),
            partitions=len(found.partitions),
            compacted="compact" in config.get("cleanup.policy", ""),
        )

    def _may_write(self, topic: str) -> bool:
        """False if the broker says so (KIP-430), or for an internal topic of the broker."""
        return topic not in INTERNAL and self._may(AclOperation.WRITE, topic, untold=True)

    def _may(self, operation: AclOperation, topic: str, *, untold: bool) -> bool:
        """Whether the broker allows us the operation; `untold` if it does not say."""
        try:
            future = self._admin.describe_topics(
                TopicCollection([topic]), include_authorized_operations=True
            )[topic]
            allowed = future.result(REQUEST_S).authorized_operations
        except (KafkaException, ValueError):
            return untold
        except TimeoutError as error:
            raise BrokerUnavailable(f"Kafka does not describe {topic!r}") from error
        return not allowed or operation in allowed or AclOperation.ALL in allowed


def _refuses_timestamps(config: Mapping[str, str]) -> bool:
    """Whether a record that waits in a producer, or a clock that is a little off, is too much."""
    if config.get("message.timestamp.type") == "LogAppendTime":
        return False
    bounds = [int(config[name]) for name in TIMESTAMP_BOUNDS if name in config]
    return min(bounds, default=TARGET_TIMESTAMP_MS_MIN) < TARGET_TIMESTAMP_MS_MIN


def _code(error: Exception) -> int | None:
    """Kafka's code, if it has answered."""
    return error.args[0].code() if isinstance(error, KafkaException) else None


def _told(error: Exception) -> str:
    """An answer that did not come says nothing by itself."""
    return str(error) or f"no answer within {REQUEST_S:.0f} s"
