"""Topics on a real Redis: what S3 promises. Each test has a space of its own."""

import multiprocessing
import socket
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest
from redis import Redis
from servers import wait_until

from sendlater.errors import BadRequest, BrokerUnavailable, NotSupported
from sendlater.model import Record
from sendlater.topics import Consumer, TopicRecord, Topics
from sendlater.topics.layout import entry_id_of, position_of

PRODUCERS = 4
RECORDS_EACH = 500


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


def drain(consumer: Consumer, *, count: int) -> list[TopicRecord]:
    """Poll and acknowledge until `count` records have come."""
    found: list[TopicRecord] = []

    def enough() -> bool:
        records = consumer.poll(timeout_ms=50)
        consumer.ack(records)
        found.extend(records)
        return len(found) >= count

    wait_until(enough, f"{count} records polled")
    return found


def produce_numbers(redis_url: str, space: str, producer: int) -> None:
    """What each producing process runs, in two threads."""
    with Topics(redis_url, space=space) as topics:

        def half(first: int) -> None:
            for n in range(first, RECORDS_EACH, 2):
                topics.produce(Record(topic="numbers", value=b"%d-%d" % (producer, n)))

        threads = [threading.Thread(target=half, args=(first,)) for first in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_a_record_comes_back_byte_for_byte(topics):
    headers = [("a", b"1"), ("b", None), ("a", b"\x00\xff"), ("", b""), ("n:é", b"x"), ("key", b"")]
    record = Record(topic="t", key=b"\x00k", value=b"", headers=headers, partition=2)

    position = topics.produce(record)

    (read,) = topics.read("t", 2, after_position=0, count_max=10)
    assert (read.key, read.value, read.headers) == (b"\x00k", b"", headers)
    assert (read.topic, read.partition, read.position) == ("t", 2, position)
    assert read.timestamp_ms == position >> 20


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


def test_many_producers_lose_and_overwrite_nothing(topics, redis_url, space):
    """S3.2, in threads and processes at once, all creating the topic at the same time."""
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=produce_numbers, args=(redis_url, space, n))
        for n in range(PRODUCERS)
    ]
    for process in processes:
        process.start()
    with Consumer(topics, "g", subscribe=["numbers"]) as consumer:
        found = drain(consumer, count=PRODUCERS * RECORDS_EACH)
    for process in processes:
        process.join()

    assert Counter(r.value for r in found) == Counter(
        b"%d-%d" % (p, n) for p in range(PRODUCERS) for n in range(RECORDS_EACH)
    )
    assert len(all_of(topics, "numbers")) == PRODUCERS * RECORDS_EACH


def test_two_members_of_a_group_share_and_two_groups_do_not(topics):
    topics.produce_many(Record(topic="t", value=b"%d" % n) for n in range(1_000))
    everything = {b"%d" % n for n in range(1_000)}
    with (
        Consumer(topics, "g", subscribe=["t"]) as one,
        Consumer(topics, "g", subscribe=["t"]) as two,
        Consumer(topics, "other", subscribe=["t"]) as other,
    ):
        shared: dict[str, list[bytes | None]] = {"one": [], "two": []}

        def turn() -> bool:
            for name, consumer in (("one", one), ("two", two)):
                records = consumer.poll(40, timeout_ms=0)
                assert len(records) <= 40
                consumer.ack(records)
                shared[name] += [r.value for r in records]
            return len(shared["one"] + shared["two"]) == 1_000

        wait_until(turn, "everything shared")
        assert set(shared["one"]) | set(shared["two"]) == everything
        assert min(len(shared["one"]), len(shared["two"])) > 200
        assert {r.value for r in drain(other, count=1_000)} == everything


