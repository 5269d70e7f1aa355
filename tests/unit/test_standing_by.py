"""What a service does that stands by, or hands over, while store or broker are away."""

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from structlog.testing import capture_logs

from sendlater.config import Settings
from sendlater.errors import BrokerUnavailable, StoreUnavailable
from sendlater.service import handing_over, heir, store_watch
from sendlater.service.service import Service
from sendlater.spark.delivery.targets import Targets
from sendlater.store.lease import Lease


@pytest.fixture(autouse=True)
def logs() -> Any:
    with capture_logs() as lines:
        yield lines


class Alone(Service):
    """A service without store, broker and Spark: a test says what they answer."""

    def __init__(self, **given: Any) -> None:
        self.settings, self.pending, self._workers = Settings(), Mock(), []
        self._lanes_lock, self._intake_lock = threading.Lock(), threading.Lock()
        self._lost = self._asked = False
        self._estate = self._horizon = self._topics = self._spark = None
        self._crash_lookup: Any = None
        for name, value in given.items():
            setattr(self, name, value)


def lease(answers: list[Any]) -> Lease:
    """One whose store gives one answer after the other."""
    made: Lease = object.__new__(Lease)
    made._lease_ms, made._thread = 10_000, Mock()

    def renew() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    made._renew = renew  # type: ignore[method-assign, assignment]
    return made


def test_who_waits_for_the_lease_outlives_a_store_that_is_away(logs: Any) -> None:
    away = redis.exceptions.ConnectionError("away")
    stop = Mock(wait=lambda _: False)
    waiting = lease([False, away, away, True])
    assert waiting.wait(stop, by_force=False, waiting=lambda: False)
    assert [one["event"] for one in logs] == ["standing by waits for the store"] * 2
    with pytest.raises(StoreUnavailable):  # a start says at once that there is none
        lease([away]).wait(stop, by_force=False, waiting=lambda: False)


def standing_by(**given: Any) -> tuple[Alone, Mock]:
    its_lease = Mock(acquire=Mock(side_effect=[True, True, AssertionError("once more")]))
    one = Alone(_new_lease=lambda *_: its_lease, _end_queries=Mock(), **given)
    return one, its_lease


@pytest.mark.parametrize("held", [True, False])
def test_an_heir_that_fails_when_it_has_the_space_takes_it_over_like_any_start(
    monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    """It waited for the end of its own lease."""
    monkeypatch.setattr(heir.succession, "require_handover", lambda _: None)
    active = Mock(is_held=held, holder=Mock(return_value="" if not held else "we"))
    one, its_lease = standing_by(
        _lease=active,
        _inherits=Mock(return_value=True),
        _enter=Mock(side_effect=BrokerUnavailable("away")),
    )
    assert not one._wait_as_heir(Mock(), asks=False, on_standby=lambda: None)
    assert its_lease.acquire.call_count == 1
    assert its_lease.release.called
    assert not one._is_heir


def test_an_heir_outlives_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away")

    monkeypatch.setattr(heir.succession, "require_handover", away)
    one, its_lease = standing_by(_lease=Mock(is_held=False, holder=away))
    assert not one._wait_as_heir(Mock(), asks=False, on_standby=lambda: None)
    assert its_lease.release.called


@pytest.mark.parametrize("error", [StoreUnavailable("away"), BrokerUnavailable("away")])
def test_a_handover_that_fails_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, error: Exception, logs: Any
) -> None:
    """The next heir would wait for the lease of who leaves, as long as that one lives."""
    succession = Mock(ready_heir=Mock(return_value=2), dismiss=Mock(side_effect=error))
    monkeypatch.setattr(handing_over, "succession", succession)
    leaving = Mock()
    one = Alone(_new_lease=lambda *_: leaving, _answers=lambda _: True)
    assert not one._hands_over()
    assert leaving.release.called
    assert [line["event"] for line in logs] == ["not handed over"]


def test_no_blocked_lane_is_ended_while_the_store_is_away(logs: Any) -> None:
    over = threading.Event()

    def blocked() -> None:
        over.set()
        raise StoreUnavailable("away")

    one = Alone(_end_blocked_lanes=blocked, _lanes_error=None)
    one._watch_lanes(Mock(wait=lambda _: over.is_set()))
    assert one._lanes_error is None
    assert [line["event"] for line in logs] == ["a blocked lane waits for the store"]


def test_targets_that_never_started_can_be_stopped() -> None:
    shard = Mock(targets=dict)
    targets = Targets(Mock(shards=[shard]), Mock(), Settings(), owner=1)
    targets.stop()


def test_targets_that_stop_ask_no_more() -> None:
    """Each question may wait for a broker that is away."""
    topics = Mock()
    shard = Mock(targets=dict, wanted=lambda **_: ["a", "b"], aside=lambda **_: (0, {}))
    targets = Targets(Mock(shards=[shard]), topics, Settings(), owner=1)

    def look_up(_: str) -> None:
        targets.stop()

    topics.look_up = look_up
    topics.missing_and_silent = lambda *_, **__: (set(), set())
    targets.tick()
    shard.want.assert_called_once_with([b"a"])


def test_look_ups_that_fail_are_counted_over_starts_that_begin_anew() -> None:
    lookup = Mock(settle=Mock(side_effect=BrokerUnavailable("no leader")))
    made = Mock(return_value=lookup)
    one = Alone(_new_lookup=made, _topics=Mock(), _spark=Mock())
    one.pending.shards, one.owner = [], 1
    for _ in range(2):
        with pytest.raises(BrokerUnavailable):
            one._fill(threading.Event())
    assert made.call_count == 1


def test_what_runs_beside_an_heir_is_started_when_it_is_alone(logs: Any) -> None:
    beside = SimpleNamespace(
        started=False, start=Mock(side_effect=[OSError("taken"), OSError, None])
    )
    one = Alone(_sidecars=beside, _estate=threading.Event())
    one._look_after_sidecars()
    assert not beside.start.called, "the last owner may have its addresses"
    one._estate = None
    for _ in range(3):
        one._look_after_sidecars()
    assert beside.start.call_count == 3
    assert [line["event"] for line in logs] == ["metrics and canary will be tried again"]


def test_a_copy_that_is_not_taken_stops_nothing_else(
    monkeypatch: pytest.MonkeyPatch, logs: Any
) -> None:
    def refused(*_: Any) -> None:
        raise BrokerUnavailable("too large")

    buried = Mock()
    monkeypatch.setattr(store_watch, "rescue_overtaken", refused)
    monkeypatch.setattr(store_watch, "bury_surplus", buried)
    Alone()._tidy_journals()
    assert [line["event"] for line in logs] == ["copies for the journals wait"]
    assert buried.call_count == 1


@pytest.mark.parametrize("lives", [True, False])
def test_who_has_died_waits_for_no_lane_to_deliver(
    lives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a dead owner had claimed is looked up at once; one that lives goes on meanwhile."""
    waits: list[float] = []
    over = Mock(wait=lambda wait_s: waits.append(wait_s) or len(waits) == 3)
    dismissed = Mock()
    monkeypatch.setattr(heir.succession, "dismiss", dismissed)
    lane = SimpleNamespace(name="lane-0", lane=0, batches=0)
    one = Alone(_workers=[lane], _reads=lambda: True)
    one._dismiss(Mock(holder=lambda: "somebody" if lives else ""), over)
    assert len(waits) == (3 if lives else 0)
    dismissed.assert_called_once()
