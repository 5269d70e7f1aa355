"""The topics of a fake installation: what was delivered, and who has handled it."""

import threading
from collections import deque
from collections.abc import Callable

from sendlater.brokers.broker import Arrived
from sendlater.model import Record


class FakeTopics:
    """Topics of one partition, in memory. Safe to share between threads."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._records: dict[str, list[Arrived]] = {}
        self._groups: dict[tuple[str, str], FakeReader] = {}

    def append(self, record: Record, *, at_ms: int) -> None:
        """Put a record at the end of its topic; one for another partition keeps that number."""
        with self.changed:
            records = self._records.setdefault(record.topic, [])
            records.append(
                Arrived(
                    record.topic,
                    record.partition or 0,
                    len(records),
                    at_ms,
                    record.key,
                    record.value,
                    list(record.headers),
                )
            )
            self.changed.notify_all()

    def records(self, topic: str) -> list[Arrived]:
        """All records of a topic, oldest first."""
        with self.changed:
            return list(self._records.get(topic, ()))

    def reader(self, topic: str, *, group: str) -> "FakeReader":
        """The group's only reader of a topic; a new one goes on where the last has ended."""
        with self.changed:
            reader = self._groups.get((topic, group))
            if reader is None:
                records = self._records.setdefault(topic, [])
                reader = self._groups[topic, group] = FakeReader(records, self.changed)
            reader.reading = True
            return reader

    def idle(self) -> bool:
        """Whether all records of topics that are being read are done."""
        with self.changed:
            return not any(r.reading and r.undone for r in self._groups.values())

    def wait(self, condition: Callable[[], bool], *, timeout_s: float) -> bool:
        """Whether the condition came true in time; it is looked at after each change."""
        with self.changed:
            return self.changed.wait_for(condition, timeout_s)


class FakeReader:
    """See sendlater.brokers.group_reader.GroupReader."""

    def __init__(self, records: list[Arrived], changed: threading.Condition) -> None:
        self._records, self._changed = records, changed
        self._next = 0
        self._again: deque[Arrived] = deque()
        self._given: dict[int, Arrived] = {}
        self.reading = False

    @property
    def undone(self) -> int:
        """Number of records that are not done, given or not."""
        return self.unread() + len(self._given)

    def poll(self, count_max: int, *, timeout_s: float) -> list[Arrived]:
        """See GroupReader."""
        with self._changed:
            if count_max:
                self._changed.wait_for(lambda: self.unread() > 0, timeout_s)
            found: list[Arrived] = []
            while len(found) < count_max and self.unread():
                if self._again:
                    found.append(self._again.popleft())
                else:
                    found.append(self._records[self._next])
                    self._next += 1
            self._given |= {record.position: record for record in found}
            return found

    def unread(self) -> int:
        """See GroupReader."""
        return len(self._again) + len(self._records) - self._next

    def done(self, record: Arrived) -> None:
        """See GroupReader."""
        with self._changed:
            self._given.pop(record.position, None)
            self._changed.notify_all()

    def close(self) -> None:
        """See GroupReader."""
        with self._changed:
            self._again.extend(self._given.values())
            self._given.clear()
            self.reading = False
            self._changed.notify_all()
