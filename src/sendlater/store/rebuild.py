"""What a start does with the store: hold claims, and fill it again as a copy of the journals."""

from collections.abc import Mapping, Sequence

import msgspec
import structlog

from sendlater.limits import RELEASE_COUNT_MAX
from sendlater.store.codec import unpack, with_due
from sendlater.store.connection import answering
from sendlater.store.pending import Pending
from sendlater.store.scripts import script
from sendlater.store.shard import Shard

STANDBY_WATCH_S = 0.25
"""Pause between two checks whether the active service is still there."""
RESERVATION = b"new "
"""How names among the changes begin that are of ids somebody creates, see lua/put.lua."""
RENEWALS = 5
"""How often a lease is renewed within its time."""
_log = structlog.get_logger()


def undecided(pending: Pending, source: str) -> tuple[int, frozenset[int]]:
    """Of a `topic/partition`: what is read there before this position is in the store already, but
    for records at these offsets; see `JournalCopy.complete`."""
    shard = pending.shards[0]
    with answering():
        told = shard.client.hget(shard.keys["state"] + ":undecided", source)
    if told is None:
        return 0, frozenset()
    return msgspec.msgpack.decode(told, type=tuple[int, frozenset[int]])


def hold(pending: Pending, *, owner: int) -> None:
    """Let this owner's tasks claim nothing until the bound is set."""
    for shard in pending.shards:
        shard.mark("state", {"held": owner, "bound": ""})


