"""Topics on a real Redis: what S3 promises. Each test has a space of its own."""

import socket
import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis
from servers import wait_until

from sendlater.brokers.redis import RedisBroker
from sendlater.errors import BadRequest, BrokerUnavailable, NotSupported
from sendlater.model import Record
from sendlater.topics import TopicRecord, Topics
from sendlater.topics.layout import decode, encode, entry_id_of, position_of


@pytest.fixture
def topics(redis_url: str, space: str) -> Iterator[Topics]:
    with Topics(redis_url, space=space) as opened:
        yield opened


@pytest.fixture
def cli(redis_url: str) -> Iterator[Redis]:
    """What redis-cli would do."""
    with Redis.from_url(redis_url) as client:
        yield client


def all_of(topics: Topics, topic: str) -> list[TopicRecord]:
    """Every record kept, partition by partition."""
    found: list[TopicRecord] = []
    for partition in range(topics.partitions(topic)):
        position = 0
        while page := topics.read(topic, partition, after_position=position, count_max=1_000):
            found += page
            position = page[-1].position
    return found


def test_a_broker_tells_where_it_has_put_each_record(topics):
    """Partitions are chosen by key, or in turn; who waits for a place must be told it."""
    told, broker = [], RedisBroker(topics)
    for n in range(12):
        record = Record(topic="t", key=b"%d" % n if n % 2 else None, value=b"%d" % n)
        broker.send(record, on_done=lambda error, *place, n=n: told.append((n, error, *place)))
    broker.flush()
    there = {(int(r.value), None, r.partition, r.position) for r in all_of(topics, "t")}
    assert set(told) == there
    assert len({partition for _, _, partition, _ in told}) > 1


def test_a_record_comes_back_byte_for_byte(topics):
    headers = [("a", b"1"), ("b", None), ("a", b"\x00\xff"), ("", b""), ("n:é", b"x"), ("key", b"")]
    record = Record(topic="t", key=b"\x00k", value=b"", headers=headers, partition=2)

    position = topics.produce(record)

    (read,) = topics.read("t", 2, after_position=0, count_max=10)
    assert (read.key, read.value, read.headers) == (b"\x00k", b"", headers)
    assert (read.topic, read.partition, read.position) == ("t", 2, position)
    assert read.timestamp_ms == position >> 20


@given(
    key=st.none() | st.binary(),
    value=st.none() | st.binary(),
    headers=st.lists(st.tuples(st.text(), st.none() | st.binary())),
)
def test_every_record_survives_its_entry(key, value, headers):
    fields = encode(Record(topic="t", key=key, value=value, headers=headers))
    assert fields, "XADD refuses an entry without fields"
    read = decode((b"1-0", fields), topic="t", partition=0)
    assert (read.key, read.value, read.headers) == (key, value, headers)


def test_null_and_empty_are_told_apart(topics):
    cases = [(None, None), (b"", None), (None, b""), (b"", b"")]
    topics.create("t", 1)
    topics.produce_many(Record(topic="t", key=key, value=value) for key, value in cases)

    assert [(r.key, r.value) for r in all_of(topics, "t")] == cases


def test_plain_xadd_is_a_good_record_and_ours_reads_plainly(topics, cli, space):
    """S3.7: any language, and redis-cli, without our code."""
    topics.create("t", 1)
    stream = f"{space}:topic:{{t/0}}"

    cli.execute_command("XADD", stream, "*", "value", "hello")
    topics.produce(Record(topic="t", key=b"k", value=b"v", headers=[("h", b"1")]))

    assert [r.value for r in all_of(topics, "t")] == [b"hello", b"v"]
    assert cli.xrange(stream)[1][1] == {b"key": b"k", b"value": b"v", b"h:h": b"1"}


def test_records_of_a_key_stay_in_order_in_one_partition(topics):
    topics.create("t", 8)
    topics.produce_many(
        Record(topic="t", key=b"%d" % (n % 5), value=b"%d" % n) for n in range(2_500)
    )

    by_key: dict[bytes | None, list[TopicRecord]] = defaultdict(list)
    for record in all_of(topics, "t"):
        by_key[record.key].append(record)
    for records in by_key.values():
        assert len({r.partition for r in records}) == 1
        numbers = [int(r.value or b"") for r in records]
        assert numbers == sorted(numbers)
    assert sum(map(len, by_key.values())) == 2_500


