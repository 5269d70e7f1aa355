"""Changing the number of shards and servers of a space: all of it is there afterwards, once."""

import random
from collections import Counter
from contextlib import suppress

import pytest
from redis_nodes import own_cluster
from servers import own_redis
from tag_index import index_meant, index_of

from sendlater.cli import app
from sendlater.cli.connection import OK
from sendlater.errors import BadSettings, Fenced, StoreUnavailable, Unavailable
from sendlater.model import PAUSED_MS, Origin, Record, Schedule, Target
from sendlater.store import Admin, Batch, Delivery, Move, Pending, connection, reshard
from sendlater.store.audit import AuditTrail, Entry, Undo
from sendlater.store.codec import LIMITED_MS, pack
from sendlater.store.conditional import put_if
from sendlater.store.connection import connect
from sendlater.store.lease import Lease
from sendlater.store.rebuild import JournalCopy
from sendlater.store.recent import tell
from sendlater.store.reshard import Reshard
from sendlater.store.waiting import Rate, Waiting, waiting

NOW_MS = 10**6
STRIDE = 7
SEEN = {"in/0": 17, "in/1": 4}
SETS = ("touched", "beyond", "overtaken")
BY_ID = (*SETS, "surplus", "overtaken:otherwise", "aside", "once:asker")


@pytest.fixture(autouse=True)
def no_power_fails(monkeypatch):
    monkeypatch.setattr(connection, "DISK_S", 0)


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    with own_redis(tmp_path_factory.mktemp("a")) as a, own_redis(tmp_path_factory.mktemp("b")) as b:
        yield [a.url, b.url]


def schedule(number, random_):
    return Schedule(
        id=b"%d \xff:%d" % (number, random_.randrange(9)),
        due_ms=random_.choice((random_.randrange(NOW_MS), NOW_MS * 2 + number, PAUSED_MS)),
        record=Record(
            topic=random_.choice("ab"), value=random_.randbytes(random_.choice((5, 3000)))
        ),
        dialect="headers",
        origin=Origin(topic="in", partition=0, position=number, timestamp_ms=1),
        tags=random_.choice(((), ("x",), ("x", f"order-{number}"))),
    )


def populate(pending, *, seed=0, count=60):
    """Some of every kind of state that a stopped service leaves, and of what only Redis knows."""
    chosen = random.Random(seed)
    pending.require_layout()
    owner = pending.fence()
    rows = [schedule(number, chosen) for number in range(count)]
    for row in rows:
        pending.put(row)
    run = pending.open_lane(0, owner=owner)
    batch = Batch(0, run, NOW_MS, 1)
    for shard in pending.shards:
        limits = Waiting(shard, [Rate("a", 10**5, 1)], owner=owner, shards=len(pending.shards))
        named = {"owner": owner, "now_ms": NOW_MS, "limits": limits.given()}
        got = shard.claim(batch, count_max=9, **named)
        shard.set_aside(batch, got.ids[::2])
        limits.reserved(got, NOW_MS)
        tell(shard, {"delivered:b": 2, "held-ms": 5}, [
            Delivery(b"%d" % n, "b", n, NOW_MS + chosen.randrange(99)) for n in range(5)
        ])  # fmt: skip
        for topic in ("a", "b"):
            shard.mark("targets", {topic: str(Target(7, 2))})
    pending.settle(batch)
    JournalCopy(pending, owner=owner).complete(SEEN, journals="in:x", undecided={"in/1": [2, 3]})
    JournalCopy(pending, owner=owner).set_horizon(NOW_MS * 9, planned_ms=NOW_MS * 9, later=8)
    for one in rows[::7]:
        shard = pending.shard_of(one.id)
        keys, gone = shard.keys, b"\0in/0/3\0" + one.id
        shard.client.sadd(keys["touched"], one.id, gone)
        shard.client.sadd(keys["beyond"], one.id)
        shard.client.sadd(keys["overtaken"], one.id)
        shard.client.hset(keys["surplus"], one.id, "in/0/3")
        shard.client.hset(keys["overtaken"] + ":otherwise", one.id, "x -")
        shard.client.hset(keys["seen"] + ":topics", "in", "kafka-id")
    for shard in pending.shards:
        shard.client.hset(shard.keys["seen"] + ":topics", "in", "kafka-id")
    admin = Admin(pending)
    admin.move_many([Move(one.id, NOW_MS * 3, change=f"c{one.id!r}") for one in rows[::5]])
    put_if(pending, schedule(count, chosen), only_if="absent", reserve_ms=60_000)
    for number in range(count + 1, count + 9):
        asked = schedule(number, chosen)
        pending.shard_of(asked.id).park(
            [asked.id, f"if once|{asked.due_ms}", pack(asked)], journal=True
        )
    pending.shards[0].want([b"new-target"])
    pending.tell_copied({"other/0": 5})
    trail = AuditTrail(pending)
    trail.write(Entry(id="e", at_ms=1, who="me", action="cancel"))
    trail.keep("e", [Undo(b"undone", 5)], for_s=60)


