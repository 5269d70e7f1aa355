"""Spark with Kafka's connector, for tests of what runs inside a service."""

import pytest
from servers import on_cluster

from sendlater.config import Settings
from sendlater.local.installation import Installation
from sendlater.spark.session import end_session, start_session


@pytest.fixture(scope="module")
def spark_on_kafka(kafka):
    """A session as a service has it; ended with the file, as a process has one at a time."""
    settings = Settings(bootstrap_servers=kafka, lanes=2, shards=1, **on_cluster())
    java_home, jars = Installation.tools(settings)
    session = start_session(settings, java_home=java_home, jars=jars)
    yield session
    end_session(session)
