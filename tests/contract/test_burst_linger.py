"""While a burst leaves, producers gather records for longer (ADR 52)."""

import threading
from contextlib import closing

import pytest
from servers import wait_until
from test_prefetch import DUE_MS, LATE_MS, Here, schedule

from sendlater.errors import StoreUnavailable
from sendlater.spark.delivery import burst_linger, claim_task
from sendlater.spark.delivery.burst_linger import BURST_LINGER_MS, BurstLinger
from sendlater.store.wakeup import Wake, wake_readers


@pytest.fixture
def here(redis_url, space):
    return Here(redis_url, space)


@pytest.fixture
def first(here):
    return here.pending.shards[0]


@pytest.fixture
def linger(first):
    linger = BurstLinger(first, linger_ms=1)
    yield linger
    linger.stop()


def tell_burst(first):
    wake_readers(first.client, first.keys["bursts"])


def listens(first):
    """Whether somebody waits for bursts."""
    return any(one["cmd"] == "xread" for one in first.client.client_list())


def test_a_burst_makes_each_producer_gather_until_it_is_over(first, linger):
    one, other = [], []
    linger.take("lane-0", one.append)
    linger.take("lane-1", other.append)
    wait_until(lambda: listens(first), "somebody listens")
    tell_burst(first)
    wait_until(lambda: one == other == [BURST_LINGER_MS, 1], "both gather, and no longer")


def test_a_producer_that_comes_in_a_burst_gathers_and_one_that_is_replaced_is_told_nothing(
    first, linger, monkeypatch
):
    monkeypatch.setattr(burst_linger, "OVER_MS", 60_000)
    old, new = [], []
    linger.take("lane-0", old.append)
    wait_until(lambda: listens(first), "somebody listens")
    tell_burst(first)
    wait_until(lambda: old == [BURST_LINGER_MS], "it gathers")
    linger.take("lane-0", new.append)
    assert new == [BURST_LINGER_MS]
    linger.stop()
    assert old == [BURST_LINGER_MS]


def test_one_whose_setting_is_longer_keeps_it(first):
    told, linger = [], BurstLinger(first, linger_ms=BURST_LINGER_MS + 5)
    linger.take("lane-0", told.append)
    wait_until(lambda: listens(first), "somebody listens")
    tell_burst(first)
    wait_until(lambda: told == [BURST_LINGER_MS + 5] * 2, "it is told twice")
    linger.stop()


def test_a_producer_that_cannot_be_told_does_not_end_it(first, linger):
    def fail(_ms):
        raise RuntimeError("it is closed")

    told = []
    linger.take("lane-0", fail)
    wait_until(lambda: listens(first), "somebody listens")
    tell_burst(first)
    linger.take("lane-0", told.append)

    def is_told():
        tell_burst(first)
        return BURST_LINGER_MS in told

    wait_until(is_told, "the next one is told")


def test_nobody_listens_where_no_producer_can_be_told(first, linger):
    linger.take("lane-0", None)
    assert "burst-linger" not in {one.name for one in threading.enumerate()}


@pytest.mark.parametrize(("count", "told"), [(2, False), (3, True)])
def test_a_task_tells_of_a_burst_while_its_claims_are_full(here, first, count, told):
    here.put(*(schedule(b"%d" % n, DUE_MS) for n in range(count)))
    here.clock.advance(LATE_MS - here.clock.now_ms())
    with closing(Wake(first.client, first.keys["bursts"])) as bursts:
        assert list(here.task(claim_count=3, prefetch_ms=0).batches())
        assert bursts.wait(100) == told


def test_a_task_goes_on_where_the_store_takes_no_such_word(here, first, monkeypatch):
    def refuse(*_):
        raise StoreUnavailable("Redis is full")

    monkeypatch.setattr(claim_task, "wake_readers", refuse)
    here.put(schedule(b"a", DUE_MS))
    here.clock.advance(LATE_MS - here.clock.now_ms())
    batches = here.task(claim_count=1, prefetch_ms=0).batches()
    assert sum(batch.num_rows for batch in batches) == 1
