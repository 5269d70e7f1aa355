"""Another server takes a Redis' place: with a cluster, with Sentinels, behind the same address."""

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from redis_nodes import Cluster, Node, Watched, own_cluster, own_sentinels
from servers import wait_until

from sendlater import redis_client
from sendlater.addresses import server_name
from sendlater.errors import BadSettings, SendlaterError, StoreUnavailable
from sendlater.local.process import LOOPBACK, free_ports
from sendlater.local.redis_facts import redis_facts
from sendlater.model import Record, Schedule
from sendlater.redis_client import with_nodes
from sendlater.store import Admin, Pending
from sendlater.store.lease import Lease
from sendlater.topics import Topics

ANSWER_MS = 10_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with own_cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with own_sentinels(tmp_path) as watched:
        yield watched


def opened(url: str, space: str) -> Pending:
    return Pending.open(url, space=space, shards=3)


def put(pending: Pending, *ids: bytes) -> None:
    for id in ids:
        pending.put(Schedule(id=id, due_ms=5, record=Record(topic="t", value=b"v")))


def works(act: Callable[[], object]) -> Callable[[], bool]:
    """Whether it does not fail; what it may fail with meanwhile is an error of ours."""

    def tried() -> bool:
        try:
            act()
        except StoreUnavailable:
            return False
        return True

    return tried


def known(admin: Admin) -> set[str]:
    with suppress(StoreUnavailable):
        return set(admin.memory())
    return set()


def test_a_cluster_is_reached_when_the_node_in_the_url_is_gone(cluster: Cluster, space: str):
    pending = opened(cluster.url, space)
    put(pending, *(b"%d" % number for number in range(30)))
    wait_until(cluster.is_whole, "all is replicated")

    cluster.masters[0].kill()

    wait_until(works(pending.counts), "who was connected goes on, on every shard")
    put(pending, b"a")
    wait_until(
        works(lambda: put(opened(cluster.url, space), b"b")), "so does a new client of this process"
    )
    assert pending.counts()["pending"] == 32
    masters = {f"{LOOPBACK}:{node.port}" for node in cluster.nodes if node.is_master}
    wait_until(lambda: known(Admin(pending)) == masters, "memory is that of who has taken over")
    everywhere = with_nodes(cluster.url, pending.clients[0])
    assert everywhere.count(",") >= len(cluster.masters), "what a service gives to its tasks"
    redis_client._found.clear()
    wait_until(works(lambda: put(opened(everywhere, space), b"c")), "a new process goes on")
    lost, there = (node.port for node in (cluster.masters[0], cluster.masters[1]))
    other = opened(f"redis+cluster://{LOOPBACK}:{lost},{LOOPBACK}:{there}", space)
    wait_until(works(other.fence), "of several nodes in the URL one is enough")
    assert Admin(other).memory().keys() == {
        f"{LOOPBACK}:{node.port}" for node in cluster.nodes if node.is_master
    }


def test_a_cluster_that_is_gone_is_a_store_that_does_not_answer(cluster: Cluster, space: str):
    pending = opened(cluster.url, space)
    lease = Lease(cluster.url, space=space, lease_ms=1_000)
    topics = Topics(cluster.url, space=space)
    for node in cluster.nodes:
        node.kill()

    for act in (pending.owner, pending.fence, pending.counts, pending.positions, lease.acquire):
        for _ in range(2):  # the first finds a connection that is closed, the next none at all
            with pytest.raises(StoreUnavailable):
                act()
    with pytest.raises(StoreUnavailable):
        opened(cluster.url, space)
    with pytest.raises(SendlaterError):
        topics.produce(Record(topic="t", value=b""))
    topics.close()
    with pytest.raises(StoreUnavailable):
        redis_facts(cluster.url)


def test_the_facts_about_a_cluster_are_those_of_its_worst_node(cluster: Cluster):
    assert redis_facts(cluster.url).eviction == "noeviction"
    cluster.masters[2].client.config_set("maxmemory-policy", "allkeys-lru")
    assert redis_facts(cluster.url).eviction == "allkeys-lru"


