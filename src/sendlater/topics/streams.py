"""Topics on Redis Streams: create, produce, read. They replace Kafka for development."""

import contextlib
import itertools
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Self

from sendlater import limits
from sendlater.errors import BadRequest
from sendlater.model import Record
from sendlater.redis_client import REDIS_ERRORS
from sendlater.topics import layout
from sendlater.topics.connection import Connection
from sendlater.topics.layout import TopicRecord

TOPIC_AGE_S_MAX = 1.0
"""How long a partition count is cached, and so how soon added partitions are noticed."""
TRIM_EVERY_MS = 1_000
"""Old entries are removed at most this often per partition, by Redis' clock."""
CLUSTER_PAUSE_S = 0.02
"""Pause between two reads of a cluster, where one blocking read cannot span partitions."""

Place = tuple[str, int]
"""Topic and partition."""


class Topics:
    """The topics of one space. Safe to share between threads; each process needs its own.

    A command that Redis refuses or does not answer is sent up to `write_attempts_max` times, with
    growing pauses (50 ms, doubled, at most 2 s); then BrokerUnavailable is raised. If the reply to
    a write was lost, repeating it can duplicate the record: at least once, as on Kafka without
    idempotence.
    """

    def __init__(
        self,
        redis_url: str,
        *,
        space: str = "sendlater",
        partitions_default: int = 4,
        retention_ms: int = 7 * 24 * 3_600_000,
        length_max: int = 1_000_000,
        write_attempts_max: int = 5,
    ) -> None:
        assert min(partitions_default, retention_ms, length_max) > 0, "limits must be positive"
        self.connection = Connection(redis_url, attempts_max=write_attempts_max)
        self.space = space
        self._topics_key = layout.topics_key(space)
        self._partitions_default = partitions_default
        self._retention_ms = retention_ms
        self._length_max = length_max
        self._known: dict[str, tuple[int, float]] = {}
        self._trimmed_ms: dict[str, int] = {}
        # Start at random: many producers with one keyless record each must not all use partition 0.
        self._turns = itertools.count(int.from_bytes(os.urandom(2)))

    def create(self, topic: str, partitions: int | None = None) -> int:
        """Create `topic` unless it exists; returns its actual partition count."""
        layout.check_topic(topic)
        count = self._partitions_default if partitions is None else partitions
        if count < 1:
            raise BadRequest(f"partitions: expected at least 1, got {count}")
        created = layout.encode_topic(count, created_ms=time.time_ns() // 1_000_000)
        self.connection.command("HSETNX", self._topics_key, topic, created)
        self._known.pop(topic, None)
        return self.partitions(topic)

    def exists(self, topic: str) -> bool:
        """Whether the topic was created."""
        return self.partitions(topic) > 0

    def names(self) -> list[str]:
        """All topics of the space, sorted."""
        return sorted(name.decode() for name in self.connection.command("HKEYS", self._topics_key))

    def partitions(self, topic: str) -> int:
        """The topic's partition count, at most a second old; 0 if the topic does not exist."""
        count, read_s = self._known.get(topic, (0, 0.0))
        if not count or time.monotonic() - read_s > TOPIC_AGE_S_MAX:
            text = self.connection.command("HGET", self._topics_key, topic)
            count = layout.decode_partitions(text) if text else 0
            self._known[topic] = (count, time.monotonic())
        return count

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Add partitions to an existing topic; keys may change partition, as on Kafka."""
        text = self.connection.command("HGET", self._topics_key, topic)
        if not text or layout.decode_partitions(text) > partitions:
            raise BadRequest(f"{topic}: expected a topic with at most {partitions} partitions")
        changed = layout.encode_topic(partitions, created_ms=layout.decode_created_ms(text))
        self.connection.command("HSET", self._topics_key, topic, changed)
        self._known.pop(topic, None)

    def delete(self, topic: str) -> None:
        """Remove the topic, its records and its groups' positions, if it exists."""
        keys = [self.stream_key((topic, p)) for p in range(self.partitions(topic))]
        self.connection.command("HDEL", self._topics_key, topic)
        self._known.pop(topic, None)
        self.connection.commands([("UNLINK", key) for key in keys])

    def produce(self, record: Record) -> int:
        """Append one record; returns its position. Creates the topic if it is missing.

        Raises BadRequest for a bad topic name or partition, BrokerUnavailable.
        """
        return self._append([record])[0]

    def produce_many(self, records: Iterable[Record]) -> list[int]:
        """Append records, in order within each partition; returns their positions.

        Raises the same errors as `produce`; records before the failure are then written.
        """
        return [position for chunk in _chunks(records) for position in self._append(chunk)]

    def read(
        self, topic: str, partition: int, *, after_position: int, count_max: int, block_ms: int = 0
    ) -> list[TopicRecord]:
        """Records after `after_position` (0: from the start), without a group.

        Waits up to `block_ms` (at most 1 s) for the first one; may return an empty list.
        """
        after = {(topic, partition): after_position}
        return self.read_each(after, count_max=count_max, block_ms=block_ms)

    def read_range(
        self, topic: str, partition: int, *, start: int, end: int, count_max: int
    ) -> list[TopicRecord]:
        """Records from position `start` to before `end`."""
        first, last = layout.entry_id_of(start), layout.entry_id_of(end - 1)
        key = self.stream_key((topic, partition))
        entries = self.connection.command("XRANGE", key, first, last, "COUNT", count_max)
        return [layout.decode(entry, topic=topic, partition=partition) for entry in entries]

    def read_last(self, topic: str, partition: int, *, count_max: int) -> list[TopicRecord]:
        """The last records of a partition, in order."""
        key = self.stream_key((topic, partition))
        entries = self.connection.command("XREVRANGE", key, "+", "-", "COUNT", count_max)
        return [
            layout.decode(entry, topic=topic, partition=partition) for entry in reversed(entries)
        ]

    def end_positions(self, topic: str) -> dict[int, int]:
        """The position of each partition's last record, 0 if there is none."""
        keys = [self.stream_key((topic, p)) for p in range(self.partitions(topic))]
        replies = self.connection.commands(
            [("XREVRANGE", key, "+", "-", "COUNT", 1) for key in keys]
        )
        return {
            p: layout.position_of(entries[0][0]) if entries else 0
            for p, entries in enumerate(replies)
        }

    def wait(self, after_positions: Mapping[Place, int], *, block_ms: int) -> bool:
        """Wait up to `block_ms` for a record after these positions; whether there is one."""
        return bool(self.read_each(after_positions, count_max=1, block_ms=block_ms))

    def read_each(
        self, after_positions: Mapping[Place, int], *, count_max: int, block_ms: int
    ) -> list[TopicRecord]:
        """Up to `count_max` records of each partition after these positions, in order within it.

        Waits up to `block_ms` (at most 1 s) for the first one; may return an empty list.
        """
        after = {place: layout.entry_id_of(p) for place, p in after_positions.items()}
        return self.read_streams(["XREAD"], after, count=count_max, block_ms=block_ms)

    def close(self) -> None:
        """End waits and close connections."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stream_key(self, place: Place) -> str:
        """The key of one partition's stream."""
        return layout.stream_key(self.space, topic=place[0], partition=place[1])

    def read_streams(
        self, head: list[str], after: Mapping[Place, str], *, count: int, block_ms: int
    ) -> list[TopicRecord]:
        """XREAD or XREADGROUP (`head`) on partitions, each after its own entry id.

        Returns at most `count` records per partition, after at most `block_ms` and at most 1 s.
        """
        wait_ms = min(block_ms, limits.WAIT_BLOCK_MS_MAX)
        places = {self.stream_key(place).encode(): place for place in after}
        options = (*head, "COUNT", count)
        if self.connection.is_cluster:
            # One command cannot span slots: read each partition, and once more after a pause.
            single = [(*options, "STREAMS", key, after[place]) for key, place in places.items()]
            replies = self.connection.commands(single)
            if not any(replies) and wait_ms:
                self.connection.pause(min(CLUSTER_PAUSE_S, wait_ms / 1000))
                replies = self.connection.commands(single)
            streams = [stream for reply in replies for stream in reply or ()]
        else:
            block = ("BLOCK", wait_ms) if wait_ms > 0 else ()  # BLOCK 0 waits without limit
            command = (*options, *block, "STREAMS", *places, *after.values())
            streams = self.connection.command(*command) or []
        return [
            layout.decode(entry, topic=places[key][0], partition=places[key][1])
            for key, entries in streams
            for entry in entries
        ]

    def _append(self, records: Sequence[Record]) -> list[int]:
        keys = [self.stream_key((r.topic, self.partition_of(r))) for r in records]
        replies = self.connection.append(
            [
                ("XADD", key, "MAXLEN", "~", self._length_max, "*", *layout.encode(record))
                for key, record in zip(keys, records, strict=True)
            ]
        )
        positions = [layout.position_of(reply) for reply in replies]
        self._trim(dict(zip(keys, map(layout.timestamp_ms_of, positions), strict=True)))
        return positions

    def partition_of(self, record: Record) -> int:
        """The partition for a record: its own, by its key, or in rotation. Raises BadRequest."""
        count = self.partitions(record.topic) or self.create(record.topic)
        if record.partition is not None:
            if not 0 <= record.partition < count:
                raise BadRequest(
                    f"{record.topic}: expected a partition within 0..{count - 1}, "
                    f"got {record.partition}"
                )
            return record.partition
        if record.key is not None:
            return zlib.crc32(record.key) % count
        return next(self._turns) % count

    def _trim(self, written_ms: Mapping[str, int]) -> None:
        """Remove old records from the partitions just written, by the time in Redis' ids."""
        due = {
            key: ms
            for key, ms in written_ms.items()
            if ms - self._trimmed_ms.get(key, 0) >= TRIM_EVERY_MS
        }
        if not due:
            return
        self._trimmed_ms |= due
        # The records are written: an error now would make the caller write them again.
        with contextlib.suppress(*REDIS_ERRORS, OSError):
            self.connection.send(
                [
                    ("XTRIM", key, "MINID", "~", max(0, ms - self._retention_ms))
                    for key, ms in due.items()
                ]
            )


def _chunks(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Lists small enough for one pipeline."""
    chunk: list[Record] = []
    size_bytes = 0
    for record in records:
        chunk.append(record)
        size_bytes += len(record.value or b"")
        if len(chunk) >= limits.TOPIC_WRITE_COUNT_MAX or size_bytes >= limits.TOPIC_CHUNK_BYTES:
            yield chunk
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk
