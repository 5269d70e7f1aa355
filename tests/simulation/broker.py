"""A Kafka of lists: inboxes, journals, targets; producers whose last records may or may not land.

What Spark does in SQL between Kafka and us is done here in Python: decoding an inbox's records,
and making a delivery's records.
"""

import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from world import World

from sendlater.brokers.partition_reader import Place, Read
from sendlater.config import Settings
from sendlater.dialects import names
from sendlater.dialects.recurrence import read_text
from sendlater.errors import BrokerUnavailable
from sendlater.model import Headers, Reason, Target
from sendlater.spark.intake.share import BUNDLE

LAND_MS_MAX = 30.0
"""How long a record usually takes to its topic."""
LATE_SHARE, LATE_MS_MAX = 0.05, 400.0
"""Some take longer; shorter than the pause before a failed lane begins again, or a second attempt
looks up what has arrived."""
FLUSH_POLL_MS = 5.0
READ_MS_MAX = 40.0
"""How long it takes a reader to notice what has arrived."""
TARGET = "out"
"""A topic that takes everything; `small` takes SMALL_BYTES, `slow-n` answers late, `no-n` never."""
SMALL_BYTES = 600

COLUMNS = (
    *("id", "due_ms", "topic", "partition", "key", "value", "headers", "dialect"),
    *("expires_ms", "expires_after_ms", "tags"),
    *("origin_topic", "origin_partition", "origin_position", "origin_timestamp_ms"),
    *("shard", "change"),
)
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
DECODED = pa.schema(
    dict(
        zip(
            COLUMNS,
            (
                *(pa.binary(), pa.int64(), pa.string(), pa.int32(), pa.binary(), pa.binary()),
                *(pa.list_(_HEADER), pa.string(), pa.int64(), pa.int64(), pa.string()),
                *(pa.string(), pa.int32(), pa.int64(), pa.int64()),
                *(pa.int32(), pa.string()),
            ),
            strict=True,
        )
    )
)


