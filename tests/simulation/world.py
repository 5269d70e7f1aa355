"""One thread in which everything happens, in an order drawn from a seed.

An actor is a greenlet that runs the real code. Whenever that code asks Redis something, waits or
reads the clock of its own pauses, the next actor in simulated time goes on. Between any two steps
an actor can die, sleep, or find that the store has changed.
"""

import heapq
import math
import random
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

import redis
from greenlet import getcurrent, greenlet

from sendlater.store.scripts import script

START_MS = 1_800_000_000_000
"""The simulated clock begins here."""
LATENCY_MS_MAX = 2.0
"""Longest ordinary step: a round trip to Redis."""
SLOW_SHARE, SLOW_MS_MAX = 0.03, 60.0
"""Some take longer."""
TRACE_LINES_MAX = 400
"""Last lines of what happened that are kept for a failure."""
STEPS_MAX = 150_000
"""A run that takes more steps than this goes round in circles."""


class Killed(BaseException):
    """The process of this actor is gone: nothing of it runs any more, not even its finally."""


class Stuck(AssertionError):
    """A run that does not come to an end."""


class Process:
    """What dies, or is frozen, as one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.died_at = math.inf
        self.frozen_until = 0.0
        self.was_frozen = False
        self.producer: Any = None


class Actor:
    """One line of execution within a process."""

    def __init__(self, world: "World", name: str, process: Process, body: Callable[[], Any]):
        self.world, self.name, self.process, self.body = world, name, process, body
        self.greenlet = greenlet(self._run, parent=world.hub)
        self.dead = self.done = False
        self.zombie = False
        """It slept for so long that others went on without it."""
        self.lost = False
        """And what it still sends arrives nowhere."""
        self.asleep_until = 0.0
        self.error: BaseException | None = None
        self.result: Any = None
        self.ticket = 0
        self.ended = Event(world)
        self.task: Any = None
        self.claimed_at = 0.0
        """When it last asked the store for what is due."""
        self.clock_read = 0

    def _run(self) -> None:
        try:
            self.result = self.body()
        except Killed as error:
            self.error = error
        except Exception as error:
            self.error = error
        self.done = True
        if not self.dead:
            self.ended.set()

    def kill(self) -> None:
        """It runs no further; whoever waits for it is told."""
        if not self.done and not self.dead:
            self.dead = True
            self.ended.set()


class Event:
    """As threading.Event, in simulated time."""

    def __init__(self, world: "World") -> None:
        self._world, self._set, self._waiting = world, False, list[Actor]()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for actor in waiting:
            self._world.due(actor, 0.0)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._waiting.append(self._world.current)
            self._world.pause(1e9 if timeout is None else timeout * 1_000)
            if self._world.current in self._waiting:
                self._waiting.remove(self._world.current)
        return self._set


class Lock:
    """As threading.Lock, in simulated time."""

    def __init__(self, world: "World") -> None:
        self._world, self._held = world, False

    def __enter__(self) -> None:
        self._world.until(lambda: not self._held, every_ms=1.0)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


class World:
    """Time, actors, and the one store that all of them share."""

    def __init__(self, seed: int, real: Any, space: str) -> None:
        self.rng = random.Random(f"world {seed}")
        self._tokens = random.Random(f"token {seed}")
        self.real, self.space = real, space
        self.elapsed = 0.0
        self.skew_ms = 0
        self.skewed: list[float] = []
        self.hub = getcurrent()
        self.current: Any = None
        self.actors: list[Actor] = []
        self.steps = 0
        self.happened: Counter[str] = Counter()
        self.trace: deque[str] = deque(maxlen=TRACE_LINES_MAX)
        self.client = Client(self)
        self.watchers: list[Callable[[str, str, tuple[Any, ...], Any], None]] = []
        """Called with 'before' or 'after', the verb, its arguments, and the answer."""
        self.away_until = 0.0
        self.lease_until: dict[str, float] = {}
        """By key."""
        self.lease_ms = 0
        self._queue: list[tuple[float, int, Any, int]] = []
        self._count = count()
        self._verbs: dict[str, str] = {}

    # --- time ------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The wall clock, that may be put forward or back."""
        return int(START_MS + self.elapsed + self.skew_ms)

    def time(self) -> SimpleNamespace:
        """In place of the module time."""

        def now_ns() -> int:
            if self.current is not None:
                self.current.clock_read = max(self.current.clock_read, self.now_ms())
            return self.now_ms() * 1_000_000

        # What numbers owners must not go back with a clock: see Pending.fence.
        return SimpleNamespace(
            monotonic=lambda: self.elapsed / 1_000,
            time=lambda: (START_MS + self.elapsed) / 1_000,
            time_ns=now_ns,
            sleep=lambda s: self.pause(s * 1_000),
        )

    def uuid(self) -> SimpleNamespace:
        """In place of the module uuid."""
        return SimpleNamespace(uuid4=lambda: uuid.UUID(int=self._tokens.getrandbits(128)))

    def threading(self) -> SimpleNamespace:
        """In place of the module threading."""
        world = self

        class Thread:
            def __init__(self, target: Callable[[], Any], name: str, daemon: bool) -> None:
                self._target, self._name, self._actor = target, name, None

            def start(self) -> None:
                self._actor = world.spawn(self._name, world.current.process, self._target)

            def join(self, timeout: float | None = None) -> None:
                if self._actor is not None:
                    self._actor.ended.wait(timeout)

            def is_alive(self) -> bool:
                return self._actor is not None and not self._actor.done

        return SimpleNamespace(Thread=Thread, Event=lambda: Event(world), Lock=lambda: Lock(world))

    # --- actors ----------------------------------------------------------------------------------

    def spawn(self, name: str, process: Process, body: Callable[[], Any]) -> Actor:
        """A new actor, ready to go."""
        actor = Actor(self, name, process, body)
        self.actors.append(actor)
        self.due(actor, self.rng.random())
        return actor

    def due(self, actor: Actor, in_ms: float) -> None:
        """Let an actor go on then, whatever it waits for."""
        actor.ticket += 1
        heapq.heappush(self._queue, (self.elapsed + in_ms, next(self._count), actor, actor.ticket))

    def after(self, in_ms: float, action: Callable[[], None]) -> None:
        """Call something then, outside of every actor."""
        heapq.heappush(self._queue, (self.elapsed + in_ms, next(self._count), action, 0))

    def pause(self, ms: float) -> None:
        """The current actor waits; others go on."""
        actor = self.current
        if actor is None:
            return
        if not actor.dead:
            self.due(actor, ms)
            self.hub.switch()
        if actor.dead:
            raise Killed

    def until(self, condition: Callable[[], bool], *, every_ms: float = 20.0) -> None:
        """The current actor waits for something."""
        while not condition():
            self.pause(every_ms)

    def run(self, over: Callable[[], bool], *, until_ms: float) -> None:
        """Go on until it is over; raises Stuck when that does not come."""
        while not over():
            if self.elapsed > until_ms or self.steps > STEPS_MAX:
                raise Stuck(f"not settled after {self.elapsed:.0f} ms and {self.steps} steps")
            at, _, what, ticket = heapq.heappop(self._queue)
            self.elapsed = max(self.elapsed, at)
            if not isinstance(what, Actor):
                what()
                continue
            if ticket != what.ticket or what.done:
                continue
            if what.dead and not what.greenlet:
                what.done = True  # never begun
                continue
            wakes_at = max(what.process.frozen_until, what.asleep_until)
            if wakes_at > self.elapsed and not what.dead:
                self.due(what, wakes_at - self.elapsed)
                continue
            self.current = what
            what.greenlet.switch()
            self.current = None

    def close(self) -> None:
        """End every actor."""
        for actor in self.actors:
            actor.dead = True
        for actor in self.actors:
            if actor.greenlet and not actor.done:
                self.current = actor
                actor.greenlet.throw(Killed)
        self.current = None

    def kill(self, process: Process) -> None:
        """kill -9."""
        process.alive, process.died_at = False, min(process.died_at, self.elapsed)
        if process.producer is not None:
            process.producer.die()
        for actor in self.actors:
            if actor.process is process:
                actor.kill()
        self.actors = [a for a in self.actors if a.process is not process or a.greenlet]

    def freeze(self, process: Process, ms: float) -> None:
        """It stops for a while, and goes on as if nothing had happened."""
        process.frozen_until, process.was_frozen = self.elapsed + ms, True

    def say(self, text: str) -> None:
        """A line for the trace."""
        who = self.current.name if self.current is not None else "-"
        self.trace.append(f"{self.elapsed:9.1f} {who:<18} {text}")

    # --- the store -------------------------------------------------------------------------------

    def step(self, command: str, method: Callable[..., Any], args: tuple[Any, ...], named: Any):
        """One command of the current actor, with whatever happens before and after it."""
        actor = self.current
        if actor is None:
            return method(*args, **named)
        slow = self.rng.random() < SLOW_SHARE
        self.pause(self.rng.random() * (SLOW_MS_MAX if slow else LATENCY_MS_MAX))
        verb = self._verb(command, args)
        self._tell("before", verb, args, None)
        if self.elapsed < self.away_until:
            raise redis.exceptions.ConnectionError("simulated: away")
        for key in [key for key, until in self.lease_until.items() if self.elapsed >= until]:
            self.real.delete(key)
            del self.lease_until[key]
        if verb == "lease":
            # The server's clock is not ours: it must not let go.
            self.lease_ms = int(args[LEASE_MS_AT])
            lasting_ms = 10**10 if self.lease_ms else 0
            args = (*args[:LEASE_MS_AT], lasting_ms, *args[LEASE_MS_AT + 1 :])
        self.steps += 1
        answer = method(*args, **named)
        if verb == "lease" and answer:
            self.lease_until[args[2]] = self.elapsed + self.lease_ms
        self._tell("after", verb, args, answer)
        return sorted(answer) if command in ("spop", "srandmember") and answer else answer

    def _tell(self, when: str, verb: str, args: tuple[Any, ...], answer: Any) -> None:
        for watcher in list(self.watchers):
            watcher(when, verb, args, answer)
        if self.current.dead:
            raise Killed
        if max(self.current.asleep_until, self.current.process.frozen_until) > self.elapsed:
            self.pause(0)

    def _verb(self, command: str, args: tuple[Any, ...]) -> str:
        if command == "hscan" and b":batches:" in str(args[0]).encode():
            return "hgetall"  # of a batch, in parts
        if command not in ("evalsha", "eval"):
            return command
        if not self._verbs:
            for name in VERBS:
                self._verbs[script(name).sha] = name
                self._verbs[script(name).lua] = name
        return self._verbs.get(args[0], "claim")  # the one that is armed under many names

    def snapshot(self) -> dict[bytes, bytes]:
        """Everything the store holds."""
        keys = sorted(self.real.keys("*"))
        pipe = self.real.pipeline(transaction=False)
        for key in keys:
            pipe.dump(key)
        return dict(zip(keys, pipe.execute(), strict=True))

    def restore(self, snapshot: dict[bytes, bytes], shard: int | None) -> None:
        """The store, or one shard of it, as it was; no server knows its scripts any more."""
        prefix = b"" if shard is None else f"{{{self.space}:{shard}}}:".encode()
        pipe = self.real.pipeline(transaction=False)
        for key in sorted(self.real.keys("*")):
            if key.startswith(prefix):
                pipe.delete(key)
        for key, dumped in snapshot.items():
            if key.startswith(prefix):
                pipe.restore(key, 0, dumped)
        pipe.script_flush()
        pipe.execute()
        for key in self.real.keys(f"{{{self.space}:0}}:lease*"):
            self.lease_until[key.decode()] = self.elapsed + self.lease_ms


