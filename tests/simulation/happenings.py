"""What happens in a run, drawn from its seed."""

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sendlater.config import Settings, load

BUSY_MS = 15_000
"""Schedules are written and things go wrong for so long; then all must settle."""

VERBS = (
    *("claim", "attempt", "close", "tell", "aside", "readmit", "park", "settle"),
    *("release", "settle_some", "begin", "fence", "bound", "mark", "hgetall", "plan", "horizon"),
    *("complete", "remove", "cancel", "move", "expire", "recur", "renew", "reserve", "unlimit"),
    *("heir", "inherit"),
)
FAULTS = (
    *("kill", "freeze", "task-dies", "task-sleeps", "speculate", "answer-lost", "store-away"),
    *("store-goes-back", "store-emptied", "store-full", "second-service", "clock-steps"),
    *("intake-stuck", "stop", "forget", "broker-away", "compact", "overtaken", "power-cut"),
    "handover",
)
SMALL = ("task-dies", "task-sleeps", "speculate", "answer-lost", "overtaken")
"""Faults of a single task: many of them fit into a run."""
DEEDS = ("schedule", "cancel", "door-cancel", "door-move", "door-get", "marker", "rubbish")
STRAYS_SHARE = 0.4
"""Of the runs with two partitions, those in which some ids are on both."""
BUSY_STEPS = (
    "claimed",
    "claimed",
    "claim",
    "attempt",
    "close",
    "tell",
    "park",
    "settle",
)


@dataclass(frozen=True)
class Happening:
    """One thing that somebody does, or that goes wrong, at an instant of the run."""

    at_ms: float
    kind: str
    facts: dict[str, Any] = field(hash=False)

    def __str__(self) -> str:
        return f"{self.at_ms:9.1f} {self.kind} {self.facts}"


@dataclass(frozen=True)
class Plan:
    """A run: its settings and everything that happens to it."""

    seed: int
    journal: bool
    shards: int
    partitions: int
    cluster: bool
    horizon: str
    per_second: float
    """The limit of the usual target; 0: none."""
    happenings: tuple[Happening, ...]

    @classmethod
    def drawn(cls, seed: int, focus: "Focus | None" = None) -> "Plan":
        """The run of a seed."""
        faults = FAULTS if focus is None else focus.faults
        rng = random.Random(f"plan {seed}")
        journal = rng.random() < 0.5
        ids = [_id(rng, n) for n in range(rng.choice((6, 12, 25)))]
        found = [_deed(rng, ids, n) for n in range(rng.choice((25, 50)))]
        found += [_second_thought(rng, one) for one in found if rng.random() < 0.4]
        creating = random.Random(f"create {seed}")  # what else happens stays the same
        created = [_creation(creating, one) for one in found if creating.random() < 0.2]
        recurring = random.Random(f"recur {seed}")
        again = [_recurrence(recurring, ids, n) for n in range(recurring.choice((0, 1, 3, 6)))]
        again += [_second_thought(recurring, one) for one in again if recurring.random() < 0.4]
        if not journal:  # on a journal, test_conditions_journal does it
            retrying = random.Random(f"retry {seed}")
            again += [one for n in range(retrying.choice((0, 1, 4))) for one in _retry(retrying, n)]
        kinds = rng.sample(faults, min(len(faults), rng.choice((1, 2, 3, 5))))
        count = rng.choice((0, 1, 2, 3, 4, 6, 9)) if faults else 0
        if set(kinds) <= set(SMALL):
            count *= 4
        found += [_fault(rng, rng.choice(kinds)) for _ in range(count)]
        sizes = rng.choice((1, 2)), rng.choice((1, 2)), rng.random() < 0.5
        horizon = "6s" if journal and rng.random() < 0.3 else ""
        happenings = sorted(found + created + again, key=lambda one: one.at_ms)
        straying = random.Random(f"stray {seed}")
        share = STRAYS_SHARE if focus is None else float(focus.strays)
        if sizes[1] == 2 and straying.random() < share:
            happenings = list(_strayed(straying, happenings, ids))
        plan = cls(
            seed,
            journal,
            *sizes,
            horizon,
            random.Random(f"limit {seed}").choice((0, 0, 4, 20)),
            tuple(happenings),
        )
        return plan if focus is None else focus.on(plan)

    @property
    def limit(self) -> dict[str, Any]:
        """With few messages at once, so that most of them wait."""
        return {"per_second": self.per_second, "burst": 3, "weights": {"0": 5}}

    def settings(self) -> Settings:
        """Short times, so that a run of half a minute sees everything."""
        return load(
            space="sim",
            bootstrap_servers="simulated:9092",
            inboxes=({"topic": "inbox", "journal": self.journal},),
            history_topic="",
            limits={"out": self.limit} if self.per_second else {},
            horizon=self.horizon or None,
            shards=self.shards,
            window_ms=1_000,
            idle_window_ms=2_000,
            poll_ms=20,
            standby_poll_ms=50,
            lease_ms=1_500,
            margin_ms=2_000,
            hold_ms_max=8_000,
            recovery_pause_ms=1_000,
            restart_delay_ms_max=2_000,
            stop_timeout_ms=5_000,
            data_dir=Path(tempfile.gettempdir()),
        )


