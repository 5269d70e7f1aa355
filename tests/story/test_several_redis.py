"""A service on several Redis servers, as users run it, and its space laid out anew."""

from collections import Counter

import pytest
from servers import ServiceProcess, cli, own_redis, wait_until

from sendlater import Scheduler
from sendlater.topics import Topics

pytestmark = pytest.mark.story

TARGET = "out"
COUNT = 200


@pytest.fixture
def redis_servers(tmp_path):
    with own_redis(tmp_path / "a") as a, own_redis(tmp_path / "b") as b:
        yield a, b


def send(urls, *, prefix, after_s, spread_s):
    """Schedules that are due one after the other within `spread_s`; their ids."""
    ids = [f"{prefix}{number}" for number in range(COUNT)]
    with Scheduler(urls) as scheduler:
        for number, one in enumerate(ids):
            delay = after_s + number * spread_s / COUNT
            scheduler.send_later(TARGET, one.encode(), delay=delay, id=one)
    return ids


def left(pending):
    """How many are pending, or claimed and not settled."""
    counts = pending.counts()
    return counts["pending"] + counts["claimed"]


def arrived(topics):
    """How often each id has arrived."""
    return Counter(
        record.value.decode()
        for number in range(topics.partitions(TARGET) if topics.exists(TARGET) else 0)
        for record in topics.read(TARGET, number, after_position=0, count_max=10_000, block_ms=0)
    )


def test_nothing_is_lost_by_a_restart_of_one_and_nothing_doubled_by_a_change(
    redis_servers, tmp_path
):
    first, second = redis_servers
    urls = f"{first.url},{second.url}"
    service = ServiceProcess(tmp_path, redis=urls)
    with service.start(), Topics(urls, space="sendlater") as topics:
        sent = send(urls, prefix="a", after_s=1, spread_s=12)
        wait_until(lambda: len(arrived(topics)) > COUNT // 10, "deliveries from both", timeout_s=90)
        second.stop()
        second.start()
        wait_until(lambda: arrived(topics).keys() >= {*sent}, "nothing is lost", timeout_s=90)

        with Scheduler(urls) as scheduler:
            wait_until(lambda: not left(scheduler.pending), "lanes have recovered", timeout_s=90)

        later = send(urls, prefix="b", after_s=15, spread_s=5)
        assert service.stop() == 0
        done = cli(service, "reshard", "--shards", "3", "--redis-to", first.url)
        assert done.returncode == 0, done.stderr
        service.environment |= {"SENDLATER_REDIS": first.url, "SENDLATER_SHARDS": "3"}
        service.start()
        wait_until(lambda: arrived(topics).keys() >= {*later}, "all of them", timeout_s=90)
        assert service.stop() == 0
        found = arrived(topics)
        assert {one: found[one] for one in later} == dict.fromkeys(later, 1), "exactly once"
