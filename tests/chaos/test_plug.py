"""Pull the plug, as often as you like: the ledger balances.

Small here; FULL_SIZE=1 runs the sizes that the documentation states.
"""

import os
import time
from collections import Counter
from pathlib import Path

import pytest
import redis
from ledger import Ledger, Reader, create_topics
from servers import ServiceProcess, own_redis, wait_until

pytestmark = pytest.mark.chaos

FULL = bool(os.environ.get("FULL_SIZE"))
COUNT, SPREAD_MS, TIMES = (20_000, 100_000, 5) if FULL else (4_000, 20_000, 2)


def another(service: ServiceProcess, directory: Path) -> ServiceProcess:
    """A second service on the space of the first."""
    (directory / "another").mkdir()
    second = ServiceProcess(directory / "another")
    mine = {k: v for k, v in service.environment.items() if k != "SENDLATER_DATA_DIR"}
    second.environment |= mine
    return second


@pytest.fixture
def installation(kafka, redis_url, space, topic_name, tmp_path):
    inbox, target, rejected = topic_name("in"), topic_name("out"), topic_name("bad")
    create_topics(kafka, inbox, target, rejected)
    service = ServiceProcess(
        tmp_path,
        bootstrap_servers=kafka,
        redis=redis_url,
        space=space,
        inboxes=f'[{{"topic": "{inbox}"}}]',
        rejected_topic=rejected,
    )
    with service, Reader(kafka, target) as reader:
        yield service, Ledger(kafka, inbox=inbox, target=target), reader


def send_spread(ledger, *, count=COUNT, spread_ms=SPREAD_MS):
    began_ms = time.time_ns() // 1_000_000
    for number in range(count):
        ledger.send(began_ms + 2_000 + number * spread_ms // count)
    ledger.flush()


def arrived(reader, *, count, what):
    wait_until(lambda: len(reader.messages) >= count, what, timeout_s=120)


def all_arrived(ledger, reader):
    wait_until(lambda: not ledger.missing(reader), "everything has arrived", timeout_s=120)


@pytest.mark.timeout(600)
def test_killed_again_and_again_it_loses_nothing(installation, redis_url, space):
    service, ledger, reader = installation
    service.start()
    send_spread(ledger)
    unsettled: Counter[str] = Counter()
    for kill in range(1, TIMES + 1):
        arrived(reader, count=kill * COUNT // (TIMES + 1), what=f"enough before kill {kill}")
        service.kill()
        unsettled.update(claimed(redis.Redis.from_url(redis_url), space))
        service.start()
    all_arrived(ledger, reader)

    assert not ledger.early(reader)
    for name, count in ledger.doubled(reader).items():
        assert count <= 1 + unsettled[name], f"{name} doubled, but no kill caught it unsettled"


@pytest.mark.timeout(600)
def test_stopped_again_and_again_it_doubles_nothing(installation):
    service, ledger, reader = installation
    service.start()
    send_spread(ledger)
    for stop in range(1, TIMES + 1):
        arrived(reader, count=stop * COUNT // (TIMES + 1), what=f"enough before stop {stop}")
        assert service.stop() == 0, service.said()
        service.start()
    all_arrived(ledger, reader)

    assert not ledger.early(reader)
    assert not ledger.doubled(reader)


@pytest.mark.timeout(600)
def test_of_two_services_on_one_space_the_older_one_stops(installation, tmp_path):
    service, ledger, reader = installation
    service.start()
    send_spread(ledger, count=1_000)
    with another(service, tmp_path) as second:
        second.start()
        assert service.wait() == 1
        assert "a newer service" in service.said()
        all_arrived(ledger, reader)

    assert not ledger.early(reader)
    # What the older one had claimed, over at most two windows, may come twice.
    assert len(ledger.doubled(reader)) < 500


@pytest.mark.timeout(600)
def test_a_redis_that_lost_its_last_second_costs_nothing(kafka, space, topic_name, tmp_path):
    """Redis is killed and comes back with the file of an earlier moment."""
    inbox, target, rejected = topic_name("in"), topic_name("out"), topic_name("bad")
    create_topics(kafka, inbox, target, rejected)
    (tmp_path / "redis").mkdir()
    with own_redis(tmp_path / "redis") as server, Reader(kafka, target) as reader:
        service = ServiceProcess(
            tmp_path,
            bootstrap_servers=kafka,
            redis=server.url,
            space=space,
            inboxes=f'[{{"topic": "{inbox}"}}]',
            rejected_topic=rejected,
        )
        ledger = Ledger(kafka, inbox=inbox, target=target)
        with service.start():
            client = redis.Redis.from_url(server.url)
            first = [ledger.send(time.time_ns() // 1_000_000 + 20_000) for _ in range(100)]
            ledger.flush()
            wait_until(lambda: pending(client, space) == len(first), "the first are pending")
            before = {key: client.dump(key) for key in client.keys("*")}

            for _ in range(100):
                ledger.send(time.time_ns() // 1_000_000 + 20_000)
            ledger.flush()
            wait_until(lambda: pending(client, space) == 200, "the others are pending")
            # The store goes back to the earlier moment, as after a kill with an unsynced file.
            with client.pipeline() as pipe:
                pipe.flushall()
                for key, dumped in before.items():
                    pipe.restore(key, 0, dumped, replace=True)
                pipe.execute()

            all_arrived(ledger, reader)
            assert not ledger.early(reader)


def pending(client, space):
    return sum(client.zcard(key) for key in client.keys(f"{{{space}:*:due"))


def claimed(client, space):
    """Ids in batches that nobody has settled."""
    batches = client.keys(f"{{{space}:*:batches:*")
    return [name.decode() for batch in batches for name in client.hkeys(batch)]