def _id(rng: random.Random, number: int) -> bytes:
    strange = (b"\x00%d", b"a|%d|b", b"%d:1:2", b"\xff\xfe%d", b"inbox/%d/7", b"-inf%d", b"(%d")
    if rng.random() < 0.3:
        return rng.choice(strange) % number
    return b"x" * 500 + b"%d" % number if rng.random() < 0.05 else b"id-%d" % number


def tags_of(number: int) -> tuple[str, ...]:
    """Some have none, and some share one."""
    return ((), (f"order-{number % 4}",), (f"order-{number % 4}", "mail"))[number % 3]


def _deed(rng: random.Random, ids: Sequence[bytes], number: int) -> Happening:
    at_ms = rng.random() * BUSY_MS
    kind = rng.choices(DEEDS, (70, 5, 5, 5, 3, 4, 4))[0]
    due_in = rng.choice((-1_000, 0, 300, 1_500, 2_500, 4_000, 8_000))
    topic = rng.choices(("out", "small", "slow-2", "slow-5", "no-1"), (80, 5, 6, 5, 4))[0]
    facts = {
        "id": rng.choice(ids),
        "due_in": due_in + rng.randrange(1_000),
        "topic": topic,
        "value": b"%d." % number + b"v" * rng.choice((0, 3, 100, 300, 20_000 if number % 9 else 3)),
        "dies": rng.random() < 0.1,
        "change": rng.choice(("c%d", "c|%d", "|%d", "c%d|")) % number,
        "number": number,
        "expires_in": rng.choice((None, None, None, 0, 400, 3_000)),
        "after_due": rng.random() < 0.5,
    }
    return Happening(at_ms, kind, facts)


def _creation(rng: random.Random, first: Happening) -> Happening:
    """Somebody creates it under a condition, some time before or after."""
    at_ms = first.at_ms + rng.choice((-2_000, -100, 5, 50, 800, 3_000))
    number = first.facts["number"] + 2_000
    changed = {
        "due_in": rng.choice((0, 300, 2_500, 8_000)) + rng.randrange(1_000),
        "value": b"%d." % number + b"v" * rng.choice((0, 3, 300)),
        "dies": rng.random() < 0.1,
        "only_if": rng.choice(("absent", "earlier", "later")),
        "number": number,
    }
    return Happening(max(0.0, at_ms), "door-create", {**first.facts, **changed})


def _recurrence(rng: random.Random, ids: Sequence[bytes], number: int) -> Happening:
    """Something that comes again, for long enough that what goes wrong meets it."""
    own = b"every-%d" % number
    number += 4_000
    every_ms = rng.choice((1_000, 1_500, 3_000))
    count = rng.choice((1, 2, 4, 8))
    facts = {
        "id": own if rng.random() < 0.8 else rng.choice([i for i in ids if len(i) < 400] or [own]),
        "due_in": every_ms,
        "topic": rng.choices(("out", "slow-2", "slow-5", "no-1"), (80, 10, 5, 5))[0],
        "value": b"%d." % number + b"v" * rng.choice((0, 3, 300)),
        "dies": rng.random() < 0.1,
        "change": f"r{number}",
        "number": number,
        "expires_in": None,
        "after_due": False,
        "every_ms": every_ms,
        "count": count,
        "missed": rng.choice(("one", "one", "all", "none")),
        "jitter_ms": rng.choice((0, 0, 700)),
        "end_in": rng.choice((None, None, 5_000, 12_000)),
    }
    return Happening(rng.random() * BUSY_MS * 0.7, "recur", facts)


