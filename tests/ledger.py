"""A ledger for tests: what was handed over against what arrived, by payload."""

import threading
import time
from collections import Counter
from typing import Self

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from servers import wait_until


def create_topics(bootstrap_servers: str, *topics: str, partitions: int = 2, **config: str) -> None:
    """Topics whose timestamps are the broker's append times."""
    config = {"message.timestamp.type": "LogAppendTime"} | {
        name.replace("_", "."): value for name, value in config.items()
    }
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    new = [NewTopic(topic, partitions, config=config) for topic in topics]
    for future in admin.create_topics(new).values():
        future.result(30)


def set_config(bootstrap_servers: str, topic: str, name: str, value: str) -> None:
    """Behind a service's back; returns when the broker tells the new value itself."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    asked = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.incremental_alter_configs([changed])[changed].result(30)

    def has_it() -> bool:
        told = admin.describe_configs([asked])[asked].result(30)
        return bool(told[name].value == value)

    wait_until(has_it, f"{name} is {value}")


class Reader:
    """Follows topics from their start in a thread; `messages` grows.

    After a change of partitions, or of the broker that has its group, it reads from the start
    again: what lies at the same place is the same record.
    """

    def __init__(self, bootstrap_servers: str, *topics: str) -> None:
        self.messages: list[Message] = []
        self._read: set[tuple[str, int, int, int]] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": f"reader-{time.time_ns()}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 1_000,
                "allow.auto.create.topics": False,
                "log_level": 0,
            }
        )
        self._consumer.subscribe(list(topics))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(1_000, 0.2):
                if message.error() is None and _place(message) not in self._read:
                    self._read.add(_place(message))
                    self.messages.append(message)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


def _place(message: Message) -> tuple[str, int, int, int]:
    """Where it lies, and since when: a topic that is made anew has the same offsets again."""
    return message.topic(), message.partition(), message.offset(), message.timestamp()[1]


class Ledger:
    """Sends numbered schedules with their due time as payload; compares with a Reader."""

    def __init__(
        self, bootstrap_servers: str, *, inbox: str, target: str, prefix: str = "n"
    ) -> None:
        """Ids begin with `prefix`: ledgers that share a space need different ones."""
        self.inbox, self.target, self._prefix = inbox, target, prefix
        self.due_ms: dict[str, int] = {}
        self.failed: dict[str, str] = {}
        """Ids of records that the broker has not acknowledged, and why: nothing is promised."""
        self._count = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "linger.ms": 5,
                # A record that is sent again, as its broker died, would be a schedule of its own.
                "enable.idempotence": True,
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 0,
            }
        )

    def send(self, due_ms: int, name: str | None = None) -> str:
        """Schedule the next one, or a new version of one; its id."""
        name = name or f"{self._prefix}{self._count}"
        self._count += 1
        self.due_ms[name] = due_ms
        headers = [
            ("sendlater-due-ms", str(due_ms)),
            ("scheduler-target-topic", self.target),
            ("scheduler-target-key", name),
        ]
        self._producer.produce(
            self.inbox, value=str(due_ms), key=name, headers=headers, on_delivery=self._note
        )
        self._producer.poll(0)
        return name

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed[message.key().decode()] = str(error)

    def cancel(self, name: str) -> None:
        """Take one back, on the inbox."""
        del self.due_ms[name]
        self._producer.produce(self.inbox, value=None, key=name)
        self._producer.poll(0)

    def outdated(self, reader: Reader) -> list[str]:
        """Ids that arrived although they were cancelled, or in a version that was replaced."""
        return [
            message.key().decode()
            for message in reader.messages
            if int(message.value()) != self.due_ms.get(message.key().decode())
        ]

    def flush(self) -> None:
        """Until the broker has them all."""
        left = self._producer.flush(60)
        assert left == 0, f"{left} records to {self.inbox} wait for the broker"

    def missing(self, reader: Reader) -> set[str]:
        """Ids that have not arrived."""
        return self.due_ms.keys() - {message.key().decode() for message in reader.messages}

    def doubled(self, reader: Reader) -> dict[str, int]:
        """Ids that have arrived more than once, and how often; each copy carries its id."""
        counts = Counter(message.key().decode() for message in reader.messages)
        for message in reader.messages:
            assert dict(message.headers())["sendlater-id"] == message.key()
        return {name: count for name, count in counts.items() if count > 1}

    def early(self, reader: Reader) -> list[str]:
        """Ids of copies that the broker had before they were due."""
        return [
            message.key().decode()
            for message in reader.messages
            if message.timestamp()[1] < int(message.value())
        ]
