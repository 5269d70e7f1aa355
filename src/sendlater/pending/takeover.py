"""What a start asks of the store: who is active, what was left unsettled, and to be filled anew."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import redis
import structlog

from sendlater.errors import StoreUnavailable
from sendlater.limits import RELEASE_COUNT_MAX
from sendlater.pending.connect import answering, connect
from sendlater.pending.packing import unpack
from sendlater.pending.scripts import script
from sendlater.pending.shard import OVERTAKEN, Batch, Shard
from sendlater.pending.store import Pending

STANDBY_WATCH_S = 0.25
"""Pause between two looks at whether the active service is still there."""
RENEWALS = 5
"""How often a lease is renewed within its time."""

_log = structlog.get_logger()


class Lease:
    """The right to be the active one of several services on a space; renewed by a thread.

    It only tells whose turn it is. What keeps an overtaken service from doing harm is the fence.
    """

    def __init__(
        self,
        url: str,
        *,
        space: str,
        lease_ms: int,
        holder: str = "",
        works: Callable[[], object] = lambda: None,
    ) -> None:
        """`works` is called before each renewal: while it hangs or raises there is none, so that
        another takes over from a service that cannot work any more."""
        # A connection of its own: renewing must not wait for anybody.
        self._client: Any = connect(url)
        self._key = f"{{{space}:0}}:lease"
        self._holder = holder or f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        self._lease_ms, self._works = lease_ms, works
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, *, by_force: bool = False) -> bool:
        """Take it when it is free, or `by_force`, and keep it; False while another holds it."""
        try:
            if by_force:
                self._client.delete(self._key)
            taken = bool(self._renew())
        except redis.exceptions.RedisError as error:
            raise StoreUnavailable(f"Redis does not answer: {error}") from error
        if taken and self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
            self._thread.start()
        return taken

    def wait(self, stop: threading.Event, *, by_force: bool, waiting: Callable[[], None]) -> bool:
        """Until it is ours; False when `stop` was set before.

        `waiting` is called once, after longer than a lease: another one is alive, there is time.
        """
        waited_s = 0.0
        while not self.acquire(by_force=by_force):
            if stop.wait(STANDBY_WATCH_S):
                return False
            before_s, waited_s = waited_s, waited_s + STANDBY_WATCH_S
            if before_s <= self._lease_ms / 1_000 < waited_s:
                waiting()
        return True

    def _renew(self) -> Any:
        return script("lease")(
            self._client, lease=self._key, holder=self._holder, lease_ms=self._lease_ms
        )

    def _keep(self) -> None:
        while not self._stop.wait(self._lease_ms / 1_000 / RENEWALS):
            try:
                self._works()
                if not self._renew():
                    _log.warning("another service holds the lease")
            except (redis.exceptions.RedisError, StoreUnavailable) as error:
                _log.warning("the lease waits for the store", cause=str(error))
            except Exception as error:
                _log.error("the lease is not renewed: this service cannot work", cause=str(error))

    def holder(self) -> str:
        """Who has it now; empty when nobody has."""
        return (self._client.get(self._key) or b"").decode()

    def release(self) -> None:
        """Let the next one start at once."""
        self._stop.set()
        if self._thread is None:
            return
        self._thread.join(self._lease_ms / 1_000)
        try:
            script("lease")(self._client, lease=self._key, holder=self._holder, lease_ms=0)
        except (redis.exceptions.RedisError, StoreUnavailable) as error:
            _log.warning("the lease will run out by itself", cause=str(error))


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A batch that nobody has settled, and its rows as the scripts return them."""

    shard: Shard
    name: str
    ids: list[bytes]
    packed: list[bytes]

    @property
    def end_ms(self) -> int:
        """When the batch was to end."""
        return Batch.named(self.name).end_ms

    def standing(self) -> "Unsettled":
        """The same without rows whose id was written again or cancelled since."""
        rows = [row for row in zip(self.ids, self.packed, strict=True) if row[1][0] != OVERTAKEN]
        return replace(self, ids=[i for i, _ in rows], packed=[p for _, p in rows])


def unsettled(pending: Pending, *, lane: int | None = None) -> Iterator[Unsettled]:
    """Batches left behind, of one lane or of all."""
    for shard in pending.shards:
        for name, of_lane in shard.batches().items():
            if lane is None or lane == of_lane:
                with answering():
                    rows = shard.client.hgetall(shard._batch_key(name))
                if rows:
                    yield Unsettled(shard, name, list(rows), list(rows.values()))


def settle_some(batch: Unsettled, ids: Sequence[bytes], *, owner: int) -> None:
    """Drop rows of a batch that were found where they had to go."""
    for first in range(0, len(ids), RELEASE_COUNT_MAX):
        script("settle_some")(
            batch.shard.client,
            state=batch.shard.keys["state"],
            batch=batch.shard._batch_key(batch.name),
            owner=owner,
            rest=list(ids[first : first + RELEASE_COUNT_MAX]),
        )


def hold(pending: Pending, *, owner: int) -> None:
    """Let this owner's tasks find nothing due, until `let_go`."""
    for shard in pending.shards:
        shard.mark("state", {"held": owner, "bound": ""})


