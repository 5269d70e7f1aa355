"""Consumer groups over topics on a real Redis: shared, taken over, replayed, on a cluster too."""

import multiprocessing
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from redis import Redis
from servers import wait_until

from sendlater.model import Record
from sendlater.topics import Consumer, TopicRecord, Topics
from sendlater.topics.layout import entry_id_of

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


def test_topics_work_on_a_cluster(cluster_url, space):
    with Topics(cluster_url, space=space) as topics:
        headers = [("a", b"1"), ("a", b"2")]
        topics.produce_many(Record(topic="t", value=b"%d" % n, headers=headers) for n in range(100))
        with Consumer(topics, "g", subscribe=["t"]) as consumer:
            found = drain(consumer, count=100)
            assert {r.value for r in found} == {b"%d" % n for n in range(100)}
            assert all(r.headers == headers for r in found)
            consumer.seek_to_start()
            assert consumer.unread(count_max=1_000) == 100
            assert len(drain(consumer, count=100)) == 100
            consumer.seek(found[0].timestamp_ms)
            assert consumer.unread(count_max=10) == 40
        assert len(all_of(topics, "t")) == 100
        assert topics.wait({("t", p): 0 for p in range(4)}, block_ms=100)


def test_what_is_given_back_goes_to_the_next_at_once(topics):
    """A member that stops in an orderly way need not be missed first."""
    topics.create("t", 1)
    topics.produce_many(Record(topic="t", value=b"%d" % n) for n in range(3))
    with Consumer(topics, "g", subscribe=["t"], idle_ms=600_000) as first:
        records = first.poll(3)
        first.ack(records[:1])
        first.give_back(records[1:])
        with Consumer(topics, "g", subscribe=["t"], idle_ms=600_000) as second:
            assert [r.value for r in second.poll(3, timeout_ms=10_000)] == [b"1", b"2"]


def test_what_is_left_is_found_wherever_it_is_however_little_is_asked_for(topics):
    topics.create("t", 8)
    for n in range(8):
        topics.produce(Record(topic="t", value=b"%d" % n, partition=n))
    with Consumer(topics, "g", subscribe=["t"], idle_ms=600_000) as first:
        first.give_back(first.poll(8))
        with Consumer(topics, "g", subscribe=["t"], idle_ms=600_000) as second:
            found = [second.poll(1, timeout_ms=10_000)[0].value for _ in range(8)]
    assert sorted(found) == [b"%d" % n for n in range(8)]


def without_one(topics, cli, space, partition):
    """Delete one record from the middle of a partition: Redis no longer knows how many follow."""
    some = topics.read("t", partition, after_position=0, count_max=10)
    cli.xdel(f"{space}:topic:{{t/{partition}}}", entry_id_of(some[-1].position))


@pytest.mark.parametrize("deleted", [0, 1])
def test_unread_records_are_counted_where_they_are(topics, cli, space, deleted):
    topics.create("t", 2)
    large = [Record(topic="t", value=b"v" * 10_000, partition=n % 2) for n in range(100)]
    topics.produce_many(large)
    if deleted:
        for partition in range(2):
            without_one(topics, cli, space, partition)
    there = 100 - 2 * deleted
    with (
        Consumer(topics, "g", subscribe=["t"]) as consumer,
        Consumer(topics, "other", subscribe=["t"]) as other,
    ):
        assert len(drain(other, count=there)) == there
        assert consumer.poll(2, timeout_ms=0)
        before = cli.info("stats")["total_net_output_bytes"]
        assert consumer.unread(count_max=1_000) == there - 2
        assert cli.info("stats")["total_net_output_bytes"] - before < 100_000
        assert consumer.unread(count_max=15) == 30
        assert consumer.unread(count_max=1) == 2
        assert other.unread(count_max=1_000) == 0
        cli.xtrim(f"{space}:topic:{{t/0}}", maxlen=5, approximate=False)
        assert consumer.unread(count_max=1_000) == 5 + there // 2 - 1


def test_very_large_records_are_not_all_looked_at(topics, cli, space):
    topics.create("t", 1)
    topics.produce_many(Record(topic="t", value=b"v" * 900_000) for _ in range(40))
    without_one(topics, cli, space, 0)
    with Consumer(topics, "g", subscribe=["t"]) as consumer:
        assert consumer.poll(1, timeout_ms=0)
        assert consumer.unread(count_max=1_000) == 10
