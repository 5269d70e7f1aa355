"""The simulation finds each fault of a list when its mend is taken out.

Where two checks stand behind each other, taking out one breaks no promise: the contract tests look
at each by itself (test_crash_orders).
"""

import inspect
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import simulate
from happenings import BUSY_MS, Focus
from world import substituted

from sendlater.service import service
from sendlater.spark.delivery import arrived, expired
from sendlater.spark.delivery.claim_task import ShardTask
from sendlater.spark.delivery.prefetched import Prefetched
from sendlater.spark.intake import park_task
from sendlater.spark.journal.rebuild import Filling
from sendlater.store import scripts, shard

LUA = Path(scripts.__file__).parent / "lua"
FOUND_WITHIN_S = 60.0
QUICK = (
    "release brings back what was cancelled",
    "claims before it is due",
    "what is claimed keeps its place among those with its tags",
)
"""What CI looks for; `make mutants` looks for all."""

Patch = Callable[[Path], Any]


def lua(name: str, old: str, new: str) -> Patch:
    """A script with one place changed."""

    @contextmanager
    def patched(directory: Path) -> Iterator[None]:
        path = directory / "lua" / f"{name}.lua"
        path.write_text(_replaced(path.read_text(), old, new))
        yield

    return patched


def python(function: Any, old: str, new: str) -> Patch:
    """A function with one place changed."""

    @contextmanager
    def patched(_: Path) -> Iterator[None]:
        text = _replaced(textwrap.dedent(inspect.getsource(function)), old, new)
        made = dict(function.__globals__)
        exec(text, made)
        before = function.__code__
        function.__code__ = made[function.__name__].__code__
        try:
            yield
        finally:
            function.__code__ = before

    return patched


def _replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"found {text.count(old)} times: {old}"
    return text.replace(old, new)


@contextmanager
def mutated(patches: tuple[Patch, ...], directory: Path) -> Iterator[None]:
    """Patches in force; scripts are loaded from a copy."""
    shutil.copytree(LUA, directory / "lua")
    sources = SimpleNamespace(files=lambda _: directory)
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch(directory))
        stack.enter_context(substituted([(scripts, "resources", sources)]))
        for cache in (scripts.script, scripts._armed):
            cache.cache_clear()
            stack.callback(cache.cache_clear)
        yield


QUIET = Focus(faults=())
LATE = Focus(faults=("overtaken",))
AHEAD = Focus(faults=(), plan={"journal": False, "per_second": 0})
ALIVE = Focus(faults=("kill", "task-dies", "freeze"))
RECURRING = Focus(
    faults=("kill", "freeze"),
    recurring={"every_ms": 1_000, "due_in": 1_000, "jitter_ms": 0, "count": 8},
)
AGAIN = Focus(faults=("task-sleeps", "speculate", "task-dies"), plan={"cluster": True})
RETRIED = Focus(faults=("task-dies",), plan={"cluster": False})
SLEEPERS = Focus(
    faults=("task-sleeps", "answer-lost"),
    steps=("before attempt", "before claim"),
    facts={"ms": 7_000, "another": True},
    plan={"cluster": True},
)
TAKEN_OUT = Focus(
    faults=("task-sleeps",),
    steps=("before aside",),
    facts={"ms": 700, "another": True},
    plan={"cluster": True},
    topics=[f"slow-{n}" for n in range(1, 9)],
)
POWER = Focus(
    faults=("power-cut",),
    steps=("after claimed",),
    facts={"steps": 40, "one_shard": False},
    plan={"journal": True, "shards": 1, "horizon": ""},
)
ONE_JOURNAL = {"journal": True, "shards": 1, "partitions": 1, "horizon": ""}
STORE = Focus(faults=("store-goes-back",), facts={"steps": 40, "one_shard": False})
AT_THE_END = Focus(
    faults=("store-goes-back",),
    steps=("after park",),
    facts={"steps": 40, "one_shard": False},
    plan={"journal": True, "shards": 1},
    since_ms=BUSY_MS * 0.8,
    recurring={"count": 1},
)
AT_A_CLAIM = Focus(
    faults=("store-goes-back",),
    steps=("before claimed",),
    facts={"steps": 300, "one_shard": False},
    plan={"journal": True, "shards": 1},
    recurring={"every_ms": 1_000, "due_in": 1_000, "jitter_ms": 0, "count": 8},
)
ONE_SHARD = Focus(faults=("store-emptied",), plan={"shards": 2}, facts={"one_shard": True})
OWNERS = Focus(
    faults=("freeze",),
    steps=("before fence", "after fence"),
    facts={"ms": 4_000, "another": True},
)
DOORS = Focus(faults=(), deeds=("door-cancel", "door-move", "door-get", "schedule"))
ASIDE = replace(
    DOORS,
    deeds=("cancel", *DOORS.deeds),
    topics=[f"slow-{n}" for n in range(1, 9)],
)
HORIZON = Focus(
    faults=("freeze",),
    steps=("before plan",),
    facts={"ms": 1_500, "another": True},
    plan={"journal": True, "horizon": "6s", "shards": 1},
    deeds=("cancel",),
)
STRAYS = Focus(
    faults=("intake-stuck", "store-emptied", "store-goes-back", "power-cut"),
    deeds=("schedule", "cancel"),
    strays=True,
)
LIMITED = Focus(faults=(), plan={"per_second": 1})