def let_go(pending: Pending) -> None:
    """Let tasks claim, and wake those that wait."""
    for shard in pending.shards:
        shard.mark("state", {"held": ""}, word="let_go")


class Copy:
    """The store as a copy of journals: whether it is one, emptied, filled, and marked as one."""

    def __init__(self, pending: Pending, *, owner: int) -> None:
        self._pending, self._owner = pending, owner

    def stands_for(self, journals: str) -> bool:
        """Whether every shard is a complete copy of these journals (names and Kafka's ids)."""
        return all(shard.state().get("journals") == journals for shard in self._pending.shards)

    def forget(self) -> None:
        """Not a copy any more; the service that is active notices, and fills the store anew."""
        for shard in self._pending.shards:
            with answering():
                shard.client.hdel(shard.keys["state"], "journals")

    def is_one(self) -> bool:
        """Whether every shard is a complete copy of some journals."""
        return all("journals" in shard.state() for shard in self._pending.shards)

    def horizon(self) -> tuple[int | None, int | None]:
        """(horizon, planned) in ms: intake keeps what is due until the one, up to the other it is
        all here; None is infinitely far."""
        state = self._pending.shards[0].state()
        horizon, planned = state.get("horizon", ""), state.get("planned", "")
        return int(horizon) if horizon else None, int(planned) if planned else None

    def set_horizon(
        self,
        horizon_ms: int | None,
        *,
        planned_ms: int | None,
        later: int | None = None,
        begun: bool = False,
    ) -> None:
        """Move the horizon, or (both the same) say that planning has reached it; see the script.

        `later` is how many stand in the journals beyond it, when that has been counted. `begun`:
        it was moved there before. Raises StoreWentBack when a shard does not know that any more.
        """
        # The first shard is what `horizon` reads: first to promise, last to be done.
        done = horizon_ms == planned_ms
        for shard in reversed(self._pending.shards) if done else self._pending.shards:
            counted = later if shard.number == 0 or later is None else 0
            script("horizon")(
                shard.client,
                state=shard.keys["state"],
                touched=shard.keys["touched"],
                owner=self._owner,
                horizon="" if horizon_ms is None else horizon_ms,
                planned="" if planned_ms is None else planned_ms,
                later="" if counted is None else counted,
                begun="begun" if begun else "",
            )

    def seen(self) -> list[dict[str, int]]:
        """Next position to read per inbox partition, of each shard."""
        return [shard.seen() for shard in self._pending.shards]

    def seen_ends(self, seen: Sequence[Mapping[str, int]]) -> dict[str, dict[int, int]]:
        """Per inbox and partition the highest of positions that the shards have seen."""
        ends: dict[str, dict[int, int]] = {}
        for positions in seen:
            for source, at in positions.items():
                topic, _, number = source.rpartition("/")
                partitions = ends.setdefault(topic, {})
                partitions[int(number)] = max(at, partitions.get(int(number), 0))
        return ends

    def empty(self, topics: Sequence[str]) -> None:
        """Remove what was read from these inboxes."""
        for shard in self._pending.shards:
            for kind in ("record", "aside"):
                self._empty(shard, kind, frozenset(topics))

    def _empty(self, shard: Shard, kind: str, topics: frozenset[str]) -> None:
        cursor = 0
        while True:
            with answering():
                cursor, rows = shard.client.hscan(
                    shard.keys[kind], cursor=cursor, count=RELEASE_COUNT_MAX
                )
            ids = [i for i, packed in rows.items() if _origin(i, packed) in topics]
            if ids:
                script("remove")(
                    shard.client,
                    due=shard.keys["due"] if kind == "record" else shard.keys["aside"] + ":none",
                    record=shard.keys[kind],
                    state=shard.keys["state"],
                    owner=self._owner,
                    rest=ids,
                )
            if not cursor:
                return

    def complete(self, ends: Mapping[str, int], *, journals: str) -> None:
        """Every shard has seen its inboxes up to `ends`, and is a copy of `journals`."""
        flat = [part for source, end in ends.items() for part in (source, end)]
        for shard in self._pending.shards:
            script("complete")(
                shard.client,
                seen=shard.keys["seen"],
                state=shard.keys["state"],
                owner=self._owner,
                journals=journals,
                rest=flat,
            )

    def progress(self) -> dict[str, str]:
        """How far filling the store is: `step`, `done`, `total`; empty when that is done."""
        key = self._pending.shards[0].keys["state"] + ":filling"
        with answering():
            found = self._pending.client.hgetall(key)
        return {k.decode(): v.decode() for k, v in found.items()}

    def tell(self, **progress: int | str) -> None:
        """Say how far it is; without anything: it is done."""
        key = self._pending.shards[0].keys["state"] + ":filling"
        with answering():
            if progress:
                self._pending.client.hset(key, mapping=progress)
            else:
                self._pending.client.delete(key)


def _origin(schedule_id: bytes, packed: bytes) -> str:
    # What `record` and `aside` hold differs by the due time in front.
    if packed[:1] != b"\xcf":
        packed = b"\xcf" + bytes(8) + packed
    origin = unpack(schedule_id, packed).origin
    return origin.topic if origin else ""