@dataclass(slots=True)
class Entry:
    """A record on a topic."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    told: Any = None
    """What the ledger knows of it."""

    def header(self, name: str) -> bytes | None:
        """The last of that name, as what we add comes last."""
        return next((v for n, v in reversed(self.headers) if n == name), None)


@dataclass
class Broker:
    """Topics: per partition a list of records, None where an offset holds none."""

    world: World
    settings: Settings
    partitions: int
    logs: dict[str, list[list[Entry | None]]] = field(default_factory=dict)
    landed: list[Callable[[str, int, int, Entry], None]] = field(default_factory=list)
    away_until: float = 0.0
    flying: int = 0
    asked: dict[str, float] = field(default_factory=dict)

    def log(self, topic: str) -> list[list[Entry | None]]:
        """A topic's partitions; targets have one."""
        inbox = any(topic == i.topic for i in self.settings.inboxes)
        return self.logs.setdefault(topic, [[] for _ in range(self.partitions if inbox else 1)])

    def partition(self, key: bytes | None) -> int:
        """Where a key is on an inbox."""
        return zlib.crc32(key or b"", 7) % self.partitions

    def append(
        self, topic: str, number: int, key: Any, value: Any, headers: Headers, told: Any = None
    ) -> None:
        """A record is on its topic."""
        entry = Entry(key, value, headers, self.world.now_ms(), told)
        log = self.log(topic)[number]
        log.append(entry)
        for watcher in self.landed:
            watcher(topic, number, len(log) - 1, entry)

    # --- as KafkaTopics --------------------------------------------------------------------------

    def _answer(self) -> None:
        self.world.pause(self.world.rng.random() * LAND_MS_MAX)
        if self.world.elapsed < self.away_until:
            raise BrokerUnavailable("simulated: the broker is away")

    def ends(self, topics: Iterable[str], *, open_too=False) -> dict[str, dict[int, int]]:
        """The offset after the last record."""
        topics = list(topics)
        self._answer()
        return {topic: {n: len(log) for n, log in enumerate(self.log(topic))} for topic in topics}

    def require_answer(self) -> None:
        """Fails while the broker is away."""
        self._answer()

    def identity(self, topics: Iterable[str]) -> str:
        """Names and ids of topics."""
        return ",".join(f"{topic}=1" for topic in topics)

    def may_read(self, topic: str) -> bool:
        """Whether it may be looked through."""
        return True

    def look_up(self, topic: str) -> Target | Reason | None:
        """What a topic takes; why it takes nothing; None while nobody knows."""
        self._answer()
        if topic.startswith("no-"):
            return Reason.UNKNOWN_TOPIC
        if topic.startswith("slow-"):
            since = self.asked.setdefault(topic, self.world.elapsed)
            if self.world.elapsed < since + 1_000 * int(topic[5:]):
                return None
        bytes_max = SMALL_BYTES if topic == "small" else 1_000_000
        return Target(record_bytes_max=bytes_max, partitions=len(self.log(topic)))

    def missing_and_silent(self, topics: Iterable[str], *, anew: bool) -> tuple[set[str], set[str]]:
        """No topic is ever deleted, or lacks a replica."""
        return set(), set()

    def silent(self, topics: Iterable[str]) -> set[str]:
        """The same."""
        return set()

    # --- what a journal keeps --------------------------------------------------------------------

    def compact(self, older_than_ms: int) -> None:
        """Remove what has been followed by a record with its key, as far as it is old enough."""
        for topic in self.settings.journals:
            for log in self.log(topic):
                last = {entry.key: at for at, entry in enumerate(log) if entry is not None}
                for at, entry in enumerate(log):
                    if entry and last[entry.key] > at and entry.timestamp_ms < older_than_ms:
                        log[at] = None

    def standing(
        self, ends: Mapping[str, Mapping[int, int]], torn: Collection[tuple[str, int, int]] = ()
    ) -> Iterator[tuple[str, int, int, Entry]]:
        """The record that stands under each id: spark/journal/standing.py says it in SQL."""
        by_place: dict[tuple[Any, str, int], dict[str, Any]] = {}
        for topic, partitions in ends.items():
            for number, end in partitions.items():
                for at, entry in enumerate(self.log(topic)[number][:end]):
                    if entry is None or entry.key is None or (topic, number, at) in torn:
                        continue
                    place = by_place.setdefault((entry.key, topic, number), {})
                    done = entry.header(names.ORIGIN) if entry.value is None else None
                    # A copy counts as the version it is a copy of.
                    version_of = copy_of(entry, topic, number, at)
                    plan = read_text(entry.header(names.PLAN) or b"") if recurs(entry) else None
                    come = (
                        (plan.planned_ms, plan.changes) if plan and version_of is not None else ()
                    )
                    if done is not None:
                        told = int(done.rpartition(b"/")[2]), entry.header(names.DUE) or b""
                        place["done"] = max(place.get("done", (-1, b"")), told)
                    else:
                        version = at if version_of is None else version_of
                        stands = (version, come, at, entry)
                        place["last"] = max(place.get("last", stands), stands, key=lambda x: x[:3])
        newest: dict[Any, tuple[int, str, int, dict[str, Any]]] = {}
        for (key, topic, number), place in by_place.items():
            written = place["last"][3].timestamp_ms if "last" in place else -1
            if written >= 0 and (key not in newest or newest[key][0] < written):
                newest[key] = (written, topic, number, place)
        for _, topic, number, place in newest.values():
            at, *_, entry = place["last"]
            done, left = place.get("done", (-1, b""))
            moved = entry.header(names.CHANGE) and entry.header(names.DUE_MS)
            if entry.value is not None and at > done and (not moved or moved != left):
                yield topic, number, at, entry


