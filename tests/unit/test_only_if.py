"""Conditions before they reach a store: what is one, and what is refused where nobody answers."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendlater import ConditionFailed, Record, SchedulingProducer, State
from sendlater.client.rest_json import standing_of
from sendlater.dialects import names
from sendlater.errors import BadRequest
from sendlater.model import Schedule
from sendlater.operations.conditions import checked_condition, condition_failed
from sendlater.testing import Fake

WORDS = st.sampled_from(["absent", "earlier", "later", "once"])
EXPECTED = "expected absent, earlier, later, once or version=V"
VERSIONS = st.from_regex(r"\Aversion=[0-9A-Za-z-]{1,64}\Z")


@given(WORDS | VERSIONS)
def test_a_condition_is_taken_as_it_is(text):
    assert checked_condition(text) == text


@given(st.text() | WORDS.map(lambda word: word + "\n") | st.binary() | st.none())
def test_anything_else_is_refused_in_words(text):
    if isinstance(text, str) and re.fullmatch(names.CONDITION, text):
        return
    with pytest.raises(BadRequest, match=f"only_if: {EXPECTED}"):
        checked_condition(text)


def test_the_error_tells_what_stands():
    record = Record(topic="t", value=b"v")
    stands = Schedule(id=b"\xff", due_ms=2**52 - 1, record=record, version="v1")
    told = condition_failed("absent", stands)
    assert isinstance(told, BadRequest)
    assert (told.standing.id, told.standing.version) == ("\udcff", "v1")
    assert (told.standing.due_ms, told.standing.state) == (2**52 - 1, State.PENDING)
    assert "version v1" in str(told)
    nothing = condition_failed("version=v1", None)
    assert nothing.standing is None
    assert "nothing has this id" in str(nothing)
    assert ConditionFailed("as over HTTP without a body").standing is standing_of(None) is None


def test_a_producer_hears_no_answer_and_takes_no_condition():
    producer = SchedulingProducer({"bootstrap.servers": "127.0.0.1:1", "log_level": "0"})
    with pytest.raises(BadRequest, match="hears no answer"):
        producer.produce("t", b"v", delay=1, id="a", only_if="absent")
    with pytest.raises(BadRequest, match="only_if: expected delay or at with it"):
        producer.produce("t", b"v", only_if="absent")


def test_in_a_fake_what_was_delivered_stands_no_more():
    fake = Fake()
    with fake.scheduler() as scheduler:
        for _ in range(2):
            scheduler.send_later("t", b"v", delay=5, id="a", only_if="absent")
            with pytest.raises(ConditionFailed):
                scheduler.send_later("t", b"v", delay=5, id="a", only_if="absent")
            fake.advance(5)
        assert len(fake.delivered("t")) == 2
        with fake.away(), pytest.raises(Exception, match="away"):
            scheduler.send_later("t", b"v", delay=5, id="a", only_if="absent")
        assert scheduler.get("a") is None