def test_topics_are_created_once_listed_widened_and_deleted(topics):
    assert not topics.exists("orders")
    assert topics.create("orders", 2) == 2
    assert topics.create("orders", 7) == 2, "who comes first decides"
    topics.produce(Record(topic="made-by-produce", value=b""))
    topics.add_partitions("orders", 3)
    assert topics.names() == ["made-by-produce", "orders"]
    assert (topics.partitions("orders"), topics.partitions("made-by-produce")) == (3, 4)

    topics.produce(Record(topic="orders", value=b"x", partition=1))
    assert topics.end_positions("orders")[1] > 0
    topics.delete("orders")
    topics.delete("orders")
    assert topics.names() == ["made-by-produce"]
    topics.create("orders", 3)
    assert topics.end_positions("orders") == {0: 0, 1: 0, 2: 0}


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "a{b}", "ä", "x" * 250])
def test_names_kafka_would_refuse_are_refused(topics, name):
    with pytest.raises(BadRequest):
        topics.create(name)


def test_a_partition_that_is_not_there_is_refused(topics):
    topics.create("t", 2)
    with pytest.raises(BadRequest):
        topics.produce(Record(topic="t", value=b"", partition=2))


def test_an_id_no_position_can_hold_is_named(topics, cli, space):
    topics.create("t", 1)
    cli.xadd(f"{space}:topic:{{t/0}}", {"value": "x"}, id=f"5-{1 << 20}")
    with pytest.raises(NotSupported, match=f"5-{1 << 20}"):
        topics.read("t", 0, after_position=0, count_max=1)


def test_positions_and_entry_ids_are_the_same_thing():
    for entry_id in ("0-1", "1767225600000-0", f"{(1 << 43) - 1}-{(1 << 20) - 1}"):
        position = position_of(entry_id.encode())
        assert 0 < position < 2**63
        assert entry_id_of(position) == entry_id


def test_length_and_age_are_bounded(redis_url, space, cli):
    """Redis removes whole nodes of 100 entries, so up to that many more may stay."""
    with Topics(redis_url, space=space, length_max=500, retention_ms=60_000) as topics:
        topics.create("short", 1)
        topics.produce_many(Record(topic="short", value=b"x") for _ in range(5_000))
        assert 500 <= len(all_of(topics, "short")) <= 600

        topics.create("old", 1)
        for n in range(1, 301):
            cli.xadd(f"{space}:topic:{{old/0}}", {"value": "old"}, id=f"{n}-1")
        topics.produce(Record(topic="old", value=b"new"))
        kept = [r.value for r in all_of(topics, "old")]
        assert kept[-1] == b"new"
        assert len(kept) <= 101


def test_a_failed_write_is_tried_again_then_raises():
    """S3.6, with nobody listening: attempts are counted by the connections refused."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        nobody.listen()
        accepted: list[socket.socket] = []

        def refuse() -> None:
            while True:
                try:
                    connection, _ = nobody.accept()
                except OSError:
                    return
                accepted.append(connection)
                connection.close()

        listener = threading.Thread(target=refuse, daemon=True)
        listener.start()
        url = f"redis://127.0.0.1:{nobody.getsockname()[1]}"
        with (
            Topics(url, space="s", write_attempts_max=3) as topics,
            pytest.raises(BrokerUnavailable, match="3 attempts"),
        ):
            topics.produce(Record(topic="t", value=b""))
        wait_until(lambda: len(accepted) == 3, "three attempts")
        nobody.shutdown(socket.SHUT_RDWR)
        listener.join(timeout=5)


def test_only_the_refused_records_of_a_pipeline_are_written_again(topics, cli, space):
    """The stream's key holds something else at first; meanwhile the other partition is fine."""
    topics.create("t", 2)
    stream = f"{space}:topic:{{t/1}}"
    cli.set(stream, "in the way")
    mend = threading.Timer(0.1, cli.delete, args=(stream,))
    mend.start()

    topics.produce_many(Record(topic="t", value=b"%d" % n, partition=n % 2) for n in range(10))

    mend.join()
    assert sorted(r.value or b"" for r in all_of(topics, "t")) == [b"%d" % n for n in range(10)]


def test_a_restarted_redis_is_found_again(topics, cli):
    """The pooled connections are dead; the write is repeated by us, not by redis-py."""
    topics.produce(Record(topic="t", value=b"before"))
    cli.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    topics.produce(Record(topic="t", value=b"after"))
    assert sorted(r.value or b"" for r in all_of(topics, "t")) == [b"after", b"before"]
