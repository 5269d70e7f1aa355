"""The copies of changes of many: the store goes on while the broker acknowledges those before."""

import pytest

from sendlater.errors import BrokerUnavailable
from sendlater.model import Record
from sendlater.operations.handed_over import Copies, HandedOver


class Broker:
    """Acknowledges what was handed over when it is told to."""

    def __init__(self):
        self.waiting, self.flushed = [], 0

    def hand_over(self, record, done):
        self.waiting.append((record.value, done))

    def acknowledge(self, error=None):
        waiting, self.waiting = self.waiting, []
        for _, done in waiting:
            done(error)

    def flush(self):
        self.flushed += 1
        self.acknowledge()


def records(*values):
    return [Record(topic="in", value=value) for value in values]


@pytest.fixture
def broker(monkeypatch):
    monkeypatch.setattr("sendlater.operations.handed_over.ACK_S", 0.01)
    return Broker()


def test_only_the_last_copies_are_still_on_their_way(broker):
    copies = Copies(broker.hand_over, flush=broker.flush)
    copies.leave(records(b"a", b"b"))
    assert [value for value, _ in broker.waiting] == [b"a", b"b"]
    broker.acknowledge()
    copies.leave(records(b"c"))
    assert not broker.flushed, "the first ones were safe, nobody has to hurry"
    copies.settle()
    assert (broker.flushed, broker.waiting) == (1, [])


def test_copies_that_are_not_safe_stop_the_next_ones_which_are_sent_all_the_same(broker):
    copies = Copies(broker.hand_over, flush=broker.flush)
    copies.leave(records(b"a"))
    with pytest.raises(BrokerUnavailable, match=r"changed in the store.*not answered within"):
        copies.leave(records(b"b"))
    assert [value for value, _ in broker.waiting] == [b"a", b"b"]


def test_the_last_copies_are_refused_at_the_end(broker):
    copies = Copies(broker.hand_over, flush=lambda: broker.acknowledge(BrokerUnavailable("full")))
    copies.leave(records(b"a", b"b"))
    with pytest.raises(BrokerUnavailable, match="not on the inbox: full"):
        copies.settle()


def test_each_record_has_its_own_outcome(broker):
    handed_over = HandedOver(records(b"a", b"b", b"c"), broker.hand_over)
    refused = BrokerUnavailable("refused")
    (_, a), (_, b), _ = broker.waiting
    b(None)
    a(refused)
    first, second, third = handed_over.outcome()
    assert (first, second) == (refused, None)
    assert "has not answered" in str(third)
    assert HandedOver([], broker.hand_over).outcome() == []