def everything(pending):
    """What a space holds, wherever it lies."""
    admin, found = Admin(pending), {}
    rows = [(s, *row) for s in pending.shards for row in s.client.zscan_iter(s.keys["due"])]
    for shard, one, _ in rows:
        assert pending.shard_of(one) is shard, "each is where its id is looked for"
    found["due"] = {one: score for _, one, score in rows}
    found["listed"] = [(r.id, r.due_ms, r.version, pack(r)) for r in pending.list(count_max=999)]
    found["counts"], found["tally"], found["later"] = pending.counts(), admin.tally(), admin.later()
    found["seen"], found["copied"] = pending.positions(), pending.copied()
    found["waiting"] = {topic: waiting(pending, topic) for topic in ("a", "b")}
    found["recent"] = Counter(admin.recent(count_max=10**4))
    index = index_of(pending)
    assert index == index_meant(pending)
    found["tags"] = {(tag, i, at) for (_, tag), ids in index.items() for i, at in ids.items()}
    for name in (*BY_ID, "changes", "once", "wanted", "limits-since", "limits-from", "seen:topics"):
        found[name] = set()
        for shard in pending.shards:
            key = shard.keys["due"].removesuffix("due") + name
            kind = shard.client.type(key)
            read = {b"hash": shard.client.hgetall, b"set": shard.client.smembers}
            found[name] |= set(
                (read[kind](key).items() if kind == b"hash" else read[kind](key))
                if kind in read
                else shard.client.zrange(key, 0, -1)
            )
    for name in BY_ID:
        for one in (row[0] if isinstance(row, tuple) else row for row in found[name]):
            home = pending.shard_of(one.rpartition(b"\0")[2])
            key, is_set = home.keys["due"].removesuffix("due") + name, name in SETS
            there = home.client.sismember(key, one) if is_set else home.client.hexists(key, one)
            assert there, (name, one)
    for one in found["once"]:
        home = pending.shard_of(one)
        assert home.client.zscore(home.keys["once"], one), one
    for name in ("journals", "horizon", "planned"):
        [found[name]] = {shard.state()[name] for shard in pending.shards}
    assert {str(shard.targets()) for shard in pending.shards} == {str(pending.shards[0].targets())}
    found["targets"] = pending.shards[0].targets()
    found["undecided"] = pending.client.hgetall(pending.shards[0].keys["state"] + ":undecided")
    trail = AuditTrail(pending)
    found["audit"] = trail.trail(first=0, count=9)
    assert {"order-3", "x"} & {tag for tag, *_ in found["tags"]}
    assert any(score > LIMITED_MS for score in found["due"].values())
    assert all(found[name] for name in (*BY_ID, "changes", "once", "limits-since", "recent"))
    return found


def leftovers(clients, space):
    """Keys that should not be there after a change."""
    return [
        key
        for client in clients
        for key in client.scan_iter(match=f"*{space}*")
        if b":next:" in key or b":reshard" in key
    ]


