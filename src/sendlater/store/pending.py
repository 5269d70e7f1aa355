"""The pending store: schedules wait here, in Redis, sharded by id.

A shard is a handful of keys with one hash tag, so that each verb is one atomic script on one node:
`due` (sorted set id -> due_ms, and beside it one for each tag: see scripts.py), `record` (hash id
-> record), `seen` (hash inbox/partition -> next position to read), `state` (hash: owner, runs,
counters), `wake` (stream that waiting tasks watch), `batches` (hash batch -> lane) and one hash per
batch, `aside` (rows whose target must be checked), `targets` (hash topic -> model.Target), `wanted`
(targets not checked yet), `batches-attempts` (hash batch -> the task attempt that claims into it,
or `closed`), `batches-ripe` (hash batch -> until when it may deliver what it has prefetched, and
beside it what was recalled), `changes` (sorted set of changes made here whose copies intake has not
read: lua/move.lua), `once` (sorted set id -> until when that condition remembers it: see
lua/park.lua, and beside it `once:asker`), `tally` (hash of counters) and `recent` (list of the last
deliveries). Journals add `touched` and `beyond` (ids that intake has seen while the horizon moves),
`overtaken` and `surplus` (what must be written to journals: see spark/journal/rewrite.py).
"""

import time
import uuid
import zlib
from collections.abc import Container, Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice, pairwise
from operator import itemgetter
from typing import Any

from sendlater.errors import Fenced
from sendlater.limits import KEPT_LANE
from sendlater.model import PAUSED_MS, Cancelled, Schedule, Target
from sendlater.store.batch import Batch
from sendlater.store.codec import LIMITED_MS, pack, unpack_found
from sendlater.store.connection import Clients, answering, connect, server_of
from sendlater.store.pages import look
from sendlater.store.places import require_layout, require_same
from sendlater.store.scripts import script
from sendlater.store.shard import Shard

FENCE_ATTEMPTS_MAX = 10
"""A start gives up after it has lost the race for a space to this many others."""


