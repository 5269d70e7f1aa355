"""Runs drawn from seeds: what people do, what goes wrong, and whether every promise was kept.

python tests/simulation/simulate.py --seconds 60 --seed 7
SEED=7 TRACE=0-9,14 python tests/simulation/simulate.py     # one run of some of its events
"""

import os
import random
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import redis
from broker import TARGET, Broker
from engine import Simulation, in_place
from happenings import BUSY_MS, FAULTS, Focus, Happening, Plan, tags_of
from promises import Ledger, Loss, Version
from recurring import Recurring
from world import START_MS, Actor, Event, Process, Stuck, World

from sendlater.dialects import names
from sendlater.dialects.encode import expiry_headers
from sendlater.dialects.recurrence import make_plan
from sendlater.dialects.tags import tags_headers
from sendlater.errors import SendlaterError
from sendlater.local.redis_server import RedisServer
from sendlater.model import Expiry, Record, Schedule
from sendlater.spark.intake import watermark
from sendlater.spark.journal import rewrite as rewriting
from sendlater.store import Admin, Answer, Move, Pending, admin
from sendlater.store.conditional import Reserved, put_if, released
from sendlater.store.rebuild import JournalCopy

SETTLE_MS_MAX = 120_000
"""Longest that may take after the last due time."""
TRIGGER_MS = 8_000
"""How long a fault waits for the step it is to happen at."""
COMPACTED_AFTER_MS = 8_000
"""A journal's record may go so long after it was written, if it was followed by another."""
CATCH_UP_MS = 6_000
FULL_MS_MAX = 40_000
"""Longest that what is due may stay in a store that is full, whatever else goes wrong."""
SHRINK_S = 20.0
"""Longest search for a shorter trace."""


@dataclass
class Outcome:
    """What came of a run."""

    broken: list[str]
    trace: list[str]
    steps: int
    faults: Counter[str]
    excused: Counter[str]
    elapsed_ms: float = 0.0


