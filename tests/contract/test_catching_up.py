"""An answer waits until intake has read every inbox, and what is copied on its way there."""

import psutil
import pytest
from servers import own_redis

from sendlater.errors import BrokerUnavailable, StoreUnavailable
from sendlater.local.redis_server import RedisServer
from sendlater.operations import intake
from sendlater.operations.intake import Intake
from sendlater.store import Pending
from sendlater.store.rebuild import JournalCopy


class Topics:
    """Ends of topics, and what happens when they are asked for."""

    def __init__(self, **ends):
        self._ends, self.asked = ends, lambda topic: None

    def ends(self, topic):
        self.asked(topic)
        return {0: self._ends[topic]}

    def write(self, topic):
        self._ends[topic] += 1


@pytest.fixture
def pending(redis_url, space):
    return Pending.open(redis_url, space=space, shards=2)


@pytest.fixture
def read(pending):
    copy = JournalCopy(pending, owner=pending.fence())
    return lambda topic, end: copy.complete({f"{topic}/0": end}, journals="")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(intake, "CATCH_UP_S", 0.2)


def test_it_waits_for_every_inbox(pending, read):
    looked = Intake(["a", "b"], pending=pending, broker=Topics(a=3, b=2))
    read("a", 3)
    with pytest.raises(StoreUnavailable, match="b/0"):
        looked.catch_up()
    read("b", 2)
    looked.catch_up()


def test_a_copied_inbox_is_read_when_it_is_copied_and_the_copies_are_read(pending, read):
    topics = Topics(plain=5, journal=0)
    looked = Intake(["journal", "plain"], pending=pending, broker=topics, copied=["plain"])
    with pytest.raises(StoreUnavailable, match="plain/0"):
        looked.catch_up()

    def copied(topic):
        """While it was waited for, a copy has been written."""
        if topic == "plain":
            pending.tell_copied({"plain/0": 5})
            topics.write("journal")
            topics.asked = lambda topic: None

    topics.asked = copied
    with pytest.raises(StoreUnavailable, match="journal/0"):
        looked.catch_up()
    read("journal", 1)
    looked.catch_up()
    assert not looked.is_behind()


def test_what_one_has_written_oneself_may_be_copied_too(pending, read):
    topics = Topics(plain=1, journal=1)
    looked = Intake(["journal", "plain"], pending=pending, broker=topics, copied=["plain"])
    looked.remember({"plain/0": 1})
    pending.tell_copied({"plain/0": 1})
    with pytest.raises(StoreUnavailable, match="journal/0"):
        looked.catch_up_with_own()
    read("journal", 1)
    looked.catch_up_with_own()


def test_where_one_has_written_is_asked_for_only_when_it_matters(pending, read):
    topics = Topics(a=3, b=9)
    looked = Intake(["a", "b"], pending=pending, broker=topics)

    def away(topic):
        raise BrokerUnavailable(topic)

    topics.asked = away
    looked.has_written("a")
    with pytest.raises(BrokerUnavailable, match="inbox 'a' of the settings here"):
        looked.catch_up_with_own()

    def written_meanwhile(topic):
        """Behind what this look has seen, so the next one asks again."""
        looked.has_written(topic)
        topics.asked = lambda topic: None

    topics.asked = written_meanwhile
    with pytest.raises(StoreUnavailable, match="a/0"):
        looked.catch_up_with_own()
    topics.write("a")
    read("a", 3)
    with pytest.raises(StoreUnavailable, match="a/0"):
        looked.catch_up_with_own()
    read("a", 4)
    looked.catch_up_with_own()
    topics.asked = away  # not again: nothing was written since
    looked.catch_up_with_own()


def test_a_redis_that_was_restarted_meanwhile_answers_for_nothing(tmp_path):
    """It may have lost what was there when the change was decided."""
    with own_redis(tmp_path) as server:
        pending = Pending.open(server.url, space="s", shards=2)
        looked = Intake([], pending=pending, broker=Topics())
        assert looked.unreserved(lambda: "changed") == "changed"

        def restarted():
            process = psutil.Process(server.pid)
            process.kill()
            process.wait(10)
            other.start()
            pending.client.connection_pool.disconnect()

        with RedisServer(tmp_path, port=server.port) as other:
            with pytest.raises(StoreUnavailable, match="was restarted meanwhile"):
                looked.unreserved(restarted)
            assert looked.unreserved(lambda: "changed") == "changed"


def test_a_store_that_is_filled_again_meanwhile_answers_for_nothing(pending, read):
    looked = Intake(["a"], pending=pending, broker=Topics(a=3))
    read("a", 3)

    def emptied():
        for shard in pending.shards:
            shard.client.delete(shard.keys["seen"])

    with pytest.raises(StoreUnavailable, match="filled again"):
        looked.unreserved(emptied)
