"""Transactions: what they abort is never delivered, and nobody waits for what follows."""

import pytest
from confluent_kafka import Producer
from installation import Installation, now_ms
from servers import wait_until

from sendlater import Cancelled, Scheduler

pytestmark = pytest.mark.story


@pytest.fixture(scope="module")
def here(kafka, redis_url, tmp_path_factory):
    here = Installation(kafka, redis_url, tmp_path_factory.mktemp("transactions"))
    with here.service.start(), here.readers[here.target]:
        yield here


@pytest.fixture
def writer(kafka, here):
    writer = Producer({"bootstrap.servers": kafka, "transactional.id": here.name})
    writer.init_transactions(30)
    return writer


def write(here, writer, name, *, end, delay="0"):
    """One schedule in a transaction of its own, and how that ends."""
    writer.begin_transaction()
    headers = [("scheduler-target-topic", here.target), ("sendlater-delay", delay)]
    writer.produce(here.inbox, value=b"v", key=name, headers=headers, partition=0)
    assert writer.flush(30) == 0
    end(30)


def test_only_what_is_committed_is_delivered_and_a_cancel_is_answered_at_once(
    kafka, redis_url, here, writer
):
    """The inbox ends with a marker, which is no record: a cancel that waited until it has been read
    would raise Unavailable."""
    write(here, writer, b"aborted", end=writer.abort_transaction)
    write(here, writer, b"committed", end=writer.commit_transaction)
    write(here, writer, b"cancelled", end=writer.commit_transaction, delay="1h")
    with Scheduler(
        kafka, redis_url=redis_url, space=here.name, inboxes=({"topic": here.inbox},)
    ) as scheduler:
        assert scheduler.cancel("cancelled") is Cancelled.CANCELLED
    assert here.arrival(b"committed").value() == b"v"
    assert not here.arrivals(here.target, b"aborted")


def test_an_aborted_transaction_at_the_end_is_not_waited_for(kafka, redis_url, here, writer):
    write(here, writer, b"stays", end=writer.commit_transaction, delay="1h")
    write(here, writer, b"aborted-last", end=writer.abort_transaction)
    with Scheduler(
        kafka, redis_url=redis_url, space=here.name, inboxes=({"topic": here.inbox},)
    ) as scheduler:
        assert scheduler.cancel("stays") is Cancelled.CANCELLED


def test_a_cancellation_behind_an_open_transaction_wins(kafka, here, writer):
    """It was acknowledged, and cannot be read before somebody else's transaction ends."""
    due_ms = now_ms() + 8_000
    here.schedule(key=b"behind", when=("sendlater-due-ms", str(due_ms)))
    here.arrival(soon(here))
    writer.begin_transaction()
    headers = [("scheduler-target-topic", here.target), ("sendlater-delay", "0")]
    for partition in (0, 1):
        writer.produce(here.inbox, value=b"v", key=b"open", headers=headers, partition=partition)
    assert writer.flush(30) == 0
    here.put(here.inbox, None, key=b"behind")
    assert now_ms() < due_ms - 5_000, "this machine is too slow for this test"
    wait_until(lambda: now_ms() > due_ms + 3_000, "the due time is over")
    writer.commit_transaction(30)
    here.arrival(b"open")
    here.arrival(soon(here))
    assert not here.arrivals(here.target, b"behind")


def soon(here):
    """A schedule that is due at once; its id."""
    name = b"soon-%d" % now_ms()
    here.schedule(key=name, when=("sendlater-delay", "0"))
    return name