class Producer:
    """A process's producer: in order within a partition, and what is not landed may be lost."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.world = broker, broker.world
        self._last: dict[tuple[str, int], float] = defaultdict(float)
        self._cut: dict[tuple[str, int], float] | None = None

    def send(
        self,
        topic: str,
        number: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        told: Any,
        landed: Callable[[], None],
    ) -> None:
        """Hand a record over."""
        rng, place = self.world.rng, (topic, number)
        late = rng.random() < LATE_SHARE
        at = self.world.elapsed + rng.random() * (LATE_MS_MAX if late else LAND_MS_MAX)
        at = max(at, self._last[place], self.broker.away_until)
        self._last[place] = at
        self.broker.flying += 1

        def land() -> None:
            self.broker.flying -= 1
            if self._cut is None or at <= self._cut.get(place, 0.0):
                self.broker.append(topic, number, key, value, headers, told)
                landed()

        self.world.after(at - self.world.elapsed, land)

    def die(self) -> None:
        """Of what was handed over some is under way still, the rest is lost."""
        now, rng = self.world.elapsed, self.world.rng
        self._cut = {
            place: now + rng.random() * max(0.0, last - now) * (1.2 if rng.random() < 0.5 else 0.5)
            for place, last in self._last.items()
        }


class ConfluentProducer:
    """In place of confluent_kafka.Producer: what is written again to a journal, and what is left of
    a failed batch."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def produce(self, topic: str, *, key: Any, value: Any, headers: Headers, **named: Any) -> None:
        """As there; each record takes its time."""
        world = self._broker.world
        world.pause(world.rng.random() * LAND_MS_MAX)
        number = named["partition"]
        if number < 0:
            number = self._broker.partition(key) % len(self._broker.log(topic))
        self._broker.append(topic, number, key, value, headers)
        named["on_delivery"](None, None)

    def poll(self, timeout_s: float) -> None:
        """Each record has its answer already."""

    def flush(self, timeout_s: float) -> int:
        """How many are left."""
        world = self._broker.world
        world.pause(world.rng.random() * LAND_MS_MAX)
        return 0


def recurs(entry: Entry) -> bool:
    """Whether it is a recurring schedule with a whole plan."""
    return entry.value is not None and entry.header(names.PLAN) is not None


def copy_of(entry: Entry, topic: str, number: int, at: int) -> int | None:
    """Offset of the version that a record of a journal is a copy of."""
    told = (entry.header(names.AGAIN) or b"").decode()
    place, _, offset = told.rpartition("/")
    is_copy = entry.value is not None and place == f"{topic}/{number}" and int(offset) <= at
    return int(offset) if is_copy else None


class PartitionReader:
    """As brokers.partition_reader; it goes on by itself when the broker was away."""

    def __init__(self, broker: Broker, topics: list[str]) -> None:
        self.broker, self.world = broker, broker.world
        self._topics = topics
        self._at: dict[Place, int] = {}

    def places(self) -> list[Place]:
        """All partitions."""
        self.broker.require_answer()
        return [(t, n) for t in self._topics for n in range(len(self.broker.log(t)))]

    def begin(self, starts: Mapping[Place, int]) -> None:
        """Read these too."""
        self._at |= starts

    def read(self, *, count_max: int, timeout_s: float) -> Read | None:
        """What has arrived, or nothing for a while."""
        until = self.world.elapsed + 1_000 * timeout_s
        most = min(count_max, self.world.rng.choice((1, 5, 50)))
        while self.world.elapsed < until:
            self.world.pause(1 + self.world.rng.random() * READ_MS_MAX)
            if self.world.elapsed >= self.broker.away_until and (read := self._arrived(most)):
                return read
        return None

    def end(self) -> None:
        """Read nothing any more."""
        self._at.clear()

    def close(self) -> None:
        """Nothing to close."""

    def _arrived(self, most: int) -> Read | None:
        read = Read()
        for (topic, number), at in self._at.items():
            log = self.broker.log(topic)[number]
            for position in range(at, min(at + most, len(log))):
                if (entry := log[position]) is not None:
                    row = (entry.key, entry.value, topic, number, position)
                    read.add((*row, entry.timestamp_ms, entry.headers))
            if at < len(log):
                read.ends[topic, number] = min(at + most, len(log))
        self._at |= read.ends
        return read if read.ends else None


