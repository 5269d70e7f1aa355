"""Store operations for people: filtered pages, conditional and bulk changes, counters."""

import heapq
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain, islice, product
from operator import itemgetter
from typing import Any

from sendlater.limits import (
    CANCEL_COUNT_MAX,
    CHANGE_KEPT_MS,
    CHANGES_COUNT_MAX,
    LIST_NEAR_MS,
    PAGE_COUNT_MAX,
    RESERVED_MS,
)
from sendlater.model import DUE_MS_MAX, PAUSED_MS, Schedule, State
from sendlater.redis_client import told_by_each
from sendlater.store.changes import Answer, Move
from sendlater.store.codec import LIMITED_MS, unpack, unpack_found
from sendlater.store.connection import answering
from sendlater.store.pages import Place, look, look_ahead
from sendlater.store.pending import Pending
from sendlater.store.recent import Delivery, tell, told
from sendlater.store.scripts import Script, run_many, script
from sendlater.store.shard import Shard


@dataclass(frozen=True, slots=True)
class Page:
    """Some schedules in due order; `after` is where the next page begins, None at the end."""

    schedules: list[Schedule]
    after: Place | None


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects schedules: due within [from_ms, to_ms], and more. An empty field selects all."""

    from_ms: int = 0
    to_ms: int | None = None
    id_prefix: bytes = b""
    topic: str = ""
    header: tuple[str, bytes] | None = None
    tag: str = ""

    @property
    def is_range(self) -> bool:
        """Whether it can be counted without reading schedules: by due time and tag only."""
        return not self.id_prefix and not self.topic and not self.header

    def told(self) -> dict[str, Any]:
        """As the arguments of `look`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def passes(self, row: Schedule) -> bool:
        """Whether a schedule is selected."""
        return (
            self.from_ms <= row.due_ms
            and (self.to_ms is None or row.due_ms <= self.to_ms)
            and row.id.startswith(self.id_prefix)
            and self.topic in ("", row.record.topic)
            and (self.header is None or self.header in row.record.headers)
            and (not self.tag or self.tag in row.tags)
        )