def test_a_space_goes_from_two_shards_to_three_on_two_servers_and_to_one(urls, space):
    for seed in range(3):
        name = f"{space}-{seed}"
        a, b = connect(urls[0]), connect(urls[1])
        populate(Pending(a, space=name, shards=2), seed=seed)
        before = everything(Pending(a, space=name, shards=2))
        told = []
        Reshard(a, b + a, space=name, shards=3, told=told.append).run()
        assert told[-1] == before["counts"]["pending"]
        three = Pending(b + a, space=name, shards=3)
        three.require_layout()
        assert everything(three) == before
        Reshard(b + a, a, space=name, shards=1).run()
        one = Pending(a, space=name, shards=1)
        one.require_layout()
        assert everything(one) == before
        assert leftovers(a + b, name) == []
        assert list(b[0].scan_iter(match=f"{{{name}:*")) == []
        assert list(AuditTrail(one).take("e")) == [[Undo(b"undone", 5)]]
        assert one.fence() > 0, "a service can have it"


def test_a_cluster_is_laid_out_anew_and_left_and_entered(cluster_url, urls, space):
    cluster, server = connect(cluster_url), connect(urls[0])
    populate(Pending(cluster, space=space, shards=2), count=14)
    before = everything(Pending(cluster, space=space, shards=2))
    for old, new, shards in ((cluster, cluster, 3), (cluster, server, 1), (server, cluster, 2)):
        Reshard(old, new, space=space, shards=shards).run()
        after = Pending(new, space=space, shards=shards)
        after.require_layout()
        assert everything(after) == before


class Killed(BaseException):
    """No handler of ours sees it, as with kill -9."""


class Mortal:
    """A client, or one of its pipelines, whose process dies after so many writes."""

    WRITES = frozenset(
        ("set", "delete", "zadd", "hset", "sadd", "rpush", "rename", "pexpire", "evalsha", "eval")
    )

    def __init__(self, real, left):
        self._real, self._left = real, left

    def __getattr__(self, name):
        method = getattr(self._real, name)
        if name == "pipeline":
            return lambda **named: Mortal(method(**named), self._left)
        of_pipe = hasattr(self._real, "command_stack")
        counts = name == "execute" if of_pipe else name in self.WRITES
        return self._killing(method) if counts else method

    def _killing(self, method):
        def call(*args, **named):
            done = method(*args, **named)
            self._left[0] -= 1
            if self._left[0] == 0:
                raise Killed
            return done

        return call

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._real.reset()


def write(pending, schedule_id):
    """As a client does that was opened before."""
    pending.require_same()
    pending.put(Schedule(id=schedule_id, due_ms=1, record=Record(topic="t", value=b"")))


def stage_after(kills, urls, name):
    """Kills a change after so many writes, and runs it again; the stage that it had come to."""
    a, b = connect(urls[0]), connect(urls[1])
    populate(Pending(a, space=name, shards=2), count=14)
    before, left, stage = everything(Pending(a, space=name, shards=2)), [kills], "ended"
    mortal_a, mortal_b = (Mortal(one, left) for one in (*a, *b))
    with suppress(Killed):
        Reshard((mortal_a,), (mortal_a, mortal_b), space=name, shards=3).run()
    if a[0].exists(f"{name}:reshard"):
        again = Reshard(a, a + b, space=name, shards=3)
        stage = again.plan.stage
        if stage in ("retire", "install"):
            with pytest.raises(BadSettings, match="as they were given before: 1 of 2"):
                Reshard(a, b + a, space=name, shards=3)
            with pytest.raises(BadSettings, match="to 3 shards on 2 servers is under way"):
                Reshard(a, a, space=name, shards=3)
            for row in (b"0", b"1", b"2"):
                with pytest.raises(StoreUnavailable, match="laid out anew"):
                    write(Pending(a, space=name, shards=2), row)
                if stage == "retire":
                    with pytest.raises(StoreUnavailable, match="laid out anew"):
                        Pending(a, space=name, shards=2).cancel(row)
        again.run()
    after = Pending(a + b, space=name, shards=3)
    after.require_layout()
    assert everything(after) == before, (kills, stage)
    assert leftovers(a + b, name) == [], (kills, stage)
    for client in a + b:
        client.delete(*client.keys(f"*{name}*"))
    return stage


