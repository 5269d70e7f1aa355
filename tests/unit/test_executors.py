"""What a Spark of several processes is asked before it is used."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from sendlater.clock import FixedClock
from sendlater.config import Inbox, Settings
from sendlater.errors import BadSettings, ClockSkew, Unavailable
from sendlater.spark import cluster, session
from sendlater.spark.cluster import await_slots
from sendlater.spark.delivery.executor_clock import require_clock
from sendlater.spark.delivery.lane import Lane


def settings(**told: Any) -> Settings:
    there = {"bootstrap_servers": "here:9092", "spark_master": "spark://there:7077"}
    return Settings(inboxes=(Inbox(topic="in"),), lanes=2, shards=2, **(there | told))


class Context:
    """Of a cluster whose executors register one after the other."""

    def __init__(self, *slots: int, stopped: bool = False) -> None:
        self._slots, self._stopped = list(slots), stopped

    def isStopped(self) -> bool:
        return self._stopped

    def resourceProfileManager(self) -> Any:
        return SimpleNamespace(defaultResourceProfile=lambda: "default")

    def maxNumConcurrentTasks(self, profile: str) -> int:
        assert profile == "default"
        return self._slots.pop(0) if len(self._slots) > 1 else self._slots[0]


def spark(context: Context) -> Any:
    java = SimpleNamespace(sc=lambda: context)
    return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java))


def test_a_start_waits_for_a_slot_for_each_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "WATCH_S", 0.001)
    slow = Context(0, 4, 5)
    assert await_slots(spark(slow), settings(), threading.Event())
    assert slow._slots == [5]
    monkeypatch.setattr(cluster, "EXECUTORS_S_MAX", 0.01)
    with pytest.raises(Unavailable, match=r"there:7077 has 4 task slots.* at least 5: .*\(2 x 2\)"):
        await_slots(spark(Context(4)), settings(), threading.Event())
    with pytest.raises(Unavailable, match="no Spark master answers at spark://there"):
        await_slots(spark(Context(0, stopped=True)), settings(), threading.Event())
    stop = threading.Event()
    stop.set()
    assert not await_slots(spark(Context(0)), settings(), stop)
    assert await_slots(spark(Context(0)), settings(spark_master=""), stop)
    later = {"spark.dynamicAllocation.enabled": "true"}
    assert await_slots(spark(Context(0)), settings(spark=later), stop)


@pytest.mark.parametrize(("apart_ms", "refused"), [(0, 0), (1_000, 0), (1_001, 1), (-1_001, 1)])
def test_who_has_a_wrong_clock_claims_nothing(apart_ms: int, refused: bool) -> None:
    clock = FixedClock(50_000_000)
    theirs = divmod(50_000_000 + apart_ms, 1_000)
    client = SimpleNamespace(time=lambda: (theirs[0], theirs[1] * 1_000))
    shard: Any = SimpleNamespace(client=client, keys={"state": "state"})
    if not refused:
        require_clock(shard, clock, skew_ms_max=1_000)
        return
    with pytest.raises(ClockSkew, match="1001 ms from that of Redis, expected at most 1000"):
        require_clock(shard, clock, skew_ms_max=1_000)


def test_only_a_cluster_asks_for_the_clock_and_its_lanes_are_told() -> None:
    def lane(**told: Any) -> Lane:
        one = Lane.of(settings(**told), redis_url="redis://r", owner=1, lane=0, run=1)
        assert Lane.from_options(one.to_options()) == one
        return one

    assert lane(clock_skew_ms_max=70).clock_skew_ms_max == 70
    assert lane(spark_master="").clock_skew_ms_max == 0


def test_spark_connect_is_refused(tmp_path: Any) -> None:
    with pytest.raises(BadSettings, match=r"not Spark Connect; got 'sc://h'"):
        session.start_session(settings(spark_master="sc://h"), java_home=tmp_path, jars=())
