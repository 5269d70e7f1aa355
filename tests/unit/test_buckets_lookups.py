"""What the delivering tasks of the buckets know of target topics, without a broker."""

from types import SimpleNamespace

import pytest
from servers import wait_until

from sendlater.clock import FixedClock
from sendlater.errors import BrokerUnavailable, TopicUnavailable
from sendlater.model import Reason, Target
from sendlater.spark.buckets import target_lookups
from sendlater.spark.buckets.target_lookups import TargetLookups

ROOMY = Target(record_bytes_max=10_000, partitions=2)


class Broker:
    """Says the same about every topic."""

    def __init__(self, answer):
        self.answer = answer

    def look_up(self, topic):
        return self.answer


def test_a_rejected_topic_that_cannot_be_written_stops_delivery_aloud():
    """Rather than lose what should go there."""
    answers = TargetLookups(
        Broker(Reason.UNKNOWN_TOPIC), rejected_topic="bad", record_bytes_max=10**6
    )

    def told():
        while answers.of(b"bad") is None:
            pass

    with pytest.raises(BrokerUnavailable, match="rejected topic 'bad'"):
        told()


def test_a_topic_that_takes_nothing_for_the_moment_is_refused_here(monkeypatch):
    """Buckets have no place where a message could wait for its topic without holding up others."""
    monkeypatch.setattr(target_lookups, "TICK_S", 0.0)

    class Leaderless(Broker):
        def look_up(self, topic):
            if topic == "out":
                raise TopicUnavailable("partition 0 has no leader")
            return self.answer

    answers = TargetLookups(
        Leaderless(Target(10**6, 1)), rejected_topic="bad", record_bytes_max=10**6
    )
    while answers.of(b"out") is None:
        pass
    assert answers.of(b"out") is Reason.REFUSED


class Counting(Broker):
    """Counts questions; knows the topics in `there`."""

    def __init__(self, *there):
        super().__init__(ROOMY)
        self.there, self.asked = {"bad", *there}, []

    def look_up(self, topic):
        self.asked.append(topic)
        return self.answer if topic in self.there else None


def test_a_missing_topic_makes_no_other_wait_for_all_its_attempts():
    """A thousand misspelt ones come first; each is asked about once before the good one is."""
    broker = Counting("out")
    answers = TargetLookups(broker, rejected_topic="bad", record_bytes_max=10**6)
    for number in range(1_000):
        answers.ask(b"gone-%d" % number)
    answers.ask(b"out")
    wait_until(lambda: answers.of(b"out") is not None, "the good topic is known")

    before = broker.asked[: broker.asked.index("out")]
    assert len(before) <= 2 * 1_001
    wait_until(lambda: answers.of(b"gone-999") is Reason.UNKNOWN_TOPIC, "the others are given up")


def test_nothing_is_refused_by_an_answer_that_is_old_and_one_more_attempt_is_enough(monkeypatch):
    clock = FixedClock(1_000)
    shown = SimpleNamespace(monotonic=lambda: clock.now_ms() / 1_000)
    monkeypatch.setattr(target_lookups, "time", shown)
    monkeypatch.setattr(TargetLookups, "_run", lambda self: None)
    answers = TargetLookups(Counting(), rejected_topic="bad", record_bytes_max=10**6)
    answers._queue.get()
    answers._known[b"gone"] = (Reason.UNKNOWN_TOPIC, 2.0)

    assert answers.of(b"gone") is Reason.UNKNOWN_TOPIC
    clock.advance(1_001)
    assert answers.of(b"gone") is None, "it may be there by now"
    assert answers._queue.get_nowait() == b"gone"
    answers._attempt(b"gone")
    assert answers._known[b"gone"][1] > 7
    assert answers.of(b"gone") is Reason.UNKNOWN_TOPIC


def test_a_topic_that_is_not_well_is_tried_as_often_as_a_new_one(monkeypatch):
    class NotWell(Counting):
        def look_up(self, topic):
            raise TopicUnavailable(topic)

    monkeypatch.setattr(TargetLookups, "_run", lambda self: None)
    answers = TargetLookups(NotWell(), rejected_topic="bad", record_bytes_max=10**6)
    answers._known[b"gone"] = (Reason.UNKNOWN_TOPIC, 0.0)
    answers._attempt(b"gone")
    assert answers._known[b"gone"] == (Reason.UNKNOWN_TOPIC, 0.0)


def test_answers_are_bounded_and_the_oldest_is_forgotten(monkeypatch):
    monkeypatch.setattr(TargetLookups, "_run", lambda self: None)
    monkeypatch.setattr(target_lookups, "KNOWN_COUNT_MAX", 3)
    answers = TargetLookups(Broker(ROOMY), rejected_topic="bad", record_bytes_max=10**6)
    for topic in (b"a", b"b", b"c", b"d"):
        answers._attempt(topic)
    assert list(answers._known) == [b"b", b"c", b"d"]


def test_a_target_takes_no_more_than_the_producer_sends():
    answers = TargetLookups(Broker(ROOMY), rejected_topic="bad", record_bytes_max=5_000)
    wait_until(lambda: answers.of(b"out") is not None, "it is known")
    assert answers.of(b"out").record_bytes_max == 5_000