def test_killed_after_any_write_and_run_again_it_ends_the_same(urls, space):
    """In a stage all writes are alike, so every few; where one stage follows another, each."""
    stages, kills = {0: "copy"}, 0
    while stages[kills] != "ended":
        kills += STRIDE
        stages[kills] = stage_after(kills, urls, f"{space}-{kills}")
        if stages[kills] != stages[kills - STRIDE]:
            for between in range(kills - STRIDE + 1, kills):
                stages[between] = stage_after(between, urls, f"{space}-{between}")
    assert {*stages.values()} == {"copy", "retire", "install", "done", "ended"}


def test_a_command_that_slept_while_another_ended_the_change_touches_nothing(urls, space):
    a = connect(urls[0])
    pending = Pending(a, space=space, shards=2)
    populate(pending, count=14)
    before = everything(pending)

    class Sleeps(Reshard):
        def _await_disk(self) -> None:
            if self.plan.stage == "copy":  # complete; the next step would be to remove the old ones
                Reshard(a, a, space=space, shards=3).run()

    slow = Sleeps(a, a, space=space, shards=3)
    with pytest.raises(Unavailable, match="another command has gone on"):
        slow.run()
    with pytest.raises(Unavailable, match="another command has gone on"):
        slow.leave()
    with pytest.raises(Unavailable, match="another command has gone on"):
        slow._remove(a[0], copy=False)

    after = Pending(a, space=space, shards=3)
    after.require_layout()
    assert everything(after) == before


def test_a_copy_that_does_not_fit_is_given_up_by_itself(urls, space):
    a = connect(urls[0])
    pending = Pending(a, space=space, shards=2)
    populate(pending, count=200)
    before = everything(pending)
    a[0].config_set("maxmemory", a[0].info("memory")["used_memory"] + 20_000)
    try:
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            Reshard(a, a, space=space, shards=3).run()
        assert leftovers(a, space) == []
        pending.require_layout()
    finally:
        a[0].config_set("maxmemory", 0)
    assert everything(pending) == before


def test_before_a_cluster_forgets_the_old_its_disks_have_the_copy(tmp_path, space, monkeypatch):
    waited = []
    monkeypatch.setattr(reshard, "await_disk", lambda clients: waited.append(len(clients)))
    with own_cluster(tmp_path) as cluster:
        clients = connect(cluster.url)
        populate(Pending(clients, space=space, shards=2), count=3)
        Reshard(clients, clients, space=space, shards=3).run()
    assert len(waited) == 3, "after the copy, before the old is removed, before the new is named"


@pytest.fixture
def killed(urls, space):
    """A space whose change was killed while it was copied, and the servers it is on."""
    a = connect(urls[0])
    pending = Pending(a, space=space, shards=2)
    populate(pending, count=14)
    owner = pending.owner()
    mortal = Mortal(a[0], [15])
    with pytest.raises(Killed):
        Reshard((mortal,), (mortal,), space=space, shards=3).run()
    assert Reshard(a, a, space=space, shards=3).plan.stage == "copy"
    return pending, owner


def test_nobody_changes_what_is_being_copied(killed):
    pending, owner = killed
    one = pending.list(count_max=1)[0]
    for change in (
        lambda: pending.cancel(one.id),
        lambda: pending.move(one.id, due_ms=5),
        lambda: pending.put(one),
        lambda: put_if(pending, one, only_if="absent"),
    ):
        with pytest.raises(StoreUnavailable, match="is being laid out anew"):
            change()
    with pytest.raises(Fenced, match="laid out anew by `sendlater reshard`"):
        pending.fence()
    with pytest.raises(Fenced):
        pending.shards[0].park([b"x", 5, b"x"], owner=str(owner))
    with pytest.raises(BadSettings, match="run the same command again"):
        pending.require_layout()


