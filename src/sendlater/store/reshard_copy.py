"""Copies what the shards of a space hold to other shards, under keys that nobody reads yet.

Everything goes where its id is at home among the new shards; what has no id goes to all of them, or
to the first, from where it counts for all. The old shards must not change meanwhile.
"""

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec

from sendlater.limits import COPY_BYTES_MAX, COPY_COUNT_MAX, RECENT_COUNT_MAX
from sendlater.store.codec import LIMITED_MS
from sendlater.store.connection import Clients

COPY = b"next:"
"""What the keys of a copy have behind their shard."""
HASHES = (
    *(b"aside", b"surplus", b"surplus:moves", b"surplus:elsewhere", b"overtaken:otherwise"),
    *(b"seen:cancelled", b"seen:cancelled:before", b"limits-since", b"once:asker"),
)
SORTED = (b"changes", b"once")
SETS = (b"beyond", b"overtaken", b"touched")
FIRST = (b"state:copied", b"state:undecided", b"state:filling")
SAME = (b"journals", b"horizon", b"planned")
"""Of `state`: every shard has the same."""
SUMMED = (
    *(b"parked", b"replaced", b"outdated", b"unmet", b"cancelled", b"settled", b"rejected"),
    *(b"tombstones", b"missed", b"later", b"later_since", b"later_mark"),
)
GREATEST = (b"lane:", b"intake_run")
"""Numbers of runs: a later one is higher."""
NOTHING_FOR_OTHERS = (
    *(
        b"owner",
        b"token",
        b"heir",
        b"heir-token",
        b"draining",
        b"held",
        b"bound",
        b"room",
        b"ready",
    ),
    *(b"asked", b"left", b"leaving", b"reading", b"tagged", b"shards", b"layout", b"reader"),
    *(b"resharding", b"ended:", b"reads:", b"warm:", b"along:"),
)
"""What an owner notes for itself; the next one begins anew."""
Rows = list[tuple[bytes, Any]]


@dataclass(frozen=True, slots=True)
class Place:
    """Shards and where they are; `copy`: of the copy that is being made."""

    clients: Clients
    space: str
    shards: int
    copy: bool = False

    def client(self, number: int) -> Any:
        """Of the server that a shard is on."""
        return self.clients[number % len(self.clients)]

    def key(self, number: int, name: bytes) -> bytes:
        """A key of a shard."""
        return b"{%s:%d}:%s%s" % (self.space.encode(), number, COPY if self.copy else b"", name)

    def home(self, schedule_id: bytes) -> int:
        """The shard of an id."""
        return zlib.crc32(schedule_id) % self.shards

    def all(self, name: bytes) -> Iterator[dict[bytes, bytes]]:
        """A hash of each shard."""
        for number in range(self.shards):
            yield self.client(number).hgetall(self.key(number, name))


def is_known(field: bytes) -> bool:
    """Whether a field of `state` is one that this version knows how to take along."""
    return field in (*SAME, *SUMMED) or field.startswith((*GREATEST, *NOTHING_FOR_OTHERS))


