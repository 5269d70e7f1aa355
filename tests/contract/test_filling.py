"""What a service does about a store that knows nothing of an inbox which is no journal."""

from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from sendlater.config import Inbox, Settings
from sendlater.errors import BadSettings
from sendlater.spark.journal import rebuild
from sendlater.spark.journal.fill_tasks import FillTask, Planned
from sendlater.spark.journal.rebuild import Filling, reached
from sendlater.store import Pending


class Topics:
    """Two inboxes, one of them without records."""

    def ends(self, topics: Any) -> dict[str, dict[int, int]]:
        known = {"used": {0: 7, 1: 0}, "fresh": {0: 0}}
        return {topic: known[topic] for topic in topics}


class Progress:
    def __init__(self, end: str) -> None:
        self.sources = [type("Source", (), {"endOffset": end})]


def filling(redis_url: str, space: str, choice: str) -> Filling:
    settings = Settings(
        bootstrap_servers="unused:1",
        space=space,
        inboxes=(Inbox(topic="used"), Inbox(topic="fresh")),
        on_empty_store=choice,
    )
    pending = Pending.open(redis_url, space=space, shards=2)
    owner = pending.fence()
    topics: Any = Topics()
    spark: Any = None
    return Filling(spark, settings, pending, topics, redis_url=redis_url, owner=owner)


@pytest.fixture
def positions(redis_url: str, space: str) -> Any:
    return Pending.open(redis_url, space=space, shards=2).positions


def test_by_default_it_reads_everything_again(redis_url, space, positions, capsys) -> None:
    filling(redis_url, space, "replay").fill()
    assert positions() == {}
    told = capsys.readouterr().out
    assert "error" in told
    assert "used" in told
    assert "fresh" not in told


def test_it_may_begin_at_the_end(redis_url, space, positions) -> None:
    filling(redis_url, space, "skip").fill()
    assert positions() == {"used/0": 7, "used/1": 0}


def test_it_may_leave_it_to_a_person(redis_url, space) -> None:
    with pytest.raises(BadSettings, match="on_empty_store"):
        filling(redis_url, space, "stop").fill()


def test_a_store_that_knows_its_inboxes_is_not_asked_about(redis_url, space) -> None:
    filling(redis_url, space, "skip").fill()
    filling(redis_url, space, "stop").fill()


@pytest.mark.parametrize("choice", ["replay", "skip", "stop"])
def test_a_new_inbox_of_a_store_that_is_not_empty_is_read_from_its_beginning(
    redis_url, space, positions, capsys, choice
) -> None:
    """Whatever is chosen for an empty store: somebody has just added that inbox."""
    for one in Pending.open(redis_url, space=space, shards=2).shards:
        one.client.hset(one.keys["seen"], "fresh/0", 0)
    filling(redis_url, space, choice).fill()
    assert positions() == {"fresh/0": 0}
    told = capsys.readouterr().out
    assert "error" not in told
    assert "read from its beginning" in told


def test_journals_alone_do_not_tell_that_a_store_is_not_empty(redis_url, space) -> None:
    """They are filled in again after a loss, before this is asked."""
    asked = filling(redis_url, space, "stop")
    for one in asked._pending.shards:
        one.client.hset(one.keys["seen"], "told/0", 3)
    asked._settings = asked._settings.model_copy(
        update={"inboxes": (*asked._settings.inboxes, Inbox(topic="told", journal=True))}
    )
    with pytest.raises(BadSettings, match="on_empty_store"):
        asked.fill()


def test_the_ends_are_reached_by_the_stores_positions() -> None:
    ends = {"a": {0: 5, 1: 0}}
    assert reached({}, positions={})
    assert not reached(ends, positions={"a/0": 4})
    assert reached(ends, positions={"a/0": 5})


def test_what_intake_has_yet_to_read_is_left_to_it(redis_url, space) -> None:
    """Planned in here and delivered, it would be parked once more by an intake that comes late."""
    pending = Pending.open(redis_url, space=space, shards=1)
    fill_task = FillTask(
        redis_url=redis_url, space=space, shards=1, owner=pending.fence(), seen=({"s/0": 5},)
    )
    rows = [(b"read", 0, 4), (b"not yet", 0, 5), (b"nothing read", 1, 0)]
    none = [None] * len(rows)
    columns = {
        "id": [id for id, _, _ in rows],
        "due_ms": [7] * len(rows),
        "topic": ["t"] * len(rows),
        "partition": none,
        "key": none,
        "value": [b"v"] * len(rows),
        "headers": none,
        "dialect": ["headers"] * len(rows),
        "expires_ms": none,
        "expires_after_ms": none,
        "tags": ["order-17,mail"] * len(rows),
        "origin_topic": ["s"] * len(rows),
        "origin_partition": [partition for _, partition, _ in rows],
        "origin_position": [position for _, _, position in rows],
        "origin_timestamp_ms": [1] * len(rows),
        "shard": [0] * len(rows),
        "change": none,
    }
    [told] = fill_task(iter([pa.RecordBatch.from_pydict(columns)]))
    assert told.to_pydict() == {"count": [1]}
    assert [s.id for s in pending.list(count_max=9)] == [b"read"]
    assert [s.tags for s in pending.list(count_max=9, tag="mail")] == [("order-17", "mail")]