def test_an_unfinished_copy_is_given_up_by_the_number_that_the_space_has(killed, space):
    pending, _ = killed
    given_up = Reshard(pending.clients, pending.clients, space=space, shards=2)
    assert given_up.stays
    given_up.leave()
    pending.require_layout()
    everything(pending)
    assert pending.move(pending.list(count_max=1)[0].id, due_ms=5)
    assert leftovers(pending.clients, space) == []


def test_a_store_that_is_not_as_a_graceful_stop_leaves_it_is_refused_unchanged(urls, space):
    a = connect(urls[0])
    pending = Pending(a, space=space, shards=2)
    populate(pending, count=14)
    first, second = pending.shards

    def refused(told):
        before = everything(pending)
        with pytest.raises((Unavailable, BadSettings), match=told):
            Reshard(a, a, space=space, shards=3).run()
        assert everything(pending) == before
        pending.require_layout()

    a[0].hset(second.keys["seen"], "in/0", 18)
    refused("have not read equally far")
    a[0].hset(second.keys["seen"], "in/0", SEEN["in/0"])
    first.mark("state", {"horizon": 5})
    with pytest.raises(Unavailable, match="differ in horizon"):
        Reshard(a, a, space=space, shards=3).run()
    first.mark("state", {"horizon": NOW_MS * 9})
    a[0].set(f"{{{space}:1}}:novel", 1)
    refused("unknown key b'novel'")
    a[0].delete(f"{{{space}:1}}:novel")
    first.mark("state", {"novel": 1})
    refused("unknown in state")
    first.mark("state", {"novel": ""})
    a[0].lpush(f"{space}:topics", "t")
    with pytest.raises(BadSettings, match="topics on Redis lie there"):
        Reshard(a, connect(urls[1]), space=space, shards=3).run()
    owner = pending.fence()
    batch = Batch(0, pending.open_lane(0, owner=owner), 2**50, 1)
    pending.put(schedule(1, random.Random(0)))
    for shard in pending.shards:
        shard.claim(batch, owner=owner, now_ms=2**50, count_max=99)
    with pytest.raises(Unavailable, match="unsettled batch"):
        Reshard(a, a, space=space, shards=3).run()


def test_who_opened_the_space_before_is_told(urls, space):
    a, b = connect(urls[0]), connect(urls[1])
    pending = Pending(a, space=space, shards=2)
    populate(pending, count=14)
    Reshard(a, a, space=space, shards=3).run()
    with pytest.raises(StoreUnavailable, match=r"was laid out anew .* open it again"):
        pending.servers()
    with pytest.raises(BadSettings, match="was laid out with 3, got 2"):
        pending.require_layout()
    Reshard(a, b, space=space, shards=3).run()
    with pytest.raises(BadSettings, match="was moved away from server 1"):
        Pending(a, space=space, shards=3).require_layout()


def test_the_command_refuses_while_a_service_is_there(urls, space, tmp_path, monkeypatch, capsys):
    a = connect(urls[0])
    populate(Pending(a, space=space, shards=2), count=14)
    for name, value in (("DATA_DIR", tmp_path), ("LEASE_MS", 1_000), ("SPACE", space)):
        monkeypatch.setenv(f"SENDLATER_{name}", str(value))
    three = ("reshard", "--redis", urls[0], "--shards", "3")

    lease = Lease(urls[0], space=space, lease_ms=60_000, holder="me")
    assert lease.acquire()
    with pytest.raises(Unavailable, match="stop every service of the space first: me"):
        app(three)
    lease.release()
    assert app((*three, "--dry-run")) == OK
    assert "schedules would be copied" in capsys.readouterr().err
    Pending(a, space=space, shards=2).require_layout()
    assert app((*three, "--redis-to", ",".join(urls))) == OK
    assert "done: set shards = 3, and redis" in capsys.readouterr().err
    Pending.open(",".join(urls), space=space, shards=3).require_layout()
    assert leftovers(a, space) == []