class TopicReader:
    """As brokers.partition_reader.KafkaPartitions, when a task looks up what has arrived."""

    def __init__(self, broker: Broker, topics: Iterable[str]) -> None:
        self.broker, self._topics = broker, sorted(topics)

    def places(self) -> None:
        """It connects."""
        self.broker.require_answer()

    def since(self, _from_ms: int) -> dict[Place, tuple[int, int]]:
        """All that is there now."""
        self.broker.require_answer()
        logs = {topic: self.broker.log(topic) for topic in self._topics}
        return {(t, n): (0, len(log)) for t, all in logs.items() for n, log in enumerate(all)}

    def read_through(self, bounds: Mapping[Place, tuple[int, int]]) -> Iterator[Read]:
        """Each partition's records."""
        for (topic, number), (first, end) in bounds.items():
            self.broker.require_answer()
            there = [one for one in self.broker.log(topic)[number][first:end] if one is not None]
            read = Read(keys=[one.key for one in there], values=[one.value for one in there])
            read.topics, read.headers = [topic] * len(there), [one.headers for one in there]
            yield read

    def close(self) -> None:
        """Nothing to close."""


def marked(ends: Mapping[Place, int]) -> pa.RecordBatch:
    """Markers as they come out of decoding."""
    rows: dict[str, list[Any]] = {name: [None] * len(ends) for name in DECODED.names}
    rows["origin_topic"] = [topic for topic, _ in ends]
    rows["origin_partition"] = [number for _, number in ends]
    rows["origin_position"] = list(ends.values())
    columns = [pa.array(rows[field.name], field.type) for field in DECODED]
    return pa.RecordBatch.from_arrays(columns, schema=DECODED)


def passed(topic: str, bundle: bytes) -> pa.RecordBatch:
    """A bundle as it comes out of decoding."""
    told: dict[str, Any] = {"origin_topic": topic, "origin_partition": BUNDLE, "value": bundle}
    columns = [pa.array([told.get(field.name)], field.type) for field in DECODED]
    return pa.RecordBatch.from_arrays(columns, schema=DECODED)


def decoded(records: Sequence[tuple[str, int, int, Entry]], settings: Settings) -> pa.RecordBatch:
    """Inbox records as schedules, in the columns of `sendlater.dialects.stages`."""
    rows = [_decode(*record, settings) for record in records]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, DECODED, strict=True)], schema=DECODED
    )