class JournalCopy:
    """The store as a copy of journals: check, empty, mark, and tell the progress of filling."""

    def __init__(self, pending: Pending, *, owner: int) -> None:
        self._pending, self._owner = pending, owner

    def stands_for(self, journals: str) -> bool:
        """Whether every shard is a complete copy of these journals (names and Kafka's ids)."""
        return all(shard.state().get("journals") == journals for shard in self._pending.shards)

    def forget(self) -> None:
        """Mark the store as no copy; the active service notices, and fills it again."""
        for shard in self._pending.shards:
            with answering():
                shard.client.hdel(shard.keys["state"], "journals")

    def forget_seen(self, topics: Sequence[str]) -> None:
        """Forget how far these were read: who waits for intake waits until they are complete."""
        for shard in self._pending.shards:
            sources = [one for one in shard.seen() if one.rpartition("/")[0] in topics]
            if sources:
                with answering():
                    shard.client.hdel(shard.keys["seen"], *sources)

    def forget_changes(self) -> None:
        """Forget whose copies are to come: a store that was filled anew knows nothing of these
        changes, so that their copies count."""
        for shard in self._pending.shards:
            with answering():
                names = shard.client.zrange(shard.keys["changes"], 0, -1)
                made = [name for name in names if not name.startswith(RESERVATION)]
                for first in range(0, len(made), RELEASE_COUNT_MAX):
                    some = made[first : first + RELEASE_COUNT_MAX]
                    shard.client.zrem(shard.keys["changes"], *some)

    def is_one(self) -> bool:
        """Whether every shard is a complete copy of some journals."""
        return all("journals" in shard.state() for shard in self._pending.shards)

    def horizon(self) -> tuple[int | None, int | None]:
        """(horizon, planned) in ms: intake keeps what is due until `horizon`; all that is due until
        `planned` is in the store. None is infinitely far."""
        state = self._pending.shards[0].state()
        horizon, planned = state.get("horizon", ""), state.get("planned", "")
        return int(horizon) if horizon else None, int(planned) if planned else None

    def is_even(self) -> bool:
        """Whether no shard has forgotten a step of the horizon that the first one knows to be over:
        what that step had written there is not in the store, and no later one writes it."""
        # Read again: a step may have begun or ended between two shards.
        return self._is_even() or self._is_even()

    def _is_even(self) -> bool:
        first, *others = (
            tuple(shard.state().get(name, "") for name in ("horizon", "planned"))
            for shard in self._pending.shards
        )
        horizon, planned = first
        # The first shard begins a step first and ends it last; after that all stand where it does.
        return all(
            other in (first, (horizon, horizon)) or (horizon != planned and other[1] == planned)
            for other in others
        )

    def set_horizon(
        self,
        horizon_ms: int | None,
        *,
        planned_ms: int | None,
        later: int | None = None,
        begun: bool = False,
    ) -> None:
        """Move the horizon, or (both the same) record that planning has reached it; see the script.

        `later` is how many stand in the journals beyond it, if that was counted. `begun`: it was
        moved there before; raises StoreWentBack if a shard does not know that any more, or if a
        server has restarted since `begin`.
        """
        # `horizon` reads the first shard: it begins a step first and ends it last.
        done = horizon_ms == planned_ms
        for shard in reversed(self._pending.shards) if done else self._pending.shards:
            counted = later if shard.number == 0 or later is None else 0
            move = script("horizon").armed(self._filling) if begun else script("horizon")
            move(
                shard.client,
                **shard._keys("state", "touched", "beyond"),
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
        """Per inbox and partition the highest position that a shard has seen."""
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

    def complete(
        self,
        ends: Mapping[str, int],
        *,
        journals: str,
        undecided: Mapping[str, Sequence[int]] | None = None,
        begun: bool = False,
    ) -> None:
        """Record: every shard has seen its inboxes up to `ends`, and is a copy of `journals`.

        But for records that are `undecided`, offsets per source in their order: they are read once
        more, and nothing else before `ends`. `begun`: raises StoreWentBack if a server has
        restarted since `begin`, as it may have lost what was written to it.
        """
        left = undecided or {}
        begins = {
            source: left[source][0] if source in left else end for source, end in ends.items()
        }
        flat = [part for pair in begins.items() for part in pair]
        told = {source: msgspec.msgpack.encode((ends[source], left[source])) for source in left}
        complete = script("complete").armed(self._filling) if begun else script("complete")
        for shard in self._pending.shards:
            also = [part for pair in told.items() for part in pair] if shard.number == 0 else []
            complete(
                shard.client,
                **self._completed(shard),
                owner=self._owner,
                journals=journals,
                told=len(also),
                rest=[*flat, *also],
            )

    def begin(self) -> None:
        """Schedules are written from here on: see `complete` and `set_horizon`."""
        nobody = {"owner": "-1"}
        empty = dict.fromkeys(("horizon", "planned", "later", "begun"), "")
        for shard in self._pending.shards:
            complete, move = (script(name).armed(self._filling) for name in ("complete", "horizon"))
            keys = self._completed(shard)
            complete.arm(shard.client, **keys, **nobody, journals="", told=0)
            keys = shard._keys("state", "touched", "beyond")
            move.arm(shard.client, **keys, **nobody, **empty)

    @property
    def _filling(self) -> str:
        return f"{self._pending.space}/{self._owner}/filling"

    def _completed(self, shard: Shard) -> dict[str, str]:
        state = shard.keys["state"]
        return {"seen": shard.keys["seen"], "state": state, "undecided": f"{state}:undecided"}

    def progress(self) -> dict[str, str]:
        """The progress of filling the store: `step`, `done`, `total`; empty when that is done."""
        key = self._pending.shards[0].keys["state"] + ":filling"
        with answering():
            found = self._pending.client.hgetall(key)
        return {k.decode(): v.decode() for k, v in found.items()}

    def tell(self, **progress: int | str) -> None:
        """Store the progress; without arguments, filling is done."""
        key = self._pending.shards[0].keys["state"] + ":filling"
        with answering():
            if progress:
                self._pending.client.hset(key, mapping=progress)
            else:
                self._pending.client.delete(key)


def _origin(schedule_id: bytes, packed: bytes) -> str:
    # A row of `aside` begins with the due time, a row of `record` does not.
    if packed[:1] != b"\xcf":
        packed = with_due(0, packed)
    origin = unpack(schedule_id, packed).origin
    return origin.topic if origin else ""
