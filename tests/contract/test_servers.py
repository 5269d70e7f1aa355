"""Several Redis servers that know nothing of each other: shard n on server n modulo how many."""

import pytest
from servers import own_redis

from sendlater.addresses import server_name
from sendlater.client.scheduler import Scheduler
from sendlater.errors import BadSettings, Fenced, StoreUnavailable
from sendlater.model import Cancelled, Origin, Record, Schedule
from sendlater.store import Admin, Batch, Filter, Pending, succession
from sendlater.store.audit import AuditTrail, Entry
from sendlater.store.rebuild import JournalCopy
from sendlater.store.waiting import Rate, Waiting, waiting
from sendlater.topics import Topics

SHARDS = 3
IDS = [b"%d" % number for number in range(30)]
ORIGIN = Origin(topic="journal", partition=0, position=1, timestamp_ms=2**40)


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    with own_redis(tmp_path_factory.mktemp("a")) as a, own_redis(tmp_path_factory.mktemp("b")) as b:
        yield [a.url, b.url]


@pytest.fixture
def pending(urls, space):
    pending = Pending.open(",".join(urls), space=space, shards=SHARDS)
    pending.require_layout()
    return pending


def put(pending, ids=IDS, topic="t"):
    for number, one in enumerate(ids):
        record = Record(topic=topic, value=b"v")
        pending.put(
            Schedule(id=one, due_ms=number, record=record, dialect="headers", origin=ORIGIN)
        )


def claim(pending, batch, owner, **named):
    claims = [
        shard.claim(batch, owner=owner, now_ms=2**40, count_max=99, **named)
        for shard in pending.shards
    ]
    return {one for claim in claims for one in claim.ids}


def test_each_shard_is_on_its_server_alone(pending, space):
    put(pending)

    first, second = ({*client.keys(f"{{{space}:*}}:due")} for client in pending.clients)
    assert first == {f"{{{space}:0}}:due".encode(), f"{{{space}:2}}:due".encode()}
    assert second == {f"{{{space}:1}}:due".encode()}


def test_what_people_ask_is_about_both(pending, urls):
    put(pending)
    admin = Admin(pending)

    assert [one.id for one in pending.list(count_max=99)] == IDS
    assert [one.id for one in admin.page(Filter(), count_max=7).schedules] == IDS[:7]
    assert list(pending.histogram([0, 10, 30])) == [10, 20]
    assert pending.move(b"29", due_ms=0)
    assert {pending.cancel(one) for one in IDS[:10]} == {Cancelled.CANCELLED}
    assert [one and one.id for one in admin.get_many(IDS[9:12])] == [None, b"10", b"11"]
    assert pending.counts()["pending"] == 20
    assert admin.memory().keys() == {server_name(url) for url in urls}
    trail = AuditTrail(pending)
    trail.write(Entry(id="e", at_ms=1, who="me", action="cancel"))
    assert [entry.id for entry, _ in trail.trail(first=0, count=9)] == ["e"]


def test_a_lane_claims_settles_and_releases_on_both(pending):
    put(pending)
    owner = pending.fence()
    batch = Batch(0, pending.open_lane(0, owner=owner), 2**40)

    assert claim(pending, batch, owner) == {*IDS}
    pending.release_all(owner=owner)
    assert claim(pending, batch, owner) == {*IDS}
    assert pending.settle(batch, owner=owner) == 30
    assert pending.counts()["claimed"] == 0
    assert pending.is_armed(owner=owner) is False
    pending.arm(owner=owner)
    assert pending.is_armed(owner=owner)


def test_a_space_is_fenced_and_handed_over_on_both(pending):
    put(pending)
    old = pending.fence()
    batch = Batch(0, pending.open_lane(0, owner=old), 2**40)
    heir, _ = succession.announce(pending)
    assert succession.inherit(pending, heir, bound_stays=True)
    assert pending.owners() == [heir] * SHARDS
    assert pending.fence() > heir

    for shard in pending.shards:
        with pytest.raises(Fenced):
            shard.claim(batch, owner=old, now_ms=2**40, count_max=9)