class Admin:
    """Operations for the client, REST and the command line, in any process; never an owner."""

    def __init__(self, pending: Pending) -> None:
        self.pending = pending

    def page(
        self,
        wanted: Filter,
        *,
        count_max: int,
        after: Place | None = None,
        backwards: bool = False,
    ) -> Page:
        """The schedules after `after`. A page may be short; the last one has `after` None."""
        rows: list[tuple[Place, Schedule]] = []
        places: list[Place] = []
        for shard, shift_ms in product(self.pending.shards, (0, LIMITED_MS)):
            found, place = look(
                shard,
                shift_ms=shift_ms,
                count_max=count_max,
                after=after,
                backwards=backwards,
                **wanted.told(),
            )
            rows += found
            places += [place] if place else []
        # A shard's rows are missing after the place where it stopped looking.
        rows.sort(key=itemgetter(0), reverse=backwards)
        stop = (max if backwards else min)(places, default=None)
        if stop is not None:
            within = stop.__le__ if backwards else stop.__ge__
            rows = [row for row in rows if within(row[0])]
        if len(rows) > count_max:
            rows = rows[:count_max]
            stop = rows[-1][0]
        return Page([schedule for _, schedule in rows], stop)

    def page_within(
        self,
        wanted: Filter,
        *,
        within_s: float,
        count_max: int,
        after: Place | None = None,
        backwards: bool = False,
    ) -> Page:
        """The same, but goes on looking for so long while the page is short."""
        deadline, found = time.monotonic() + within_s, Page([], after)
        while True:
            left = count_max - len(found.schedules)
            more = self.page(wanted, count_max=left, after=found.after, backwards=backwards)
            found = Page(found.schedules + more.schedules, more.after)
            full = len(found.schedules) == count_max
            if full or found.after is None or time.monotonic() >= deadline:
                return found

    def all(self, wanted: Filter, *, count_max: int) -> Iterator[Schedule]:
        """Every schedule that passes, in due order, up to `count_max`, prefetched ones, too. Each
        shard is read page by page as far as it is needed, so that no row is read twice."""
        return islice(self._all(wanted), count_max)

    def _all(self, wanted: Filter) -> Iterator[Schedule]:
        places = product(self.pending.shards, (0, LIMITED_MS))
        each = [_rows(shard, shift_ms, wanted) for shard, shift_ms in places]
        # While the rest is read, lanes prefetch more, and what is changed goes back.
        near_ms, near = time.time_ns() // 1_000_000 + LIST_NEAR_MS, set[bytes]()
        for _, schedule in heapq.merge(self._ahead(wanted), *each, key=itemgetter(0)):
            if schedule.id not in near:
                yield schedule
            if schedule.due_ms < near_ms:
                near.add(schedule.id)
        yield from (one for _, one in self._ahead(wanted) if one.id not in near)

    def count_ahead(self, wanted: Filter) -> int:
        """How many pass that lanes have prefetched."""
        return len(self._ahead(wanted))

    def _ahead(self, wanted: Filter) -> list[tuple[Place, Schedule]]:
        each = (look_ahead(shard, **wanted.told()) for shard in self.pending.shards)
        return sorted(chain.from_iterable(each), key=itemgetter(0))

    def get_many(self, ids: Sequence[bytes]) -> list[Schedule | None]:
        """Each, pending or claimed, in the order asked; in two round trips per shard."""
        find = script("find")
        calls = [self._call(i, tuple(find.keys), id=i) for i in ids]
        return list(map(unpack_found, ids, self._run(find, calls)))

    def claimed(self, wanted: Filter, *, count_max: int) -> list[Schedule]:
        """Some schedules that lanes have claimed and Spark has not committed, in due order."""
        with answering():
            rows = list(islice(filter(wanted.passes, self._claimed()), count_max))
        return sorted(rows, key=lambda row: (row.due_ms, row.id))

    def _claimed(self) -> Iterator[Schedule]:
        for shard in self.pending.shards:
            for name in shard.batches():
                for found, packed in shard.client.hscan_iter(shard._batch_key(name), count=1_000):
                    yield unpack(found, packed, state=State.CLAIMED)

    def count(
        self,
        *,
        from_ms: int = 0,
        to_ms: int | None = None,
        tag: str = "",
        limited: bool = False,
    ) -> int:
        """How many (of those with a tag) are due within [from_ms, to_ms], without reading them;
        with `limited`, also those that wait for the limit of their topic: the index of a tag tells
        no difference."""
        high = DUE_MS_MAX if to_ms is None else min(to_ms, DUE_MS_MAX)
        shifts = (0, LIMITED_MS) if limited and not tag else (0,)
        with answering():
            return sum(
                int(shard.client.zcount(shard.due_key(tag), from_ms + shift_ms, high + shift_ms))
                for shard, shift_ms in product(self.pending.shards, shifts)
            )

    def later(self) -> int:
        """How many are due beyond the horizon of journals, in no filter's sight; approximate."""
        names = ("later", "later_since")
        with answering():
            told = [s.client.hmget(s.keys["state"], names) for s in self.pending.shards]
        return sum(int(number or 0) for pair in told for number in pair)

    def last_due_ms(self) -> int | None:
        """Due time of the last pending schedule that is not paused; None when there is none."""
        with answering():
            tails = [
                shard.client.zrevrangebyscore(
                    shard.keys["due"], PAUSED_MS - 1, 0, start=0, num=1, withscores=True
                )
                for shard in self.pending.shards
            ]
        return max((int(tail[0][1]) for tail in tails if tail), default=None)

    def cancel(self, schedule_id: bytes, *, version: str = "", change: str = "") -> Answer:
        """Cancel a pending schedule: any version, or only `version` if given; see `cancel_many`."""
        return self.cancel_many([(schedule_id, version)], changes=[change])[0]

    def cancel_many(
        self, ids: Sequence[tuple[bytes, str]], *, changes: Sequence[str] = ()
    ) -> list[Answer]:
        """The same for many, in two round trips per shard. `changes` are the names of their copies
        on the inbox, if there are any: this store will ignore those. Answers `reserved` while
        somebody creates the schedule under a condition: see store/conditional.py."""
        keys = script("cancel").keys
        common = {
            "now_ms": time.time_ns() // 1_000_000,
            "reserve_ms": RESERVED_MS,
            "keep_ms": CHANGE_KEPT_MS,
            "changes_max": CHANGES_COUNT_MAX,
        }
        names = changes or [""] * len(ids)
        named = [(*one, name) for one, name in zip(ids, names, strict=True)]
        calls, asked = [], []
        for shard in self.pending.shards:
            mine = [n for n, (one, _) in enumerate(ids) if self.pending.shard_of(one) is shard]
            for first in range(0, len(mine), CANCEL_COUNT_MAX):
                some = mine[first : first + CANCEL_COUNT_MAX]
                rest = list(chain.from_iterable(named[n] for n in some))
                calls.append((shard, shard._keys(*keys) | common | {"rest": rest}))
                asked += some
        told = chain.from_iterable(self._run(script("cancel"), calls))
        answers = dict(zip(asked, told, strict=True))
        return [Answer(answers[n].decode()) for n in range(len(ids))]

    def move(self, move: Move) -> tuple[Answer, Schedule | None]:
        """Give a pending schedule another due time; returns the changed schedule too."""
        return self.move_many([move])[0]

    def move_many(self, moves: Sequence[Move]) -> list[tuple[Answer, Schedule | None]]:
        """The same for many, in two round trips per shard."""
        now_ms = time.time_ns() // 1_000_000
        keys = ("due", "record", "wake", "batches", "changes", "tally", "aside", "state")
        calls = [
            self._call(
                move.id,
                keys,
                id=move.id,
                # The half tells it from all other due times: see lua/claim.lua.
                due_ms=move.due_ms + 0.5 if move.at_once else move.due_ms,
                instead=move.instead,
                version=move.version,
                change=move.change,
                now_ms=now_ms,
                reserve_ms=RESERVED_MS,
                keep_ms=CHANGE_KEPT_MS,
                changes_max=CHANGES_COUNT_MAX,
            )
            for move in moves
        ]
        return [
            (Answer(got[0].decode()), unpack(move.id, got[1]) if len(got) > 1 else None)
            for move, got in zip(moves, self._run(script("move"), calls), strict=True)
        ]

    def _call(
        self, schedule_id: bytes, keys: tuple[str, ...], **values: Any
    ) -> tuple[Shard, dict[str, Any]]:
        shard = self.pending.shard_of(schedule_id)
        return shard, {**{name: shard.keys[name] for name in keys}, **values}

    def _run(self, verb: Script, calls: list[tuple[Shard, dict[str, Any]]]) -> list[Any]:
        """Answers in the order of the calls. A pipeline is for one shard, because a node of a
        cluster may have only that one."""
        answers: list[Any] = [None] * len(calls)
        for shard in self.pending.shards:
            mine = [n for n, (of, _) in enumerate(calls) if of is shard]
            got = run_many(verb, shard.client, [calls[n][1] for n in mine])
            for number, answer in zip(mine, got, strict=True):
                answers[number] = answer
        return answers

    # --- counters -------------------------------------------------------------------------------

    def is_target(self, topic: str) -> bool:
        """Whether a schedule has named this target: it has been looked up, or delivered to."""
        with answering():
            for shard in self.pending.shards:
                known = shard.client.hexists(shard.keys["targets"], topic)
                told = shard.client.hexists(shard.keys["tally"], f"delivered:{topic}")
                if known or told:
                    return True
        return False

    def tally(self) -> Counter[str]:
        """Counters over all shards: see `tell`."""
        total: Counter[str] = Counter()
        with answering():
            for shard in self.pending.shards:
                for name, count in shard.client.hgetall(shard.keys["tally"]).items():
                    total[name.decode()] += int(count)
        return total

    def tell(self, counts: Iterable[tuple[str, int]]) -> None:
        """Add to counters; names are `kind:what`. lua/tell.lua limits their number."""
        tell(self.pending.shards[0], dict(counts))

    def note(self, numbers: Mapping[str, int]) -> None:
        """Set numbers that are not counters."""
        self.pending.shards[0].mark("tally", dict(numbers))

    def memory(self) -> dict[str, tuple[int, int]]:
        """By server bytes it uses, and its `maxmemory` (0: no limit); of a cluster its masters."""
        with answering():
            told: dict[str, dict[str, int]] = {}
            for client in self.pending.clients:
                told |= told_by_each(client, "memory")
        return {at: (one["used_memory"], one.get("maxmemory", 0)) for at, one in told.items()}

    def fullest(self) -> tuple[int, int]:
        """Bytes and `maxmemory` of the server that has the least left."""
        return max(self.memory().values(), key=lambda one: (one[0] / one[1] if one[1] else 0, one))

    def recent(self, *, count_max: int) -> list[Delivery]:
        """The last deliveries, latest first; at high rates a sample of them."""
        with answering():
            rows = [
                row for shard in self.pending.shards for row in told(shard, count_max=count_max)
            ]
        return sorted(rows, key=lambda row: -row.at_ms)[:count_max]


def _rows(shard: Shard, shift_ms: int, wanted: Filter) -> Iterator[tuple[Place, Schedule]]:
    """Every schedule of a shard that passes, with its place; `shift_ms` as for `look`."""
    after: Place | None = None
    while True:
        found, after = look(
            shard, shift_ms=shift_ms, count_max=PAGE_COUNT_MAX, after=after, **wanted.told()
        )
        yield from found
        if after is None:
            return
