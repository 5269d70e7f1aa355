"""With a journal nobody has to trust Redis, and a crash doubles nothing.

Small here; FULL_SIZE=1 runs the sizes that the documentation states.
"""

import os
import shutil
import time

import psutil
import pytest
import redis
from confluent_kafka import Producer
from ledger import Ledger, Reader, create_topics
from servers import READY, ServiceProcess, own_redis, wait_until

from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.model import Origin, Record, Schedule
from sendlater.store import Batch, Pending
from sendlater.store.rebuild import JournalCopy

pytestmark = pytest.mark.chaos

FULL = bool(os.environ.get("FULL_SIZE"))
TAKEOVER_S = 15.0 if FULL else 60.0
"""What is promised on two cores of one's own; a busy machine may take longer."""


@pytest.fixture
def journal(kafka, space, topic_name, tmp_path):
    """A service on one journal and a Redis of its own; the history is followed too."""
    names = {name: topic_name(name) for name in ("schedules", "target", "history", "rejected")}
    create_topics(kafka, names["schedules"], partitions=4, cleanup_policy="compact")
    create_topics(kafka, names["target"], names["history"], names["rejected"])
    (tmp_path / "redis").mkdir()
    with own_redis(tmp_path / "redis") as server:
        service = ServiceProcess(
            tmp_path,
            bootstrap_servers=kafka,
            redis=server.url,
            space=space,
            inboxes=f'[{{"topic": "{names["schedules"]}", "journal": true}}]',
            rejected_topic=names["rejected"],
            history_topic=names["history"],
        )
        with service, Reader(kafka, names["target"]) as reader:
            ledger = Ledger(kafka, inbox=names["schedules"], target=names["target"])
            yield service, ledger, reader, server


def now_ms():
    return time.time_ns() // 1_000_000


def all_arrived(ledger, reader, *, timeout_s=120):
    wait_until(lambda: not ledger.missing(reader), "everything has arrived", timeout_s=timeout_s)


def arrived(reader, count):
    wait_until(lambda: len(reader.messages) >= count, f"{count} have arrived", timeout_s=120)


