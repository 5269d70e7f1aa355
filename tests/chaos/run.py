"""Chaos: load on real servers of its own, faults all the time, and in the end a book that balances.

    make chaos MINUTES=5 SEED=7
    python tests/chaos/run.py --count 5000 --rate 120 --scenario kill --seed 7

Faults are told on standard error, one line each; the result is one JSON line on standard output.
Exit code 1 when a promise is broken; then the story of each id that it was broken to is told too.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from book import TOLD_COUNT_MAX, Book, Story
from faults import GAP_S, MIXED, NEEDS_JOURNAL, SCENARIOS, Installation, choose
from load import Follower, Load, now_ms, plan
from servers import STARTS_SOON

from sendlater.local.process import wait_for

os.environ.setdefault("JAVA_TOOL_OPTIONS", STARTS_SOON)

CALM_S = 10.0
"""From the start of the load to the first fault."""
SETTLE_S = 5.0
"""After the last due time, so that what must not fire has had the time to."""
MISSING_TIMEOUT_S = 180.0
"""Longest wait for what is missing then."""
LOOK_S = 0.5
"""Pause between two looks at what is missing."""
READ_TIMEOUT_S = 60.0


class Run:
    """One run: an installation, a load, faults, a verdict."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.book = Book(margin_ms=round(asked.margin * 1_000))
        self.directory = Path(tempfile.mkdtemp(prefix="sendlater-chaos-", dir=asked.scratch))
        self.since_ms = now_ms()
        self.rejected: list[str] = []
        self._read = 0

    def tell(self, text: str) -> None:
        """One line, with the seconds since the load began."""
        sys.stderr.write(f"{(now_ms() - self.since_ms) / 1_000:8.2f}  {text}\n")
        sys.stderr.flush()

    def run(self) -> int:
        """The exit code."""
        asked = self.asked
        self.tell(f"seed {asked.seed}, {', '.join(asked.kinds)}; folder {self.directory}")
        with Installation(self.directory, journal=asked.journal, tell=self.tell) as installation:
            where = installation.kafka.bootstrap_servers
            versions = installation.versions()
            target, rejected = installation.target, installation.rejected
            with Follower(where, target) as out, Follower(where, rejected) as bad:
                self.load(installation, out)
                self.settle(installation, out)
                installation.stop()
                self.read_all(out)
                self.rejected = [repr(m.key()) for m in bad.messages]
        code = self.verdict(installation, versions)
        if code == 0 and not asked.keep:
            shutil.rmtree(self.directory)
        return code

    def load(self, installation: Installation, out: Follower) -> None:
        """Send the plan, and strike until the last of it is due."""
        asked = self.asked
        steps = plan(
            asked.seed,
            count=asked.count,
            rate=asked.rate,
            ahead_s=asked.ahead,
            margin_s=asked.margin,
            herd=asked.herd,
        )
        load = Load(
            installation.kafka.bootstrap_servers,
            steps,
            self.book,
            inbox=installation.inbox,
            target=installation.target,
        )
        load.start()
        self.since_ms = now_ms()
        ends_s = time.monotonic() + max(step.due_s or 0.0 for step in steps)
        gaps = random.Random(f"gaps {asked.seed}")
        installation.pace(CALM_S)
        for kind, chance in choose(asked.kinds, seed=asked.seed):
            installation.strike(kind, chance)
            self.follow(out)
            installation.pace(gaps.uniform(*GAP_S))
            if time.monotonic() >= ends_s:
                break
        load.join()
        if load.error:
            raise load.error
        self.skipped, self.unacked = len(load.skipped), load.unacked

    def follow(self, out: Follower) -> None:
        """Enter what has arrived."""
        upto = len(out.messages)
        self.book.arrived(out.messages[self._read : upto])
        self._read = upto

    def settle(self, installation: Installation, out: Follower) -> None:
        """Wait until all is there and what must not come has had time to."""
        installation.require_running()
        after_ms = self.book.last_due_ms() + SETTLE_S * 1_000
        wait_for(lambda: now_ms() > after_ms, timeout_s=max(0.0, after_ms - now_ms()) / 1e3 + 1)
        missing = list(self.book.stories.values())
        looked_s = 0.0

        def complete() -> bool:
            nonlocal missing, looked_s
            if time.monotonic() - looked_s > LOOK_S:
                looked_s = time.monotonic()
                installation.require_running()
                self.follow(out)
                missing = [story for story in missing if story.missing()]
            return not missing

        wait_for(complete, timeout_s=MISSING_TIMEOUT_S)
        self.tell(f"{len(missing)} missing")

    def read_all(self, out: Follower) -> None:
        """Until the reader has come to the end of the topic."""
        ends = out.ends()

        def complete() -> bool:
            self.follow(out)
            return all(self.book.ends[number] >= end for number, end in ends.items())

        assert wait_for(complete, timeout_s=READ_TIMEOUT_S), "the target topic cannot be read"

    def verdict(self, installation: Installation, versions: dict[str, str]) -> int:
        """Tell the result; 1 when a promise is broken."""
        asked, book = self.asked, self.book
        let_go_ms = installation.let_go_ms()
        broken = book.judge(installation.faults, journal=asked.journal, let_go_ms=let_go_ms)
        in_flight, held = broken.pop("doubled in flight"), broken.pop("held too long")
        stories = book.stories.values()
        result: dict[str, Any] = {
            "seed": asked.seed,
            "scenario": asked.scenario if asked.faults is None else asked.faults,
            "journal": asked.journal,
            "schedules": len(stories),
            "sent": sum(len(story.versions) for story in stories),
            "delivered": sum(bool(story.deliveries) for story in stories),
            "cancelled": sum(story.newest.due_ms is None for story in stories),
            "replaced": sum(is_replaced(story) for story in stories),
            "excused": sum(story.excused(margin_ms=book.margin_ms) for story in stories),
            "skipped_changes": self.skipped,
            "unacked": self.unacked,
            **{name.replace(" ", "_"): len(ids) for name, ids in broken.items()},
            "doubled_in_flight": len(in_flight),
            "held_too_long": len(held),
            "strangers": len(book.strangers),
            "rejected": len(self.rejected),
            "incidents": installation.incidents,
            "late_ms": percentiles(book.lateness_ms()),
            "faults": Counter(fault.kind for fault in installation.faults),
            "seconds": round((now_ms() - self.since_ms) / 1_000),
            "rate": asked.rate,
            "machine": {"cpus": os.cpu_count()},
            "versions": versions,
        }
        for promise, ids in broken.items():
            for name in ids[:TOLD_COUNT_MAX]:
                self.tell(
                    f"{promise}: "
                    + book.tell(name, installation.faults, since_ms=self.since_ms).strip()
                )
        for what in (*book.strangers[:TOLD_COUNT_MAX], *self.rejected[:TOLD_COUNT_MAX]):
            self.tell(f"unexpected: {what}")
        sys.stdout.write(json.dumps(result) + "\n")
        bad = any(broken.values()) or book.strangers or self.rejected or installation.incidents
        if bad:
            self.tell(f"BROKEN; logs and data are in {self.directory}")
        return int(bool(bad))