def test_a_rebuild_forgets_what_a_step_of_the_horizon_had_seen(redis_url, space, monkeypatch):
    """The step never ended: its store went back. What it had seen would not be written again."""
    here = filling(redis_url, space, "replay")
    here._settings = here._settings.model_copy(
        update={"inboxes": (Inbox(topic="used", journal=True),), "horizon": "1h"}
    )
    shards = Pending.open(redis_url, space=space, shards=2).shards
    names = [shard.keys[name] for shard in shards for name in ("touched", "beyond")]
    for shard, touched in zip(shards, names[::2], strict=True):
        shard.mark("state", {"horizon": 2_000, "planned": 1_000})
        shard.client.sadd(touched, b"id")
    found = []

    def planned(*_: Any, **__: Any) -> Planned:
        found.append(shards[0].client.exists(*names))
        return Planned(0, 0)

    monkeypatch.setattr(rebuild, "plan", planned)
    monkeypatch.setattr(rebuild, "TaskProgress", lambda *_, **__: nullcontext())
    here.rebuild({"used": {0: 0}})
    assert found == [0]


def test_while_a_store_is_filled_anew_clients_wait_and_their_changes_count(
    redis_url, space, monkeypatch
):
    """What they change before that is on the journal; the filled store knows nothing of it."""
    here = filling(redis_url, space, "replay")
    here._settings = here._settings.model_copy(
        update={"inboxes": (Inbox(topic="used", journal=True),)}
    )
    pending = Pending.open(redis_url, space=space, shards=2)
    for shard in pending.shards:
        shard.client.hset(shard.keys["seen"], mapping={"used/0": 7, "other/0": 3})
        shard.client.zadd(shard.keys["changes"], {"made": 1, "new id": 1})
    monkeypatch.setattr(here, "is_copy", lambda: False)
    here._topics = SimpleNamespace(ends=lambda topics: {"used": {0: 8}} if topics else {})
    monkeypatch.setattr(rebuild, "records", lambda *_, **__: "everything")
    monkeypatch.setattr(rebuild, "torn", lambda *_: [])
    monkeypatch.setattr(rebuild, "TaskProgress", lambda *_, **__: nullcontext())
    found = []
    monkeypatch.setattr(rebuild, "plan", lambda *_, **__: found.append(pending.positions()))
    with suppress(AttributeError):  # of what was planned
        here.fill()
    assert found == [{"other/0": 3}]
    monkeypatch.setattr(rebuild, "plan", lambda *_, **__: Planned(0, 0))
    assert here.fill() == {"used": {0: 8}}
    assert pending.positions() == {"used/0": 8, "other/0": 3}
    for shard in pending.shards:
        assert shard.client.zrange(shard.keys["changes"], 0, -1) == [b"new id"]


@pytest.mark.parametrize("horizon", ["", "1h"])
def test_what_is_undecided_is_left_to_intake(redis_url, space, positions, monkeypatch, horizon):
    """Not with a horizon: nobody can decide then, and it was planned in as a rejected record."""
    here = filling(redis_url, space, "replay")
    here._settings = here._settings.model_copy(
        update={"inboxes": (Inbox(topic="used", journal=True),), "horizon": horizon}
    )
    planned = Planned(1, 0, conditional=1)
    monkeypatch.setattr(rebuild, "plan", lambda *_, **__: planned)
    monkeypatch.setattr(rebuild, "TaskProgress", lambda *_, **__: nullcontext())
    monkeypatch.setattr(rebuild, "records", lambda *_, **__: "everything")
    monkeypatch.setattr(rebuild, "torn", lambda *_: [])
    monkeypatch.setattr(rebuild, "undecided", lambda read: {"used/1": [3, 5]} if read else {})
    here.rebuild({"used": {0: 7, 1: 9}})
    assert positions() == {"used/0": 7, "used/1": 9 if horizon else 3}
