"""Spark with Kafka's connector, for tests of what runs inside a service."""

import pytest

from sendlater.config import Settings
from sendlater.local.jars import jars
from sendlater.local.java import find_java
from sendlater.spark.session import end_session, start_session


@pytest.fixture(scope="module")
def spark_on_kafka(kafka):
    """A session as a service has it; ended with the file, as a process has one at a time."""
    settings = Settings(bootstrap_servers=kafka, lanes=2, shards=1)
    found = jars("connector", cache_dir=settings.cache_dir, mirror=settings.maven_mirror)
    java_home = find_java(settings.cache_dir).home
    session = start_session(settings, java_home=java_home, jars=found)
    yield session
    end_session(session)