def is_replaced(story: Story) -> bool:
    """Whether a schedule has taken the place of another."""
    return len(story.versions) > 1 and story.newest.due_ms is not None


def percentiles(values: Sequence[int]) -> dict[str, int | None]:
    """Of sorted values; each one that occurred."""
    if not values:
        return {"p50": None, "p99": None, "max": None}
    last = len(values) - 1
    return {"p50": values[last // 2], "p99": values[last * 99 // 100], "max": values[last]}


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """What is asked for; `kinds` is the faults of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", default=None, help="without: a random one, which is told")
    parser.add_argument("--minutes", type=float, default=2.0, help="length of the load")
    parser.add_argument("--count", type=int, default=None, help="schedules, instead of --minutes")
    parser.add_argument("--rate", type=float, default=120.0, help="schedules a second")
    parser.add_argument("--ahead", type=float, default=60.0, help="usual furthest due time, s")
    parser.add_argument("--margin", type=float, default=8.0, help="a change is sooner by this, s")
    parser.add_argument("--herd", type=int, default=0, help="so many more, due in one second")
    parser.add_argument("--scenario", choices=[*SCENARIOS, "mixed"], default="mixed")
    parser.add_argument("--faults", default=None, help=f"some of {','.join(MIXED)}")
    parser.add_argument("--journal", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--scratch", type=Path, default=None, help="folder for data and logs")
    parser.add_argument("--keep", action="store_true", help="keep data and logs of a good run too")
    asked = parser.parse_args(given)
    asked.seed = asked.seed or str(random.SystemRandom().randrange(10**6))
    asked.count = asked.count or round(asked.minutes * 60 * asked.rate)
    known = {*MIXED, *(kind for kinds in SCENARIOS.values() for kind in kinds)}
    kinds = SCENARIOS.get(asked.scenario, MIXED)
    if asked.faults is not None:
        kinds = tuple(kind for kind in asked.faults.split(",") if kind)
    elif not asked.journal:
        kinds = tuple(kind for kind in kinds if kind not in NEEDS_JOURNAL)
    if not kinds or set(kinds) - known:
        parser.error(f"expected some of {', '.join(sorted(known))}, got {asked.faults!r}")
    if not asked.journal and set(kinds) & NEEDS_JOURNAL:
        parser.error("flushall needs a journal: without one what was delivered comes again")
    asked.kinds = kinds
    return asked


if __name__ == "__main__":
    # Asked to end, it takes its servers with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    sys.exit(Run(arguments()).run())