class Copier:
    """One copy. `told(done)` is called with the number of schedules that are copied."""

    def __init__(self, old: Place, new: Place, *, told: Callable[[int], None]) -> None:
        self.old, self.new, self._told = old, new, told
        self._done = 0
        self._slice = 1
        """How many records are read at once: from a few on, as many as COPY_BYTES_MAX allows."""
        self._tagged = False

    def copy(self, *, owner: int, token: str) -> None:
        """Copy all; the new shards belong to this owner."""
        for number in range(self.old.shards):
            self._pending(number)
            for name in (*HASHES, *SETS, *SORTED):
                kind = b"set" if name in SETS else b"zset" if name in SORTED else b"hash"
                for rows in self._scan(number, name, kind):
                    self._write(name, kind, self._routed(name, rows))
            self._limits(number)
        self._everywhere()
        self._recent()
        self._first(owner=owner, token=token)

    def counts(self) -> list[tuple[str, int, int]]:
        """Of each kind how many the old shards hold, and how many the copy."""
        found = []
        for name, command in (
            *((b"due", "zcard"), (b"record", "hlen"), (b"due:tags", "hlen")),
            *((name, "hlen") for name in HASHES),
            *((b"beyond", "scard"), (b"overtaken", "scard")),
        ):
            both = (
                sum(getattr(of.client(n), command)(of.key(n, name)) for n in range(of.shards))
                for of in (self.old, self.new)
            )
            found.append((name.decode(), *both))
        return found

    # --- by id ----------------------------------------------------------------------------------

    def _scan(self, number: int, name: bytes, kind: bytes) -> Iterator[Rows]:
        """The members of a key in chunks; some may come twice."""
        client, key, cursor = self.old.client(number), self.old.key(number, name), 0
        scan = {b"zset": client.zscan, b"hash": client.hscan, b"set": client.sscan}[kind]
        while True:
            cursor, rows = scan(key, cursor=cursor, count=COPY_COUNT_MAX)
            if rows:
                pairs = rows.items() if isinstance(rows, dict) else rows
                yield [(one, None) for one in rows] if kind == b"set" else list(pairs)
            if not cursor:
                return

    def _homes(self, name: bytes, member: bytes) -> set[int]:
        if name == b"changes":
            # A reservation names its schedule, a change does not: it is looked for where its id is.
            word, _, reserved = member.partition(b" ")
            return {self.new.home(reserved)} if word == b"new" else {*range(self.new.shards)}
        if name == b"touched" and member.startswith(b"\0"):
            # That a version has left: see park. It is only ever looked for as a whole.
            return {self.new.home(member), self.new.home(member.split(b"\0", 2)[-1])}
        return {self.new.home(member)}

    def _routed(self, name: bytes, rows: Rows) -> dict[int, dict[bytes, Any]]:
        found: dict[int, dict[bytes, Any]] = defaultdict(dict)
        for member, value in rows:
            for home in self._homes(name, member):
                found[home][member] = value
        return found

    def _write(self, name: bytes, kind: bytes, routed: dict[int, dict[bytes, Any]]) -> None:
        for home, rows in routed.items():
            client, key = self.new.client(home), self.new.key(home, name)
            if kind == b"zset":
                client.zadd(key, rows)
            elif kind == b"hash":
                client.hset(key, mapping=rows)
            else:
                client.sadd(key, *rows)

    def _pending(self, number: int) -> None:
        """Due times, records and tags."""
        has_tags = self.old.client(number).hlen(self.old.key(number, b"due:tags")) > 0
        self._tagged |= has_tags
        for rows in self._scan(number, b"due", b"zset"):
            first = 0
            while first < len(rows):
                some = rows[first : first + self._slice]
                self._records(number, some, has_tags=has_tags)
                first += len(some)
            self._done += len(rows)
            self._told(self._done)

    def _records(self, number: int, rows: Rows, *, has_tags: bool) -> None:
        client, ids = self.old.client(number), [one for one, _ in rows]
        packed = dict(zip(ids, client.hmget(self.old.key(number, b"record"), ids), strict=True))
        tags: dict[bytes, bytes | None] = {}
        if has_tags:
            found = client.hmget(self.old.key(number, b"due:tags"), ids)
            tags = dict(zip(ids, found, strict=True))
        for home, some in self._routed(b"due", rows).items():
            to, key = self.new.client(home), self.new.key
            with to.pipeline(transaction=False) as pipe:
                pipe.zadd(key(home, b"due"), some)
                mapping = {one: row for one in some if (row := packed[one]) is not None}
                if mapping:
                    pipe.hset(key(home, b"record"), mapping=mapping)
                for one, score in some.items():
                    if text := tags.get(one):
                        pipe.hset(key(home, b"due:tags"), one, text)
                        for tag in text.split(b","):
                            # The index does not tell what waits for a limit.
                            pipe.zadd(key(home, b"due:tag:" + tag), {one: score % LIMITED_MS})
                pipe.execute()
        size = sum(map(len, filter(None, packed.values())))
        fits = self._slice * COPY_BYTES_MAX // max(size, 1)
        self._slice = max(1, min(2 * self._slice, fits, COPY_COUNT_MAX))

    def _limits(self, number: int) -> None:
        """What waits for the limit of its topic: its callers begin a new round on each shard. And
        what each topic's home knows of its tokens."""
        client, key = self.old.client(number), self.old.key
        for topic in client.smembers(key(number, b"limits")):
            round_name = b"limits:" + topic
            for field in client.hkeys(key(number, round_name)):
                if not field.startswith(b":"):
                    continue
                for rows in self._scan(number, round_name + field, b"zset"):
                    routed = self._routed(b"due", rows)
                    self._write(round_name + field, b"zset", routed)
                    for home in routed:
                        to = self.new.client(home)
                        to.hset(self.new.key(home, round_name), field, 0)
                        to.sadd(self.new.key(home, b"limits"), topic)
        for topic, tokens in client.hgetall(key(number, b"limits-from")).items():
            home = self.new.home(topic)
            self.new.client(home).hset(self.new.key(home, b"limits-from"), topic, tokens)

    # --- by shard -------------------------------------------------------------------------------

    def _everywhere(self) -> None:
        """What every shard knows: how far inboxes are read, and which targets there are."""
        targets = {k: v for one in self.old.all(b"targets") for k, v in one.items()}
        [seen, *_], [topics, *_] = self.old.all(b"seen"), self.old.all(b"seen:topics")
        for number in range(self.new.shards):
            for name, rows in ((b"targets", targets), (b"seen", seen), (b"seen:topics", topics)):
                if rows:
                    self._write(name, b"hash", {number: rows})

    def _recent(self) -> None:
        """The last deliveries, latest first, as many as a list may have."""
        packed = chain.from_iterable(
            self.old.client(n).lrange(self.old.key(n, b"recent"), 0, -1)
            for n in range(self.old.shards)
        )
        rows = [(msgspec.msgpack.decode(one), one) for one in packed]
        rows.sort(key=lambda row: -row[0][3])  # id, topic, due_ms, at_ms
        lists: dict[int, list[bytes]] = defaultdict(list)
        for told, one in rows:
            lists[self.new.home(told[0])].append(one)
        for number, each in lists.items():
            kept = each[:RECENT_COUNT_MAX]
            self.new.client(number).rpush(self.new.key(number, b"recent"), *kept)

    def _first(self, *, owner: int, token: str) -> None:
        """What is of one shard: counters, and what the first one knows for all."""
        states = list(self.old.all(b"state"))
        tally: Counter[bytes] = Counter()
        for one in self.old.all(b"tally"):
            tally.update({name: int(count) for name, count in one.items()})
        both: dict[bytes, Any] = {n: states[0][n] for n in SAME if n in states[0]}
        both |= {b"owner": owner, b"token": token} | ({b"tagged": 1} if self._tagged else {})
        for name in {n for state in states for n in state if n.startswith(GREATEST)}:
            both[name] = max(int(state.get(name, 0)) for state in states)
        for number in range(self.new.shards):
            self._write(b"state", b"hash", {number: both})
        alone: dict[bytes, Any] = {b"shards": self.new.shards}
        alone |= {n: s for n in SUMMED if (s := sum(int(one.get(n, 0)) for one in states))}
        alone |= {b"layout": layout} if (layout := states[0].get(b"layout")) else {}
        if states[0].get(b"reader") == states[0].get(b"owner"):
            alone[b"reader"] = owner
        self._write(b"state", b"hash", {0: alone})
        old, new = self.old.client(0), self.new.client(0)
        for name in FIRST:
            if rows := old.hgetall(self.old.key(0, name)):
                self._write(name, b"hash", {0: rows})
        if tally:
            self._write(b"tally", b"hash", {0: dict(tally)})
        if handovers := old.lrange(self.old.key(0, b"handovers"), 0, -1):
            new.rpush(self.new.key(0, b"handovers"), *handovers)
        for number in range(self.old.shards):
            if wanted := self.old.client(number).smembers(self.old.key(number, b"wanted")):
                new.sadd(self.new.key(0, b"wanted"), *wanted)