def _decode(topic: str, number: int, at: int, entry: Entry, settings: Settings) -> tuple[Any, ...]:
    origin = (topic, number, at, entry.timestamp_ms)
    kept = [(n, v) for n, v in entry.headers if n not in names.CONTROL]
    nothing = (None, None, None)
    done = told_id = None
    due, target = entry.header(names.DUE_MS), entry.header(names.TARGET_TOPIC)
    expires, after = entry.header(names.EXPIRES), entry.header(names.EXPIRES_AFTER)
    moved = entry.header(names.CHANGE) or entry.header(names.AGAIN)
    planned = any(entry.header(name) is not None for name in names.PLANS)
    too_soon = expires is not None and due is not None and int(expires) < int(due) and not moved
    expiry: tuple[int | None, int | None] = (None, None)
    body: tuple[Any, ...]
    if entry.key is not None and entry.value is None:
        done = entry.header(names.ORIGIN) if topic in settings.journals else None
        waited = entry.header(names.ID)
        place = (done or b"").replace(b"/", b"-")
        if done is not None and re.fullmatch(re.escape(place) + b"(-[0-9]+)?", waited or b""):
            told_id = waited
        elif done is not None and waited and re.fullmatch(b"@[0-9]+", waited[len(entry.key) :]):
            told_id = waited[len(entry.key) :]
        body = (entry.key, None, *nothing, done, None, "headers")
    elif entry.key is not None and planned:
        # Its task reads the plan: see spark/plans.py.
        where = (str((target or b"").decode()), None, entry.header(names.TARGET_KEY))
        headers = _structs(entry.headers)
        body = (entry.key, entry.timestamp_ms, *where, entry.value, headers, "headers")
        after_ms = None if after is None else round(float(after) * 1_000)
        expiry = (None, after_ms)
    elif entry.key is None or due is None or too_soon:
        reason = Reason.BAD_EXPIRY if too_soon else Reason.NO_TIME
        told = [
            (names.REJECTED, reason.value.encode()),
            (names.REJECTED_DETAIL, b"simulated"),
            (names.ORIGIN, f"{topic}/{number}/{at}".encode()),
            (names.ORIGIN_TIMESTAMP_MS, b"%d" % entry.timestamp_ms),
        ]
        place = f"{topic}-{number}-{at}".encode()
        headers = _structs([*entry.headers, *told])
        where = (settings.rejected_topic, None, entry.key)
        body = (place, entry.timestamp_ms, *where, entry.value, headers, "rejected")
    else:
        where = (str((target or b"").decode()), None, entry.header(names.TARGET_KEY))
        body = (entry.key, int(due), *where, entry.value, _structs(kept) or None, "headers")
        after_ms = None if after is None else round(float(after) * 1_000)
        expiry = (None if expires is None else int(expires), after_ms)
    tags = (entry.header(names.TAGS) or b"").decode() or None
    tags = None if body[1] is None or body[-1] == "rejected" else tags
    change = entry.header(names.CHANGE)
    if (only_if := entry.header(names.IF)) and body[-1] != "rejected":
        change = b"if " + only_if
    if body[1] is None and done:
        change = b"left " + (entry.header(names.DUE) or b"") + (b" " + told_id if told_id else b"")
    again = copy_of(entry, topic, number, at) if topic in settings.journals else None
    if again is not None and body[-1] != "rejected":
        change = f"again {topic}/{number}/{again}".encode()
    if planned and entry.value is not None and body[-1] != "rejected":
        change = b"recurs " + (change or b"")
    shard = zlib.crc32(body[0]) % settings.shards
    return (*body, *expiry, tags, *origin, shard, None if change is None else change.decode())


def _structs(headers: Headers) -> list[dict[str, Any]]:
    return [{"key": name, "value": value} for name, value in headers]


def delivered(row: Mapping[str, Any], settings: Settings) -> list[tuple[Any, ...]]:
    """(topic, partition, key, value, headers) of what leaves for a row; dialects/deliver.py."""
    if "sent" in row:
        sent = [(header["key"], header["value"]) for header in row["sent"]]
        return [(row["topic"], 0, row["key"], row["value"], sent)]
    headers: Headers = [(h["key"], h["value"]) for h in row["headers"] or ()]
    if row["dialect"] == "record":
        return [(row["topic"], row["partition"] or 0, row["key"], row["value"], headers)]
    origin = f"{row['origin_topic']}/{row['origin_partition']}/{row['origin_position']}".encode()
    ours: Headers = [
        (names.DELIVERED_TO, row["topic"].encode()),
        (names.ID, row["id"]),
        (names.DUE, b"%d" % row["due_ms"]),
    ]
    added = list(ours)
    if row["dialect"] == "headers":
        added = [
            (names.SCHEDULER_TIMESTAMP, b"%d" % (row["origin_timestamp_ms"] // 1_000)),
            (names.SCHEDULER_KEY, row["id"]),
            (names.SCHEDULER_TOPIC, row["origin_topic"].encode()),
            *ours,
        ]
    in_journal = row["origin_topic"] in settings.journals
    rejected = row["dialect"] == "rejected"
    if in_journal and not rejected:
        added.append((names.ORIGIN, origin))
    sent = headers + added
    records = [(row["topic"], 0, row["key"], row["value"], sent)]
    if in_journal and not rejected:
        records.append((row["origin_topic"], row["origin_partition"], row["id"], None, sent))
    elif in_journal:
        refused = headers[-1][0] == names.REJECTED_ID
        key = headers[-1][1] if refused else row["key"]
        if key is not None:
            place = (row["origin_topic"], row["origin_partition"])
            came_with = headers[: -6 if refused else -4]
            records.append((*place, key, None, [*ours, (names.ORIGIN, origin), *came_with]))
    return records
