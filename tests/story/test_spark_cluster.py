"""One space over several processes: Spark's master and workers, Redis' masters and replicas, three
brokers of Kafka.

One of each is killed: the journal has everything, nothing is lost. Nor is it if the next service is
started by spark-submit.
"""

import json
import re
import shutil
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from handovers import Load, more
from ledger import Ledger, Reader, create_topics
from redis_nodes import Cluster, own_cluster
from servers import ServiceProcess, cli, wait_until
from spark_cluster import SparkCluster, own_spark_cluster, submit
from three_brokers import NODES, ThreeBrokers

from sendlater import __main__ as program
from sendlater.config import cache_dir
from sendlater.local.jars import jars
from sendlater.local.process import LOOPBACK
from sendlater.store import Pending

RATE, SHARDS = 100, 2
ARRIVE_S = 180.0
EXECUTOR = {"spark.executor.memory": "512m", "spark.driver.host": LOOPBACK}
CORES = 6
"""More than the five slots that two lanes, two shards and intake keep: one worker is enough."""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with own_spark_cluster(tmp_path_factory.mktemp("spark"), cores=CORES) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with own_cluster(tmp_path_factory.mktemp("redis")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    with ThreeBrokers(tmp_path_factory.mktemp("kafka")) as three:
        yield three


class Installation:
    """A service on all of them, with a journal, and what was sent to it."""

    def __init__(self, kafka: str, spark: SparkCluster, redis: Cluster, directory: Path) -> None:
        create_topics(kafka, "cluster-in", cleanup_policy="compact")
        create_topics(kafka, "cluster-out", "cluster-bad")
        self.service = ServiceProcess(
            directory,
            bootstrap_servers=kafka,
            redis=redis.url,
            spark_master=spark.url,
            spark=EXECUTOR,
            inboxes=json.dumps([{"topic": "cluster-in", "journal": True}]),
            rejected_topic="cluster-bad",
            space="cluster",
            shards=SHARDS,
        )
        self.ledger = Ledger(kafka, inbox="cluster-in", target="cluster-out")
        self.reader = Reader(kafka, "cluster-out")


@pytest.fixture(scope="module")
def one(
    brokers: ThreeBrokers,
    spark: SparkCluster,
    redis: Cluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Installation]:
    servers = brokers.bootstrap_servers
    one = Installation(servers, spark, redis, tmp_path_factory.mktemp("service"))
    with one.service, one.reader:
        one.service.start()
        yield one


def settled(one: Installation) -> None:
    """Everything has arrived, nothing early."""
    wait_until(lambda: not one.ledger.missing(one.reader), "all arrived", timeout_s=ARRIVE_S)
    assert not [m for m in one.reader.messages if m.timestamp()[1] < int(m.value())]
    assert not one.ledger.outdated(one.reader)


def test_what_is_due_is_claimed_and_sent_by_executors(one: Installation) -> None:
    with Load(one.ledger, rate=RATE):
        more(one.reader, 500)
    settled(one)
    assert not one.ledger.doubled(one.reader)
    assert cli(one.service, "stats").returncode == 0


def test_a_worker_is_killed(one: Installation, spark: SparkCluster) -> None:
    with Load(one.ledger, rate=RATE):
        more(one.reader, 300)
        spark.workers[0].kill()
        more(one.reader, 1_000)
        spark.add_worker()
        more(one.reader, 300)
    settled(one)
    assert not one.ledger.doubled(one.reader)


def test_a_broker_is_killed(one: Installation, brokers: ThreeBrokers) -> None:
    topics = one.ledger.inbox, one.ledger.target
    with Load(one.ledger, rate=RATE):
        more(one.reader, 300)
        node = brokers.leaders(one.ledger.target)[0]
        brokers.kill(node)
        brokers.wait_until_in_sync(topics, *{*NODES} - {node})
        more(one.reader, 1_000)
        brokers.start(node)
        brokers.wait_until_in_sync(topics, *NODES)
        more(one.reader, 300)
    settled(one)
    assert not one.ledger.doubled(one.reader)


def test_a_master_of_redis_is_killed(one: Installation, redis: Cluster) -> None:
    later_ms = round(time.time() * 1_000) + 3_600_000
    far = [one.ledger.send(later_ms + number) for number in range(100)]
    with Load(one.ledger, rate=RATE):
        more(one.reader, 300)
        redis.masters[0].kill()
        wait_until(lambda: redis.replicas[0].is_master, "its replica has taken over")
        more(one.reader, 1_000)
    pending = Pending.open(redis.everywhere, space="cluster", shards=SHARDS)
    assert [name for name in far if pending.get(name.encode()) is None] == []
    pending.close()
    for name in far:
        one.ledger.cancel(name)
    one.ledger.flush()
    settled(one)
    # What was delivered in the writes that the replica missed may come again.
    assert len(one.ledger.doubled(one.reader)) <= RATE


def test_spark_submit_starts_the_next_one(
    one: Installation, spark: SparkCluster, redis: Cluster
) -> None:
    """Master, jars and settings of Spark are what spark-submit is given."""
    service = one.service
    for name in ("SENDLATER_SPARK_MASTER", "SENDLATER_SPARK"):
        del service.environment[name]
    service.environment["SENDLATER_REDIS"] = redis.everywhere
    options = ["--master", spark.url, "--conf", "spark.executor.memory=512m"]
    with Load(one.ledger, rate=RATE):
        assert service.stop() == 0
        options += ["--jars", ",".join(map(str, jars("connector", cache_dir=cache_dir())))]
        submit(service, *options, program.__file__, "serve")
        more(one.reader, 1_000)
    settled(one)
    ours = service.child(lambda process: program.__file__ in process.cmdline())
    ours.terminate()
    wait_until(lambda: not service.running, "spark-submit ends with it", timeout_s=ARRIVE_S)
    assert "stopping: finishing what is claimed" in service.said()


def test_the_environment_of_python_may_be_shipped(
    brokers: ThreeBrokers, spark: SparkCluster, redis_url: str, tmp_path: Path
) -> None:
    """Workers have it from the archive, by a path that is theirs. All slots are free again here."""
    environment = tmp_path / "env"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    (packages / "all.pth").write_text("\n".join(filter(None, sys.path)))
    archive = shutil.make_archive(str(environment), "gztar", environment)
    kafka = brokers.bootstrap_servers
    create_topics(kafka, "shipped-in", "shipped-out", "shipped-bad")
    service = ServiceProcess(
        tmp_path,
        bootstrap_servers=kafka,
        redis=redis_url,
        spark_master=spark.url,
        spark=EXECUTOR | {"spark.archives": f"{archive}#env"},
        inboxes=json.dumps([{"topic": "shipped-in"}]),
        rejected_topic="shipped-bad",
        space="shipped",
    )
    service.environment["PYSPARK_PYTHON"] = "env/bin/python"
    service.command = ["env", "--chdir", str(tmp_path), *service.command]
    ledger = Ledger(kafka, inbox="shipped-in", target="shipped-out")
    with service, Reader(kafka, "shipped-out") as reader:
        service.start()
        with Load(ledger, rate=RATE):
            more(reader, 300)
        wait_until(lambda: not ledger.missing(reader), "all arrived", timeout_s=ARRIVE_S)
        assert not ledger.doubled(reader)

        def shipped() -> bool:
            return any("env/bin/python" in command for command in spark.pythons())

        wait_until(shipped, "workers run by it")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--master", "local[2]"], r"expected --master to be a cluster, got 'local\[2\]'"),
        (["--master", "CLUSTER"], "expected the jars of Spark's connector to Kafka, got none"),
    ],
)
def test_spark_submit_is_told_what_it_lacks(
    spark: SparkCluster, tmp_path: Path, options: list[str], expected: str
) -> None:
    service = ServiceProcess(tmp_path, bootstrap_servers="127.0.0.1:9", redis="redis://127.0.0.1:9")
    given = [spark.url if one == "CLUSTER" else one for one in options]
    submit(service, *given, program.__file__, "serve", wait=False)
    wait_until(lambda: not service.running, "it has ended", timeout_s=ARRIVE_S)
    assert re.search(expected, service.said())
