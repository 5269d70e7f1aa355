"""Servers are started once a session; a test has a space and topics of its own on them.

A server that cannot be started is an error, not a skip: a silent skip hides what is broken.
"""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import hypothesis
import pytest
import structlog
from servers import STARTS_SOON, own_kafka, own_redis, redis_first_on_path
from spark_cluster import own_spark_cluster

CORES = 32
"""Task slots of each worker, for services that start while others end."""

# A busy machine is no fault of an example.
hypothesis.settings.register_profile("no deadline", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("no deadline")
os.environ.setdefault("JAVA_TOOL_OPTIONS", STARTS_SOON)


@pytest.fixture(scope="session", autouse=True)
def redis_under_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """TEST_REDIS_SERVER, if set, is the program that every Redis of the session is run by."""
    program = os.environ.get("TEST_REDIS_SERVER")
    with (
        redis_first_on_path(program, tmp_path_factory.mktemp("path")) if program else nullcontext()
    ):
        yield


@pytest.fixture(scope="session", autouse=True)
def spark_under_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """TEST_SPARK_CLUSTER, if set: every service of the session runs its queries on a cluster."""
    if not os.environ.get("TEST_SPARK_CLUSTER"):
        yield
        return
    directory = tmp_path_factory.mktemp("spark")
    with own_spark_cluster(directory, cores=CORES) as spark, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_SPARK_MASTER", spark.url)
        yield


@pytest.fixture(autouse=True)
def log_of_this_test() -> Iterator[None]:
    """A command of an earlier test may have sent the log to a stream that is closed by now."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis shared by the session's tests."""
    with own_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of a Kafka shared by the session's tests; it creates no topic unasked."""
    with own_kafka(tmp_path_factory.mktemp("kafka")) as server:
        yield server.bootstrap_servers


@pytest.fixture
def space() -> str:
    """A key prefix that no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topic_name(space: str) -> Callable[[str], str]:
    """Makes topic names that no other test uses: `topic_name("orders")`."""
    return lambda name: f"{name}-{space}"
