"""How long a lane's producer gathers records can be changed while it runs (ADR 52)."""

import pytest
from ledger import create_topics
from py4j.protocol import Py4JJavaError

from sendlater.config import Settings
from sendlater.spark.delivery.lane_producer import (
    _acquired,
    close_producer,
    linger_of,
    open_producer,
)

pytestmark = pytest.mark.story

LONG_MS, SHORT_MS = 20_000, 200


@pytest.fixture
def settings(kafka):
    return Settings(bootstrap_servers=kafka, linger_ms=0)


def test_what_waits_leaves_when_its_producer_gathers_no_longer(spark_on_kafka, settings, space):
    jvm = spark_on_kafka.sparkContext._jvm
    create_topics(settings.bootstrap_servers, space)
    open_producer(spark_on_kafka, settings, of=space)
    linger = linger_of(spark_on_kafka, settings, of=space)

    def send(producer):
        record = jvm.org.apache.kafka.clients.producer.ProducerRecord(space, 0, None, b"v")
        return producer.send(record)

    def has_left(sent):
        try:
            sent.get(SHORT_MS, jvm.java.util.concurrent.TimeUnit.MILLISECONDS)
        except Py4JJavaError as error:
            if "TimeoutException" in str(error.java_exception):
                return False
            raise
        return True

    try:
        with _acquired(spark_on_kafka, settings, space) as cached:
            producer = cached.producer()
            send(producer).get()
            linger(LONG_MS)
            waits = send(producer)
            assert not has_left(waits)
            linger(0)
            send(producer).get()
            assert has_left(waits)
    finally:
        close_producer(spark_on_kafka, settings, of=space)


def test_a_producer_of_another_kind_is_left_as_it_is(spark_on_kafka, settings, monkeypatch):
    monkeypatch.setattr("sendlater.spark.delivery.lane_producer.LINGER_FIELD", "no such field")
    try:
        assert linger_of(spark_on_kafka, settings, of="other") is None
    finally:
        close_producer(spark_on_kafka, settings, of="other")
