"""The same program, with confluent-kafka's calls, on Kafka and on Redis."""

import pytest
from servers import wait_until

from sendlater import Topics, open_consumer, open_producer
from sendlater.errors import BadRequest, BadSettings


@pytest.fixture(params=["redis", "kafka"])
def servers(request, space):
    """The one line that changes."""
    if request.param == "redis":
        return {
            "bootstrap.servers": request.getfixturevalue("redis_url"),
            "sendlater.space": space,
        }
    from ledger import create_topics

    kafka = request.getfixturevalue("kafka")
    create_topics(kafka, f"t-{space}")
    return {"bootstrap.servers": kafka, "sendlater.space": space}


@pytest.fixture
def topic(space):
    return f"t-{space}"


def consumer_of(servers, topic, group="g", **more):
    consumer = open_consumer(
        servers
        | {"group.id": group, "auto.offset.reset": "earliest", "linger.ms": 5}
        | {name.replace("_", "."): value for name, value in more.items()}
    )
    consumer.subscribe([topic])
    return consumer


def read(consumer, count):
    found = []

    def enough():
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None
            found.append(message)
        return len(found) >= count

    wait_until(enough, f"{count} records", timeout_s=60)
    return found


def test_what_is_produced_is_consumed_once_by_a_group(servers, topic):
    told = []
    producer = open_producer(servers)
    headers = [("a", b"1"), ("b", None), ("a", b"2")]
    producer.produce(
        topic,
        b"first",
        key="k",
        headers=headers,
        on_delivery=lambda error, message: told.append((error, message.value())),
    )
    producer.produce(topic, value="second", key="k")
    producer.produce(topic, None, key="k")
    assert producer.flush(30) == 0
    assert told == [(None, b"first")]
    assert len(producer) == 0

    consumer = consumer_of(servers, topic)
    first, second, third = read(consumer, 3)
    assert (first.topic(), first.key(), first.value()) == (topic, b"k", b"first")
    assert first.headers() == headers
    assert second.headers() is None
    assert third.value() is None
    assert first.partition() == second.partition()
    assert first.offset() < second.offset() < third.offset()
    assert first.timestamp()[1] > 0
    consumer.close()

    producer.produce(topic, b"fourth", key="k")
    producer.flush(30)
    consumer = consumer_of(servers, topic)
    assert [m.value() for m in read(consumer, 1)] == [b"fourth"]
    consumer.close()
    other = consumer_of(servers, topic, group="other")
    assert len(read(other, 4)) == 4
    other.close()


def test_without_a_commit_it_comes_again(servers, topic):
    producer = open_producer(servers)
    for n in range(4):
        producer.produce(topic, b"%d" % n, key="k")
    producer.flush(30)
    consumer = consumer_of(servers, topic, enable_auto_commit=False)
    found = read(consumer, 3)
    consumer.commit(message=found[1], asynchronous=False)
    consumer.close()

    consumer = consumer_of(servers, topic, enable_auto_commit=False)
    assert [m.value() for m in read(consumer, 2)] == [b"2", b"3"]
    consumer.commit(asynchronous=False)
    consumer.close()
    consumer = consumer_of(servers, topic, enable_auto_commit=False)
    assert consumer.poll(0.1) is None
    consumer.close()


def test_a_group_on_redis_goes_back(redis_url, space):
    servers = {"bootstrap.servers": redis_url, "sendlater.space": space}
    producer = open_producer(servers)
    producer.produce("t", b"1", key="k")
    producer.flush()
    with consumer_of(servers, "t") as consumer:
        (first,) = read(consumer, 1)
        consumer.seek_to_start()
        assert [m.value() for m in read(consumer, 1)] == [b"1"]
        consumer.seek_to_time(first.timestamp()[1] + 60_000)
        assert consumer.poll(0.05) is None


def test_one_that_has_no_topic_takes_no_other_with_it(redis_url, space):
    servers = {"bootstrap.servers": redis_url, "sendlater.space": space}
    producer, told = open_producer(servers), []
    producer.produce(f"t-{space}", b"good", on_delivery=lambda error, _: told.append(error))
    with pytest.raises(BadRequest):
        producer.produce("no topic!", b"bad")
    assert producer.flush(10) == 0
    assert told == [None]
    assert [m.value() for m in read(consumer_of(servers, f"t-{space}"), 1)] == [b"good"]


def test_limits_of_topics_on_redis_are_told_beside_the_rest(redis_url, space):
    servers = {"bootstrap.servers": redis_url, "sendlater.space": space}
    with open_producer(servers | {"sendlater.partitions": 2, "sendlater.length.max": 5}) as wide:
        for number in range(4):
            wide.produce("t", b"%d" % number, partition=number % 2)
    with Topics(redis_url, space=space) as topics:
        assert topics.partitions("t") == 2
    for wrong in ({"sendlater.retention.ms": "a week"}, {"sendlater.retention": 1}):
        with pytest.raises(BadSettings, match=next(iter(wrong))):
            open_producer(servers | wrong)


def test_what_cannot_work_is_refused(redis_url):
    with pytest.raises(BadSettings):
        open_consumer({"bootstrap.servers": redis_url})
    with pytest.raises(BadSettings):
        open_consumer({"bootstrap.servers": redis_url, "group.id": "g"}).poll(0)