def _retry(rng: random.Random, number: int) -> Iterator[Happening]:
    """A retry that is asked for, and again by a consumer that died before it committed."""
    at_ms, id = rng.random() * BUSY_MS * 0.7, b"retry-%d" % number
    for n in range(rng.choice((1, 2, 3))):
        facts = {
            "id": id,
            "due_in": rng.choice((0, 500, 3_000)),
            "topic": rng.choice(("out", "out", "slow-2")),
            "value": b"%d." % (6_000 + 10 * number + n),
            "number": 6_000 + 10 * number + n,
            "expires_in": None,
            "once": True,
        }
        yield Happening(at_ms, "schedule", facts)
        at_ms += rng.choice((5, 500, 2_000, 5_000))


def _second_thought(rng: random.Random, first: Happening) -> Happening:
    """Somebody changes it around the time when it is due."""
    at_ms = first.at_ms + max(0, first.facts["due_in"]) + rng.choice((-2_100, -300, 5, 50, 800))
    kind = rng.choice(("cancel", "schedule", "door-cancel", "door-move", "door-get"))
    number = first.facts["number"] + 1_000
    changed = {"value": b"%d." % number, "change": f"d{number}".encode(), "number": number}
    return Happening(max(first.at_ms + 1, at_ms), kind, {**first.facts, **changed})


def _strayed(
    rng: random.Random, happenings: Sequence[Happening], ids: Sequence[bytes]
) -> Iterator[Happening]:
    """Some ids are on both partitions, as of producers with different partitioners. Through doors,
    and under conditions, those are not written."""
    strays = {id for id in ids if rng.random() < 0.5}
    for one in happenings:
        if one.facts.get("id") not in strays or one.kind == "rubbish":
            yield one
        elif one.kind in ("schedule", "cancel") and not one.facts.get("once"):
            yield replace(one, facts=one.facts | {"stray": rng.random() < 0.5})


def _fault(rng: random.Random, kind: str) -> Happening:
    facts = {
        "on": rng.choice(rng.choice((("",), BUSY_STEPS, BUSY_STEPS, VERBS))),
        "when": rng.choice(("before", "after")),
        "skip": rng.choice((0, 0, 0, 1, 2, 5, 20)),
        "pick": rng.randrange(1_000),
        "ms": rng.choice((100, 300, 800, 1_500, 4_000, 7_000, 12_000)),
        "steps": rng.choice((1, 2, 4, 8, 16, 40, 100, 300)),
        "one_shard": rng.random() < 0.3,
        "another": rng.random() < 0.5,
        "by_ms": rng.choice((-5_000, -500, 500, 5_000)),
    }
    if kind == "overtaken":
        facts["on"] = "claimed"  # nothing is in a batch for long
    return Happening(rng.random() * BUSY_MS, kind, facts)


@dataclass(frozen=True)
class Focus:
    """What a search looks at more than at the rest, so that it finds it soon."""

    faults: Sequence[str] = FAULTS
    steps: Sequence[str] = ()
    """Where every other fault happens, such as `before claim`."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Of every fault."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Of every run."""
    deeds: Sequence[str] = ()
    """What people do every other time, instead of anything else."""
    topics: Sequence[str] = ()
    """Where every other schedule goes."""
    recurring: Mapping[str, Any] = field(default_factory=dict)
    """Of everything that recurs."""
    strays: bool = False
    """Whether ids are on two partitions."""
    since_ms: float = 0
    """When the first fault may happen."""

    def on(self, plan: Plan) -> Plan:
        """The same run, with more of what is looked at."""
        rng = random.Random(f"focus {plan.seed}")
        changed = (self._changed(one, rng) for one in plan.happenings)
        happenings = tuple(sorted(changed, key=lambda one: one.at_ms))
        return replace(plan, **self.plan, happenings=happenings)

    def _changed(self, one: Happening, rng: random.Random) -> Happening:
        facts, kind, at_ms = dict(one.facts), one.kind, one.at_ms
        if kind in FAULTS:
            facts.update(self.facts)
            at_ms = self.since_ms + at_ms * (1 - self.since_ms / BUSY_MS)
            if self.steps and rng.random() < 0.5:
                facts["when"], _, facts["on"] = rng.choice(self.steps).partition(" ")
                facts["skip"] = rng.choice((0, 0, 1, 2))
        elif kind in DEEDS and not facts.get("once"):
            if self.deeds and rng.random() < 0.5:
                kind = rng.choice(self.deeds)
            if self.topics and rng.random() < 0.5:
                facts["topic"] = rng.choice(self.topics)
        elif kind == "recur":
            facts.update(self.recurring)
        return replace(one, at_ms=at_ms, kind=kind, facts=facts)
