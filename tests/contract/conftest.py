"""Installations that a client can talk to, each started once for all files that use it."""

import threading
import time
import uuid
from contextlib import suppress

import pytest
from dialects_spark import spark  # noqa: F401  (for all that ask for it)
from ledger import create_topics
from redis_nodes import own_cluster
from rest_calls import settings_for
from servers import ServiceProcess
from starlette.testclient import TestClient

from sendlater import Topics
from sendlater.clock import SystemClock
from sendlater.config import load
from sendlater.dialects.deliver import leaving
from sendlater.dialects.rejected import expired_schedule
from sendlater.errors import Unavailable
from sendlater.server.app import make_app
from sendlater.server.process import HttpProcess
from sendlater.spark.delivery.expired import has_expired
from sendlater.store import Batch, Pending
from sendlater.store.codec import unpack
from sendlater.testing import Fake


@pytest.fixture(scope="session")
def kafka_installation(kafka, redis_url, tmp_path_factory):
    """A service on Kafka of its own: intake must run for answers to be true."""
    space = f"t{uuid.uuid4().hex[:12]}"
    create_topics(kafka, f"out-{space}", f"in-{space}", f"bad-{space}")
    service = ServiceProcess(
        tmp_path_factory.mktemp("service"),
        bootstrap_servers=kafka,
        redis=redis_url,
        space=space,
        inboxes=f'[{{"topic": "in-{space}"}}]',
        rejected_topic=f"bad-{space}",
    )
    arguments = {
        "redis_url": redis_url,
        "space": space,
        "inboxes": ({"topic": f"in-{space}"},),
        "rejected_topic": f"bad-{space}",
    }
    with service.start():
        yield (kafka,), arguments, f"out-{space}"


@pytest.fixture(scope="session")
def redis_installation(redis_url):
    """Redis and nobody else: nothing is delivered, everything can be asked."""
    return (redis_url,), {"space": f"t{uuid.uuid4().hex[:12]}"}, "out"


@pytest.fixture(scope="session")
def http_installation(redis_url, tmp_path_factory):
    """REST in front of Redis and nobody else."""
    settings = load(
        redis=redis_url,
        space=f"t{uuid.uuid4().hex[:12]}",
        http_addr="127.0.0.1:0",
        data_dir=tmp_path_factory.mktemp("http"),
    )
    served = HttpProcess(settings, redis_url=redis_url)
    yield (served.url,), {}, "out"
    served.close()


@pytest.fixture(scope="session")
def fake_installation():
    """What users test with, held to the same promises; a session needs a clock that goes on."""
    return (Fake(clock=SystemClock()),), {}, "out"


@pytest.fixture(params=["redis", "http", "kafka", "fake"])
def installation(request):
    """How to open a client, and a topic it may send to."""
    return request.getfixturevalue(f"{request.param}_installation")


@pytest.fixture
def api(redis_url, space):
    """REST of a space of its own, called without a network."""
    app = make_app(settings_for(redis_url, space), redis_url=redis_url)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture
def pending(redis_url, space):
    """The store of the test's space."""
    return Pending.open(redis_url, space=space, shards=2)


@pytest.fixture
def shard(pending):
    """The first one."""
    return pending.shards[0]


@pytest.fixture
def owner(pending):
    """The number of a service that has just taken the space."""
    return pending.fence()


@pytest.fixture
def deliverer(redis_url, space):
    """Claims what is due and writes it to its topic, as the lanes of a service do."""
    pending = Pending.open(redis_url, space=space, shards=2)
    pending.require_layout()
    owner = pending.fence()
    run = pending.open_lane(0, owner=owner)
    stop = threading.Event()

    def deliver(topics, now_ms):
        batch = Batch(0, run, now_ms)
        for shard in pending.shards:
            got = shard.claim(batch, owner=owner, now_ms=now_ms, count_max=1_000)
            for schedule_id, packed in zip(got.ids, got.packed, strict=True):
                schedule = unpack(schedule_id, packed)
                if has_expired(schedule, now_ms=now_ms):
                    schedule = expired_schedule(schedule, now_ms=now_ms, topic="dead-letters")
                for record in leaving(schedule):
                    topics.produce(record)
        pending.settle(batch)

    def work():
        with Topics(redis_url, space=space) as topics:
            while not stop.wait(0.002):
                try:
                    deliver(topics, time.time_ns() // 1_000_000)
                except Unavailable:  # a busy machine: what was claimed is claimed again
                    with suppress(Unavailable):
                        pending.release_all(owner=owner)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.fixture
def cluster_url(tmp_path):
    """A cluster of one node: small, but it refuses commands that span slots as a large one does."""
    with own_cluster(tmp_path, masters=1, replicas=0) as cluster:
        yield cluster.url
