"""Random calls from many threads, and from asyncio tasks that are cancelled at random, end in the
exact state a model predicts, on every transport."""

import asyncio
import os
import random
import threading
import time
import uuid
from datetime import UTC, datetime

import pytest
from ledger import Reader
from servers import wait_until

from sendlater import AsyncScheduler, Cancelled, Moved, Scheduler
from sendlater.errors import ConditionFailed, Unavailable

THREADS = 8
CALLS = {"redis": 4_000, "http": 1_500, "kafka": 160, "fake": 4_000}
"""In all; MODEL_CALLS says another number, such as 10000."""
PATIENCE = 6
TASKS = 200
TASK_CALLS = {"redis": 2_000, "http": 800, "kafka": 200, "fake": 4_000}
CALLED = ("send", "create", "move", "cancel", "now", "get")
CANCEL_SHARE = 0.1
IDS = 12
"""Ids of each thread: few, so that calls meet."""


def patient(call, *arguments, **named):
    """Ask again when intake or Kafka is late, as a busy machine makes them: nothing was changed."""
    for _ in range(PATIENCE):
        try:
            return call(*arguments, **named)
        except Unavailable as error:
            if "changed in the store" in str(error):
                raise
            told = error
    raise AssertionError(f"asked {PATIENCE} times, the last answer: {told}")


class Player(threading.Thread):
    """Makes calls about its own ids, and checks each answer against what must be so."""

    def __init__(self, scheduler, topic, name, seed, calls):
        super().__init__()
        self.scheduler, self.topic, self.calls = scheduler, topic, calls
        self.random = random.Random(seed)
        self.names = [f"{name}-{n}" for n in range(IDS)]
        self.pending = {}
        self.gone = {}
        """Made due at once: id -> value. Each gets a new name afterwards."""
        self.error = None

    def run(self):
        try:
            for number in range(self.calls):
                self.step(number)
        except BaseException as error:
            self.error = error

    def step(self, number):
        slot = self.random.randrange(IDS)
        name = self.names[slot]
        standing = self.pending.get(name)
        due_ms = 1_000 * self.random.randrange(1_893_456_000, 1_900_000_000)
        at = datetime.fromtimestamp(due_ms / 1_000, UTC)
        act = self.random.choices(CALLED, [30, 10, 20, 20, 5, 15])[0]
        if act == "send":
            value = f"{name} {number}".encode()
            patient(self.scheduler.send_later, self.topic, value, at=at, id=name)
            self.pending[name] = (due_ms, value)
        elif act == "create":
            value = f"{name} {number}".encode()
            word = self.random.choice(["absent", "earlier", "later"])
            earlier, later = standing and due_ms < standing[0], standing and due_ms > standing[0]
            holds = not standing or {"absent": False, "earlier": earlier, "later": later}[word]
            assert self.creates(name, value, at, word) == holds, (name, number, word)
            if holds:
                self.pending[name] = (due_ms, value)
        elif act == "move":
            answer = patient(self.scheduler.reschedule, name, at=at)
            assert answer is (Moved.MOVED if standing else Moved.UNKNOWN), (name, number)
            if standing:
                self.pending[name] = (due_ms, standing[1])
        elif act == "cancel":
            answer = patient(self.scheduler.cancel, name)
            assert answer is (Cancelled.CANCELLED if standing else Cancelled.UNKNOWN), (
                name,
                number,
            )
            self.pending.pop(name, None)
        elif act == "now":
            answer = patient(self.scheduler.deliver_now, name)
            assert answer is (Moved.MOVED if standing else Moved.UNKNOWN), (name, number)
            if standing:
                self.gone[name] = self.pending.pop(name)[1]
                self.names[slot] = f"{name}+"
        else:
            found = patient(self.scheduler.get, name)
            assert (found and (found.due_ms, found.value)) == standing, (name, number)

    def creates(self, name, value, at, only_if):
        """Whether the condition held."""
        try:
            patient(self.scheduler.send_later, self.topic, value, at=at, id=name, only_if=only_if)
        except ConditionFailed:
            return False
        return True


def header_id(record):
    return record.header("sendlater-id").decode()