def test_what_a_killed_consumer_left_is_taken_over(topics, redis_url, space):
    """The process dies by SIGKILL with records polled and not acknowledged."""
    topics.produce_many(Record(topic="t", value=b"%d" % n) for n in range(20))
    program = (
        "import sys, time; from sendlater.topics import *\n"
        f"c = Consumer(Topics({redis_url!r}, space={space!r}), 'g', subscribe=['t'], name='dies')\n"
        "print(sum(len(c.poll(timeout_ms=0)) for _ in range(4)), flush=True); sys.stdin.read()"
    )
    victim = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert victim.stdout is not None
    assert int(victim.stdout.readline()) == 20
    victim.kill()
    victim.communicate()

    with Consumer(topics, "g", subscribe=["t"], idle_ms=100) as heir:
        found = drain(heir, count=20)
        assert {r.value for r in found} == {b"%d" % n for n in range(20)}
        assert heir.poll(timeout_ms=300) == [], "acknowledged once, not given again"


def test_pending_records_that_retention_removed_do_not_come_back_as_ghosts(topics, cli, space):
    """Redis 6.2 keeps ids of trimmed entries pending for ever; nobody could ever handle them."""
    topics.create("t", 1)
    topics.produce_many(Record(topic="t", value=b"%d" % n) for n in range(10))
    stream = f"{space}:topic:{{t/0}}"
    with (
        Consumer(topics, "g", subscribe=["t"], name="slow") as slow,
        Consumer(topics, "g", subscribe=["t"], name="heir", idle_ms=50) as heir,
    ):
        assert len(slow.poll()) == 10
        cli.xtrim(stream, maxlen=3, approximate=False)
        assert [r.value for r in drain(heir, count=3)] == [b"7", b"8", b"9"]
        wait_until(
            lambda: heir.poll(timeout_ms=0) == [] and cli.xpending(stream, "g")["pending"] == 0,
            "nothing pending",
        )


def test_a_group_goes_back_to_the_start_and_to_an_instant(topics):
    topics.produce_many(Record(topic="t", key=b"k", value=b"%d" % n) for n in range(10))
    with Consumer(topics, "g", subscribe=["t"]) as consumer:
        first = drain(consumer, count=10)
        later_ms = first[-1].timestamp_ms + 1
        wait_until(
            lambda: topics.produce(Record(topic="clock", value=b"")) >> 20 >= later_ms,
            "the clock moved on",
        )
        topics.produce(Record(topic="t", key=b"k", value=b"10"))
        assert [r.value for r in consumer.poll()] == [b"10"], "left pending on purpose"

        consumer.seek_to_start()
        assert [r.value for r in drain(consumer, count=11)] == [b"%d" % n for n in range(11)]
        consumer.seek(later_ms)
        assert [r.value for r in drain(consumer, count=1)] == [b"10"]
        assert consumer.poll(timeout_ms=0) == []


def test_going_back_does_not_break_a_member_that_is_waiting(topics):
    topics.produce_many(Record(topic="t", value=b"%d" % n) for n in range(50))
    with (
        Consumer(topics, "g", subscribe=["t"]) as one,
        Consumer(topics, "g", subscribe=["t"]) as two,
    ):
        drain(one, count=50)
        got: list[TopicRecord] = []
        waiting = threading.Thread(target=lambda: got.extend(two.poll(timeout_ms=10_000)))
        waiting.start()
        one.seek_to_start()
        waiting.join(timeout=20)
        assert got
        two.ack(got)
        drain(two, count=50 - len(got))


def test_topics_and_partitions_made_later_are_noticed(topics):
    with Consumer(topics, "g", subscribe=["late", "never"]) as consumer:
        assert consumer.poll(timeout_ms=0) == []
        topics.create("late", 1)
        topics.produce(Record(topic="late", value=b"0"))
        assert [r.value for r in drain(consumer, count=1)] == [b"0"]
        topics.add_partitions("late", 3)
        topics.produce(Record(topic="late", value=b"2", partition=2))
        assert [r.value for r in drain(consumer, count=1)] == [b"2"]


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
