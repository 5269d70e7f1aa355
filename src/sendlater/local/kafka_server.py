"""A real single-node Kafka, for trials and tests."""

import os
import shlex
import signal
import socket
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sendlater import config
from sendlater.errors import BrokerUnavailable
from sendlater.local.jars import jars
from sendlater.local.java import find_java
from sendlater.local.process import LOOPBACK, Lease, Server, free_ports, last_lines, wait_for

START_TIMEOUT_S = 120.0
"""Longest wait for the first answer; it usually takes ten seconds."""
FORMAT_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 2.0
HEAP_MIB = 512
YOUNG_MIB = 64
"""Of the heap, for new objects. Java would take 300, and stop for 20 ms to clear them."""
CORES = os.cpu_count() or 1

_LOG4J2 = """\
<Configuration status="WARN">
  <Appenders>
    <Console name="out"><PatternLayout pattern="%d{ISO8601} %p %c: %m%n"/></Console>
  </Appenders>
  <Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


class KafkaServer(Server):
    """Kafka 4.1 in KRaft mode on loopback; broker and controller in one process.

    Its data is in `data_dir`/kafka. It ends with the process that started it, even after kill -9.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 9092,
        cache_dir: Path | None = None,
        mirror: str = "",
        heap_mib: int = HEAP_MIB,
        cluster_id: str = "",
        extra: Mapping[str, str] | None = None,
    ) -> None:
        """`port` 0: any free port. `extra`: broker properties, which override ours. `cluster_id`:
        of a cluster that others belong to; by default it is a cluster of its own."""
        self.port = port or free_ports(1)[0]
        self.pid: int | None = None
        self._directory = data_dir.absolute() / "kafka"
        self._cache_dir = cache_dir or config.cache_dir()
        self._mirror = mirror
        self._heap_mib = heap_mib
        self._cluster_id = cluster_id or new_cluster_id()
        self._extra = dict(extra or {})
        self._lease = Lease(self._directory)

    @property
    def bootstrap_servers(self) -> str:
        """What clients connect to."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def log(self) -> Path:
        """Kafka's log file: warnings and errors."""
        return self._directory / "kafka.log"

    def start(self) -> Self:
        """Start and wait until the broker answers.

        Raises MissingTool without Java or jars, BrokerUnavailable if it does not start.
        """
        wanted = jars("broker", cache_dir=self._cache_dir, mirror=self._mirror)
        java = find_java(self._cache_dir).executable
        if _is_taken(self.port):
            raise BrokerUnavailable(f"port {self.port} is taken by another process")
        if not self._lease.held:
            self._lease.take()
        try:
            self._configure()
            command = [
                str(java),
                # Both, as Kafka's own script: the heap does not change its size.
                f"-Xms{self._heap_mib}m",
                f"-Xmx{self._heap_mib}m",
                f"-Xmn{YOUNG_MIB}m",
                f"-Dlog4j2.configurationFile={self._directory / 'log4j2.xml'}",
                *("-cp", os.pathsep.join(map(str, wanted))),
            ]
            self._format(command)
            # The broker takes its heap at once, so that it does not seem to grow for an hour.
            broker = [*command, "-XX:+AlwaysPreTouch", "kafka.Kafka", str(self._properties)]
            self.pid = self._lease.launch(broker, log=self.log)
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the broker gracefully, so that the next start needs no recovery."""
        self._lease.let_go(self.pid)
        self.pid = None

    def wait(self) -> None:
        """Block until the broker has ended."""
        self._lease.wait()

    @property
    def _properties(self) -> Path:
        return self._directory / "server.properties"

    def _configure(self) -> None:
        (self._directory / "log4j2.xml").write_text(_LOG4J2)
        controller = free_ports(1)[0]
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap_servers},"
            f"CONTROLLER://{LOOPBACK}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap_servers}",
            "log.dirs": str(self._directory / "data"),
            "num.partitions": "4",
            # For so many cores: each request wakes the thread that has slept longest.
            "num.io.threads": str(min(8, CORES)),
            "num.network.threads": str(min(3, max(1, CORES // 2))),
            "auto.create.topics.enable": "true",
            "group.initial.rebalance.delay.ms": "0",
            # Internal topics: one replica, as there is one node; few partitions, to start fast.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "log.retention.hours": "168",
        } | self._extra
        self._properties.write_text("".join(f"{k}={v}\n" for k, v in properties.items()))

    def _format(self, command: list[str]) -> None:
        """Give the data directory its cluster id, once."""
        if (self._directory / "data" / "meta.properties").exists():
            return
        cluster, properties = self._cluster_id, str(self._properties)
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", properties]
        try:
            done = subprocess.run(
                [*command, *tool],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=FORMAT_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BrokerUnavailable(f"{shlex.join(tool)} hangs") from error
        if done.returncode != 0:
            raise BrokerUnavailable(f"cannot format {self._directory}:\n{done.stdout}")

    def _wait_until_ready(self) -> None:
        wait_for(lambda: self._lease.exited() or _is_taken(self.port), timeout_s=START_TIMEOUT_S)
        client = admin(self.bootstrap_servers)
        wait_for(lambda: self._lease.exited() or _answers(client), timeout_s=START_TIMEOUT_S)
        if self._lease.exited() or not _answers(client):
            raise BrokerUnavailable(
                f"Kafka did not start on port {self.port}; the end of {self.log}:\n"
                + last_lines(self.log)
            )


def new_cluster_id() -> str:
    """An id as Kafka makes them: 22 characters, none of which begins an option."""
    return urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode().replace("-", "A")


def run_in_foreground(
    port: int,
    data_dir: Path,
    *,
    ready: Callable[[KafkaServer], None],
    cache_dir: Path | None = None,
    mirror: str = "",
) -> None:
    """Run a Kafka until SIGTERM or SIGINT; `ready` is called once it answers. Main thread only.

    Raises the same errors as `KafkaServer.start`, and BrokerUnavailable if Kafka ends by itself.
    """
    server = KafkaServer(data_dir, port=port, cache_dir=cache_dir, mirror=mirror)
    asked: list[int] = []

    def ask_to_end(number: int, _frame: Any) -> None:
        asked.append(number)
        assert server.pid is not None
        with suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGTERM)

    with server:
        before = {n: signal.signal(n, ask_to_end) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            ready(server)
            server.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if not asked:
            raise BrokerUnavailable(
                f"Kafka ended by itself; the end of {server.log}:\n" + last_lines(server.log)
            )


def admin(bootstrap_servers: str, settings: Mapping[str, str] | None = None) -> AdminClient:
    """An admin client that does not log to the terminal; its errors contain the same messages."""
    quiet: dict[str, Any] = {"log_level": "0", "error_cb": lambda _error: None}
    return AdminClient(quiet | {"bootstrap.servers": bootstrap_servers} | dict(settings or {}))


def _answers(client: AdminClient) -> bool:
    try:
        return bool(client.list_topics(timeout=ANSWER_TIMEOUT_S).brokers)
    except KafkaException:
        return False


def _is_taken(port: int) -> bool:
    """Whether a process listens on a loopback port."""
    with socket.socket() as probe:
        probe.settimeout(ANSWER_TIMEOUT_S)
        return probe.connect_ex((LOOPBACK, port)) == 0