MUTANTS: dict[str, tuple[Focus, tuple[Patch, ...]]] = {
    "what has expired is delivered": (
        Focus(faults=("intake-stuck",)),
        (python(expired.has_expired, "schedule.expires_ms < now_ms", "False"),),
    ),
    "release brings back what was cancelled": (
        LATE,
        (lua("release", "string.byte(packed) == 207", "true"),),
    ),
    "a batch claimed before is delivered with what was cancelled": (
        AGAIN,
        (python(shard.Shard.claimed, "if row[1][0] != OVERTAKEN", ""),),
    ),
    "rows are parked wherever the store stands": (
        STORE,
        (lua("park", "if stands ~= ARGV[i + 1] then", "if false then"),),
    ),
    "a number is taken by two owners": (
        OWNERS,
        (lua("fence", "number == current and token == standing[2]", "number == current"),),
    ),
    "a shard that was emptied is not noticed": (
        ONE_SHARD,
        (
            python(
                service.Service._store_is_lost,
                "min(self.pending.owners())",
                "max(self.pending.owners())",
            ),
        ),
    ),
    "claims of an attempt that another has followed": (
        AGAIN,
        (
            lua(
                "claim",
                "(redis.call('HGET', batches .. '-attempts', name) or '') ~= attempt",
                "false",
            ),
        ),
    ),
    "an attempt that another has followed sets rows aside": (
        TAKEN_OUT,
        (lua("aside", "standing ~= attempt and standing ~= 'closed:' .. attempt", "false"),),
    ),
    "claims of a run that has ended": (
        SLEEPERS,
        (
            lua("claim", "standing[1] ~= run", "false"),
            lua("attempt", "redis.call('HGET', state, 'lane:' .. lane) ~= run", "false"),
        ),
    ),
    "an attempt does not know what the one before it has claimed": (
        AGAIN,
        (lua("attempt", "return 'open'", "return 'new'"),),
    ),
    "a second attempt delivers what has arrived": (
        RETRIED,
        (python(arrived._missing, "if n not in found", "if n in sent"),),
    ),
    "a second attempt does not wait for what is on its way": (
        RETRIED,
        (
            python(
                arrived._records,
                "landed_at = clock.elapsed_ms() + LANDED_MS",
                "landed_at = 0",
            ),
        ),
    ),
    "nothing goes on in a full store": (
        Focus(faults=("store-full",)),
        (python(scripts.Script.__init__, '== "goes on"', '== "never"'),),
    ),
    "a cancellation does not mark what is claimed": (
        LATE,
        (lua("park", "            mark(batch, id, taken)\n", ""),),
    ),
    "a newer version leaves what was set aside": (
        ASIDE,
        (
            lua(
                "park",
                "row and redis.call('HDEL', aside, id) or 0",
                "0",
            ),
        ),
    ),
    "between two partitions, what is read last wins": (
        STRAYS,
        (lua("parts/elsewhere", "written_ms > stamp_ms", "false"),),
    ),
    "a cancellation is forgotten once it is read": (
        STRAYS,
        (lua("parts/elsewhere", "tonumber(ended_ms) > stamp_ms", "false"),),
    ),
    "what is claimed keeps its place among those with its tags": (
        QUIET,
        (lua("claim", "unindex(with_tags)\n", ""),),
    ),
    "a newer version leaves the tags of the older one": (
        QUIET,
        (lua("park", "        unindex(stood)\n", ""),),
    ),
    "a cancellation on the inbox leaves its tags": (
        QUIET,
        (lua("park", "        untag(id)\n    end\n", "    end\n"),),
    ),
    "what a crash puts back has no tags": (
        ALIVE,
        (lua("parts/back", "        index(id, due_ms, (tags_of(row, 10)))\n", ""),),
    ),
    "a door does not take back what was set aside": (
        ASIDE,
        (lua("cancel", "\n        or not is_gone[id] and redis.call('HGET', aside, id)", ""),),
    ),
    "a door takes back what another one is replacing": (
        QUIET,
        (lua("cancel", "\n        return 'reserved'", ""),),
    ),
    "a door does not see what was set aside": (
        ASIDE,
        (lua("find", "local packed = redis.call('HGET', aside, id)", "local packed = nil"),),
    ),
    "claims do not wait for intake": (
        Focus(faults=("intake-stuck", "kill", "store-away")),
        (lua("claim", "tonumber(standing[5] or '') or math.huge", "math.huge"),),
    ),
    "claims from a store that was started anew": (
        Focus(faults=("store-goes-back",)),
        (python(scripts.Script.__call__, "if self.must_be_armed:", "if False:"),),
    ),
    "what is lost between two looks at positions is not read again": (
        AT_THE_END,
        (python(service.Service._look_for_restart, "self._read_again()", "pass"),),
    ),
    "positions are ahead of what is written": (
        Focus(faults=("kill", "task-dies")),
        (
            python(
                park_task.ParkTask._write,
                "self.shards[number].park(\n        rows,\n",
                "self.shards[number].park([], owner=str(self.owner), ends=ends, journal=journal)\n"
                "    ends = [(source, end, end) for source, _, end in ends]\n"
                "    self.shards[number].park(\n        rows,\n",
            ),
        ),
    ),
    "a tombstone of ours takes back a newer version": (
        replace(LATE, plan={"journal": True}),
        (
            lua(
                "park",
                "if is_newer then",
                "if false then",
            ),
        ),
    ),
    "what left as it was moved comes again in a store that forgot both": (
        replace(STORE, plan=ONE_JOURNAL, deeds=("door-move", "schedule")),
        (lua("park", "note_move(id, 'copy', due_ms)", "do end"),),
    ),
    "planning knows nothing of what intake has read meanwhile": (
        HORIZON,
        (lua("plan", "known == 0 and ", ""),),
    ),
    "attempts of dead runs stay for ever": (
        ALIVE,
        (lua("begin", "tonumber(of_run) < run", "false"),),
    ),
    "a token is spent twice": (
        LIMITED,
        (
            lua(
                "parts/waiting",
                "ready, stands.count = ready - 1, stands.count - 1",
                "ready, stands.from_ms = ready - 1, stands.from_ms - one.interval_ms",
            ),
        ),
    ),
    "a queue is believed": (
        LIMITED,
        (lua("parts/waiting", "score == LIMITED + due_ms and", "score and"),),
    ),
    "what recurs stays in its batch beside its occurrence": (
        RECURRING,
        (lua("renew", "redis.call('HDEL', batch, id)", ""),),
    ),
    "what recurs is forgotten when it was claimed": (
        QUIET,
        (
            lua(
                "parts/back",
                "redis.call('HSET', record, id, string.sub(row, 10))",
                "redis.call('ZREM', due, id)",
            ),
        ),
    ),
    "what died on its way to its target is lost with its claim": (
        POWER,
        (python(Filling._has_forgotten, "if starts == ends:", "if True:"),),
    ),
    "what was claimed when the store went back is repeated": (
        AT_A_CLAIM,
        (lua("park", " or not stands and has_gone_on(id, again, position)", ""),),
    ),
    "a retry is forgotten as soon as it is delivered": (
        QUIET,
        (lua("park", "return is_new or is_same", "return true"),),
    ),
    "what is prefetched leaves although it was cancelled": (
        AHEAD,
        (python(Prefetched.drop, "recalled, self._count", "recalled, 0"),),
    ),
    "what is prefetched stands beside its next version": (
        AHEAD,
        (lua("park", "    recall(ids)\n", ""),),
    ),
    "what is prefetched leaves before intake has caught up": (
        replace(AHEAD, faults=("intake-stuck",)),
        (
            lua("claim", "max(ripe_ms or until_ms, until_ms)", "max(ripe_ms or now_ms, now_ms)"),
            lua(
                "claim",
                "if ahead and last_ms > ahead[1] then",
                "if ahead and last_ms > now_ms then",
            ),
        ),
    ),
    "what is prefetched leaves as if it were due": (
        AHEAD,
        (python(ShardTask._claims, "(self.prefetched.began or _has_later(got))", "False"),),
    ),
    "what is prefetched when a lane stops counts as delivered": (
        replace(AHEAD, faults=("stop", "handover")),
        (python(ShardTask.batches, "if self.prefetched:", "if False:"),),
    ),
    "a second attempt delivers what the first has prefetched": (
        replace(AHEAD, faults=("task-dies", "speculate")),
        (python(shard.Shard.attempt, "self.recall(batch.name, attempt=attempt)", "pass"),),
    ),
    "what a second attempt claims can be taken back when it has left": (
        replace(AHEAD, faults=("task-dies", "speculate")),
        (lua("recall", " and attempt ~= ''", " and false"),),
    ),
    "claims before it is due": (
        QUIET,
        (lua("claim", "math.min(now_ms, ", "math.min(now_ms + 40, "),),
    ),
}
"""What is taken out, and what the search looks at more than at the rest."""


@pytest.fixture(scope="module")
def real() -> Iterator[Any]:
    with simulate.store() as client:
        yield client


@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_finds(name: str, real: Any, tmp_path: Path, capsys: Any) -> None:
    if name not in QUICK and not os.environ.get("MUTANTS"):
        pytest.skip("all mutants: make mutants")
    focus, patches = MUTANTS[name]
    began = time.monotonic()
    with mutated(patches, tmp_path):
        found = simulate.search(1, real, seconds=FOUND_WITHIN_S, focus=focus)
    assert found is not None, f"not found within {FOUND_WITHIN_S:.0f} s"
    seed, outcome = found
    told = f"{time.monotonic() - began:.1f} s, seed {seed}: {outcome.broken[0]}"
    with capsys.disabled():
        sys.stdout.write(f"\n{name}: {told[:120]}\n")


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mend_can_be_taken_out(name, tmp_path):
    """The list keeps up with the code, also where CI does not search."""
    with mutated(MUTANTS[name][1], tmp_path):
        pass
