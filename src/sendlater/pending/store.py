"""The pending store: schedules wait here, in Redis, sharded by id.

A shard is a handful of keys with one hash tag, so that each verb is one atomic script on one node:
`due` (sorted set id -> due_ms), `record` (hash id -> record), `seen` (hash inbox/partition -> next
position to read), `state` (hash: owner, runs, counters), `wake` (stream that waiting tasks watch),
`batches` (hash batch -> lane) and one hash per batch, `aside` (rows whose target must be checked),
`targets` (hash topic -> what it takes, see target.py), `wanted` (targets nobody checked yet),
`changes` (sorted set of changes made here whose copies intake has not read: see lua/move.lua),
`tally` (hash of counters that only people and metrics read) and `recent` (list of the last few
deliveries, for people); of journals, `touched` (ids that intake has seen while the horizon moves),
`overtaken` and `surplus` (what their topics must be told: see pipeline/rewriting.py).
"""

import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice, pairwise
from typing import Any

import redis

from sendlater.errors import BadSettings, Fenced, StoreUnavailable
from sendlater.limits import RELEASE_COUNT_MAX
from sendlater.model import Cancelled, Schedule, State
from sendlater.pending.connect import answering, connect
from sendlater.pending.packing import pack, unpack
from sendlater.pending.pages import look
from sendlater.pending.scripts import script
from sendlater.pending.target import Target
from sendlater.pending.wake import Wake

