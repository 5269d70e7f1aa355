"""The format of a schedule that waits in a bucket.

The key is the schedule's id, the value is the payload. Header 0, `schedule`, is text, separated by
blanks: due_ms, dialect, origin topic, partition, offset and timestamp_ms, target topic and, if
given, target partition. Header 1, `key`, is the target's key or null. The user's headers follow, in
their order. So any Kafka tool can read a record of a bucket, and it is moved unchanged.
"""

import re
from typing import NamedTuple

from sendlater.dialects import names
from sendlater.model import Headers, Origin, Record, Schedule

SCHEDULE, KEY = "schedule", "key"
DRAIN = "drain"
"""The only header of a record that is no schedule: it asks the run that it names to end."""
CONTROL = re.compile(
    # No number is longer than its column: who writes what is in the buckets is unknown.
    rf"(-?\d{{1,16}}) (headers|few|envelope|rejected) ({names.TOPIC}) (\d{{1,9}}) (\d{{1,18}}) "
    rf"(-?\d{{1,16}}) ({names.TOPIC})(?: (\d{{1,10}}))?".encode()
)
"""The text of the header `schedule`."""
PARTITION_MAX = 2**31 - 1


class Waiting(NamedTuple):
    """A schedule as it is read from a bucket; topic names are ASCII and stay bytes."""

    due_ms: int
    offset: int
    id: bytes
    topic: bytes
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    dialect: str
    origin: tuple[bytes, int, int]
    origin_timestamp_ms: int

    @property
    def bytes_count(self) -> int:
        """An upper bound of its size when delivered, without what delivery adds."""
        size = 3 * len(self.id) + len(self.key or b"") + len(self.value or b"")
        for name, value in self.headers:
            # Two lengths of five bytes at most; a character is four bytes at most.
            size += 10 + 4 * len(name) + len(value or b"")
        return size

    def as_schedule(self) -> Schedule:
        """The same as a `Schedule`."""
        topic, partition, position = self.origin
        return Schedule(
            id=self.id,
            due_ms=self.due_ms,
            record=Record(
                topic=self.topic.decode(),
                value=self.value,
                key=self.key,
                headers=self.headers,
                partition=self.partition,
            ),
            dialect=self.dialect,
            origin=Origin(
                topic=topic.decode(),
                partition=partition,
                position=position,
                timestamp_ms=self.origin_timestamp_ms,
            ),
        )


def primer(record: Record, *, now_ms: int) -> Record:
    """The same as a schedule of bucket 0 whose origin is bucket 0 itself.

    It is processed like every schedule, but never delivered: no schedule has that origin.
    """
    control = f"{now_ms} headers {record.topic} 0 0 {now_ms} {record.topic}"
    headers: Headers = [(SCHEDULE, control.encode()), (KEY, None)]
    return Record(topic=record.topic, key=record.key, value=record.value, headers=headers)


def parse(offset: int, key: bytes | None, value: bytes | None, headers: Headers) -> Waiting | None:
    """A bucket's record; None where it is no schedule, whoever wrote it."""
    if key is None or len(headers) < 2 or headers[0][0] != SCHEDULE:
        return None
    told = CONTROL.fullmatch(headers[0][1] or b"")
    if told is None:
        return None
    due_ms, dialect, origin, partition, position, timestamp_ms, topic, asked = told.groups()
    if asked is not None and int(asked) > PARTITION_MAX:
        return None
    return Waiting(
        due_ms=int(due_ms),
        offset=offset,
        id=key,
        topic=topic,
        partition=None if asked is None else int(asked),
        key=headers[1][1],
        value=value,
        headers=headers[2:],
        dialect=dialect.decode(),
        origin=(origin, int(partition), int(position)),
        origin_timestamp_ms=int(timestamp_ms),
    )