@pytest.mark.parametrize("topic", ["a", "b", "c"])
def test_tokens_of_a_limit_come_from_whichever_server_is_its_home(pending, topic):
    put(pending, topic=topic)
    owner = pending.fence()
    batch = Batch(0, pending.open_lane(0, owner=owner), 2**40)
    delivered = 0
    for shard in pending.shards:
        limits = Waiting(shard, [Rate(topic, 1_000, 2)], owner=owner, shards=SHARDS)
        for _ in range(2):
            got = shard.claim(batch, owner=owner, now_ms=10**6, count_max=9, limits=limits.given())
            delivered += len(got.ids)
            limits.reserved(got, 10**6)
    assert 0 < delivered <= 2 + SHARDS, "the burst, and what each shard may hold"
    assert sum(waiting(pending, topic).values()) == 30 - delivered


def test_a_journal_is_copied_to_both_and_the_horizon_moves_on_both(pending):
    owner = pending.fence()
    copy = JournalCopy(pending, owner=owner)
    put(pending)
    copy.empty(["journal"])
    assert pending.counts()["pending"] == 0
    copy.complete({"journal/0": 7}, journals="j")
    copy.set_horizon(9, planned_ms=9)
    assert copy.stands_for("j")
    assert copy.is_even()
    assert pending.positions() == {"journal/0": 7}


def test_a_list_that_does_not_fit_is_refused_before_anything_is_written(pending, urls, space):
    a, b = urls
    other = f"{space}-one"
    Pending.open(a, space=other, shards=SHARDS).require_layout()
    for text, name, told in (
        (f"{b},{a}", space, "server 2 of the 2 .* as server 1 of 2"),
        (a, space, "server 1 of the 2 .* as server 1 of 1"),
        (b, space, "server 2 of the 2 .* as server 1 of 1"),
        (f"{a},{b},{b}?db=1", space, "server 1 of the 2 .* as server 1 of 3"),
        (f"{a},{b}", other, "expected the one server .* got a list of 2"),
    ):
        before = [client.dbsize() for client in pending.clients]
        with pytest.raises(BadSettings, match=told):
            Pending.open(text, space=name, shards=SHARDS).require_layout()
        assert [client.dbsize() for client in pending.clients] == before, text
    with pytest.raises(BadSettings, match="as many servers as shards, got 2 servers and 1"):
        Pending.open(f"{a},{b}", space=f"{space}-new", shards=1).require_layout()


def test_a_server_that_comes_back_empty_keeps_its_place(pending, space):
    pending.clients[1].delete(f"{space}:server")
    pending.require_layout()
    assert pending.clients[1].get(f"{space}:server") == b"1/2"


def test_a_program_needs_the_list_alone(urls, space):
    with Scheduler(", ".join(urls), space=space) as scheduler:
        for one in IDS[:9]:
            scheduler.send_later("t", b"v", delay=60, id=one.decode())
        assert {one.id for one in scheduler.pending.list(count_max=99)} == {*IDS[:9]}
        assert all(client.keys(f"{{{space}:*}}:record") for client in scheduler.pending.clients)
        with Topics(", ".join(urls), space=space) as topics:
            topics.produce(Record(topic="t", value=b"v"))
        assert scheduler.pending.client.keys(f"{space}:topic:*"), "topics are on the first"
        with pytest.raises(BadSettings, match="a cluster in a list"):
            Scheduler(f"{urls[0]},redis+cluster://{server_name(urls[1])}", space=space)


def test_a_server_that_is_down_is_named_and_the_others_deliver(tmp_path, urls, space):
    with own_redis(tmp_path) as third:
        pending = Pending.open(f"{urls[0]},{third.url}", space=space, shards=2)
        pending.require_layout()
        put(pending)
        owner = pending.fence()
        batch = Batch(0, pending.open_lane(0, owner=owner), 2**40)
        third.stop()

        with pytest.raises(StoreUnavailable, match=server_name(third.url)):
            pending.counts()
        up, down = pending.shards
        with pytest.raises(StoreUnavailable, match=server_name(third.url)):
            down.claim(batch, owner=owner, now_ms=2**40, count_max=9)
        assert up.claim(batch, owner=owner, now_ms=2**40, count_max=99).ids
