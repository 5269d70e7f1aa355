"""Spark tries a task again: what its first try had claimed is delivered too, once."""

import time

import psutil
import pytest
import redis
from ledger import Ledger, Reader, create_topics
from servers import ServiceProcess, wait_until

pytestmark = pytest.mark.chaos

COUNT, KILLS = 750, 4


@pytest.mark.timeout(600)
def test_a_worker_that_is_killed_costs_and_doubles_nothing(
    kafka, redis_url, space, topic_name, tmp_path
):
    inbox, target = topic_name("in"), topic_name("out")
    create_topics(kafka, inbox, target, topic_name("bad"))
    service = ServiceProcess(
        tmp_path,
        bootstrap_servers=kafka,
        redis=redis_url,
        space=space,
        inboxes=f'[{{"topic": "{inbox}"}}]',
        rejected_topic=topic_name("bad"),
        # The second number: how often a task is tried.
        spark_master="local[8,4]",
    )
    client = redis.Redis.from_url(redis_url)
    with service.start(), Reader(kafka, target) as reader:
        ledger = Ledger(kafka, inbox=inbox, target=target)
        for kill in range(KILLS):
            # Each time anew: what is late by more than YOUNG_MS is left to the service.
            first_ms = time.time_ns() // 1_000_000 + 3_000
            for n in range(COUNT):
                ledger.send(first_ms + 5 * n)
            ledger.flush()
            wanted = kill * COUNT + COUNT // 2
            wait_until(
                lambda n=wanted: len(reader.messages) >= n, f"{wanted} arrived", timeout_s=90
            )
            wait_until(lambda: claimed(client, space), "a batch is open")
            workers = wait_until(lambda: lane_workers(service), "tasks are at work")
            for worker in workers:
                worker.kill()
            wait_until(lambda: not ledger.missing(reader), "everything has arrived", timeout_s=120)
        assert service.stop() == 0

    assert not ledger.early(reader)
    assert not ledger.doubled(reader)
    assert "query failed" not in service.said()


def claimed(client, space):
    return sum(client.hlen(key) for key in client.keys(f"{{{space}:*:batches:*"))


def lane_workers(service):
    """Some Python workers, which claim or park just now: idle ones end by themselves."""
    found = []
    for process in service.family[1:]:
        try:
            if process.name().startswith("sl-"):
                found.append(process)
        except psutil.Error:
            continue
    return found[:2]