class Run:
    """One plan, carried out."""

    def __init__(self, plan: Plan, real: Any) -> None:
        self.plan, self.real = plan, real
        self.settings = plan.settings()
        self.world = World(plan.seed, real, self.settings.space)
        self.broker = Broker(self.world, self.settings, plan.partitions)
        self.simulation = Simulation(self.world, self.broker, self.settings, cluster=plan.cluster)
        self.people = Process("people")
        self.pending = Pending((self.world.client,), space="sim", shards=plan.shards)
        self.ledger = Ledger(self.simulation, self.pending)
        self.faults: Counter[str] = Counter()
        self._latest_ms = 0.0
        self._creating: dict[bytes, float] = {}
        """Ids that doors have reserved to create a schedule, and since when."""
        self._full = False
        self._next_look = 0.0
        self._calm_since: float | None = None

    def out(self) -> Outcome:
        """Everything happens; then what became of it."""
        self.real.config_set("maxmemory", 0)
        self.real.flushall()
        self.real.script_flush()
        world, ledger = self.world, self.ledger
        with in_place(self.simulation), self._watched():
            for happening in self.plan.happenings:
                act = self._fault if happening.kind in FAULTS else self._deed
                world.after(happening.at_ms, partial(act, happening))
            world.after(0, lambda: self.simulation.serve())
            world.spawn("supervisor", Process("supervisor"), self._supervise)
            try:
                world.run(self._over, until_ms=BUSY_MS + SETTLE_MS_MAX)
                ledger.close()
            except Stuck as error:
                ledger._break(f"no end: {error}; {self._standing()}")
            finally:
                world.close()
        self.real.config_set("maxmemory", 0)
        return Outcome(
            ledger.broken,
            list(world.trace),
            world.steps,
            self.faults,
            ledger.excused,
            world.elapsed,
        )

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """What the service lets go although intake is behind is written down."""
        hold, ledger = watermark.Watermark._hold, self.ledger

        def watched(one: Any, bound_ms: int | None, *more: Any) -> int | None:
            result = hold(one, bound_ms, *more)
            if result is not None and result != bound_ms:
                ledger.forced_ms = max(ledger.forced_ms, result)
            return result

        ahead_ms, reserved_ms = rewriting.REWRITE_AHEAD_MS, admin.RESERVED_MS
        watermark.Watermark._hold = watched  # type: ignore[method-assign]
        rewriting.REWRITE_AHEAD_MS = COMPACTED_AFTER_MS
        admin.RESERVED_MS = CATCH_UP_MS
        try:
            yield
        finally:
            watermark.Watermark._hold = hold  # type: ignore[method-assign]
            rewriting.REWRITE_AHEAD_MS, admin.RESERVED_MS = ahead_ms, reserved_ms

    def _supervise(self) -> None:
        while True:
            self.world.pause(500)
            self.ledger.look_at_tags()
            if not any(process.alive for process in self.simulation.processes):
                self.simulation.serve()

    # --- the end ---------------------------------------------------------------------------------

    def _over(self) -> bool:
        """Nothing can happen any more, and so it was for a while."""
        now = self.world.elapsed
        if now < self._next_look:
            return False
        self._next_look = now + 500
        latest_ms = self._latest_ms - START_MS - self.world.skew_ms
        last_ms = max((one.at_ms for one in self.plan.happenings), default=0.0)
        busy_ms = max(BUSY_MS + TRIGGER_MS, last_ms + CATCH_UP_MS, latest_ms + 1_000)
        calm = now > busy_ms and not self._standing()
        self._calm_since = (self._calm_since or now) if calm else None
        return self._calm_since is not None and now - self._calm_since > 3_000

    def _standing(self) -> list[str]:
        """What must go before a run has settled."""
        left = ["in flight"] * bool(self.broker.flying) + ["full"] * self._full
        for shard in self.pending.shards:
            for name in ("due", "limits", "aside", "batches", "surplus", "overtaken"):
                if self.real.exists(shard.keys[name]):
                    left.append(f"{name} of shard {shard.number}")
            seen = self.real.hgetall(shard.keys["seen"])
            for topic in ("inbox",):
                for number, log in enumerate(self.broker.log(topic)):
                    last = max((at for at, one in enumerate(log) if one), default=-1)
                    if int(seen.get(f"{topic}/{number}".encode(), 0)) <= last:
                        left.append(f"inbox/{number} unread on shard {shard.number}")
        return left

    # --- what people do --------------------------------------------------------------------------

    def _deed(self, what: Happening) -> None:
        act = getattr(self, "_" + what.kind.replace("-", "_"))

        def body() -> None:
            try:
                act(**what.facts)
            except SendlaterError as error:
                self.world.say(f"{what.kind} fails: {error!r}"[:200])
            except redis.exceptions.RedisError as error:
                self.world.say(f"{what.kind} fails: {error!r}"[:200])

        self.world.spawn(what.kind, self.people, body)

    def _append(
        self, version: Version, headers: list[tuple[str, bytes | None]], *, stray: bool = False
    ) -> None:
        """`stray`: to the other of two partitions."""
        number = self.broker.partition(version.id) ^ stray
        self.world.say(f"writes {version.id!r} {version.due_ms} {(version.value or b'')[:12]!r}")
        self.broker.append("inbox", number, version.id, version.value, headers, version)
        others = [v for v in self.ledger.by_id[version.id] if v.place and v is not version]
        elsewhere = [v.acked_ms for v in others if v.place[1] != number]
        if version.acked_ms in elsewhere or (elsewhere and self.world.skewed):
            self.ledger.unsure[version.id] += 1  # no order

    def _schedule(self, *, id: bytes, due_in: int, topic: str, value: bytes, **facts: Any) -> None:
        due_ms = self.world.now_ms() + due_in
        self._latest_ms = max(self._latest_ms, due_ms)
        expiry = None
        if facts["expires_in"] is not None:
            since_ms = 0 if facts["after_due"] else due_ms
            expiry = Expiry(since_ms + facts["expires_in"], after_due=facts["after_due"])
        headers = [
            ("trace", b"\xff"),
            (names.DUE_MS, b"%d" % due_ms),
            (names.TARGET_TOPIC, topic.encode()),
            (names.CALLER_SERVICE, b"%d" % (facts["number"] % 3)),
            *expiry_headers(expiry),
            *tags_headers(tags_of(facts["number"])),
        ]
        once = bool(facts.get("once"))
        headers += [(names.IF, names.ONCE.encode())] if once else []
        version = Version(id, due_ms, value, topic, expiry, once=once)
        self._append(self.ledger.write(version), headers, stray=bool(facts.get("stray")))

    def _recur(self, *, id: bytes, topic: str, value: bytes, **facts: Any) -> None:
        now_ms = self.world.now_ms()
        told = {
            names.EVERY: f"{facts['every_ms']}ms",
            names.COUNT: str(facts["count"]),
            names.MISSED: facts["missed"],
            names.JITTER: f"{facts['jitter_ms']}ms",
            names.TARGET_TOPIC: topic,
        }
        end_ms = None if facts["end_in"] is None else now_ms + facts["end_in"]
        if end_ms is not None:
            end = datetime.fromtimestamp(end_ms / 1_000, UTC)
            told[names.END] = end.isoformat(timespec="milliseconds")
        plan = make_plan(
            now_ms=now_ms,
            every_ms=facts["every_ms"],
            count=facts["count"],
            missed=facts["missed"],
            jitter_ms=facts["jitter_ms"],
            end_ms=end_ms,
        )
        self._latest_ms = max(self._latest_ms, now_ms + (facts["count"] + 1) * facts["every_ms"])
        version = Version(id, plan.due_ms(id), value, topic, recurs=Recurring(plan))
        headers = [(name, text.encode()) for name, text in told.items()]
        headers += tags_headers(tags_of(facts["number"]))
        self._append(self.ledger.write(version), headers)

    def _cancel(self, *, id: bytes, stray: bool = False, **_: Any) -> None:
        self._append(self.ledger.write(Version(id, None, None)), [], stray=stray)

    def _marker(self, *, id: bytes, **_: Any) -> None:
        self.broker.log("inbox")[self.broker.partition(id)].append(None)

    def _rubbish(self, *, number: int, value: bytes, dies: bool, **_: Any) -> None:
        """What cannot be scheduled; a key of its own, as it says nothing of what stands."""
        key = None if dies and not self.plan.journal else b"rubbish-%d" % number
        version = self.ledger.write(Version(key or b"?%d" % number, self.world.now_ms(), value))
        self.broker.append("inbox", self.broker.partition(key), key, value, [], version)

    def _caught_up(self) -> dict[int, int]:
        """As Operations.catch_up: an answer of the store is not true before. The ends that intake
        has read up to, or none."""
        ends, deadline = self.broker.ends(["inbox"]), self.world.elapsed + CATCH_UP_MS
        while self.world.elapsed < deadline:
            if self._has_read(ends["inbox"]):
                return ends["inbox"]
            self.world.pause(100)
        return {}

    def _has_read(self, ends: dict[int, int]) -> bool:
        at = self.pending.positions()
        return all(at.get(f"inbox/{n}", 0) >= end for n, end in ends.items())

    def _expired(self, version: Version) -> bool:
        return version.expires_ms is not None and version.expires_ms < self.world.now_ms()

    def _door_get(self, *, id: bytes, **_: Any) -> None:
        versions = [v for v in self.ledger.by_id[id] if v.place is not None]
        if not (ends := self._caught_up()) or self.plan.horizon or self.ledger.losses:
            return
        was_aside = self._is_aside(id)
        found = self.pending.get(id)
        if found is None and not self._has_read(ends):
            return  # see Intake.require
        if found is None and was_aside and self._is_aside(id):
            self.ledger._break(f"a door does not see {id!r}, which is set aside")
        newest = max(versions, key=lambda one: one.place, default=None)
        if newest is not None and newest.recurs:
            if found is None and self.ledger.is_owed(newest) and not newest.recurs.ended:
                self.ledger._break(f"a door does not see {id!r}, which comes again")
            return
        if newest is None or newest.target != "out" or newest.handed_at or newest.arrivals:
            return
        if found is None and self.ledger.is_owed(newest) and not self._expired(newest):
            self.ledger._break(f"a door does not see {id!r}")

    def _is_aside(self, id: bytes) -> bool:
        return bool(self.real.hexists(self.pending.shard_of(id).keys["aside"], id))

    def _door_cancel(self, *, id: bytes, dies: bool, **_: Any) -> None:
        known = [v for v in self.ledger.by_id[id] if v.place is not None]
        if not self._caught_up():
            return
        losses = len(self.ledger.losses)
        found = self.pending.get(id)
        self.ledger.unsure[id] += 1  # until the inbox knows
        change = f"cancel-{id.decode()}-{int(self.world.elapsed)}"
        answer = Admin(self.pending).cancel(
            id, version=found.version if found else "", change=change
        )
        if answer is Answer.DELIVERING and found is not None and found.plan:
            # As Operations.cancel_many: it comes again, and that is what it ends.
            self.pending.shard_of(id).park([id, "", ""])
            answer = Answer.CANCELLED
        self._look_for_loss(id, losses)
        if answer is Answer.CANCELLED:
            self._look_for_creator(id)
            if found is not None:  # or it was parked only after this door had looked
                self.ledger.taken_back.append(
                    (self.world.elapsed, id, found.due_ms, found.record.value, dies)
                )
            if dies:
                return
            self.world.pause(self.world.rng.random() * 20)
            if any(v.place is not None and v not in known for v in self.ledger.by_id[id]):
                # Written since the door looked: it stays, although this copy comes behind it.
                self.ledger.unsure[id] += 1
            copy = self.ledger.write(Version(id, None, None))
            self._append(copy, [(names.CHANGE, change.encode())])
        alone = self.ledger.unsure[id] == 1 and not self.ledger.losses
        if answer is Answer.UNKNOWN and found is not None and found == self.pending.get(id):
            self.ledger._break(f"a door does not take back {id!r}, which is there")
        if answer is Answer.UNKNOWN and found is not None and alone and not found.plan:
            for version in self.ledger.by_value[found.record.value]:
                # What its target has refused, or what has expired, waits as a rejected record.
                same = version.id == id and version.due_ms == found.due_ms
                same = same and version.target == TARGET and not self._expired(version)
                if same and not version.handed_at and not self.ledger._newer(version):
                    self.ledger._break(f"a door does not take back {id!r}")
        self.ledger.unsure[id] -= 1

    def _look_for_loss(self, id: bytes, before: int) -> None:
        """A store that went back after the door had waited for intake, and before it was asked, has
        changed an older version; the door answers that it does not know (see Intake.require)."""
        if len(self.ledger.losses) > before:
            self.ledger.unsure[id] += 1

    def _door_move(self, *, id: bytes, due_in: int, dies: bool, change: str, **_: Any) -> None:
        known = [v for v in self.ledger.by_id[id] if v.place is not None]
        if not self._caught_up():
            return
        found = self.pending.get(id)
        if found is not None and found.plan:
            return
        losses = len(self.ledger.losses)
        due_ms = self.world.now_ms() + max(0, due_in)
        self.ledger.unsure[id] += 1
        version = self.ledger.write(Version(id, due_ms, None))
        _, after = Admin(self.pending).move(Move(id, due_ms, "", change))
        self._look_for_loss(id, losses)
        if after is not None:
            self._look_for_creator(id)
            self._latest_ms = max(self._latest_ms, due_ms)
            if after.plan:
                # What came again has taken its place: as if this door had died.
                self.ledger.by_id[id].remove(version)
                self.ledger.unsure[id] += 1
                return
            version.value, version.expiry = after.record.value, after.expiry
            self.ledger.by_value[version.value].append(version)
            if dies:
                return
            self.world.pause(self.world.rng.random() * 20)
            if any(v.place is not None and v not in known for v in self.ledger.by_id[id]):
                # Written since the door looked: the copy of an older version comes behind it.
                self.ledger.unsure[id] += 1
            headers = [
                *after.record.headers,
                (names.DUE_MS, b"%d" % due_ms),
                (names.TARGET_TOPIC, after.record.topic.encode()),
                (names.CHANGE, change.encode()),
                *expiry_headers(after.expiry),
                *tags_headers(after.tags),
            ]
            self._append(version, headers)  # type: ignore[arg-type]
        else:
            self.ledger.by_id[id].remove(version)
        self.ledger.unsure[id] -= 1

    def _door_create(
        self,
        *,
        id: bytes,
        due_in: int,
        topic: str,
        value: bytes,
        dies: bool,
        only_if: str,
        number: int,
        **_: Any,
    ) -> None:
        if self.plan.horizon or not self._caught_up():
            return
        due_ms = self.world.now_ms() + due_in
        tags, record = tags_of(number), Record(topic=topic, value=value)
        one = Schedule(id=id, due_ms=due_ms, record=record, tags=tags)
        try:
            held, _ = put_if(self.pending, one, only_if=only_if, reserve_ms=CATCH_UP_MS)
        except Reserved:
            return
        if held:
            self._creating[id] = self.world.elapsed
        if not held or dies:
            return
        self._latest_ms = max(self._latest_ms, due_ms)
        headers = [
            (names.DUE_MS, b"%d" % due_ms),
            (names.TARGET_TOPIC, topic.encode()),
            *tags_headers(tags),
        ]
        self._append(self.ledger.write(Version(id, due_ms, value, topic)), headers)  # type: ignore[arg-type]
        if self._caught_up():
            self._creating.pop(id, None)
            released(self.pending, id)

    def _look_for_creator(self, id: bytes) -> None:
        """A door has changed what another door has decided to replace: both have succeeded."""
        since = self._creating.get(id)
        if since is None or self.world.elapsed - since > CATCH_UP_MS / 2:
            return
        # A store that went back has lost the reservation; a clock was put forward past its end.
        if not (self.ledger.losses or self.world.skewed or self.world.skew_ms):
            self.ledger._break(f"changed {id!r}, which another door was replacing")

    # --- what goes wrong -------------------------------------------------------------------------

    def _fault(self, what: Happening) -> None:
        """Now, or at the step it waits for."""
        facts, act = what.facts, getattr(self, "_do_" + what.kind.replace("-", "_"))
        if not facts["on"]:
            self._done(what, act(what, None))
            return
        left = [facts["skip"]]
        until = self.world.elapsed + TRIGGER_MS

        def watcher(when: str, verb: str, _args: Any, answer: Any) -> None:
            # "claimed" is a claim that found something, and not what came before it.
            claimed = verb == "claim" and isinstance(answer, list) and facts["on"] == "claimed"
            if self.world.elapsed > until:
                self.world.watchers.remove(watcher)
            elif claimed or (when == facts["when"] and verb == facts["on"]):
                if self.world.current.process is self.people:
                    return
                left[0] -= 1
                if left[0] < 0:
                    self.world.watchers.remove(watcher)
                    self._done(what, act(what, self.world.current))

        self.world.watchers.append(watcher)

    def _done(self, what: Happening, done: Any) -> None:
        if done is not False:
            self.faults[what.kind] += 1
            self.world.say(f"FAULT {what}")

    def _some_process(self, what: Happening, actor: Actor | None) -> Process | None:
        if actor is not None:
            return actor.process
        alive = [process for process in self.simulation.processes if process.alive]
        return alive[what.facts["pick"] % len(alive)] if alive else None

    def _some_task(self, what: Happening, actor: Actor | None) -> Actor | None:
        if actor is not None and actor.task is not None:
            return actor
        tasks = [a for a in self.world.actors if a.task and not (a.done or a.dead)]
        return tasks[what.facts["pick"] % len(tasks)] if tasks else None

    def _do_kill(self, what: Happening, actor: Actor | None) -> bool:
        process = self._some_process(what, actor)
        if process is None:
            return False
        self.world.kill(process)
        return True

    def _do_freeze(self, what: Happening, actor: Actor | None) -> bool:
        process = self._some_process(what, actor)
        if process is None:
            return False
        self.world.freeze(process, what.facts["ms"])
        self.ledger.slept = True
        if what.facts["another"]:
            self.world.after(100, lambda: self.simulation.serve())
        return True

    def _do_task_dies(self, what: Happening, actor: Actor | None) -> bool:
        task = self._some_task(what, actor)
        if task is not None:
            task.kill()
        return task is not None

    def _do_task_sleeps(self, what: Happening, actor: Actor | None) -> bool:
        task = self._some_task(what, actor)
        if task is None:
            return False
        task.asleep_until = self.world.elapsed + what.facts["ms"]
        self.ledger.slept = True
        # A cluster gives up an executor it does not hear from; what that one sends may arrive.
        task.zombie = self.plan.cluster
        task.lost = what.facts["another"]
        return True

    def _do_speculate(self, what: Happening, actor: Actor | None) -> bool:
        task = self._some_task(what, actor)
        if task is None or not self.plan.cluster or task.task.over:
            return False
        task.task.begin()
        return True

    def _do_answer_lost(self, what: Happening, actor: Actor | None) -> bool:
        if actor is None:
            return False
        self._done(what, True)
        raise redis.exceptions.ConnectionError("simulated: the answer is lost")

    def _do_store_away(self, what: Happening, actor: Actor | None) -> None:
        self.world.away_until = self.world.elapsed + what.facts["ms"]

    def _do_store_goes_back(self, what: Happening, actor: Actor | None) -> None:
        """What is written in the next steps will be lost."""
        snapshot, since = self.world.snapshot(), self.world.elapsed
        last = self.world.steps + what.facts["steps"]
        shard = what.facts["pick"] % self.plan.shards if what.facts["one_shard"] else None

        def watcher(when: str, *_: Any) -> None:
            if when == "after" and self.world.steps >= last:
                self.world.watchers.remove(watcher)
                if what.kind == "power-cut":
                    for process in self.simulation.processes:
                        self.world.kill(process)
                self._lose(lambda: self.world.restore(snapshot, shard), since, shard)

        self.world.watchers.append(watcher)

    _do_power_cut = _do_store_goes_back
    """Services die in the same moment, and their producers with them."""

    def _do_store_emptied(self, what: Happening, actor: Actor | None) -> None:
        shard = what.facts["pick"] % self.plan.shards if what.facts["one_shard"] else None
        if what.facts["another"]:
            self._lose(lambda: self.world.restore({}, shard), -1.0, shard)
        else:
            prefix = "*" if shard is None else f"{{sim:{shard}}}:*"
            self._lose(lambda: self.real.delete(*self.real.keys(prefix), "none"), -1.0, shard)

    def _lose(self, do: Callable[[], Any], since: float, shard: int | None) -> None:
        limit = self.real.config_get("maxmemory")["maxmemory"]
        self.real.config_set("maxmemory", 0)
        do()
        self.real.config_set("maxmemory", limit)
        self.ledger.losses.append(Loss(since, self.world.elapsed, shard))
        self.world.say(f"the store is as it was at {since:.1f}, shard {shard}")

    def _do_store_full(self, what: Happening, actor: Actor | None) -> None:
        """Nothing more fits in until what was due has left, and that must come to pass."""
        began = self.world.elapsed
        # A start on a journal waits for intake by itself, and then for what the inboxes hold.
        longest_ms = FULL_MS_MAX * (2 if self.plan.journal else 1)

        def look() -> None:
            late_ms = self.world.now_ms() - 1_000
            due = [shard.keys["due"] for shard in self.pending.shards]
            left = any(self.real.zcount(key, 0, late_ms) for key in due)
            full_ms = self.world.elapsed - began
            if left and full_ms > longest_ms:
                if self.plan.journal and not all(
                    self.real.hexists(shard.keys["state"], "journals")
                    for shard in self.pending.shards
                ):
                    # It is being filled from its journals, and that takes room.
                    self.ledger.excused["rebuilt into a full store"] += 1
                else:
                    self.ledger._break("nothing leaves a store that is full")
            if full_ms > what.facts["ms"] and (not left or full_ms > longest_ms):
                self._full = False
                self.real.config_set("maxmemory", 0)
            else:
                self.world.after(500, look)

        self._full = True
        self.real.config_set("maxmemory", 1)
        look()

    def _do_second_service(self, what: Happening, actor: Actor | None) -> None:
        for _ in range(2 if what.facts["another"] else 1):
            self.world.after(0, lambda: self.simulation.serve())

    def _do_handover(self, what: Happening, actor: Actor | None) -> None:
        self.world.after(0, lambda: self.simulation.serve(take_over=True))

    def _do_clock_steps(self, what: Happening, actor: Actor | None) -> None:
        self.world.skew_ms += what.facts["by_ms"]
        if what.facts["by_ms"] < 0:
            self.world.skewed.append(self.world.elapsed)

    def _do_intake_stuck(self, what: Happening, actor: Actor | None) -> None:
        for one in self.world.actors:
            if "intake" in one.name and not one.done:
                one.asleep_until = self.world.elapsed + what.facts["ms"]

    def _do_stop(self, what: Happening, actor: Actor | None) -> bool:
        process = self._some_process(what, actor)
        stop: Event | None = getattr(process, "stop", None)
        if stop is None:
            return False
        stop.set()
        return True

    def _do_forget(self, what: Happening, actor: Actor | None) -> bool:
        if not self.plan.journal:
            return False
        # Somebody asks for a rebuild: what only the store knew, as of a door that died, is gone.
        self.ledger.rebuilt = True
        self.world.spawn("rebuild", self.people, JournalCopy(self.pending, owner=0).forget)
        return True

    def _do_overtaken(self, what: Happening, actor: Actor | None) -> bool:
        """Somebody changes what was just claimed, and its task may not live to deliver it."""
        claimed = sorted(
            id
            for shard in self.pending.shards
            for name in self.real.hkeys(shard.keys["batches"])
            for id in self.real.hkeys(f"{shard.keys['batches']}:{name.decode()}")
            if id in self.ledger.by_id  # and not a place of a record that nobody named
        )
        if not claimed:
            return False
        number = 8_000 + self.faults["overtaken"]
        facts = {
            "id": claimed[what.facts["pick"] % len(claimed)],
            "topic": "out",
            "due_in": what.facts["ms"],
            "value": b"%d." % number,
            "number": number,
            "expires_in": None,
            "after_due": False,
        }
        kind = "cancel" if what.facts["another"] else "schedule"
        self._deed(Happening(self.world.elapsed, kind, facts))
        if actor is not None and actor.task is not None and what.facts["pick"] % 2:
            actor.kill()
        return True

    def _do_broker_away(self, what: Happening, actor: Actor | None) -> None:
        # Not longer than what is under way may take: see LATE_MS_MAX.
        self.broker.away_until = self.world.elapsed + min(what.facts["ms"], 300)

    def _do_compact(self, what: Happening, actor: Actor | None) -> None:
        self.broker.compact(self.world.now_ms() - COMPACTED_AFTER_MS)


