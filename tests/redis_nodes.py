"""Redis servers that stand in for one another: a cluster with replicas, a master with Sentinels."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from servers import wait_until

from sendlater.local.process import LOOPBACK, free_ports
from sendlater.local.redis_server import find_redis

SLOTS = 16_384
NOTICED_MS = 1_000
"""After so long without an answer a node counts as dead."""
BUS_OFFSET = 10_000
"""A node's own port lies so much higher, and must exist."""
PORT_MAX = 65_535 - BUS_OFFSET
MASTER = "pending"


class Node:
    """One server process, in a directory of its own."""

    def __init__(self, directory: Path, port: int, **options: Any) -> None:
        self.port, self.url = port, f"redis://{LOOPBACK}:{port}/0"
        self.client = Redis(port=port, socket_timeout=5)
        self.directory = directory / str(port)
        self.directory.mkdir()
        self.options = {
            "port": port,
            "bind": LOOPBACK,
            "dir": self.directory,
            "appendonly": "yes",
            "save": '""',
        } | {name.replace("_", "-"): value for name, value in options.items()}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        config = self.directory / "redis.conf"
        if not config.exists():  # a Sentinel writes into it
            lines = (f"{name} {value}\n" for name, value in self.options.items())
            config.write_text("".join(lines))
        more = ["--sentinel"] if "sentinel monitor" in self.options else []
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [find_redis().path, config, *more], stdout=log, stderr=log
            )
        wait_until(self._answers, f"an answer of {self.port}")

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except RedisError:
            return False

    def kill(self) -> None:
        """Pull the plug."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    @property
    def is_master(self) -> bool:
        """Whether it is one, as far as it knows."""
        try:
            return bool(self.client.info("replication")["role"] == "master")
        except RedisError:
            return False


@contextmanager
def _running(nodes: list[Node]) -> Iterator[None]:
    try:
        for node in nodes:
            node.start()
        yield
    finally:
        for node in nodes:
            node.kill()
            node.client.close()


def _ports(count: int) -> list[int]:
    """Free ones, low enough for the ports of a cluster's nodes."""
    found: list[int] = []
    while len(found) < count:
        found += [port for port in free_ports(count) if port <= PORT_MAX and port not in found]
    return found[:count]


class Cluster:
    """Masters, and the replicas of as many of them as there are."""

    def __init__(self, nodes: list[Node], *, masters: int) -> None:
        self.nodes = nodes
        self.masters, self.replicas = nodes[:masters], nodes[masters:]

    @property
    def url(self) -> str:
        """All that the URL names is the first master."""
        return f"redis+cluster://{LOOPBACK}:{self.masters[0].port}"

    @property
    def everywhere(self) -> str:
        """The URL with every node."""
        hosts = ",".join(f"{LOOPBACK}:{node.port}" for node in self.nodes)
        return f"redis+cluster://{hosts}"

    def form(self) -> None:
        """Introduce them, share the slots, and wait until all is replicated."""
        first = self.nodes[0]
        for node in self.nodes[1:]:
            first.client.execute_command("CLUSTER", "MEET", LOOPBACK, node.port)
        for number, master in enumerate(self.masters):
            slots = range(
                SLOTS * number // len(self.masters), SLOTS * (number + 1) // len(self.masters)
            )
            master.client.execute_command("CLUSTER", "ADDSLOTS", *slots)
        for master, replica in zip(self.masters, self.replicas, strict=False):
            name = master.client.execute_command("CLUSTER", "MYID").decode()
            wait_until(lambda r=replica, n=name: _follows(r, n), "a replica knows its master")
        wait_until(self.is_whole, "a cluster")

    def is_whole(self) -> bool:
        """Whether every slot has a master, and each replica what its master has."""
        for node in self.nodes:
            if node.client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                return False
        links = (r.client.info("replication").get("master_link_status") for r in self.replicas)
        return all(link == "up" for link in links)


def _follows(replica: Node, name: str) -> bool:
    with suppress(RedisError):
        replica.client.execute_command("CLUSTER", "REPLICATE", name)
        return True
    return False


@contextmanager
def own_cluster(directory: Path, *, masters: int = 3, replicas: int = 3) -> Iterator[Cluster]:
    """A Redis Cluster; by default with a replica for each master."""
    options = {"cluster_enabled": "yes", "cluster_node_timeout": NOTICED_MS}
    nodes = [Node(directory, port, **options) for port in _ports(masters + replicas)]
    with _running(nodes):
        cluster = Cluster(nodes, masters=masters)
        cluster.form()
        yield cluster


class Watched:
    """A master and its replica, watched by Sentinels."""

    def __init__(self, servers: list[Node], sentinels: list[Node]) -> None:
        self.servers, self.sentinels = servers, sentinels

    @property
    def url(self) -> str:
        """It names the Sentinels only."""
        hosts = ",".join(f"{LOOPBACK}:{node.port}" for node in self.sentinels)
        return f"redis+sentinel://{hosts}/{MASTER}/0"

    def fail_over(self) -> None:
        """As people do it before they maintain a server: the old master lives on as a replica."""
        master, replica = self.servers

        def begun() -> bool:
            with suppress(RedisError):
                self.sentinels[0].client.execute_command("SENTINEL", "FAILOVER", MASTER)
                return True
            return False

        wait_until(begun, "a Sentinel knows the replica")
        wait_until(lambda: replica.is_master and not master.is_master, "they have changed places")
        self.servers.reverse()


@contextmanager
def own_sentinels(directory: Path) -> Iterator[Watched]:
    """A master, a replica of it, and three Sentinels of which two must agree."""
    first, second, *others = free_ports(5)
    master = Node(directory, first)
    replica = Node(directory, second, replicaof=f"{LOOPBACK} {first}")
    options = {
        "sentinel monitor": f"{MASTER} {LOOPBACK} {first} 2",
        "sentinel down-after-milliseconds": f"{MASTER} {NOTICED_MS}",
        "sentinel failover-timeout": f"{MASTER} 5000",
    }
    with _running([master, replica]):
        sentinels = [Node(directory, port) for port in others]
        for one in sentinels:
            one.options = {"port": one.port, "bind": LOOPBACK, "dir": one.directory} | options
        with _running(sentinels):
            yield Watched([master, replica], sentinels)