LEASE_MS_AT = script("lease").args.index("lease_ms") - len(script("lease").args)
"""Where a call of the script `lease` has it, from the end."""
VERBS = (
    *("aside", "attempt", "begin", "bound", "cancel", "close", "complete", "expire", "fence"),
    *(
        "find",
        "heir",
        "horizon",
        "inherit",
        "lease",
        "mark",
        "move",
        "park",
        "plan",
        "put",
        "readmit",
    ),
    *("recur", "release", "remove", "renew", "reserve", "settle", "settle_some", "tell", "unlimit"),
)
"""Scripts that the simulation calls; and `claim`."""


class Client:
    """A redis client whose every command is a step."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, command: str) -> Callable[..., Any]:
        method = getattr(self._world.real, command)
        return lambda *args, **named: self._world.step(command, method, args, named)

    def pipeline(self, **named: Any) -> Any:
        """Its execution is one step."""
        pipe = self._world.real.pipeline(**named)
        execute = pipe.execute
        pipe.execute = lambda: self._world.step("pipeline", execute, (), {})
        return pipe

    def close(self) -> None:
        """Nothing: all share one connection."""


class Wake:
    """In place of the reader of a wake stream: it may be woken early, as anybody may."""

    def __init__(self, client: Client, key: str) -> None:
        self._world = client._world

    def wait(self, timeout_ms: float) -> bool:
        rng = self._world.rng
        early = rng.random() < 0.3
        self._world.pause(timeout_ms * rng.random() if early else timeout_ms)
        return early

    def close(self) -> None:
        """Nothing is held."""


@contextmanager
def substituted(places: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Names of modules stand for something else, and then for what they stood for before."""
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    for module, name, value in places:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
