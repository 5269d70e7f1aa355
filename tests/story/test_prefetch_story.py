"""Ten thousand and more are due in one instant. Some seconds before, a lane has them in hand, and
still each can be taken back, and none is lost with the lane (ADR 41)."""

import time

import pytest
import redis
from handovers import relay
from ledger import Reader
from servers import wait_until

from sendlater.limits import PREFETCH_COUNT_MIN
from sendlater.store import Admin, Answer, Filter, Move, Pending

COUNT = PREFETCH_COUNT_MIN + 2_000
AHEAD_MS, LATER_MS = 20_000, 5_000
"""How long before they are due they are sent, and how much later some come then."""


@pytest.fixture(scope="module")
def installation(kafka, redis_url, tmp_path_factory):
    """A service with one shard, and who looks into its store."""
    directory = tmp_path_factory.mktemp("prefetch")
    with relay(kafka, redis_url, directory, shards=1) as one:
        service = one.another(until="is ready")
        pending = Pending.open(redis_url, space=service.environment["SENDLATER_SPACE"], shards=1)
        yield one, service, pending


def in_hand(pending: Pending) -> int:
    """How many rows batches hold before they are due."""
    shard = pending.shards[0]
    names = shard.client.hkeys(f"{shard.keys['batches']}-ripe")
    return sum(shard.client.hlen(shard._batch_key(name.decode())) for name in names)


def crowd(one, pending: Pending) -> list[str]:
    """Many that are due at once; returns when most of them are in a lane's hand."""
    due_ms = time.time_ns() // 1_000_000 + AHEAD_MS
    ids = [one.ledger.send(due_ms) for _ in range(COUNT)]
    one.ledger.flush()
    wait_until(lambda: in_hand(pending) > COUNT // 2, "they are prefetched", timeout_s=60)
    return ids


def balances(one, reader: Reader) -> None:
    wait_until(lambda: not one.ledger.missing(reader), "all have arrived", timeout_s=120)
    assert not one.ledger.doubled(reader)
    assert not one.ledger.early(reader)
    assert not one.ledger.outdated(reader)


def test_what_is_in_hand_can_be_changed_and_cancelled(installation) -> None:
    one, _, pending = installation
    with Reader(one.kafka, one.target) as reader:
        ids = crowd(one, pending)
        for name in ids[:50]:
            one.ledger.cancel(name)
        later_ms = one.ledger.due_ms[ids[50]] + LATER_MS
        for name in ids[50:100]:
            one.ledger.send(later_ms, name)
        one.ledger.flush()
        admin = Admin(pending)
        for name in ids[100:150]:
            if admin.cancel(name.encode()) is Answer.CANCELLED:
                del one.ledger.due_ms[name]
        moved = [Move(id=name.encode(), due_ms=later_ms) for name in ids[150:200]]
        assert {answer for answer, _ in admin.move_many(moved)} == {Answer.MOVED}
        balances(one, reader)
        late = [m for m in reader.messages if m.key().decode() in ids[150:200]]
        assert min(m.timestamp()[1] for m in late) >= later_ms


def test_whoever_looks_for_all_of_them_finds_all(installation) -> None:
    one, _, pending = installation
    with Reader(one.kafka, one.target) as reader:
        ids = {name.encode() for name in crowd(one, pending)}
        found = [row.id for row in Admin(pending).all(Filter(), count_max=2 * COUNT)]
        assert ids <= {*found}
        assert len(found) == len({*found})
        balances(one, reader)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_what_a_lane_has_in_hand_when_it_ends_is_pending_again(installation, end) -> None:
    one, service, pending = installation
    with Reader(one.kafka, one.target) as reader:
        crowd(one, pending)
        if end == "kill":
            service.kill()
        else:
            assert service.stop() == 0
            assert in_hand(pending) == 0
            assert pending.counts()["claimed"] == 0
        service.start()
        balances(one, reader)


def test_the_store_keeps_nothing_of_it(installation) -> None:
    _, _, pending = installation
    client: redis.Redis = pending.client
    names = f"{{{pending.space}:0}}:batches-"

    def gone() -> bool:
        return not client.keys(f"{names}r*")

    wait_until(gone, "batches have ended")
