"""The load of a chaos run: schedules at a steady rate, some of them changed or taken back later.

What is sent when, relative to the start, depends on the seed alone.
"""

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from book import Book, Version
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

AHEAD_MIN_S = 6.0
"""Shortest time between sending and due."""
FAR_SHARE = 0.05
"""Of the schedules, due up to twice as far ahead as the others."""
CANCELLED_SHARE, REPLACED_SHARE = 0.04, 0.08
AGAIN_SHARE = 0.1
"""Of the changed ones, changed once more."""
CHANGES_COUNT_MAX = 4
HERD_SENT_S = 10.0
"""A herd is sent over this time, and is due within one second, `HERD_DUE_S` after the start."""
HERD_DUE_S = 30.0
POLL_S = 0.02
"""Longest pause between two looks at what the broker has acknowledged."""
FLUSH_S = 120.0
"""Longest wait for the broker to acknowledge the last ones."""


@dataclass(slots=True, order=True)
class Step:
    """Something to send: a schedule, or with `due_s` None a cancellation. From the start."""

    at_s: float
    name: str
    due_s: float | None


def plan(
    seed: str, *, count: int, rate: float, ahead_s: float, margin_s: float, herd: int = 0
) -> list[Step]:
    """All that is sent, in order of time."""
    chance = random.Random(f"load {seed}")
    steps: list[Step] = []
    for number in range(count):
        steps += _life(chance, f"n{number}", number / rate, ahead_s=ahead_s, margin_s=margin_s)
    for number in range(herd):
        at_s = number * HERD_SENT_S / herd
        steps.append(Step(at_s, f"herd{number}", HERD_DUE_S + chance.random()))
    return sorted(steps, key=lambda step: step.at_s)


def _life(
    chance: random.Random, name: str, at_s: float, *, ahead_s: float, margin_s: float
) -> Iterator[Step]:
    """One id: a schedule, and perhaps changes, each `margin_s` before the due time it changes."""
    fate = chance.random()
    for _ in range(CHANGES_COUNT_MAX):
        changed = fate < CANCELLED_SHARE + REPLACED_SHARE
        # Who is changed needs time for it: a second at least, besides the margin.
        soonest_s = max(AHEAD_MIN_S, margin_s + 2 if changed else 0.0)
        furthest_s = max(soonest_s, ahead_s * (2 if chance.random() < FAR_SHARE else 1))
        due_s = at_s + chance.uniform(soonest_s, furthest_s)
        yield Step(at_s, name, due_s)
        if not changed:
            return
        at_s = chance.uniform(at_s + 0.5, due_s - margin_s - 0.5)
        again = chance.random() < AGAIN_SHARE
        if fate < CANCELLED_SHARE:
            yield Step(at_s, name, None)
            if not again:
                return
            at_s += chance.uniform(0.0, 1.0)
        fate = chance.random() * (CANCELLED_SHARE + REPLACED_SHARE) if again else 1.0


class Follower:
    """Follows a topic from its start in a thread; `messages` grows.

    Without a group: a broker that was away for a minute does not let a member in again soon.
    """

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.messages: list[Message] = []
        self._options = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "chaos",
            "enable.auto.commit": False,
            "log_level": 0,
            "error_cb": lambda _error: None,
        }
        self._consumer = Consumer(self._options)
        partitions = self._consumer.list_topics(topic, timeout=FLUSH_S).topics[topic].partitions
        self._partitions = [TopicPartition(topic, n, OFFSET_BEGINNING) for n in partitions]
        self._consumer.assign(self._partitions)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.is_set():
            found = self._consumer.consume(1_000, 0.2)
            self.messages += [message for message in found if message.error() is None]

    def ends(self) -> dict[int, int]:
        """By partition, the offset after its last record at this moment."""
        consumer = Consumer(self._options)
        try:
            return {
                p.partition: consumer.get_watermark_offsets(p, timeout=FLUSH_S)[1]
                for p in self._partitions
            }
        finally:
            consumer.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


class Load(threading.Thread):
    """Sends a plan beside everything else, and enters it in the book."""

    def __init__(
        self, bootstrap_servers: str, steps: list[Step], book: Book, *, inbox: str, target: str
    ) -> None:
        super().__init__(name="load", daemon=True)
        self.inbox, self.target = inbox, target
        self.started_ms = 0
        self.skipped: set[str] = set()
        """Ids with a change that would have been too late, as this machine was behind."""
        self.unacked = 0
        self.error: Exception | None = None
        self._steps, self._book = steps, book
        # Idempotent, so that versions of an id cannot overtake each other when sent again.
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.messages": 500_000,
                "log_level": 0,
                "error_cb": lambda _error: None,
            }
        )

    def run(self) -> None:
        """Send every step at its time, then wait for the broker."""
        self.started_ms = now_ms()
        try:
            for step in self._steps:
                while (ahead_s := self.started_ms / 1e3 + step.at_s - time.time()) > 0:
                    self._producer.poll(min(ahead_s, POLL_S))
                self._send(step)
            self.unacked = self._producer.flush(FLUSH_S)
        except Exception as error:
            self.error = error

    def _send(self, step: Step) -> None:
        story = self._book.stories.get(step.name)
        due_ms = None if step.due_s is None else self.started_ms + int(step.due_s * 1e3)
        now = now_ms()
        if story is not None:
            before_ms = story.newest.due_ms
            late = before_ms is not None and now > before_ms - self._book.margin_ms
            if late or step.name in self.skipped:
                self.skipped.add(step.name)
                return
        version = self._book.write(step.name, due_ms, now_ms=now)

        def acknowledged(error: Any, message: Any) -> None:
            _acknowledged(version, error, message)

        schedule = due_ms is not None
        while True:
            try:
                self._producer.produce(
                    self.inbox,
                    key=step.name,
                    value=self._book.payload(step.name, version) if schedule else None,
                    headers=self._headers(step.name, due_ms) if schedule else [],
                    on_delivery=acknowledged,
                )
                break
            except BufferError:
                self._producer.poll(POLL_S)
        self._producer.poll(0)

    def _headers(self, name: str, due_ms: int | None) -> list[tuple[str, str]]:
        return [
            ("sendlater-due-ms", str(due_ms)),
            ("scheduler-target-topic", self.target),
            ("scheduler-target-key", name),
        ]


def _acknowledged(version: Version, error: Any, message: Any) -> None:
    if error is None:
        version.acked_ms = now_ms()
        version.place = f"{message.partition()}/{message.offset()}"
    else:
        version.error = f" error {error}"


def now_ms() -> int:
    """The time."""
    return time.time_ns() // 1_000_000
