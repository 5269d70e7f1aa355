"""Consumer groups for topics on Redis: many processes share the records; none is skipped."""

import contextlib
import os
import socket
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Self

from redis.exceptions import ResponseError

from sendlater.errors import BadRequest
from sendlater.topics import layout
from sendlater.topics.connection import GROUP_ERRORS
from sendlater.topics.layout import TopicRecord
from sendlater.topics.streams import TOPIC_AGE_S_MAX, Place, Topics

TAKE_OVER_COUNT_MAX = 100
"""Most entries per partition and call when taking over records that another consumer left."""
TAKE_OVER_S = 1.0
"""Longest pause between two searches for records that another consumer left."""
NO_TOPIC_PAUSE_S = 0.1
"""Pause between two searches while none of the subscribed topics exists."""
START = "0-0"
UNREAD_BYTES_MAX = 4 * 1024 * 1024
"""Most bytes per partition that Redis looks at to count unread records: others wait meanwhile."""
COUNT_AFTER = """
local after, count, bytes = '(' .. ARGV[1], 0, 0
local count_max, bytes_max = tonumber(ARGV[2]), tonumber(ARGV[3])
while count < count_max and bytes < bytes_max do
  local some = redis.call('XRANGE', KEYS[1], after, '+', 'COUNT', math.min(10, count_max - count))
  if #some == 0 then break end
  for _, entry in ipairs(some) do
    for _, part in ipairs(entry[2]) do bytes = bytes + #part end
  end
  count, after = count + #some, '(' .. some[#some][1]
end
return count
"""
"""Counts a stream's entries after an id, where they are."""


