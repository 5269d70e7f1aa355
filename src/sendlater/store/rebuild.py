"""What a start asks of the store: who is active, what was left unsettled, and to be filled anew."""

from collections.abc import Mapping, Sequence

import structlog

from sendlater.limits import RELEASE_COUNT_MAX
from sendlater.store.codec import unpack
from sendlater.store.connection import answering
from sendlater.store.pending import Pending
from sendlater.store.scripts import script
from sendlater.store.shard import Shard

STANDBY_WATCH_S = 0.25
"""Pause between two looks at whether the active service is still there."""
RENEWALS = 5
"""How often a lease is renewed within its time."""
_log = structlog.get_logger()


def hold(pending: Pending, *, owner: int) -> None:
    """Let this owner's tasks find nothing due, until the bound is set."""
    for shard in pending.shards:
        shard.mark("state", {"held": owner, "bound": ""})


class JournalCopy:
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