@pytest.mark.timeout(900)
def test_a_redis_that_is_wiped_and_killed_costs_nothing(journal):
    """Exactly what is newest, not cancelled and not delivered comes; doubles only in flight."""
    service, ledger, reader, server = journal
    count, spread_ms = (50_000, 60_000) if FULL else (4_000, 16_000)
    service.start()
    ledger.send(now_ms())
    ledger.flush()
    arrived(reader, 1)
    # Time enough to take everything in: who cancels after the due time comes too late.
    first_ms = now_ms() + (40_000 if FULL else 12_000)
    for number in range(count):
        ledger.send(first_ms + number * spread_ms // count)
    names = list(ledger.due_ms)[1:]
    for name in names[::7]:
        ledger.send(ledger.due_ms[name] + spread_ms // 4, name)
    for name in names[3::10]:
        ledger.cancel(name)
    ledger.flush()
    client = redis.Redis.from_url(server.url)
    left = len(ledger.due_ms) - 1
    wait_until(lambda: pending(client) == left, f"all {left} are pending", timeout_s=60)
    assert now_ms() < first_ms, "this machine is too slow for this test"

    arrived(reader, len(ledger.due_ms) // 4)
    in_flight = claimed(client)
    client.flushall()
    wait_until(lambda: rebuilds(service) == 1, "the store is rebuilt", timeout_s=120)

    arrived(reader, len(ledger.due_ms) // 2)
    in_flight += claimed(client)
    process = psutil.Process(server.pid)
    process.kill()
    process.wait(10)
    wipe(server)
    server.start()
    all_arrived(ledger, reader)

    # On a slow machine all may have arrived before it was killed.
    wait_until(lambda: rebuilds(service) == 2, "the store is rebuilt again", timeout_s=120)
    assert not ledger.early(reader)
    assert not ledger.outdated(reader)
    assert len(ledger.doubled(reader)) <= in_flight


@pytest.mark.timeout(1_200)
def test_killed_again_and_again_it_neither_loses_nor_doubles(journal):
    service, ledger, reader, _ = journal
    count, kills = (20_000, 10) if FULL else (3_000, 2)
    service.start()
    first_ms = now_ms() + 2_000
    for number in range(count):
        ledger.send(first_ms + number * (1 if FULL else 4))
    ledger.flush()
    for kill in range(1, kills + 1):
        arrived(reader, kill * count // (kills + 1))
        service.kill()
        service.start()
    all_arrived(ledger, reader)

    assert not ledger.early(reader)
    assert not ledger.doubled(reader)


@pytest.mark.timeout(600)
def test_what_a_crash_left_half_done_is_finished(journal, space, kafka):
    """Each of a schedule's three records may have got through, or not."""
    service, ledger, reader, server = journal
    inbox, history = ledger.inbox, service.environment["SENDLATER_HISTORY_TOPIC"]
    names = ["all", "target only", "no history", "tombstone only", "nothing"]
    due_ms = now_ms() - 1_000
    producer = Producer({"bootstrap.servers": kafka})
    claimed = {name: written(producer, ledger, name, due_ms) for name in names}
    topics = KafkaTopics({"bootstrap.servers": kafka})
    ends = topics.ends([inbox])[inbox]
    leave_unsettled(server.url, space, claimed, ends, journals=topics.identity([inbox]))
    for name in names:
        headers = delivery_headers(claimed[name])
        if name in ("all", "target only", "no history"):
            producer.produce(ledger.target, str(due_ms), name, headers=headers)
        if name in ("all", "no history", "tombstone only"):
            partition = claimed[name].origin.partition
            producer.produce(inbox, None, name, headers=headers, partition=partition)
        if name == "all":
            producer.produce(history, str(due_ms), name, headers=headers)
    assert producer.flush(30) == 0

    with Reader(kafka, inbox, history) as after, service.start():
        ledger.due_ms = dict.fromkeys(names, due_ms)
        all_arrived(ledger, reader)

        def tombstones():
            gone = [m for m in list(after.messages) if m.topic() == inbox and m.value() is None]
            return {m.key().decode() for m in gone}

        def histories():
            return {m.key().decode() for m in list(after.messages) if m.topic() == history}

        wait_until(lambda: tombstones() == histories() == set(names), "everything is complete")
    assert not ledger.doubled(reader)


def written(producer, ledger, name, due_ms):
    """A schedule on the journal, as the store holds it."""
    at = []
    producer.produce(
        ledger.inbox,
        str(due_ms),
        name,
        headers=[
            ("sendlater-due-ms", str(due_ms)),
            ("scheduler-target-topic", ledger.target),
            ("scheduler-target-key", name),
        ],
        on_delivery=lambda _, message: at.append(message),
    )
    assert producer.flush(30) == 0
    [message] = at
    return Schedule(
        id=name.encode(),
        due_ms=due_ms,
        record=Record(topic=ledger.target, key=name.encode(), value=str(due_ms).encode()),
        dialect="headers",
        origin=Origin(
            topic=ledger.inbox,
            partition=message.partition(),
            position=message.offset(),
            timestamp_ms=message.timestamp()[1],
        ),
    )


def delivery_headers(schedule):
    origin = schedule.origin
    return [
        ("sendlater-id", schedule.id),
        ("sendlater-due", str(schedule.due_ms)),
        ("sendlater-origin", f"{origin.topic}/{origin.partition}/{origin.position}"),
    ]


def leave_unsettled(url, space, schedules, ends, *, journals):
    """A store as a killed service leaves it: read up to `ends`, one batch claimed."""
    pending = Pending.open(url, space=space, shards=2)
    pending.require_layout()
    owner = pending.fence()
    run = pending.open_lane(0, owner=owner)
    [inbox] = {schedule.origin.topic for schedule in schedules.values()}
    JournalCopy(pending, owner=owner).complete(
        {f"{inbox}/{number}": end for number, end in ends.items()}, journals=journals
    )
    for schedule in schedules.values():
        pending.put(schedule)
    for shard in pending.shards:
        batch = Batch(lane=0, run=run, end_ms=now_ms() + 2_000)
        shard.claim(batch, owner=owner, now_ms=now_ms(), count_max=100)


@pytest.mark.timeout(600)
def test_the_one_that_stands_by_takes_over_from_a_killed_one(journal, tmp_path):
    service, ledger, reader, _ = journal
    service.start()
    other = tmp_path / "other"
    other.mkdir()
    with ServiceProcess(other) as second:
        mine = {k: v for k, v in service.environment.items() if k != "SENDLATER_DATA_DIR"}
        second.environment |= mine
        second.start(wait=False)
        wait_until(lambda: "stands by" in second.said(), "the second stands by", timeout_s=60)
        first_ms = now_ms() + 1_000
        for number in range(2_000):
            ledger.send(first_ms + number * 10)
        ledger.flush()
        arrived(reader, 200)
        service.kill()
        killed_ms = now_ms()
        second.wait_until_ready()
        all_arrived(ledger, reader)

    appended = sorted(message.timestamp()[1] for message in reader.messages)
    resumed_ms = next(at for at in appended if at > killed_ms + 500)
    took_s = (resumed_ms - killed_ms) / 1_000
    assert took_s < TAKEOVER_S, f"the takeover took {took_s} s"
    assert not ledger.early(reader)
    assert not ledger.doubled(reader)


def wipe(server):
    """Takes from a dead server what it had appended: one file by Redis 6, a folder since 7."""
    [appended] = server.log.parent.glob("appendonly*")
    if appended.is_dir():
        shutil.rmtree(appended)
    else:
        appended.unlink()


def rebuilds(service):
    """How often the store was filled from the journal, after the service was ready."""
    return service.said().partition(READY)[2].count("the store is rebuilt")


def pending(client):
    return sum(client.zcard(key) for key in client.keys("*:due"))


def claimed(client):
    return sum(client.hlen(batch) for batch in client.keys("*:batches:*"))
