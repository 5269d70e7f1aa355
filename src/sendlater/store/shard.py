"""One shard of the pending store: the verbs that Spark's tasks use, each one atomic script.

A shard is a handful of keys with one hash tag, so that all of a shard lies on one node of a Redis
Cluster: docs/reference/keys.md describes each key.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sendlater.errors import NotLookedUp
from sendlater.limits import (
    CANCELLED_COUNT_MAX,
    CLAIM_BYTES_MAX,
    ONCE_COUNT_MAX,
    ONCE_KEPT_MS,
    RELEASE_COUNT_MAX,
)
from sendlater.model import Schedule, Target
from sendlater.store.batch import NOT_AHEAD, OVERTAKEN, Ahead, Batch, Claim
from sendlater.store.codec import pack
from sendlater.store.connection import Clients, answering
from sendlater.store.scripts import script
from sendlater.store.wakeup import Wake, wake_readers

CLOSED = "closed"
"""The answer to an attempt at a batch that takes no more rows."""


class Shard:
    """The verbs of one shard; what the Spark tasks use. `clients`: of every server, in order."""

    def __init__(self, clients: Clients, *, space: str, number: int) -> None:
        # Any: redis-py types every answer as "sync or async, bytes or text".
        self.clients, self.client = clients, clients[number % len(clients)]
        self.space, self.number, prefix = space, number, f"{{{space}:{number}}}:"
        names = ("due", "record", "seen", "state", "wake", "batches", "aside", "targets", "wanted")
        more = ("changes", "tally", "recent", "touched", "beyond", "overtaken", "surplus", "limits")
        self.keys = {name: prefix + name for name in (*names, *more, "once", "asked", "bursts")}

    def beside(self, number: int) -> "Shard":
        """Another shard of the same store."""
        return Shard(self.clients, space=self.space, number=number)

    def _keys(self, *names: str) -> dict[str, Any]:
        return {name: self.keys[name] for name in names}

    def due_key(self, tag: str = "") -> str:
        """The sorted set id -> due_ms of what is pending, or of what of it has this tag."""
        return f"{self.keys['due']}:tag:{tag}" if tag else self.keys["due"]

    def _all(self, name: str) -> dict[bytes, bytes]:
        with answering():
            found: dict[bytes, bytes] = self.client.hgetall(self.keys[name])
        return found

    def _batch_key(self, name: str) -> str:
        return f"{self.keys['batches']}:{name}"

    def park(
        self,
        rows: list[Any],
        *,
        owner: str = "",
        ends: Iterable[tuple[str, str, str]] = (),
        journal: bool = False,
        rejected_count: int = 0,
    ) -> int:
        """Write flat rows [id, due_ms or '', record, ...], and how far inbox partitions are read.

        `ends`: for each `topic/partition` that the rows are from, its position before ('' if there
        is none yet) and after them. `journal`: whether these are partitions of journals.
        A due_ms may also be `change|due_ms` or `if CONDITION|due_ms`: see lua/park.lua.
        Raises StoreWentBack when a source does not stand at its position before, Fenced for an old
        owner, StoreUnavailable.
        """
        flat = [part for source in ends for part in source]
        count: int = script("park")(
            self.client,
            **self._keys("due", "record", "seen", "state", "wake", "changes"),
            **self._keys("touched", "beyond", "overtaken", "surplus", "batches", "aside", "once"),
            owner=owner,
            journal="1" if journal else "",
            rejected_count=rejected_count,
            sources=len(flat) // 3,
            once_max=ONCE_COUNT_MAX,
            once_kept_ms=ONCE_KEPT_MS,
            cancelled_max=CANCELLED_COUNT_MAX,
            rest=[*flat, *rows],
        )
        return count

    def attempt(
        self, batch: Batch, *, owner: int, attempt: str, count_max: int | None = None
    ) -> Claim | None:
        """Begin an attempt at a batch: earlier attempts claim no more into it.

        Returns what the batch holds already, in due order; None if it is closed to further claims,
        then `claimed` has all of it. Raises LaneEnded for a settled batch or a dead run, Fenced,
        and what `claimed` raises.
        """
        stands = script("attempt")(
            self.client,
            **self._keys("state", "batches"),
            **self._attempted(batch, owner, attempt),
        ).decode()
        if stands == CLOSED:
            return None
        if stands != "open":
            return Claim([], [])
        self.recall(batch.name, attempt=attempt)
        return self.claimed(batch, count_max=count_max)

    def _at_work(self, batch: Batch, attempt: str) -> dict[str, Any]:
        """Arguments that name a batch that is there and the attempt to a script."""
        return {"batch": self._batch_key(batch.name), "name": batch.name, "attempt": attempt}

    def _attempted(self, batch: Batch, owner: int, attempt: str) -> dict[str, Any]:
        """The same of a batch that may be new."""
        run = {"owner": owner, "lane": batch.lane, "run": batch.run, "number": batch.order}
        return self._at_work(batch, attempt) | run

    def claim(
        self,
        batch: Batch,
        *,
        owner: int,
        now_ms: int,
        count_max: int,
        attempt: str = "",
        bytes_max: int = CLAIM_BYTES_MAX,
        limits: Sequence[Any] = (),
        ahead: Ahead = NOT_AHEAD,
    ) -> Claim:
        """Move what is due into `batch`, oldest first. `limits`: see `Waiting.given`.

        Raises StoreWentBack if the server was restarted: see `Pending.open_lane`.
        """
        verb = script("claim").armed(f"{self.space}/{owner}/{batch.lane}/{batch.run}")
        got = verb(
            self.client,
            **self._keys("due", "record", "state", "batches", "limits", "touched"),
            **self._attempted(batch, owner, attempt),
            now_ms=now_ms,
            count_max=count_max,
            bytes_max=bytes_max,
            **ahead.given(),
            rest=[*limits],
        )
        if got in (answers := (b"draining", b"held", b"heir")):
            return Claim([], [], None, *(got == one for one in answers))
        rows = got if isinstance(got, list) else [got]
        waited, waiting, *of_ahead = rows.pop() if isinstance(rows[-1], list) else ((), ())
        next_due = rows.pop()
        claim = Claim(rows[::2], rows[1::2], int(float(next_due)) if next_due else None)
        if waiting:
            claim.waited_ms.update(zip(waited[::2], waited[1::2], strict=True))
            nexts = (int(at) if at else None for at in waiting[2::3])
            claim.waiting.extend(zip(waiting[::3], waiting[1::3], nexts, strict=True))
        if not of_ahead:
            return claim
        ((ripe_ms, *recalled),) = of_ahead
        return replace(claim, ripe_ms=int(ripe_ms), recalled=recalled)

    def arm(self, name: str) -> None:
        """Allow claims, settling and releases under this name, until the server restarts."""
        script("claim").armed(name).arm(self.client, **self._refused_claim())
        nothing = {"batch": self._batch_key(""), "name": ""}
        script("settle").armed(name).arm(self.client, **self._keys("state", "batches"), **nothing)
        keys = self._keys("due", "record", "state", "wake", "batches")
        nobody = {"owner": "0", "cursor": 0, "count_max": 0}
        script("release").armed(name).arm(self.client, **keys, **nothing, **nobody)

    def is_armed(self, name: str) -> bool:
        """Whether the server still knows the scripts of this name."""
        return script("claim").armed(name).is_armed(self.client, **self._refused_claim())

    def _refused_claim(self) -> dict[str, Any]:
        """Arguments of a claim that is always refused, because it names no run of any lane."""
        words: dict[str, Any] = dict.fromkeys(("owner", "lane", "name", "attempt"), "")
        ahead = NOT_AHEAD.given()
        numbers = dict.fromkeys(("number", "now_ms", "count_max", "bytes_max"), 0)
        keys = self._keys("due", "record", "state", "batches", "limits", "touched")
        return keys | words | numbers | ahead | {"run": "none", "batch": self._batch_key("")}

    def close(self, batch: Batch, *, owner: int, attempt: str) -> None:
        """Close a batch to further claims. Raises LaneEnded if another attempt is at work."""
        script("close")(
            self.client,
            **self._keys("state", "batches"),
            owner=owner,
            name=batch.name,
            attempt=attempt,
        )

    def recall(self, name: str, *, attempt: str = "") -> None:
        """Put what a batch has prefetched back to pending, in steps. `attempt`: the one that
        begins, if that is why."""
        cursor = b""
        while cursor != b"0":
            cursor = script("recall")(
                self.client,
                **self._keys("due", "record", "state", "wake", "batches"),
                name=name,
                cursor=cursor or 0,
                count_max=RELEASE_COUNT_MAX,
                attempt=attempt,
            )

    def rows(self, batch: Batch, ids: Sequence[bytes]) -> Claim:
        """These rows of a batch; without those that are not there any more."""
        with answering():
            found = self.client.hmget(self._batch_key(batch.name), ids)
        pairs = [(i, row) for i, row in zip(ids, found, strict=True) if row and row[0] != OVERTAKEN]
        return Claim([i for i, _ in pairs], [row for _, row in pairs])

    def held(self, name: str) -> int:
        """How many rows a batch holds."""
        with answering():
            return int(self.client.hlen(self._batch_key(name)))

    def claimed(self, batch: Batch, *, count_max: int | None = None) -> Claim:
        """What a batch holds already, in due order, for a task that starts again.

        Without rows that were written again or cancelled since: these are delivered in their new
        version, or not at all. Raises NotLookedUp if it holds more than `count_max`.
        """
        if count_max is not None and (count := self.held(batch.name)) > count_max:
            raise NotLookedUp(f"expected at most {count_max} rows in a batch, got {count}")
        with answering():
            rows = self.client.hgetall(self._batch_key(batch.name))
        # A packed row starts with its due time in big-endian bytes: comparing bytes orders by it.
        standing = [row for row in rows.items() if row[1][0] != OVERTAKEN]
        ordered = sorted(standing, key=lambda row: row[1][:9])
        return Claim([i for i, _ in ordered], [p for _, p in ordered])

    def settle(self, name: str, *, armed_as: str = "") -> int:
        """Drop a delivered batch; how many schedules were in it. Safe to repeat.

        With `armed_as`, raises StoreWentBack if the server has restarted since `arm`.
        """
        settle = script("settle").armed(armed_as) if armed_as else script("settle")
        count: int = settle(
            self.client, **self._keys("state", "batches"), batch=self._batch_key(name), name=name
        )
        return count

    def batches(self) -> dict[str, int]:
        """Unsettled batches and their lanes."""
        return {k.decode(): int(v) for k, v in self._all("batches").items()}

    def release(self, name: str, *, owner: int, armed_as: str = "") -> None:
        """Put a batch back to pending, in steps, so that Redis serves others in between.

        With `armed_as`, raises StoreWentBack if the server has restarted since `arm`.
        """
        release = script("release").armed(armed_as) if armed_as else script("release")
        cursor, left = b"0", 1
        while left:
            cursor, left = release(
                self.client,
                **self._keys("due", "record", "state", "wake", "batches"),
                batch=self._batch_key(name),
                owner=owner,
                name=name,
                cursor=cursor,
                count_max=RELEASE_COUNT_MAX,
            )

    def seen(self) -> dict[str, int]:
        """Next position to read, per inbox partition."""
        return {k.decode(): int(v) for k, v in self._all("seen").items()}

    def mark(self, key: str, values: dict[str, str | int], *, word: str = "") -> None:
        """Set fields of one of our hashes (an empty value removes one), even when Redis is full,
        and wake waiting tasks with `word`, if any."""
        flat = [part for pair in values.items() for part in pair]
        script("mark")(
            self.client, hash=self.keys[key], wake=self.keys["wake"], word=word, rest=flat
        )

    def state(self) -> dict[str, str]:
        """Owner, runs and counters."""
        return {k.decode(): v.decode() for k, v in self._all("state").items()}

    def targets(self) -> dict[bytes, Target]:
        """Target topics that take records, and which records."""
        return {k: Target.parse(v) for k, v in self._all("targets").items()}

    def want(self, topics: Iterable[bytes]) -> None:
        """Ask the service to look up these target topics before anything for them falls due."""
        with answering():
            self.client.sadd(self.keys["wanted"], *topics)
        self.ask()

    def ask(self) -> None:
        """Wake who looks topics up."""
        wake_readers(self.client, self.keys["asked"])

    def asked(self) -> Wake:
        """A reader that wakes at `ask`; the caller must close it."""
        return Wake(self.client, self.keys["asked"])

    def wanted(self, *, count_max: int) -> list[str]:
        """Take some target topics that must be looked up."""
        with answering():
            taken: Any = self.client.spop(self.keys["wanted"], count_max)
        return [topic.decode() for topic in taken or ()]

    def set_aside(self, batch: Batch, ids: list[bytes], *, attempt: str = "") -> None:
        """Set rows of a batch aside until the service has looked up their target topics.

        Raises LaneEnded if another attempt is at work.
        """
        script("aside")(
            self.client,
            **self._keys("batches", "aside"),
            **self._at_work(batch, attempt),
            rest=ids,
        )

    def aside(self, *, count_max: int, cursor: int = 0) -> tuple[int, dict[bytes, bytes]]:
        """The next cursor (0 after the last row), and some of the rows set aside, packed."""
        with answering():
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
            version=schedule.version,
            id=admitted.id,
            due_ms=admitted.due_ms,
            packed_record=pack(admitted),
            rejected_count=1 if instead and schedule.dialect != "rejected" else 0,
        )

    def wake(self) -> Wake:
        """A reader that wakes when something earlier is parked; the caller must close it."""
        return Wake(self.client, self.keys["wake"])