class Pending:
    """The whole store of one space, for the service, the client, REST and the command line."""

    def __init__(self, clients: Clients, *, space: str, shards: int) -> None:
        """`clients` as of `connect`."""
        self.clients, self.client = clients, clients[0]
        self.space = space
        self.shards = [Shard(clients, space=space, number=n) for n in range(shards)]

    @classmethod
    def open(cls, url: str, *, space: str, shards: int) -> "Pending":
        """Connect; raises StoreUnavailable when Redis does not answer."""
        clients = connect(url)
        with answering():
            for client in clients:
                client.ping()
        return cls(clients, space=space, shards=shards)

    def close(self) -> None:
        """Close the connections."""
        for client in self.clients:
            client.close()

    def shard_of(self, schedule_id: bytes) -> Shard:
        """The shard of an id; intake computes the same number in SQL."""
        return self.shards[zlib.crc32(schedule_id) % len(self.shards)]

    def require_layout(self) -> None:
        """Claim the space for these shards and servers; raises BadSettings if it has others."""
        require_layout(self.clients, space=self.space, shards=len(self.shards))

    def require_same(self) -> None:
        """Raises StoreUnavailable if the space has been laid out anew since it was opened."""
        require_same(self.clients, space=self.space, shards=len(self.shards))

    def servers(self) -> list[str]:
        """The runs of the servers, which a restart or a failover changes; each is asked once.
        Raises StoreUnavailable if the space has been laid out anew since it was opened."""
        self.require_same()
        servers = {server_of(shard.client, shard.keys["state"]) for shard in self.shards}
        return sorted(str(server.info("server")["run_id"]) for server in servers)

    # --- owning a space -------------------------------------------------------------------------

    def fence(self, *, above: int = 0) -> int:
        """Become the owner of every shard; returns the owner's number for each later call.

        It is higher than `above` and than any before, and no other service has it: if two starts
        ask for the same number, the first gets it on every shard, because all ask in the same
        order. A wiped store has forgotten its numbers, so it begins with the time, and a random
        part: if it is wiped again in the same second, the next owner has another number.
        """
        token = uuid.uuid4().hex
        first = int(time.time()) * 10_000 + int(token, 16) % 10_000
        for _ in range(FENCE_ATTEMPTS_MAX):
            owner = 1 + max(max(self.owners()) or first, above, *self.heirs())
            if all(
                script("fence")(shard.client, state=shard.keys["state"], number=owner, token=token)
                for shard in self.shards
            ):
                return owner
        raise Fenced(f"{FENCE_ATTEMPTS_MAX} other services started on space {self.space!r} at once")

    def owners(self) -> list[int]:
        """The owner number of each shard; 0 where it knows none. Raises StoreUnavailable."""
        with answering():
            return [int(shard.state().get("owner", 0)) for shard in self.shards]

    def heirs(self) -> list[int]:
        """The number of each shard's next owner, see store/succession.py; 0 where there is none."""
        with answering():
            return [int(shard.state().get("heir", 0)) for shard in self.shards]

    def owner(self) -> int:
        """The highest owner number over the shards."""
        return max(self.owners())

    def arm(self, *, owner: int) -> None:
        """Mark every server; a restart loses the mark, and a replica that takes over has none.

        A server without it may have lost its last moments, claims among them. Then nothing may be
        claimed before intake has read what is on the inboxes. The caller arms first and holds
        claims afterwards: if the hold is lost too, that is found out again.
        """
        for shard in self.shards:
            shard.arm(f"{self.space}/{owner}")

    def is_armed(self, *, owner: int) -> bool:
        """Whether every server still has the mark of `arm`."""
        return all(shard.is_armed(f"{self.space}/{owner}") for shard in self.shards)

    def open_lane(self, lane: int, *, owner: int, looked_up: bool = False) -> int:
        """Begin a new run of a lane: older runs can claim no more, their batches are released.

        A run claims only from servers that have not restarted since it began. `looked_up`: the
        caller has called `arm`, and then settled what had arrived of these batches; raises
        StoreWentBack if a server has restarted since, because it may have lost that.
        """
        run, mark = self._begin(f"lane:{lane}", owner=owner), f"{self.space}/{owner}"
        for shard in self.shards:
            shard.arm(self._armed_as(lane, run, owner=owner))
            for name, of_lane in shard.batches().items():
                if of_lane == lane:
                    shard.release(name, owner=owner, armed_as=mark if looked_up else "")
        return run

    def release_all(self, *, owner: int, looked_up: bool = False, but: Container[int] = ()) -> None:
        """Put back every unsettled batch `but` those of some lanes; only between fence and lanes.

        `looked_up`: see `open_lane`; then what is kept (see store/unsettled.py) stays.
        """
        mark = f"{self.space}/{owner}" if looked_up else ""
        for shard in self.shards:
            for name, lane in shard.batches().items():
                if not (lane in but or (looked_up and lane >= KEPT_LANE)):
                    shard.release(name, owner=owner, armed_as=mark)

    def settle(self, batch: Batch, *, owner: int | None = None) -> int:
        """Settle a batch on every shard; returns how many schedules were delivered.

        With `owner`, raises StoreWentBack if a server has restarted since the batch's run began.
        """
        armed_as = "" if owner is None else self._armed_as(batch.lane, batch.run, owner=owner)
        return sum(shard.settle(batch.name, armed_as=armed_as) for shard in self.shards)

    def _armed_as(self, lane: int, run: int, *, owner: int) -> str:
        return f"{self.space}/{owner}/{lane}/{run}"

    def drain(self, *, owner: int) -> None:
        """Ask this owner's tasks to claim nothing more and end their batches."""
        for shard in self.shards:
            shard.mark("state", {"draining": owner}, word="draining")

    def set_target(self, topic: str, target: Target | None) -> None:
        """Tell the tasks which records a topic takes, or (None) that it takes none."""
        for shard in self.shards:
            told = "" if target is None else str(target)
            shard.mark("targets", {topic: told})

    def draining(self, *, owner: int) -> bool:
        """Whether this owner has been asked to stop, or is not the owner, nor the next, nor the
        last one that goes on for a moment."""
        state, me = self.shards[0].state(), str(owner)
        if me in (state.get("draining"), state.get("left")):
            return True
        return me not in (state.get("owner"), state.get("heir"), state.get("leaving"))

    # --- intake ---------------------------------------------------------------------------------

    def open_intake(self, *, owner: int) -> int:
        """Begin a new run of the intake query; returns its number."""
        return self._begin("intake_run", owner=owner)

    def note(self, word: str, run: int, *, task: int) -> None:
        """A task of this run of intake is `reads` (what it reads is parked at once), or, before its
        service owns the space, `warm`, or has been reading `along`."""
        self.shards[0].mark("state", {f"{word}:{task}": run})

    def noted(self, word: str, run: int, *, tasks: Iterable[int]) -> bool:
        """Whether all these tasks are."""
        state = self.shards[0].state()
        return all(state.get(f"{word}:{task}") == str(run) for task in tasks)

    def _begin(self, what: str, *, owner: int) -> int:
        run = 0
        for _ in range(2):
            run = max(
                script("begin")(
                    shard.client,
                    **shard._keys("state", "batches"),
                    owner=owner,
                    what=what,
                    at_least=run,
                )
                for shard in self.shards
            )
        return run

    def positions(self) -> dict[str, int]:
        """Where intake starts: per inbox partition the lowest position over the shards.

        A shard that does not know a partition counts with position 0.
        """
        seen = [shard.seen() for shard in self.shards]
        sources = {source for one in seen for source in one}
        return {source: min(one.get(source, 0) for one in seen) for source in sources}

    def copied(self) -> dict[str, int]:
        """Per partition of the inboxes that are copied to a journal the position up to which they
        have been, as far as the service has told."""
        with answering():
            told = self.client.hgetall(self.shards[0].keys["state"] + ":copied")
        return {source.decode(): int(position) for source, position in told.items()}

    def tell_copied(self, positions: Mapping[str, int]) -> None:
        """Note how far inboxes have been copied. Raises StoreUnavailable."""
        if positions:
            with answering():
                self.client.hset(self.shards[0].keys["state"] + ":copied", mapping=dict(positions))

    def set_bound(self, bound_ms: int, *, owner: int) -> None:
        """Limit this owner's claims to what is due until then (no bound: no limit); ends a hold."""
        for shard in self.shards:
            script("bound")(
                shard.client, **shard._keys("state", "wake"), owner=owner, bound_ms=bound_ms
            )

    # --- client, REST, command line -------------------------------------------------------------

    def put(self, schedule: Schedule) -> None:
        """Write one schedule directly, without an inbox."""
        self.shard_of(schedule.id).park([schedule.id, schedule.due_ms, pack(schedule)])

    def cancel(self, schedule_id: bytes) -> Cancelled:
        """Cancel a schedule, unless it is being delivered already."""
        shard = self.shard_of(schedule_id)
        keys = shard._keys(*script("cancel").keys)
        unnamed: dict[str, Any] = {"now_ms": 0, "reserve_ms": 0, "keep_ms": 0, "changes_max": 0}
        (answer,) = script("cancel")(shard.client, **keys, **unnamed, rest=[schedule_id, "", ""])
        return Cancelled(answer.decode())

    def move(self, schedule_id: bytes, *, due_ms: int) -> bool:
        """Give a pending schedule another due time; False when it is not pending."""
        shard = self.shard_of(schedule_id)
        names = ("due", "record", "wake", "batches", "changes", "tally", "aside", "state")
        keys = shard._keys(*names)
        unconditional: dict[str, Any] = {"instead": "", "version": "", "change": ""}
        unnamed: dict[str, Any] = {"now_ms": 0, "reserve_ms": 0, "keep_ms": 0, "changes_max": 0}
        answer = script("move")(
            shard.client, **keys, **unconditional, **unnamed, id=schedule_id, due_ms=due_ms
        )
        return bool(answer[0] == b"moved")

    def get(self, schedule_id: bytes) -> Schedule | None:
        """The schedule, pending or claimed; None when the store does not have it."""
        shard = self.shard_of(schedule_id)
        found = script("find")(shard.client, **shard._keys(*script("find").keys), id=schedule_id)
        return unpack_found(schedule_id, found)

    def list(
        self,
        *,
        count_max: int,
        from_ms: int = 0,
        to_ms: int | None = None,
        tag: str = "",
    ) -> list[Schedule]:
        """The first pending schedules (of those with a tag) in order of due time and id."""
        within: dict[str, Any] = {"from_ms": from_ms, "to_ms": to_ms, "tag": tag}
        pages = [
            look(shard, count_max=count_max, shift_ms=shift_ms, **within)[0]
            for shard in self.shards
            for shift_ms in (0, LIMITED_MS)
        ]
        merged = merge(*pages, key=itemgetter(0))
        return [schedule for _, schedule in islice(merged, count_max)]

    def histogram(self, edges_ms: Sequence[int]) -> Sequence[int]:
        """How many are due in [edge, next edge) for each pair of neighbouring edges."""
        assert len(edges_ms) >= 2, edges_ms
        pairs = list(pairwise(edges_ms))
        totals = [0] * len(pairs)
        for shard in self.shards:
            pipe = shard.client.pipeline(transaction=False)
            for low, high in pairs:
                pipe.zcount(shard.keys["due"], low, f"({high}")
            totals = [a + b for a, b in zip(totals, pipe.execute(), strict=True)]
        return totals

    def counts(self) -> dict[str, int]:
        """Exact counts, now (limited: of what is pending, what waits for its topic's limit) and
        since the beginning. Only `later` (in journals, beyond the horizon) is approximate."""
        more = ("settled", "rejected", "tombstones", "missed")
        names = ("parked", "replaced", "outdated", "unmet", "cancelled", *more)
        total = dict.fromkeys(("pending", "limited", "later", "claimed", "aside", *names), 0)
        with answering():
            for shard in self.shards:
                state = shard.state()
                total["pending"] += int(shard.client.zcard(shard.keys["due"]))
                total["limited"] += int(shard.client.zcount(shard.keys["due"], LIMITED_MS, "+inf"))
                total["aside"] += int(shard.client.hlen(shard.keys["aside"]))
                for name in shard.batches():
                    total["claimed"] += shard.held(name)
                total["later"] += int(state.get("later", 0)) + int(state.get("later_since", 0))
                for name in names:
                    total[name] += int(state.get(name, 0))
        return total

    def due_within(self, from_ms: int, to_ms: int) -> bool:
        """Whether anything pending is due within [from_ms, to_ms]."""
        with answering():
            return any(s.client.zcount(s.keys["due"], from_ms, to_ms) for s in self.shards)

    def at_risk(self, to_ms: int, batch: Batch) -> tuple[int, int]:
        """How many pending schedules are due until then, and how many a batch holds."""
        with answering():
            due = sum(int(s.client.zcount(s.keys["due"], "-inf", to_ms)) for s in self.shards)
            held = sum(shard.held(batch.name) for shard in self.shards)
        return due, held

    def oldest_due_ms(self) -> int | None:
        """Due time of the first pending schedule that waits for nothing but its time; None when
        there is none."""
        with answering():
            heads = [
                shard.client.zrange(shard.keys["due"], 0, 0, withscores=True)
                for shard in self.shards
            ]
        due = [int(head[0][1]) for head in heads if head and head[0][1] < PAUSED_MS]
        return min(due, default=None)