@pytest.mark.parametrize("kind", sorted(CALLS))
@pytest.mark.timeout(3_600 if "MODEL_CALLS" in os.environ else 600)
def test_calls_from_many_threads_end_as_a_model_predicts(request, kind):
    where, arguments, topic = request.getfixturevalue(f"{kind}_installation")
    calls = int(os.environ.get("MODEL_CALLS", CALLS[kind]))
    name, seed = uuid.uuid4().hex[:8], random.randrange(2**32)
    with Scheduler(*where, **arguments) as scheduler:
        players = [
            Player(scheduler, topic, f"{name}-{n}", seed + n, calls // THREADS)
            for n in range(THREADS)
        ]
        for player in players:
            player.start()
        for player in players:
            player.join()
        assert not [p.error for p in players if p.error], f"seed {seed}"
        now_ms = time.time_ns() // 1_000_000
        found, cursor = {}, None
        while True:
            page = patient(scheduler.list, id_prefix=name, limit=1_000, cursor=cursor)
            found |= {s.id: (s.due_ms, s.value) for s in page.items}
            if (cursor := page.next_cursor) is None:
                break

    expected = {i: standing for p in players for i, standing in p.pending.items()}
    gone = {i: value for p in players for i, value in p.gone.items()}
    due_now = {i: value for i, (due_ms, value) in found.items() if due_ms <= now_ms}
    assert {i: s for i, s in found.items() if i not in due_now} == expected, f"seed {seed}"
    if kind == "fake":  # it has no service: what is due is delivered at once
        told = {header_id(m): m.value for m in where[0].delivered(topic)}
        assert {i: value for i, value in told.items() if i.startswith(name)} == gone
        return
    if kind != "kafka":
        assert due_now == gone, f"seed {seed}"
        return
    with Reader(where[0], topic) as reader:

        def delivered():
            return [
                (dict(m.headers())["sendlater-id"].decode(), m.value())
                for m in reader.messages
                if dict(m.headers())["sendlater-id"].decode().startswith(name)
            ]

        wait_until(lambda: len(delivered()) >= len(gone), "what was due at once has arrived")
        assert sorted(delivered()) == sorted(gone.items()), f"seed {seed}"


class TaskPlayer:
    """Makes calls about an id of its own, and gives some of them up: then nobody knows whether they
    took effect, and it goes on with another id."""

    def __init__(self, scheduler, topic, name, seed):
        self.scheduler, self.topic, self.first = scheduler, topic, name
        self.random = random.Random(seed)
        self.name, self.standing, self.unknown = name, None, set()

    async def play(self, calls):
        for number in range(calls):
            value = f"{self.name} {number}".encode()
            due_ms = 1_000 * self.random.randrange(1_893_456_000, 1_900_000_000)
            acts = {"send": 50, "move": 25, "cancel": 10, "get": 15}
            (act,) = self.random.choices(list(acts), list(acts.values()))
            call = asyncio.create_task(self.call(act, value, due_ms))
            if self.random.random() < CANCEL_SHARE:
                await asyncio.wait([call], timeout=self.random.choice([0, 0.001, 0.005]))
                if not call.done():
                    call.cancel()
                    await asyncio.wait([call])
                    if call.cancelled():
                        self.unknown.add(self.name)
                        self.name, self.standing = f"{self.name}+", None
                        continue
            self.check(act, await call, value, due_ms, number)

    async def call(self, act, value, due_ms):
        at = datetime.fromtimestamp(due_ms / 1_000, UTC)
        for _ in range(PATIENCE):
            try:
                if act == "send":
                    return await self.scheduler.send_later(self.topic, value, at=at, id=self.name)
                if act == "move":
                    return await self.scheduler.reschedule(self.name, at=at)
                return await getattr(self.scheduler, act)(self.name)
            except Unavailable as error:
                if "changed in the store" in str(error):
                    raise
                told = error
        raise AssertionError(f"asked {PATIENCE} times, the last answer: {told}")

    def check(self, act, answer, value, due_ms, number):
        if act == "send":
            self.standing = (due_ms, value)
        elif act == "move":
            assert answer is (Moved.MOVED if self.standing else Moved.UNKNOWN), (self.name, number)
            self.standing = self.standing and (due_ms, self.standing[1])
        elif act == "cancel":
            expected = Cancelled.CANCELLED if self.standing else Cancelled.UNKNOWN
            assert answer is expected, (self.name, number)
            self.standing = None
        else:
            found = answer and (answer.due_ms, answer.value)
            assert found == self.standing, (self.name, number)


@pytest.mark.parametrize("kind", sorted(TASK_CALLS))
@pytest.mark.timeout(3_600 if "MODEL_CALLS" in os.environ else 300)
def test_tasks_that_give_up_at_random_leave_what_a_model_predicts(request, kind):
    where, arguments, topic = request.getfixturevalue(f"{kind}_installation")
    calls = int(os.environ.get("MODEL_CALLS", TASK_CALLS[kind]))
    name, seed = uuid.uuid4().hex[:8], random.randrange(2**32)

    async def story():
        async with AsyncScheduler(*where, **arguments) as scheduler:
            players = [
                TaskPlayer(scheduler, topic, f"{name}-{n:03}", seed + n) for n in range(TASKS)
            ]
            await asyncio.gather(*(player.play(max(1, calls // TASKS)) for player in players))
            found = {
                one.id: (one.due_ms, one.value) async for one in scheduler.iter(id_prefix=name)
            }
            return players, found

    players, found = asyncio.run(story())
    unknown = {gone for player in players for gone in player.unknown}
    expected = {player.name: player.standing for player in players if player.standing}
    assert {i: s for i, s in found.items() if i not in unknown} == expected, f"seed {seed}"
    assert unknown or kind == "fake", "nothing was given up: the test shows nothing"
