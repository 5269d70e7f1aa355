"""Conditions on a journal, and on an inbox copied into one: Redis may be wiped at any moment."""

import json
import uuid
from contextlib import suppress

import pytest
import redis
from confluent_kafka import Producer
from installation import now_ms
from ledger import create_topics
from servers import ServiceProcess, wait_until

from sendlater import Cancelled, Scheduler
from sendlater.config import load
from sendlater.store import Pending

pytestmark = pytest.mark.story

HOUR_MS = 3_600_000


def test_what_was_decided_stands_in_a_redis_that_was_wiped(kafka, redis_url, tmp_path):
    space = uuid.uuid4().hex[:8]
    journal, copied, out = (f"{name}-{space}" for name in ("journal", "copied", "out"))
    create_topics(kafka, journal, cleanup_policy="compact")
    create_topics(kafka, copied, out)
    inboxes = [{"topic": journal, "journal": True}, {"topic": copied, "copy_to": journal}]
    service = ServiceProcess(
        tmp_path,
        bootstrap_servers=kafka,
        redis=redis_url,
        space=space,
        inboxes=json.dumps(inboxes),
    )
    producer = Producer({"bootstrap.servers": kafka})
    pending = Pending.open(redis_url, space=space, shards=load().shards)
    due_ms = now_ms() + HOUR_MS

    def write(to, id, *asked):
        for n, (condition, at) in enumerate(asked):
            headers = {"sendlater-due-ms": str(due_ms + at), "scheduler-target-topic": out}
            headers |= {"sendlater-if": condition} if condition else {}
            producer.produce(to, b"%d" % n, id, headers=headers)
        assert producer.flush(30) == 0

    def write_all(when):
        for name, to in (("j", journal), ("c", copied)):
            write(to, f"{name}-once-{when}", ("absent", 1), ("absent", 2))
            write(to, f"{name}-later-{when}", ("", 2), ("later", 1), ("later", 4), ("later", 3))
            write(to, f"{name}-early-{when}", ("", 2), ("earlier", 3), ("earlier", 1))
            write(to, f"{name}-never-{when}", ("version=0", 1))
            write(to, f"{name}-last-{when}", ("absent", 1), ("", 2))

    def expected(*whens):
        values = {"once": b"0", "later": b"2", "early": b"2", "last": b"1"}
        return {
            f"{name}-{kind}-{when}": value
            for name in "jc"
            for when in whens
            for kind, value in values.items()
        }

    def standing():
        return {one.id.decode(): one.record.value for one in pending.list(count_max=99)}

    def wait_for(*whens):
        with suppress(AssertionError):
            wait_until(lambda: standing() == expected(*whens), "it stands", timeout_s=60)
        assert standing() == expected(*whens)

    def wipe():
        store = redis.Redis.from_url(redis_url)
        for key in list(store.scan_iter(f"*{space}*")):
            store.delete(key)

    write_all("a")  # nobody has decided these when the empty Redis is filled
    with service.start():
        wait_for("a")
        unmet = 2 * (1 + 2 + 1 + 1)
        wait_until(lambda: pending.counts()["unmet"] == unmet, "what does not stand is counted")
        write_all("b")
        wait_for("a", "b")
        wipe()
        wait_for("a", "b")
        with Scheduler(kafka, redis_url=redis_url, space=space, inboxes=inboxes) as scheduler:
            write(copied, "taken-back", ("", 1))
            assert scheduler.cancel("taken-back") is Cancelled.CANCELLED