class Consumer:
    """One member of a group. Not safe to share between threads; give each thread its own.

    A new group starts at the first record kept. Each record goes to one member. If a member does
    not `ack` a record within `idle_ms`, the next member that polls gets it, so `idle_ms` must be
    longer than handling a poll takes. At least once: a record may come twice, but is never skipped
    unless retention removed it first.
    """

    def __init__(
        self,
        topics: Topics,
        group: str,
        *,
        subscribe: Sequence[str],
        name: str | None = None,
        idle_ms: int = 60_000,
    ) -> None:
        if not group or not subscribe or isinstance(subscribe, str):
            raise BadRequest(f"expected a group and a list of topics, got {group!r}, {subscribe!r}")
        assert idle_ms > 0, f"idle_ms must be positive, got {idle_ms}"
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._topics = topics
        self._group = group
        self._subscribed = [layout.check_topic(topic) for topic in subscribe]
        self._idle_ms = idle_ms
        self._places: list[Place] = []
        self._refresh_s = 0.0
        self._cursors: dict[Place, str] = {}
        self._take_over_s = 0.0
        self._looking: list[Place] = []
        self._closed = False

    def poll(self, count_max: int = 500, *, timeout_ms: int = 1_000) -> list[TopicRecord]:
        """Up to `count_max` records, as soon as there are any; empty after `timeout_ms`.

        In order within a partition. Raises BrokerUnavailable if Redis does not answer.
        """
        assert count_max > 0, f"count_max must be positive, got {count_max}"
        deadline_s = time.monotonic() + timeout_ms / 1000
        while not (self._closed or self._topics.connection.closed):
            left_ms = max(0, int((deadline_s - time.monotonic()) * 1000))
            try:
                records = self._left_behind(count_max) or self._new(count_max, left_ms)
            except ResponseError as error:
                if not str(error).startswith(GROUP_ERRORS):
                    raise
                # The topic was deleted, or another member called seek: join the group again.
                self._places, records = [], []
            if records or not left_ms:
                return records
        return []

    def ack(self, records: Iterable[TopicRecord]) -> int:
        """Mark records as done; returns how many were not done before. Safe to repeat."""
        ids: dict[Place, list[str]] = defaultdict(list)
        for record in records:
            ids[record.topic, record.partition].append(layout.entry_id_of(record.position))
        return sum(
            self._topics.connection.commands([self._x("XACK", p, *some) for p, some in ids.items()])
        )

    def unread(self, *, count_max: int) -> int:
        """Number of records that no member has got yet, counted up to `count_max` per partition.

        Redis before 7, or where a record was deleted by hand, has to look at each: then large ones
        are counted up to UNREAD_BYTES_MAX only.
        """
        return sum(self._unread(place, count_max) for place in self._joined())

    def _unread(self, place: Place, count_max: int) -> int:
        key, command = self._topics.stream_key(place), self._topics.connection.command
        for group in command("XINFO", "GROUPS", key):
            told = dict(zip(group[::2], group[1::2], strict=True))
            if told[b"name"] != self._group.encode():
                continue
            if told.get(b"lag") is not None:
                # What retention removed unread may count in `lag`.
                return min(int(told[b"lag"]), int(command("XLEN", key)), count_max)
            after = told[b"last-delivered-id"]
            return int(command("EVAL", COUNT_AFTER, 1, key, after, count_max, UNREAD_BYTES_MAX))
        return 0

    def give_back(self, records: Iterable[TopicRecord]) -> None:
        """Let the next member that polls take these records, without waiting for `idle_ms`."""
        ids: dict[Place, list[str]] = defaultdict(list)
        for record in records:
            ids[record.topic, record.partition].append(layout.entry_id_of(record.position))
        idle = ("IDLE", self._idle_ms, "JUSTID")
        self._topics.connection.commands(
            [self._x("XCLAIM", p, self.name, 0, *some, *idle) for p, some in ids.items()]
        )

    def seek_to_start(self) -> None:
        """Move the whole group back to the first record still kept."""
        self._go_to(START)

    def seek(self, timestamp_ms: int) -> None:
        """Move the whole group to the first record at or after `timestamp_ms`.

        Records that members polled and did not acknowledge are forgotten: they come again only if
        they are after the new position.
        """
        before = layout.position_at(timestamp_ms) - 1
        self._go_to(layout.entry_id_of(before) if before > 0 else START)

    def close(self) -> None:
        """Leave the group; other members get the records that were not acknowledged."""
        self._closed = True
        # Redis drops the unacknowledged records of a deleted consumer: delete only if it has none.
        pending = self._topics.connection.commands(
            [self._x("XPENDING", place, "-", "+", 1, self.name) for place in self._places]
        )
        self._topics.connection.commands(
            [
                ("XGROUP", "DELCONSUMER", self._topics.stream_key(place), self._group, self.name)
                for place, entries in zip(self._places, pending, strict=True)
                if not entries
            ]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ResponseError):
            self.close()

    def _new(self, count_max: int, block_ms: int) -> list[TopicRecord]:
        """The next records that no member of the group has got."""
        places = self._joined()
        if not places:
            self._topics.connection.pause(min(NO_TOPIC_PAUSE_S, block_ms / 1000))
            return []
        # `count_max` may be less than the partitions: rotate, so that each gets its turn.
        self._places = places[1:] + places[:1]
        asked = places[:count_max]
        return self._topics.read_streams(
            ["XREADGROUP", "GROUP", self._group, self.name],
            dict.fromkeys(asked, ">"),
            count=count_max // len(asked),
            block_ms=min(block_ms, int(TOPIC_AGE_S_MAX * 1000)),
        )

    def _left_behind(self, count_max: int) -> list[TopicRecord]:
        """Records that another member did not acknowledge within `idle_ms`; they are now ours."""
        places = self._joined()
        if not self._looking:
            if time.monotonic() < self._take_over_s:
                return []
            self._looking = list(places)
        asked = [place for place in self._looking if place in places][:count_max]
        replies = self._topics.connection.commands(
            [
                self._x(
                    "XAUTOCLAIM",
                    place,
                    self.name,
                    self._idle_ms,
                    self._cursors.get(place, START),
                    "COUNT",
                    min(count_max // len(asked), TAKE_OVER_COUNT_MAX),
                    "JUSTID",
                )
                for place in asked
            ]
        )
        records: list[TopicRecord] = []
        for place, reply in zip(asked, replies, strict=True):
            self._cursors[place] = reply[0].decode()
            records += self._still_kept(place, reply[1])
        # A small `count_max` covers a few partitions per call; all are searched before a pause.
        self._looking = [
            place
            for place in self._looking
            if place in places and (place not in asked or self._cursors[place] != START)
        ]
        if not self._looking:
            self._take_over_s = time.monotonic() + min(self._idle_ms / 4000, TAKE_OVER_S)
        return records

    def _still_kept(self, place: Place, ids: list[bytes]) -> list[TopicRecord]:
        """The records with these ids; ids removed by retention are acknowledged."""
        key = self._topics.stream_key(place)
        replies = self._topics.connection.commands(
            [("XRANGE", key, entry_id, entry_id) for entry_id in ids]
        )
        gone = [entry_id for entry_id, found in zip(ids, replies, strict=True) if not found]
        if gone:
            self._topics.connection.commands([self._x("XACK", place, *gone)])
        return [
            layout.decode(entry, topic=place[0], partition=place[1])
            for found in replies
            for entry in found
        ]

    def _joined(self) -> list[Place]:
        """All partitions of the existing topics; creates the group on each of them."""
        if self._places and time.monotonic() - self._refresh_s <= TOPIC_AGE_S_MAX:
            return self._places
        existing = [(t, p) for t in self._subscribed for p in range(self._topics.partitions(t))]
        for place in existing:
            if place not in self._places:
                self._join(place)
        kept = [place for place in self._places if place in existing]
        self._places = kept + [place for place in existing if place not in kept]
        self._refresh_s = time.monotonic()
        return self._places

    def _join(self, place: Place) -> None:
        key = self._topics.stream_key(place)
        try:
            self._topics.connection.commands(
                [("XGROUP", "CREATE", key, self._group, START, "MKSTREAM")]
            )
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def _go_to(self, entry_id: str) -> None:
        """Create the group again, after an entry id, in one step per partition."""
        for place in self._joined():
            key = self._topics.stream_key(place)
            # SETID would keep the members' unacknowledged records, which would come out of order.
            self._topics.connection.transaction(
                [
                    ("XGROUP", "DESTROY", key, self._group),
                    ("XGROUP", "CREATE", key, self._group, entry_id, "MKSTREAM"),
                ]
            )
        self._cursors.clear()

    def _x(self, command: str, place: Place, *arguments: Any) -> tuple[Any, ...]:
        """A command on the group of one partition."""
        return (command, self._topics.stream_key(place), self._group, *arguments)
