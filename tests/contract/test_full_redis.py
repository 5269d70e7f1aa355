"""A Redis that has reached maxmemory: nothing more is taken in, what is there is delivered."""

import pytest
from servers import own_redis

from sendlater.errors import StoreUnavailable
from sendlater.model import Record, Schedule
from sendlater.store import Batch, Pending
from sendlater.store.conditional import put_if


@pytest.fixture
def pending(tmp_path):
    with own_redis(tmp_path) as server:
        yield Pending.open(server.url, space="full", shards=2)


def put(pending, number):
    record = Record(topic="target", value=b"payload")
    pending.put(Schedule(id=b"%d" % number, due_ms=number, record=record))


def claim(pending, batch, *, owner):
    claims = [s.claim(batch, owner=owner, now_ms=1_000, count_max=30) for s in pending.shards]
    return [name for claim in claims for name in claim.ids]


def test_a_full_redis_refuses_in_words_and_gives_out_what_it_has(pending):
    pending.require_layout()
    owner = pending.fence()
    run = pending.open_lane(0, owner=owner)
    for number in range(100):
        put(pending, number)
    pending.client.config_set("maxmemory", 1)

    with pytest.raises(StoreUnavailable, match="Redis is full, raise its maxmemory"):
        put(pending, 100)
    new = Schedule(id=b"new", due_ms=1, record=Record(topic="target", value=b"payload"))
    with pytest.raises(StoreUnavailable, match="Redis is full"):
        put_if(pending, new, only_if="absent", reserve_ms=1_000)
    assert pending.get(b"new") is None
    assert not any(pending.client.exists(shard.keys["changes"]) for shard in pending.shards)
    first = claim(pending, Batch(0, run, 1), owner=owner)
    assert pending.settle(Batch(0, run, 1)) == len(first) > 0
    second = claim(pending, Batch(0, run, 2), owner=owner)
    assert pending.settle(Batch(0, run, 2)) == len(second) > 0
    assert not set(first) & set(second)

    pending.client.config_set("maxmemory", 0)
    put(pending, 100)
    assert pending.counts()["pending"] == 101 - len(first) - len(second)


def test_a_service_starts_on_a_full_redis(pending):
    pending.require_layout()
    for number in range(100):
        put(pending, number)
    pending.client.config_set("maxmemory", 1)

    pending.require_layout()
    owner = pending.fence()
    run = pending.open_lane(0, owner=owner)
    given = claim(pending, Batch(0, run, 1), owner=owner)
    assert pending.settle(Batch(0, run, 1)) == len(given) > 0
