"""Topics on Redis with the interface of `Broker`."""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace

from sendlater.brokers.broker import POLL_S, Acknowledged, Arrived, Failed
from sendlater.config import Settings
from sendlater.model import Record
from sendlater.topics import Topics
from sendlater.topics.layout import check_names


class RedisBroker:
    """Topics on Redis Streams. Records are collected, and written together by `flush`."""

    GATHER_COUNT_MAX = 500

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._gathered: list[tuple[Record, int, Acknowledged | None]] = []
        self._lock = threading.Lock()
        """For the list, briefly."""
        self._writing = threading.RLock()
        """Held while a list is written and told: `flush` waits for what another thread writes. What
        is told may send again, and so write."""

    def send(
        self, record: Record, *, on_done: Acknowledged | None = None, on_error: Failed | None = None
    ) -> None:
        """See Broker. Chooses the partition here, and looks at the names of headers, so that a bad
        one fails one record only."""
        if on_done is None and on_error is not None:
            on_done = _only_errors(on_error)
        check_names(record.headers)
        partition = self._topics.partition_of(record)
        record = replace(record, partition=partition)
        with self._lock:
            self._gathered.append((record, partition, on_done))
            full = len(self._gathered) >= self.GATHER_COUNT_MAX
        if full:
            self.flush()

    @property
    def waiting(self) -> int:
        """Number of records collected and not written."""
        return len(self._gathered)

    def has_room(self) -> bool:
        """See Broker. The `send` that fills the list writes it."""
        return self.waiting < self.GATHER_COUNT_MAX - 1

    def flush(self) -> None:
        """See Broker. Raises what an `on_done` has raised when all are told."""
        with self._writing:
            with self._lock:
                gathered, self._gathered = self._gathered, []
            positions: list[int] = [0] * len(gathered)
            failures: list[Exception] = []
            try:
                positions = self._topics.produce_many(record for record, _, _ in gathered)
            except Exception as error:
                failures.append(error)
            failure = failures[0] if failures else None
            for (_, partition, on_done), position in zip(gathered, positions, strict=True):
                try:
                    if on_done is not None:
                        on_done(failure, partition, position)
                except Exception as error:
                    failures.append(error)
            if failures:
                raise failures[0]

    def create(self, topic: str, *, partitions: int) -> None:
        """See Broker."""
        self._topics.create(topic, partitions)

    def ensure(self, topic: str, *, partitions: int) -> None:
        """See Broker."""
        self._topics.create(topic, partitions)

    def delete(self, topic: str) -> None:
        """See Broker."""
        self._topics.delete(topic)

    def ends(self, topic: str) -> dict[int, int]:
        """See Broker."""
        return {n: end + 1 if end else 0 for n, end in self._topics.end_positions(topic).items()}

    def back(self, end: int, *, count: int) -> int:  # noqa: ARG002
        """See Broker. Positions are not consecutive here, and retention keeps topics short."""
        return 0

    def follow(
        self, topic: str, *, stop: threading.Event, starts: Mapping[int, int] | None = None
    ) -> Iterator[list[Arrived]]:
        """See Broker."""
        places = {n: (starts or {}).get(n, 0) for n in range(self._topics.partitions(topic))}
        # A start is the first position to read; Redis needs the position before it.
        after = {n: max(0, at - 1) for n, at in places.items()}
        while not stop.is_set():
            if not after:  # the topic does not exist yet
                stop.wait(POLL_S)
                yield []
                after = dict.fromkeys(range(self._topics.partitions(topic)), 0)
                continue
            self._topics.wait({(topic, n): at for n, at in after.items()}, block_ms=100)
            for number in after:
                got = self._topics.read(
                    topic, number, after_position=after[number], count_max=1_000, block_ms=0
                )
                if got:
                    after[number] = got[-1].position
                yield [
                    Arrived(
                        r.topic, r.partition, r.position, r.timestamp_ms, r.key, r.value, r.headers
                    )
                    for r in got
                ]

    def close(self) -> None:
        """See Broker."""
        self.flush()
        self._topics.close()


def _only_errors(on_error: Failed) -> Acknowledged:
    def done(error: Exception | None, _partition: int, _position: int) -> None:
        if error is not None:
            on_error(error)

    return done


def open_topics(redis_url: str, settings: Settings) -> Topics:
    """The development topics of an installation."""
    return Topics(
        redis_url,
        space=settings.space,
        partitions_default=settings.topic_partitions,
        retention_ms=settings.topics_retention_ms,
        length_max=settings.topics_length_max,
    )
