"""Installations that a client can talk to, each started once for all files that use it."""

import uuid

import pytest
from ledger import create_topics
from rest_calls import settings_for
from servers import ServiceProcess
from starlette.testclient import TestClient

from sendlater.api.app import make_app
from sendlater.api.serving import HttpProcess
from sendlater.config import load
from sendlater.pending import Pending


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


@pytest.fixture(params=["redis", "http", "kafka"])
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
