"""A Kafka of three brokers, which die and come back one by one while the other two go on."""

import os
import random
import signal
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import ClusterMetadata, PartitionMetadata
from servers import wait_until

from sendlater.local.kafka_server import KafkaServer, admin, new_cluster_id
from sendlater.local.process import LOOPBACK

T = TypeVar("T")
NODES = (1, 2, 3)
HEAP_MIB = 256
CHANGE_S = 120.0
"""Longest wait for a broker that starts, or catches up with the others."""
ANSWER_S = 3.0
PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to clients: one that tries a dead broker's port again and again
gets that port for itself in the end."""


class ThreeBrokers:
    """Three nodes, each broker and controller. Topics have three replicas, of which two are enough;
    leaders only move back when they are told to."""

    def __init__(self, directory: Path) -> None:
        ports = _free_ports(2 * len(NODES))
        controllers = dict(zip(NODES, ports[len(NODES) :], strict=True))
        voters = ",".join(f"{node}@{LOOPBACK}:{port}" for node, port in controllers.items())
        cluster_id = new_cluster_id()
        self._servers = {
            node: KafkaServer(
                directory / str(node),
                port=port,
                heap_mib=HEAP_MIB,
                cluster_id=cluster_id,
                extra={
                    "node.id": str(node),
                    "controller.quorum.voters": voters,
                    "listeners": f"PLAINTEXT://{LOOPBACK}:{port},"
                    f"CONTROLLER://{LOOPBACK}:{controllers[node]}",
                    "auto.create.topics.enable": "false",
                    "auto.leader.rebalance.enable": "false",
                    "default.replication.factor": "3",
                    "min.insync.replicas": "2",
                    "offsets.topic.replication.factor": "3",
                    "transaction.state.log.replication.factor": "3",
                    "transaction.state.log.min.isr": "2",
                },
            )
            for node, port in zip(NODES, ports, strict=False)
        }
        self._down: set[int] = set()
        self.bootstrap_servers = ",".join(one.bootstrap_servers for one in self._servers.values())
        self.admin = admin(self.bootstrap_servers)

    def __enter__(self) -> Self:
        try:
            # Together: one alone is no majority, and does not answer.
            with ThreadPoolExecutor(len(NODES)) as pool:
                list(pool.map(KafkaServer.start, self._servers.values()))
            self.wait_until_registered(*NODES)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with ThreadPoolExecutor(len(NODES)) as pool:
            list(pool.map(KafkaServer.stop, self._servers.values()))

    def start(self, node: int) -> None:
        """Start one that was killed or stopped."""
        self._servers[node].start()
        self._down.discard(node)
        self.wait_until_registered(node)

    def start_all(self) -> None:
        """Start those that a test which failed has left down."""
        for node in sorted(self._down):
            self.start(node)

    def stop(self, node: int) -> None:
        """As an upgrade does: it hands its partitions over before it ends."""
        self._down.add(node)
        self._servers[node].stop()

    def kill(self, node: int) -> None:
        """Pull the plug of one."""
        pid = self._servers[node].pid
        assert pid is not None
        self._down.add(node)
        os.kill(pid, signal.SIGKILL)

    def wait_until_registered(self, *nodes: int) -> None:
        """Until the others know these."""
        self._wait_until(lambda known: set(nodes) <= known.brokers.keys(), "they are registered")

    def wait_until_in_sync(self, topics: Iterable[str], *nodes: int) -> None:
        """Until exactly these have all that the leaders of these topics have."""
        asked = list(topics)

        def in_sync(known: ClusterMetadata) -> bool:
            found = [one for topic in asked for one in _partitions(known, topic).values()]
            return bool(found) and all(set(one.isrs) == set(nodes) for one in found)

        self._wait_until(in_sync, f"{nodes} are in sync")

    def leaders(self, topic: str) -> dict[int, int]:
        """The node that leads each partition of a topic, once each has one."""

        def led(known: ClusterMetadata) -> dict[int, int]:
            found = {number: one.leader for number, one in _partitions(known, topic).items()}
            return found if min(found.values(), default=-1) > 0 else {}

        return self._wait_until(led, f"{topic} is led")

    def delete(self, topics: Iterable[str]) -> None:
        """Until no broker that is asked knows them."""
        asked = set(topics)
        for future in self.admin.delete_topics(sorted(asked)).values():
            future.result(CHANGE_S)
        self._wait_until(lambda known: not asked & known.topics.keys(), f"{asked} are gone")

    def elect_preferred(self) -> None:
        """Each partition is led by the first of its replicas again."""
        self.admin.elect_leaders(ElectionType.PREFERRED, None).result(CHANGE_S)

    def _wait_until(self, condition: Callable[[ClusterMetadata], T], what: str) -> T:
        """A client that asks the broker that has just died gets no answer, and asks another."""

        def holds() -> T | None:
            try:
                return condition(self.admin.list_topics(timeout=ANSWER_S))
            except KafkaException:
                return None

        found = wait_until(holds, what, timeout_s=CHANGE_S)
        assert found is not None
        return found


def _partitions(known: ClusterMetadata, topic: str) -> dict[int, PartitionMetadata]:
    """Of a topic; none where the broker that was asked has not heard of it yet."""
    return dict(known.topics[topic].partitions) if topic in known.topics else {}


def _free_ports(count: int) -> list[int]:
    found: set[int] = set()
    while len(found) < count:
        port = random.choice(PORTS)
        with suppress(OSError), socket.socket() as one:
            one.bind((LOOPBACK, port))
            found.add(port)
    return list(found)