FENCE_ATTEMPTS_MAX = 10
"""Starts that race for one space before the slowest gives up."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a lane: its end is its name, the run fences off tasks of dead queries."""

    lane: int
    run: int
    end_ms: int

    @property
    def name(self) -> str:
        """Unique within a shard."""
        return f"{self.lane}:{self.run}:{self.end_ms}"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claim found: rows, or when to come back."""

    ids: list[bytes]
    packed: list[bytes]
    next_due_ms: int | None = None
    draining: bool = False


class Shard:
    """The verbs of one shard; what the Spark tasks use. `client` is a redis client."""

    def __init__(self, client: Any, *, space: str, number: int) -> None:
        # Any: redis-py types every answer as "sync or async, bytes or text".
        self.client = client
        self.number = number
        prefix = f"{{{space}:{number}}}:"
        names = ("due", "record", "seen", "state", "wake", "batches", "aside", "targets", "wanted")
        more = ("changes", "tally", "recent", "touched", "overtaken", "surplus")
        self.keys = {name: prefix + name for name in (*names, *more)}

    def _keys(self, *names: str) -> dict[str, Any]:
        return {name: self.keys[name] for name in names}

    def _batch_key(self, name: str) -> str:
        return f"{self.keys['batches']}:{name}"

    def park(
        self,
        rows: list[Any],
        *,
        owner: str = "",
        source: str = "",
        seen_before: str = "",
        seen_after: str = "",
        journal: bool = False,
        rejected_count: int = 0,
    ) -> int:
        """Write flat rows [id, due_ms or '', record, ...] and the position after them.

        A due_ms of `change|due_ms` marks the copy of a change that this store may have made itself.
        Raises StoreWentBack when `source` does not stand at `seen_before`, Fenced for an old owner.
        """
        count: int = script("park")(
            self.client,
            **self._keys("due", "record", "seen", "state", "wake", "changes"),
            **self._keys("touched", "overtaken", "surplus"),
            owner=owner,
            source=source,
            journal="1" if journal else "",
            seen_before=seen_before,
            seen_after=seen_after,
            rejected_count=rejected_count,
            rest=rows,
        )
        return count

    def claim(self, batch: Batch, *, owner: int, now_ms: int, count_max: int) -> Claim:
        """Move what is due into `batch`, oldest first."""
        got = script("claim")(
            self.client,
            **self._keys("due", "record", "state", "batches"),
            batch=self._batch_key(batch.name),
            owner=owner,
            lane=batch.lane,
            run=batch.run,
            name=batch.name,
            now_ms=now_ms,
            count_max=count_max,
        )
        if isinstance(got, list):
            return Claim(got[::2], got[1::2])
        if got == b"draining":
            return Claim([], [], draining=True)
        return Claim([], [], next_due_ms=int(float(got)) if got else None)

    def claimed(self, batch: Batch) -> Claim:
        """What a batch holds already, in due order: the answer to a task that starts again."""
        rows = self.client.hgetall(self._batch_key(batch.name))
        # A packed row starts with its due time in big-endian bytes: comparing bytes orders by it.
        ordered = sorted(rows.items(), key=lambda row: row[1][:9])
        return Claim([i for i, _ in ordered], [p for _, p in ordered])

    def settle(self, name: str) -> int:
        """Drop a delivered batch; how many schedules it held."""
        count: int = script("settle")(
            self.client,
            **self._keys("state", "batches"),
            batch=self._batch_key(name),
            name=name,
        )
        return count

    def batches(self) -> dict[str, int]:
        """Unsettled batches and their lanes."""
        return {k.decode(): int(v) for k, v in self.client.hgetall(self.keys["batches"]).items()}

    def release(self, name: str, *, owner: int) -> None:
        """Put a batch back to pending, in steps that leave Redis to others in between."""
        left = 1
        while left:
            left = script("release")(
                self.client,
                **self._keys("due", "record", "state", "wake", "batches"),
                batch=self._batch_key(name),
                owner=owner,
                name=name,
                count_max=RELEASE_COUNT_MAX,
            )

    def advance(self, *, owner: int, run: int, batch: int, ends: list[str]) -> None:
        """Commit an intake batch: `ends` is flat [source, seen_before, seen_after, ...]."""
        script("advance")(
            self.client,
            **self._keys("seen", "state"),
            owner=owner,
            run=run,
            batch=batch,
            rest=ends,
        )

    def seen(self) -> dict[str, int]:
        """Next position to read, per inbox partition."""
        return {k.decode(): int(v) for k, v in self.client.hgetall(self.keys["seen"]).items()}

    def state(self) -> dict[str, str]:
        """Owner, runs and counters."""
        return {k.decode(): v.decode() for k, v in self.client.hgetall(self.keys["state"]).items()}

    def targets(self) -> dict[bytes, Target]:
        """Target topics known to take records, and which ones."""
        return {k: Target.parse(v) for k, v in self.client.hgetall(self.keys["targets"]).items()}

    def want(self, topics: Iterable[bytes]) -> None:
        """Ask the service to look these target topics up before anything for them falls due."""
        self.client.sadd(self.keys["wanted"], *topics)

    def wanted(self, *, count_max: int) -> list[str]:
        """Take target topics that nobody has looked up."""
        taken: Any = self.client.spop(self.keys["wanted"], count_max)
        return [topic.decode() for topic in taken or ()]

    def set_aside(self, batch: Batch, ids: list[bytes]) -> None:
        """Take rows out of a batch until somebody has looked at their target topics."""
        script("aside")(
            self.client,
            batch=self._batch_key(batch.name),
            aside=self.keys["aside"],
            rest=ids,
        )

    def aside(self, *, count_max: int, cursor: int = 0) -> tuple[int, dict[bytes, bytes]]:
        """Some of the rows set aside, packed, and the cursor to look on from: 0 after the last."""
        found: Any = self.client.hscan(self.keys["aside"], cursor=cursor, count=count_max)
        return int(found[0]), found[1]

    def readmit(self, schedule: Schedule, *, owner: int, instead: Schedule | None = None) -> None:
        """Put a row set aside back to pending, or another schedule `instead`, on the same shard."""
        admitted = instead or schedule
        script("readmit")(
            self.client,
            **self._keys("due", "record", "aside", "wake", "state"),
            owner=owner,
            aside_id=schedule.id,
            id=admitted.id,
            due_ms=admitted.due_ms,
            packed_record=pack(admitted),
            rejected_count=1 if instead and schedule.dialect != "rejected" else 0,
        )

    def wake(self) -> Wake:
        """A reader that is told when something earlier is parked; close it."""
        return Wake(self.client, self.keys["wake"])


class Pending:
    """The whole store of one space: what the service, the doors and the readers of stats use."""

    def __init__(self, client: Any, *, space: str, shards: int) -> None:
        self.client = client
        self.space = space
        self.shards = [Shard(client, space=space, number=n) for n in range(shards)]

    @classmethod
    def open(cls, url: str, *, space: str, shards: int) -> "Pending":
        """Connect; raises StoreUnavailable when Redis does not answer."""
        client = connect(url)
        try:
            client.ping()
        except redis.exceptions.RedisError as error:
            raise StoreUnavailable(f"Redis does not answer: {error}") from error
        return cls(client, space=space, shards=shards)

    def shard_of(self, schedule_id: bytes) -> Shard:
        """The shard an id lives in; intake computes the same number in SQL."""
        return self.shards[zlib.crc32(schedule_id) % len(self.shards)]

    def require_layout(self) -> None:
        """Claim the space for this number of shards; raises BadSettings when it has another."""
        key = self.shards[0].keys["state"]
        self.client.hsetnx(key, "shards", len(self.shards))
        stands = int(self.client.hget(key, "shards") or 0)
        if stands != len(self.shards):
            raise BadSettings(
                f"shards: space {self.space!r} was laid out with {stands}, got {len(self.shards)}; "
                "a space keeps its number of shards for life"
            )

    # --- owning a space -------------------------------------------------------------------------

    def fence(self, *, above: int = 0) -> int:
        """Become the owner of every shard: the number that goes into each later call.

        It is higher than `above` and than any before. A store that was wiped does not know the
        numbers it gave out, so it begins with the seconds since 1970.
        """
        for _ in range(FENCE_ATTEMPTS_MAX):
            standing_max = max(int(shard.state().get("owner", 0)) for shard in self.shards)
            owner = 1 + max(standing_max or int(time.time()), above)
            standing = [
                script("fence")(self.client, state=shard.keys["state"], owner=owner)
                for shard in self.shards
            ]
            if all(now == owner for now in standing):
                return owner
        raise Fenced(f"{FENCE_ATTEMPTS_MAX} other services started on space {self.space!r} at once")

    def owner(self) -> int:
        """The highest owner number over the shards."""
        return max(int(shard.state().get("owner", 0)) for shard in self.shards)

    def open_lane(self, lane: int, *, owner: int) -> int:
        """Begin a new run of a lane: older runs can claim no more, their batches are released."""
        run = self._begin(f"lane:{lane}", owner=owner)
        for shard in self.shards:
            for name, of_lane in shard.batches().items():
                if of_lane == lane:
                    shard.release(name, owner=owner)
        return run

    def release_all(self, *, owner: int) -> None:
        """Put back every unsettled batch; only after the fence, before lanes start."""
        for shard in self.shards:
            for name in shard.batches():
                shard.release(name, owner=owner)

    def settle(self, batch: Batch) -> int:
        """Settle a batch on every shard; how many schedules were delivered."""
        return sum(shard.settle(batch.name) for shard in self.shards)

    def drain(self, *, owner: int) -> None:
        """Ask this owner's tasks to claim nothing more and end their batches."""
        for shard in self.shards:
            self.client.hset(shard.keys["state"], "draining", str(owner))
            self.client.xadd(shard.keys["wake"], {"draining": owner}, maxlen=1, approximate=False)

    def set_target(self, topic: str, target: Target | None) -> None:
        """Tell the tasks which records a topic takes, or (None) that it takes none."""
        for shard in self.shards:
            if target is None:
                self.client.hdel(shard.keys["targets"], topic)
            else:
                self.client.hset(shard.keys["targets"], topic, str(target))

    def draining(self, *, owner: int) -> bool:
        """Whether this owner has been asked to stop, or is no longer the owner."""
        state = self.shards[0].state()
        return state.get("draining") == str(owner) or state.get("owner") != str(owner)

    # --- intake ---------------------------------------------------------------------------------

    def open_intake(self, *, owner: int) -> int:
        """Begin a new run of the intake query, whose batches count from 0 again."""
        run = self._begin("intake_run", owner=owner)
        for shard in self.shards:
            shard.advance(owner=owner, run=run, batch=-1, ends=[])
        return run

    def _begin(self, what: str, *, owner: int) -> int:
        run = 0
        for _ in range(2):
            run = max(
                script("begin")(
                    self.client,
                    state=shard.keys["state"],
                    owner=owner,
                    what=what,
                    at_least=run,
                )
                for shard in self.shards
            )
        return run

    def positions(self) -> dict[str, int]:
        """Where intake starts: per inbox partition the lowest position over the shards.

        A shard that has not seen a partition at all counts as having seen nothing of it.
        """
        seen = [shard.seen() for shard in self.shards]
        sources = {source for one in seen for source in one}
        return {source: min(one.get(source, 0) for one in seen) for source in sources}

    # --- the doors ------------------------------------------------------------------------------

    def put(self, schedule: Schedule) -> None:
        """Write one schedule directly, without an inbox."""
        self.shard_of(schedule.id).park([schedule.id, schedule.due_ms, pack(schedule)])

    def cancel(self, schedule_id: bytes) -> Cancelled:
        """Take a schedule back, unless it is being delivered already."""
        shard = self.shard_of(schedule_id)
        keys = shard._keys("due", "record", "state", "batches")
        answer = script("cancel")(self.client, **keys, id=schedule_id, version="")
        return Cancelled(answer.decode())

    def move(self, schedule_id: bytes, *, due_ms: int) -> bool:
        """Give a pending schedule another due time; False when it is not pending."""
        shard = self.shard_of(schedule_id)
        keys = shard._keys("due", "record", "wake", "batches", "changes", "tally")
        unconditional: dict[str, Any] = {"version": "", "change": ""}
        unnamed: dict[str, Any] = {"now_ms": 0, "keep_ms": 0, "changes_max": 0}
        answer = script("move")(
            shard.client, **keys, **unconditional, **unnamed, id=schedule_id, due_ms=due_ms
        )
        return bool(answer[0] == b"moved")

    def get(self, schedule_id: bytes) -> Schedule | None:
        """The schedule, pending or claimed; None when the store does not have it."""
        keys = self.shard_of(schedule_id)._keys("due", "record", "batches")
        found = script("find")(self.client, **keys, id=schedule_id)
        if not found:
            return None
        return unpack(schedule_id, found[1], state=State(found[0].decode()))

    def list(
        self,
        *,
        count_max: int,
        from_ms: int = 0,
        to_ms: int | None = None,
        after: tuple[int, bytes] | None = None,
    ) -> list[Schedule]:
        """Pending schedules in order of due time and id; `after` is the last one of a page."""
        pages = [
            look(shard, count_max=count_max, from_ms=from_ms, to_ms=to_ms, after=after)[0]
            for shard in self.shards
        ]
        return list(islice(merge(*pages, key=lambda s: (s.due_ms, s.id)), count_max))

    def histogram(self, edges_ms: Sequence[int]) -> Sequence[int]:
        """How many are due in [edge, next edge) for each pair of neighbouring edges."""
        assert len(edges_ms) >= 2, edges_ms
        pairs = list(pairwise(edges_ms))
        totals = [0] * len(pairs)
        for shard in self.shards:
            pipe = self.client.pipeline(transaction=False)
            for low, high in pairs:
                pipe.zcount(shard.keys["due"], low, f"({high}")
            totals = [a + b for a, b in zip(totals, pipe.execute(), strict=True)]
        return totals

    def counts(self) -> dict[str, int]:
        """True counts: pending, `later` (in journals beyond the horizon, about) and claimed now;
        parked, replaced and so on since the beginning."""
        names = ("parked", "replaced", "cancelled", "settled", "rejected", "tombstones", "missed")
        total = dict.fromkeys(("pending", "later", "claimed", "aside", *names), 0)
        with answering():
            for shard in self.shards:
                state = shard.state()
                total["pending"] += int(self.client.zcard(shard.keys["due"]))
                total["aside"] += int(self.client.hlen(shard.keys["aside"]))
                for name in shard.batches():
                    total["claimed"] += int(self.client.hlen(shard._batch_key(name)))
                total["later"] += int(state.get("later", 0)) + int(state.get("later_since", 0))
                for name in names:
                    total[name] += int(state.get(name, 0))
        return total

    def oldest_due_ms(self) -> int | None:
        """Due time of the first pending schedule; None when nothing is pending."""
        with answering():
            heads = [
                self.client.zrange(shard.keys["due"], 0, 0, withscores=True)
                for shard in self.shards
            ]
        due = [int(head[0][1]) for head in heads if head]
        return min(due, default=None)
