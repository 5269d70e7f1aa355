"""What was claimed is not delivered again before it has been looked for, if that is possible."""

from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from sendlater.config import Settings
from sendlater.errors import BrokerUnavailable
from sendlater.model import Record, Schedule
from sendlater.spark.delivery import crash_lookup
from sendlater.store.codec import pack
from sendlater.store.unsettled import Unsettled


class Kafka:
    """Answers, or does not."""

    away = False

    def require_answer(self) -> None:
        if self.away:
            raise BrokerUnavailable("away")

    def silent(self, topics: Any) -> set[str]:
        return set()


@pytest.fixture
def kafka() -> Kafka:
    return Kafka()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made; each is over at once."""
    made: list[float] = []
    monkeypatch.setattr(crash_lookup.time, "sleep", made.append)
    return made


@pytest.fixture
def lookup(monkeypatch: pytest.MonkeyPatch, kafka: Kafka) -> Any:
    """A look-up of one row that nobody has settled; it fails."""
    one = Schedule(id=b"a", due_ms=1, record=Record(topic="t", value=b"v"))
    packed = b"\xcf" + (1).to_bytes(8, "big") + pack(one)
    batch = Unsettled(Mock(), "0:1:1:1", [b"a"], [packed])
    monkeypatch.setattr(crash_lookup, "unsettled", lambda *_, **__: [batch])

    def fails(*_: Any) -> None:
        raise OSError("no")

    made: Any = crash_lookup.CrashLookup(None, Settings(), None, kafka)  # type: ignore[arg-type]
    monkeypatch.setattr(made, "_look_up", fails)
    return made


def test_nothing_is_delivered_again_while_the_broker_is_away(lookup: Any, kafka: Kafka) -> None:
    kafka.away = True
    for _ in range(2 * crash_lookup.FAILURES_MAX):
        with pytest.raises(BrokerUnavailable):
            lookup.settle(owner=1)


def test_a_broker_that_comes_back_first_takes_what_it_was_sent(
    lookup: Any, kafka: Kafka, pauses: list[float]
) -> None:
    kafka.away = True
    with pytest.raises(BrokerUnavailable):
        lookup.settle(owner=1)
    assert not pauses
    kafka.away = False
    for _ in range(2):
        with pytest.raises(BrokerUnavailable):
            lookup.settle(owner=1)
    assert pauses == [Settings().recovery_pause_ms / 1_000]


def test_a_look_up_that_keeps_failing_does_not_stop_delivery(lookup: Any) -> None:
    for _ in range(crash_lookup.FAILURES_MAX - 1):
        with pytest.raises(BrokerUnavailable):
            lookup.settle(owner=1)
    with capture_logs() as told:
        assert lookup.settle(owner=1) == 0
    assert [one["rows"] for one in told] == [1]


@pytest.mark.parametrize("topic", ["t", "rejected", "dead-letters"])
def test_a_row_has_arrived_wherever_it_went(topic: str) -> None:
    """A store that went back may have forgotten that it was refused, or had expired."""
    settings = Settings(
        bootstrap_servers="kafka:9092",
        inboxes=({"topic": "in", "journal": True},),
        history_topic="history",
    )
    found = crash_lookup.Found()
    look_up: Any = crash_lookup.CrashLookup(None, settings, None, None)  # type: ignore[arg-type]
    row = ("t", "in")
    copies = {("history", False)} if topic == "t" else set()
    look_up._judge(0, row, {(topic, False), ("in", True), *copies}, found)
    look_up._judge(1, row, {("in", True)}, found)
    assert (found.arrived, found.owed, found.torn) == ({0}, set(), {1})
