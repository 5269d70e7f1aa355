"""Pull the plug of one of two services, also in the middle of a handover: the ledger balances.

Small here; FULL_SIZE=1 does it more often. How long deliveries pause is told, not judged.
"""

import os
import random
import threading
import time

import pytest
import redis
from handovers import Load, latest_ms, longest_gap_ms, more, relay, say
from ledger import Reader
from servers import wait_until

from sendlater.store import Pending, succession

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1_800)]

READY = "is ready"
RATE = 100
FULL_SIZE = bool(os.environ.get("FULL_SIZE"))
TIMES = 10 if FULL_SIZE else 1
VICTIMS = ("active", "standby") if FULL_SIZE else ("active",)
AROUND = 3 * RATE
TAKEN_S = 60.0
WITHIN_S = 0.3
"""A handover takes less, so that a kill within it hits it now and then."""


@pytest.fixture
def space_of(kafka, redis_url, tmp_path):
    """A relay of services and a reader of what they deliver; at its end nothing is lost."""
    with relay(kafka, redis_url, tmp_path) as one, Reader(kafka, one.target) as reader:
        yield one, reader
        wait_until(lambda: not one.ledger.missing(reader), "all have arrived", timeout_s=300)
        assert not one.ledger.early(reader)


def claimed(redis_url, space):
    client = redis.Redis.from_url(redis_url)
    batches = client.keys(f"{{{space}:*:batches:*")
    return {name.decode() for batch in batches for name in client.hkeys(batch)}


@pytest.mark.skipif(not FULL_SIZE, reason="FULL_SIZE=1; test_journal_plug has a kill of this kind")
def test_one_that_stands_by_goes_on_where_the_active_one_was_killed(space_of, redis_url) -> None:
    one, reader = space_of
    active, unsettled = one.another(until=READY), set()
    for _ in range(TIMES):
        standby = one.another()
        with Load(one.ledger, rate=RATE):
            more(reader, AROUND)
            since_ms = time.time_ns() // 1_000_000
            active.kill()
            unsettled |= claimed(redis_url, active.environment["SENDLATER_SPACE"])
            wait_until(lambda s=standby: READY in s.said(), "it goes on", timeout_s=TAKEN_S)
            more(reader, AROUND)
        gap_ms, late_ms = (f(reader, since_ms=since_ms) for f in (longest_gap_ms, latest_ms))
        say(f"killed: nothing for {gap_ms} ms, late by {late_ms} ms at most")
        active = standby
    wait_until(lambda: not one.ledger.missing(reader), "all have arrived", timeout_s=300)
    assert one.ledger.doubled(reader).keys() <= unsettled


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_kill_in_the_middle_of_a_handover(space_of, redis_url, victim) -> None:
    """Whoever is left, or is started, goes on."""
    one, reader = space_of
    chance, unsettled = random.Random(victim), set()
    active = one.another(until=READY)
    space = active.environment["SENDLATER_SPACE"]
    heirs = f"{{{space}:0}}:{succession.HEIR}"
    pending = Pending.open(redis_url, space=space, shards=2)
    for _ in range(TIMES):
        standby = one.another()
        before = pending.owner()
        with Load(one.ledger, rate=RATE):
            more(reader, AROUND)
            assert succession.ask(pending)
            wait_until(
                lambda b=before: pending.owner() != b or drains(pending), "it begins", timeout_s=60
            )
            threading.Event().wait(chance.random() * WITHIN_S)
            (active if victim == "active" else standby).kill()
            unsettled |= claimed(redis_url, space)
            if victim == "active":
                wait_until(lambda s=standby: READY in s.said(), "it goes on", timeout_s=TAKEN_S)
                active = standby
                continue
            # Until its lease is over it may be taken for alive, and get the space.
            wait_until(lambda: not pending.client.exists(heirs), "its lease is over")
            if pending.owner() != before:
                assert active.wait() == 0, active.said()
                active = one.another(until=READY)
            more(reader, AROUND)
        say(f"{victim} killed: nothing for {longest_gap_ms(reader)} ms")
    wait_until(lambda: not one.ledger.missing(reader), "all have arrived", timeout_s=300)
    assert one.ledger.doubled(reader).keys() <= unsettled


def drains(pending) -> bool:
    return "draining" in pending.shards[0].state()
