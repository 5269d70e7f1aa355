"""What a system under test is to the bench: servers, and two programs that speak lines.

A sender reads orders from its input, one a line: `s NUMBER DUE_MS` schedules a message, `m NUMBER
DUE_MS` moves it, `c NUMBER DUE_MS` cancels it; `f` asks for a line `flushed` once all before is
accepted. It says `ready` first. A receiver appends a line `NUMBER ARRIVED_MS` for each message
that its handler is given, and first a line `ready`. Both find what they need in the environment:
BENCH_URL (the server), BENCH_NAME (topic, queue or stream), BENCH_ARRIVALS (the receiver's file).
Times are milliseconds since 1970. A message is 100 bytes that begin with its number.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.workloads import Workload
from sendlater.errors import MissingTool, Unavailable
from sendlater.local.process import Lease, last_lines, wait_for
from sendlater.local.redis_server import ALLOCATOR, REWRITES, RedisServer, dotted, find_redis

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".bench"
"""Where peers are installed and results are written; git does not see it."""
DRIVERS = Path(__file__).parent / "drivers"
INSTALL_TIMEOUT_S = 600.0
START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 30.0

REDIS_SETTINGS = {
    "Redis appendonly": "yes: BullMQ's documentation asks for it; all get the same",
    "Redis appendfsync": "everysec, the default",
    "Redis maxmemory-policy": "noeviction",
    **{
        f"Redis {name}": f"{value}, by sendlater's launcher: all get it"
        for name, value in (ALLOCATOR | REWRITES).items()
    },
}
"""Of the Redis that all systems on Redis share in kind: sendlater's own launcher."""


@dataclass(frozen=True)
class Servers:
    """The running servers of a system."""

    environment: Mapping[str, str]
    """What the drivers need to find them."""
    processes: Mapping[str, int]
    """Process id by what the process is: broker, store, service."""
    redis_url: str = ""
    """Of the Redis that keeps what is pending, if the system has one and the bench started it."""
    stop: Callable[[], None] = lambda: None
    """Stops the service alone; `processes` is another's after `start`."""
    start: Callable[[], None] = lambda: None
    """Starts it again, and waits until it is ready. Raises Unavailable."""


@dataclass(frozen=True, kw_only=True)
class System:
    """A system, everything about it that was chosen, and how to run it."""

    name: str
    settings: Mapping[str, str]
    """Every setting that matters, with its reason, as it stands in the code beside."""
    versions: Callable[[], Mapping[str, str]]
    sender: Sequence[str]
    receiver: Sequence[str]
    servers: Callable[[Path], AbstractContextManager[Servers]]
    """Runs them on a directory; the same directory again continues with its data."""
    install: Callable[[], None] = lambda: None
    """Makes everything ready under HOME. Raises MissingTool, Unavailable."""
    verbs: str = "smc"
    """What it can be told: schedule, move, cancel."""
    sends_per_s: float = 10_000
    """What its sender certainly gets accepted; a burst is due once all of it can be there."""
    rate_max: float = 8_000
    """Workloads with more messages a second are left out: the sender would fall behind for long."""
    has_inbox: bool = False
    """Whether what is sent while its service is away lies somewhere, and waits for it."""
    messages_max: int = 300_000
    """Workloads with more messages in it at once are left out: they would take too long, or more
    memory than there is."""

    def unfit(self, workload: Workload) -> str | None:
        """Why a workload cannot run on this system; None if it can."""
        missing = {"m": "move", "c": "cancel"}
        if lacking := workload.verbs - set(self.verbs):
            return f"cannot {' or '.join(missing[verb] for verb in sorted(lacking, reverse=True))}"
        if workload.backlog and not self.has_inbox:
            return "takes in what is sent at once, or not at all"
        if workload.rate > self.rate_max:
            return f"more than {self.rate_max:,.0f} messages a second"
        if workload.most > self.messages_max:
            return f"more than {self.messages_max:,} messages at once"
        return None


@contextmanager
def launched(
    directory: Path, command: Sequence[str], *, log: Path, ready: str, name: str
) -> Iterator[int]:
    """A server's process id, from when it says `ready` in its log until it is no longer needed.

    Raises Unavailable if it does not say so in time.
    """
    lease = Lease(directory)
    lease.take()
    pid = lease.launch(command, log=log)
    try:
        wait_for(lambda: lease.exited() or ready in last_lines(log), timeout_s=START_TIMEOUT_S)
        if ready not in last_lines(log):
            raise Unavailable(f"{name} did not start:\n{last_lines(log)}")
        yield pid
    finally:
        lease.let_go(pid)


@contextmanager
def redis_alone(directory: Path) -> Iterator[Servers]:
    """The servers of a queue that lives in Redis."""
    with RedisServer(directory) as redis:
        assert redis.pid is not None
        yield Servers({"BENCH_URL": redis.url}, {"store": redis.pid}, redis.url)


def redis_version() -> dict[str, str]:
    """Name and version of the Redis, or Valkey, server that will be used."""
    server = find_redis()
    return {f"{server.product.lower()}-server": dotted(server.version)}


def install_once(made: Path, sources: Sequence[Path], make: Callable[[], None]) -> None:
    """Call `make` unless `made` was made from the same sources before."""
    told = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    stamp = made / "made-from"
    if stamp.exists() and stamp.read_text() == told:
        return
    made.mkdir(parents=True, exist_ok=True)
    make()
    stamp.write_text(told)


def run(command: Sequence[str | Path], *, cwd: Path, extra: Mapping[str, str] | None = None) -> str:
    """The output of an install step. Raises MissingTool if there is no such program, Unavailable
    if it fails."""
    program = shutil.which(str(command[0]))
    if program is None:
        raise MissingTool(f"expected {command[0]} on PATH, found none: install it")
    done = subprocess.run(
        [program, *map(str, command[1:])],
        cwd=cwd,
        env={**os.environ, **(extra or {})},
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise Unavailable(f"{command[0]} ended with {done.returncode}:\n{done.stderr[-2_000:]}")
    return done.stdout