@pytest.mark.parametrize("how", ["killed", "failed over"])
def test_sentinels_tell_who_the_master_is(watched: Watched, space: str, how: str):
    pending = opened(watched.url, space)
    lease = Lease(watched.url, space=space, lease_ms=60_000)
    put(pending, b"a")
    topics = Topics(watched.url, space=space)
    topics.produce(Record(topic="t", value=b"v"))
    assert redis_facts(watched.url).appends
    old, new = watched.servers
    assert old.client.wait(1, ANSWER_MS) == 1, "the replica has it"

    old.kill() if how == "killed" else watched.fail_over()

    wait_until(lambda: new.is_master, "the replica has taken over")
    wait_until(works(lambda: put(pending, b"b")), "writes reach the new master")
    wait_until(works(lease.acquire), "so do those of a thread with its own connection")
    assert pending.counts()["pending"] == 2
    wait_until(lambda: topics.produce(Record(topic="t", value=b"v")), "topics go on")
    lease.release()
    topics.close()


def test_sentinels_of_which_one_is_gone_tell_it_too(watched: Watched, space: str):
    watched.sentinels[0].kill()
    put(opened(watched.url, space), b"a")
    for node in watched.sentinels[1:]:
        node.kill()
    with pytest.raises(StoreUnavailable, match="No master found"):
        opened(watched.url, space)


class Address:
    """A host and port behind which stands one server, and later another one."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.port = free_ports(1)[0]
        self._listening = socket.create_server((LOOPBACK, self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection((LOOPBACK, self.to))
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(2**16):
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    ports = free_ports(2)
    nodes = [Node(tmp_path, port) for port in ports]
    for node in nodes:
        node.start()
    yield nodes[0], nodes[1]
    for node in nodes:
        node.kill()


def test_a_master_that_lives_on_as_a_replica_is_left(pair: tuple[Node, Node], space: str):
    old, new = pair
    address = Address(old.port)
    pending = opened(f"redis://{LOOPBACK}:{address.port}/0", space)
    owner = pending.fence()
    put(pending, b"a")

    new.client.replicaof(LOOPBACK, old.port)
    wait_until(
        lambda: new.client.info("replication").get("master_link_status") == "up", "it follows"
    )
    new.client.replicaof("NO", "ONE")
    address.to = new.port
    old.client.replicaof(LOOPBACK, new.port)

    with pytest.raises(StoreUnavailable, match="has become a replica"):
        put(pending, b"b")
    put(pending, b"b")
    assert pending.counts()["pending"] == 2
    assert not pending.is_armed(owner=owner), "it may have lost what was told last"
    address.close()


@pytest.mark.parametrize("how", ["replicas", "disk"])
def test_a_server_that_takes_no_writes_for_now_does_not_answer(
    pair: tuple[Node, Node], space: str, how: str
):
    node, _ = pair
    pending = opened(node.url, space)
    owner = pending.fence()
    if how == "replicas":
        node.client.config_set("min-replicas-to-write", 1)
    else:
        node.client.config_set("save", "1000 1")
        shutil.rmtree(node.directory)
        node.client.bgsave()
        wait_until(
            lambda: node.client.info("persistence")["rdb_last_bgsave_status"] == "err", "an error"
        )
    for act in (pending.fence, lambda: pending.arm(owner=owner), lambda: put(pending, b"a")):
        with pytest.raises(StoreUnavailable):
            act()


def test_several_hosts_may_be_names_and_ipv6_addresses() -> None:
    url = "redis+cluster://:a%2Fb@redis-1:7000,[fd00::1]:7001,redis-2?socket_timeout=5"
    _, who, hosts, rest = redis_client._split(url)
    nodes = [redis_client._node(host, default_port=6379) for host in hosts.split(",")]
    assert (who, rest) == (":a%2Fb@", "?socket_timeout=5")
    assert nodes == [("redis-1", 7000), ("fd00::1", 7001), ("redis-2", 6379)]
    assert server_name(url) == "redis-1:7000,[fd00::1]:7001,redis-2"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis+sentinel://:hunter2@host:26379", "got no NAME"),
        ("redis+tree://:hunter2@host", "got redis\\+tree"),
        ("redis+cluster://:hunter2@host:70000", "expected host:port, got 'host:70000'"),
        ("host:6379", "got none of them"),
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str, told: str):
    with pytest.raises(BadSettings, match=told) as refused:
        Pending.open(url, space="s", shards=1)
    assert "hunter2" not in str(refused.value)
