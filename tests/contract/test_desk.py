"""What people ask of the store: pages with a filter, changes on a condition, counters."""

import random
from dataclasses import replace
from functools import partial
from itertools import product

import pytest

from sendlater.clock import FixedClock
from sendlater.limits import PAGE_LOOK_MAX, RECENT_COUNT_MAX, TALLY_NAMES_MAX
from sendlater.model import Record, Schedule
from sendlater.operations.queries import from_cursor, to_cursor
from sendlater.spark.delivery.lateness import LatenessReport
from sendlater.store import Admin, Answer, Batch, Filter, Move, Pending
from sendlater.store.codec import pack
from sendlater.store.timeline import counts, due_ms_of_share, timeline


def schedule(
    schedule_id: bytes, due_ms: int, topic: str = "t", caller: bytes | None = None
) -> Schedule:
    headers = [("h", None), ("c", b""), ("c", caller)]
    record = Record(topic=topic, value=b"v", headers=headers)
    return Schedule(id=schedule_id, due_ms=due_ms, record=record)


@pytest.fixture
def admin(redis_url: str, space: str) -> Admin:
    return Admin(Pending.open(redis_url, space=space, shards=2))


def put(admin: Admin, schedules: list[Schedule]) -> None:
    for shard in admin.pending.shards:
        mine = [s for s in schedules if admin.pending.shard_of(s.id) is shard]
        for first in range(0, len(mine), 500):
            shard.park([x for s in mine[first : first + 500] for x in (s.id, s.due_ms, pack(s))])


def everything(
    admin: Admin, wanted: Filter, count_max: int, *, backwards: bool = False
) -> list[bytes]:
    found: list[bytes] = []
    page = admin.page(wanted, count_max=count_max, backwards=backwards)
    while True:
        assert len(page.schedules) <= count_max
        found += [s.id for s in page.schedules]
        if page.after is None:
            return found
        page = admin.page(wanted, count_max=count_max, after=page.after, backwards=backwards)


