"""Recurring schedules on a journal: kills and an emptied store neither skip nor double one.

Small here; FULL_SIZE=1 runs the sizes that the documentation states.
"""

import random
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
import redis
from confluent_kafka import Producer
from servers import wait_until
from test_journal_plug import FULL, claimed, journal, now_ms, rebuilds  # noqa: F401

pytestmark = pytest.mark.chaos
COUNT, KILLS, LENGTH_MS = (1_000, 5, 240_000) if FULL else (60, 1, 45_000)
QUIET_MS = 5_000
"""What has arrived is read by then."""
FLUSHED_AFTER = 0 if KILLS == 1 else 2
"""Kills before Redis is emptied, under the running service."""


@dataclass(frozen=True)
class Recurring:
    """A plan whose times are known beforehand."""

    id: str
    every_ms: int
    missed: str
    start_ms: int

    @property
    def planned(self):
        return range(self.start_ms, self.start_ms + LENGTH_MS, self.every_ms)

    @property
    def headers(self):
        return {
            "sendlater-every": f"{self.every_ms}ms",
            "sendlater-start": instant(self.start_ms),
            "sendlater-end": instant(self.planned[-1]),
            "sendlater-missed": self.missed,
        }

    def wrong(self, came):
        """Planned times that were skipped against the policy, or were never planned; `came`: when
        each one arrived."""
        found = sorted(came.keys() - set(self.planned))
        before_ms = 0
        for planned_ms in self.planned:
            if planned_ms in came:
                before_ms = max(before_ms, came[planned_ms])
            elif self.missed == "all" or planned_ms > before_ms:
                # `one` leaves out only what was due when an earlier one was delivered late.
                found.append(planned_ms)
        return found


def instant(ms):
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds")


def came(reader):
    """When each occurrence arrived last, by schedule and planned time; and all that came twice.
    `one` leaves out what was due until then, whenever it came first."""
    found, twice = {}, Counter()
    for message in list(reader.messages):
        told = dict(message.headers())
        id, _, planned = told["sendlater-id"].decode().rpartition("@")
        assert told["sendlater-schedule"] == id.encode()
        at_ms, due_ms = message.timestamp()[1], int(told["sendlater-due"])
        assert at_ms >= due_ms >= int(planned), f"{id} came at {at_ms}: {told}"
        mine = found.setdefault(id, {})
        twice[id, planned] += int(planned) in mine
        mine[int(planned)] = max(at_ms, mine.get(int(planned), 0))
    return found, +twice


def plans(start_ms):
    """Intervals of 1 to 5 s; half of them want everything that was missed."""
    chance = random.Random(1)
    intervals = [chance.randrange(1_000, 5_001, 50) for _ in range(COUNT)]
    return [
        Recurring(f"r{n}", every_ms, ("all", "one")[n % 2], start_ms + n * 1_000 // COUNT)
        for n, every_ms in enumerate(intervals)
    ]


@pytest.mark.timeout(1_800)
def test_kills_and_an_emptied_redis_neither_skip_nor_double_an_occurrence(journal, kafka):  # noqa: F811
    service, ledger, reader, server = journal
    service.start()
    start_ms = now_ms() + (20_000 if FULL else 8_000)
    written = plans(start_ms)
    producer = Producer({"bootstrap.servers": kafka})
    for one in written:
        told = {"scheduler-target-topic": ledger.target, **one.headers}
        producer.produce(ledger.inbox, key=one.id, value=b"v", headers=list(told.items()))
    assert producer.flush(30) == 0
    assert now_ms() < start_ms, "this machine is too slow for this test"

    def come_until(ms):
        wait_until(lambda: now_ms() >= ms, "its time", timeout_s=LENGTH_MS / 1_000)
        some = len(reader.messages)
        wait_until(lambda: len(reader.messages) > some + COUNT, "they come", timeout_s=120)

    client, in_flight = redis.Redis.from_url(server.url), 0
    for kill in range(KILLS + 1):
        come_until(start_ms + (kill + 1) * LENGTH_MS // (KILLS + 3))
        if kill == FLUSHED_AFTER:
            in_flight = claimed(client)
            client.flushall()
            wait_until(lambda: rebuilds(service) == 1, "the store is rebuilt", timeout_s=120)
        else:
            service.kill()
            service.start()

    looked = [0, 0]  # how many had come, and since when it is that many

    def settled():
        """Nothing is pending, set aside or on its way, and nothing has come for a while: what is
        claimed while the first is counted may be pending again when the last is."""
        count, ms = len(reader.messages), now_ms()
        if count != looked[0] or pending(client) + claimed(client) + set_aside(client):
            looked[:] = count, ms
        return ms - looked[1] > QUIET_MS

    wait_until(settled, "every plan is over", timeout_s=LENGTH_MS / 1_000 + 120)
    wait_until(lambda: now_ms() > max(one.planned[-1] for one in written), "and its last time")
    found, twice = came(reader)
    sys.stderr.write(f"{sum(map(len, found.values()))} occurrences, {in_flight} in flight\n")
    wrong = {one.id: one.wrong(found.get(one.id, {})) for one in written}
    assert not {id: times for id, times in wrong.items() if times}
    assert twice.total() <= in_flight, twice


def set_aside(client):
    return sum(client.hlen(key) for key in client.keys("*:aside"))


def pending(client):
    return sum(client.zcard(key) for key in client.keys("*:due"))