@contextmanager
def store() -> Iterator[Any]:
    """A Redis for runs, that writes nothing to disk and keeps hashes in the order of writing."""
    with tempfile.TemporaryDirectory() as directory, RedisServer(Path(directory)) as server:
        client = redis.Redis.from_url(server.url)
        for name, value in {
            "appendonly": "no",
            "hash-max-ziplist-entries": 1_000_000,
            "hash-max-ziplist-value": 100_000_000,
        }.items():
            client.config_set(name, value)
        # Who asks and who answers take turns: on one core each wakes the other at once.
        cores = os.sched_getaffinity(0)
        for process in (0, client.info("server")["process_id"]):
            os.sched_setaffinity(process, {max(cores)})
        yield client
        os.sched_setaffinity(0, cores)


def run(plan: Plan, real: Any, kept: Sequence[int] | None = None) -> Outcome:
    """A plan, or some of its happenings."""
    if kept is not None:
        chosen = tuple(plan.happenings[n] for n in kept)
        plan = Plan(**{**plan.__dict__, "happenings": chosen})
    return Run(plan, real).out()


def shortened(plan: Plan, real: Any, kept: list[int], *, within_s: float) -> list[int]:
    """Fewer happenings that still break a promise."""
    deadline, size = time.monotonic() + within_s, max(1, len(kept) // 2)
    while size and time.monotonic() < deadline:
        first = 0
        while first < len(kept) and time.monotonic() < deadline:
            fewer = kept[:first] + kept[first + size :]
            if run(plan, real, fewer).broken:
                kept = fewer
            else:
                first += size
        size //= 2
    return kept


def written(numbers: Sequence[int]) -> str:
    """0-3,7"""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def read(text: str) -> list[int]:
    """What `written` wrote."""
    ends = [part.partition("-") for part in text.split(",") if part]
    return [n for a, _, b in ends for n in range(int(a), int(b or a) + 1)]


def search(
    seed: int,
    real: Any,
    *,
    seconds: float,
    focus: Focus | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[int, Outcome] | None:
    """Runs from `seed` on, until one breaks a promise or the time is over."""
    began = time.monotonic()
    steps = runs = 0
    happened: Counter[str] = Counter()
    excused: Counter[str] = Counter()
    found = None
    while time.monotonic() - began < seconds and found is None:
        outcome = run(Plan.drawn(seed + runs, focus), real)
        steps, runs = steps + outcome.steps, runs + 1
        happened.update(outcome.faults)
        excused.update(outcome.excused)
        if outcome.broken:
            found = (seed + runs - 1, outcome)
    took_s = time.monotonic() - began
    say(f"{runs} runs, {steps} steps, {steps / took_s:.0f} steps/s, {took_s:.0f} s")
    say("faults: " + ", ".join(f"{kind} {n}" for kind, n in sorted(happened.items())))
    say("excused: " + (", ".join(f"{kind} {n}" for kind, n in excused.items()) or "nothing"))
    return found


def main() -> int:
    """From the command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", default=os.environ.get("SEED", ""))
    parser.add_argument("--trace", default=os.environ.get("TRACE", ""))
    given = parser.parse_args()
    seed = int(given.seed) if given.seed else random.SystemRandom().randrange(10**9)
    say = partial(print, flush=True)
    say(f"SEED={seed}")
    with store() as real:
        if given.trace:
            outcome = run(Plan.drawn(seed), real, read(given.trace))
            say("\n".join([*outcome.trace, *(outcome.broken or ["every promise was kept"])]))
            return bool(outcome.broken)
        found = search(seed, real, seconds=given.seconds, say=say)
        if found is None:
            return 0
        failed, outcome = found
        say(f"SEED={failed}: " + "\n  ".join(outcome.broken))
        plan = Plan.drawn(failed)
        kept = shortened(plan, real, list(range(len(plan.happenings))), within_s=SHRINK_S)
        again = run(plan, real, kept)
        say("\n".join(str(plan.happenings[n])[:200] for n in kept))
        say("\n".join([*again.trace[-100:], *again.broken]))
        say(f"again: make simulate SEED={failed} TRACE={written(kept)}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