@pytest.mark.parametrize("seed", range(3))
def test_pages_show_each_that_passes_once_and_in_order(
    admin: Admin, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many with the same due time, page sizes that cut through them, shards that stop looking at
    different places."""
    draw = random.Random(seed)
    monkeypatch.setattr("sendlater.store.pages.PAGE_LOOK_MAX", 3 + 20 * seed)
    stored = [
        schedule(
            b"%c%d" % (draw.choice(b"ab"), n),
            draw.randrange(5),
            draw.choice(["x", "yy"]),
            draw.choice([b"shop", b"shopping" * 40, None]),
        )
        for n in range(300)
    ]
    put(admin, stored)
    for wanted in (
        Filter(),
        Filter(from_ms=1, to_ms=3),
        Filter(id_prefix=b"a"),
        Filter(topic="yy"),
        Filter(from_ms=2, id_prefix=b"b", topic="x"),
        Filter(header=("c", b"shop")),
        Filter(header=("c", b"shopping" * 40), topic="x"),
    ):
        expected = sorted(
            (s.due_ms, s.id)
            for s in stored
            if s.due_ms >= wanted.from_ms
            and (wanted.to_ms is None or s.due_ms <= wanted.to_ms)
            and s.id.startswith(wanted.id_prefix)
            and wanted.topic in ("", s.record.topic)
            and (wanted.header is None or wanted.header in s.record.headers)
        )
        ids = [i for _, i in expected]
        assert everything(admin, wanted, draw.choice([1, 7, 100])) == ids
        assert everything(admin, wanted, draw.choice([1, 7, 100]), backwards=True) == ids[::-1]


def test_what_was_made_due_at_once_has_pages_too(admin: Admin) -> None:
    """All of it has one due time, and stands behind what has the same one anyway."""
    names = [b"%02d" % n for n in range(20)]
    put(admin, [schedule(name, 9_000) for name in names])
    put(admin, [schedule(b"same", 7), schedule(b"after", 8)])
    admin.move_many([Move(name, 7, at_once=True) for name in names])
    whole = [b"same", *names, b"after"]
    for count_max in (1, 3, 7, 100):
        assert everything(admin, Filter(), count_max) == whole
        assert everything(admin, Filter(), count_max, backwards=True) == whole[::-1]
    assert [one.id for one in admin.all(Filter(), count_max=100)] == whole
    place = admin.page(Filter(), count_max=3).after
    assert from_cursor(to_cursor(place)) == place


def test_a_filter_that_nothing_passes_still_comes_to_an_end(admin: Admin) -> None:
    """Each call looks at a bounded number; the page is empty and says where to look on."""
    put(admin, [schedule(b"%d" % n, n) for n in range(3 * PAGE_LOOK_MAX)])
    first = admin.page(Filter(topic="none"), count_max=10)
    assert first.schedules == []
    assert first.after is not None
    assert everything(admin, Filter(topic="none"), 10) == []


def test_a_page_is_looked_for_until_it_is_full_or_the_time_is_over(admin: Admin) -> None:
    put(admin, [schedule(b"%05d" % n, n) for n in range(3 * PAGE_LOOK_MAX)])
    put(admin, [schedule(b"few%d" % n, 3_000 * n, "few") for n in range(3)])
    for backwards in (False, True):
        look = partial(admin.page_within, Filter(topic="few"), backwards=backwards)
        assert len(look(within_s=0, count_max=3).schedules) < 3
        whole = look(within_s=60, count_max=10)
        assert whole.after is None
        assert [s.due_ms for s in whole.schedules] == [0, 3_000, 6_000][:: -1 if backwards else 1]
        full = look(within_s=60, count_max=2)
        assert len(full.schedules) == 2
        rest = look(within_s=60, count_max=9, after=full.after)
        assert full.schedules + rest.schedules == whole.schedules


def test_the_timeline_counts_all_and_tells_topics_by_a_sample(admin: Admin) -> None:
    put(admin, [schedule(b"%d" % n, 10, "x") for n in range(3)])
    put(admin, [schedule(b"l%d" % n, 10, "y" * 40) for n in range(2)])
    exact = timeline(admin.pending, [0, 10, 11])
    assert exact.counts == [0, 5]
    assert exact.topics == {"x": [0, 3], "y" * 40: [0, 2]}
    assert exact.estimated == [False, False]
    put(admin, [schedule(b"s%d" % n, 20 + n // 500, "xy"[n % 2]) for n in range(1_000)])
    many = timeline(admin.pending, [20, 21, 22, 23])
    assert many.counts == [500, 500, 0]
    assert many.estimated == [True, True, False]
    assert [sum(each) for each in zip(*many.topics.values(), strict=True)] == [500, 500, 0]
    assert admin.last_due_ms() == 21
    assert counts(admin.pending, [10, 20, 21, 22]) == [5, 500, 500]


def test_what_is_rare_in_a_large_bar_is_seen(admin: Admin) -> None:
    """Also if it is together there: in a burst, schedules stand by their ids."""
    put(
        admin, [schedule(b"%06d" % n, 10, "rare" if n % 1_000 < 100 else "x") for n in range(4_000)]
    )
    (rare,) = timeline(admin.pending, [10, 11]).topics["rare"]
    assert 200 < rare < 800, "400 of them"


def test_when_most_is_due_is_not_when_the_last_is(admin: Admin) -> None:
    assert due_ms_of_share(admin.pending, 0.9) is None
    put(admin, [schedule(b"%d" % n, 1_000 + n) for n in range(1_000)])
    put(admin, [schedule(b"in years", 10**12)])
    most_ms = due_ms_of_share(admin.pending, 0.9)
    assert most_ms is not None
    assert 1_850 < most_ms < 1_950
    assert admin.last_due_ms() == 10**12


def test_the_timeline_tells_apart_what_recurs(admin: Admin) -> None:
    """Whatever stands before the plan in its record; the same bytes in a payload are no plan."""
    sizes = (None, 0, 31, 32, 255, 256, 70_000)
    rows = [
        Schedule(
            id=b"%d" % n,
            due_ms=n,
            record=Record(
                topic="t" * (1 + 40 * (n % 3)),
                value=None if size is None else (b"\xc4\x0esendlater-plan" * size)[:size],
                key=None if key is None else b"k" * key,
                partition=partition,
                headers=[("h", b"v")] * (20 * (n % 2)),
            ),
            plan="a plan" if n % 5 < 2 else "",
            tags=("a",) * (n % 4 // 3),
        )
        for n, (size, key, partition) in enumerate(
            product(sizes, sizes, (None, 0, 127, 128, 256, 70_000))
        )
    ]
    put(admin, rows)
    told = timeline(admin.pending, range(len(rows) + 1))
    assert told.counts == [1] * len(rows)
    assert told.recurring == [int(bool(row.plan)) for row in rows]
    topics = [next(t for t, each in told.topics.items() if each[n]) for n in range(len(rows))]
    assert topics == [row.record.topic for row in rows]


def test_all_stops_at_its_limit(admin: Admin) -> None:
    put(admin, [schedule(b"%04d" % n, n) for n in range(2_500)])
    assert [s.due_ms for s in admin.all(Filter(), count_max=2_001)] == list(range(2_001))
    assert admin.count(from_ms=10, to_ms=19) == 10


def test_a_change_is_made_only_to_the_version_that_was_seen(admin: Admin) -> None:
    put(admin, [schedule(b"a", 10)])
    seen = admin.pending.get(b"a")
    assert seen is not None
    answer, moved = admin.move(Move(b"a", 20, version=seen.version))
    assert answer is Answer.MOVED
    assert moved is not None
    assert (moved.due_ms, moved.record) == (20, seen.record)
    assert moved.version != seen.version
    assert admin.move(Move(b"a", 30, version=seen.version)) == (Answer.CHANGED, None)
    assert admin.cancel(b"a", version=seen.version) is Answer.CHANGED
    assert admin.cancel(b"a", version=moved.version) is Answer.CANCELLED
    assert admin.cancel(b"a") is Answer.UNKNOWN
    assert admin.move(Move(b"a", 1)) == (Answer.UNKNOWN, None)


def test_the_version_is_of_what_is_stored_and_not_of_when_it_is_asked(admin: Admin) -> None:
    put(admin, [schedule(b"a", 2**52 - 1)])
    one = admin.pending.get(b"a")
    (two,) = admin.page(Filter(), count_max=1).schedules
    assert one is not None
    assert one.version == two.version
    put(admin, [replace(schedule(b"a", 2**52 - 1), record=Record(topic="t", value=b"w"))])
    three = admin.pending.get(b"a")
    assert three is not None
    assert three.version != one.version


def test_what_is_claimed_is_too_late_to_change(admin: Admin) -> None:
    owner = admin.pending.fence()
    batch = Batch(lane=0, run=admin.pending.open_lane(0, owner=owner), end_ms=10)
    put(admin, [schedule(b"a", 1)])
    admin.pending.shard_of(b"a").claim(batch, owner=owner, now_ms=5, count_max=9)
    assert admin.cancel(b"a") is Answer.DELIVERING
    assert admin.move(Move(b"a", 9))[0] is Answer.DELIVERING
    assert [s.id for s in admin.claimed(Filter(), count_max=10)] == [b"a"]


def test_many_are_answered_in_the_order_asked(admin: Admin) -> None:
    put(admin, [schedule(b"%d" % n, n) for n in range(0, 40, 2)])
    cancelled = admin.cancel_many([(b"%d" % n, "") for n in range(20)])
    assert cancelled == [Answer.CANCELLED, Answer.UNKNOWN] * 10
    moved = admin.move_many([Move(b"%d" % n, 100 + n) for n in range(20, 40)])
    assert [s.due_ms if s else None for _, s in moved[:4]] == [120, None, 122, None]


def test_one_call_cancels_each_id_once_and_names_no_more_changes_than_there_is_room(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 30 on each shard, ten in a call: each has its own answer, and the second of a pair has
    nothing to cancel."""
    monkeypatch.setattr("sendlater.store.admin.CANCEL_COUNT_MAX", 10)
    monkeypatch.setattr("sendlater.store.admin.CHANGES_COUNT_MAX", 25)
    put(admin, [schedule(b"%d" % n, n) for n in range(60)])
    versions = {one.id: one.version for one in admin.all(Filter(), count_max=60)}
    ids = [(b"%d" % n, "other" if n % 5 == 0 else versions[b"%d" % n]) for n in range(60)]
    twice = [one for one in ids for _ in range(2)]
    changes = [f"c-{n}" for n in range(120)]
    answers = admin.cancel_many(twice, changes=changes)
    expected = [Answer.CANCELLED, Answer.UNKNOWN], [Answer.CHANGED, Answer.CHANGED]
    assert answers == [told for n in range(60) for told in expected[n % 5 == 0]]
    assert [one.id for one in admin.all(Filter(), count_max=60)] == [
        b"%d" % n for n in range(0, 60, 5)
    ]
    for shard in admin.pending.shards:
        made = [change.encode() for change in changes]
        known = set(shard.client.zrange(shard.keys["changes"], 0, -1))
        mine = [n for n, (one, _) in enumerate(twice) if admin.pending.shard_of(one) is shard]
        of_mine = {made[n] for n in mine if answers[n] is Answer.CANCELLED}
        assert known <= of_mine
        assert len(known) == min(25, len(of_mine))
    assert sum(int(s.state()["cancelled"]) for s in admin.pending.shards) == 48


def test_the_copy_of_a_change_is_passed_over_by_the_store_that_made_it(admin: Admin) -> None:
    """Moved, delivered, and only then is the copy read: it must not be delivered again."""
    put(admin, [schedule(b"a", 10)])
    admin.move(Move(b"a", 20, change="c1"))
    shard = admin.pending.shard_of(b"a")
    copy = [b"a", "c1|20", pack(schedule(b"a", 20))]
    admin.cancel(b"a")
    shard.park(copy)
    assert admin.pending.get(b"a") is None
    assert shard.state()["replaced"] == "0"
    shard.park(copy)  # a store that has not made it, or has been told once already
    found = admin.pending.get(b"a")
    assert found is not None
    assert found.due_ms == 20


def test_lateness_is_counted_in_the_bucket_it_belongs_to(admin: Admin) -> None:
    clock = FixedClock(100_000)
    told = LatenessReport(admin.pending.shards[0], clock)
    due = [0, 90_000, 99_950, 99_951, 99_999, 100_000]
    told.delivered([b"%d" % d for d in due], due, [b"x", b"y", b"y", b"y", b"y", b"y"])
    told.flush()
    tally = admin.tally()
    late = {name.removeprefix("late:"): n for name, n in tally.items() if name.startswith("late:")}
    assert late == {"1": 2, "50": 2, "10000": 1, "120000": 1}
    assert tally["late-sum-ms"] == sum(100_000 - d for d in due)
    assert tally["delivered:x"] == 1
    assert tally["delivered:y"] == 5
    assert admin.recent(count_max=1)[0].at_ms == 100_000
    assert len(admin.recent(count_max=100)) == 6


def test_counters_and_last_deliveries_are_bounded(admin: Admin) -> None:
    for first in range(0, 2 * TALLY_NAMES_MAX, 100):
        admin.tell((f"delivered:t{n}", 1) for n in range(first, first + 100))
    tally = admin.tally()
    assert len(tally) == TALLY_NAMES_MAX + 1
    assert tally["delivered:"] == TALLY_NAMES_MAX
    told = LatenessReport(admin.pending.shards[0], FixedClock(1))
    for _ in range(RECENT_COUNT_MAX // 50 + 2):
        told.delivered([b"i"] * 100, [1] * 100, [b"t"] * 100)
        told.flush()
    assert len(admin.recent(count_max=10 * RECENT_COUNT_MAX)) == RECENT_COUNT_MAX
