"""Ten years in half a minute: a schedule on its way through the buckets, with a clock that jumps.

Real topics, Spark's real passes; only the time between them is left out.
"""

import time
from itertools import pairwise

import pytest
from confluent_kafka import Producer
from ledger import create_topics
from servers import on_cluster

from sendlater.brokers.client_options import client_options
from sendlater.brokers.group_offsets import Found, Place, Progress
from sendlater.brokers.kafka_topics import TopicFacts
from sendlater.config import Settings
from sendlater.local.installation import Installation
from sendlater.spark.buckets.counts import group_of
from sendlater.spark.buckets.ladder import Ladder
from sendlater.spark.buckets.passes import Intake, Moves
from sendlater.spark.buckets.topics import require_topics
from sendlater.spark.session import end_session, start_session

pytestmark = pytest.mark.story

YEAR_MS = 31_557_600_000
STEPS_MAX = 200
SHORT_BUCKET_COUNT = 8
"""Buckets of less than a minute or two: while passes take their time, a record may skip some."""


class JumpingClock:
    """Real time, and now and then some years more."""

    def __init__(self):
        self.jumps = [(0, 0)]

    def now_ms(self):
        return time.time_ns() // 1_000_000 + self.jumps[-1][1]

    def jump_to(self, at_ms):
        real_ms = time.time_ns() // 1_000_000
        self.jumps.append((real_ms, max(at_ms - real_ms, self.jumps[-1][1])))

    def shown_ms(self, real_ms):
        """What this clock showed when it was `real_ms`."""
        return real_ms + max(skew for since, skew in self.jumps if since <= real_ms)

    def real_ms(self, shown_ms):
        """When this clock showed `shown_ms`, or first showed more."""
        for (since, skew), (until, _) in pairwise([*self.jumps, (2**53, 0)]):
            if shown_ms < until + skew:
                return max(shown_ms - skew, since)
        raise AssertionError(shown_ms)


class JumpingProgress(Progress):
    """Records carry real timestamps; asked and answered in the clock's time."""

    def __init__(self, *arguments, clock, **named):
        super().__init__(*arguments, **named)
        self._clock = clock

    def since(self, instants_ms):
        found = super().since({p: self._clock.real_ms(at) for p, at in instants_ms.items()})
        return {
            p: head and Found(head.offset, self._clock.shown_ms(head.timestamp_ms))
            for p, head in found.items()
        }


@pytest.fixture
def settings(kafka, space, topic_name, tmp_path):
    inbox, rejected = topic_name("in"), topic_name("bad")
    create_topics(kafka, inbox, rejected, partitions=1)
    return Settings(
        bootstrap_servers=kafka,
        pending="buckets",
        space=space,
        inboxes=[{"topic": inbox}],
        rejected_topic=rejected,
        shards=1,
        data_dir=tmp_path,
        **on_cluster(),
    )


@pytest.fixture
def spark(settings):
    java_home, jars = Installation.tools(settings)
    session = start_session(settings, java_home=java_home, jars=jars)
    yield session
    end_session(session)


def test_a_message_for_in_ten_years_goes_down_bucket_by_bucket(settings, spark):
    clock, ladder = JumpingClock(), Ladder.of(settings)
    client = client_options(settings)
    room_bytes = require_topics(settings, ladder)
    progress = JumpingProgress(client, group=group_of(settings), clock=clock)
    inbox = settings.inboxes[0].topic
    dues = {
        "ten-years": clock.now_ms() + 10 * YEAR_MS,
        # Long enough in each bucket for the next one below: it visits all.
        "every-bucket": clock.now_ms()
        + 3_000
        + sum(ladder.hold_ms(bucket) for bucket in range(1, 29)),
    }
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for name, due_ms in dues.items():
        headers = {"scheduler-target-topic": "out", "sendlater-due-ms": str(due_ms)}
        producer.produce(inbox, key=name, value=b"hello", headers=headers)
    producer.flush(30)

    facts = {inbox: TopicFacts("id", 1)}
    Intake(
        *(spark, settings, ladder, progress),
        inboxes=lambda: facts,
        room_bytes=room_bytes,
        clock=clock,
    ).step()
    moves = Moves(spark, settings, ladder, progress, clock=clock)
    delivering = Place(ladder.topic(0), 0)
    entered: dict[int, int] = {}
    for _ in range(STEPS_MAX):
        ripe, next_ms = moves.look(clock.now_ms())
        if ripe:
            moves.move(ripe)
            known = progress.ends([Place(topic, 0) for topic in ladder.topics])
            entered = {n: known[Place(ladder.topic(n), 0)] for n in range(ladder.count)}
        elif entered.get(0) == len(dues):
            break
        else:
            assert next_ms < max(dues.values()), "overslept"
            clock.jump_to(next_ms)

    assert progress.ends([delivering])[delivering] == len(dues)
    visited = {bucket for bucket, count in entered.items() if count}
    assert visited >= {0, *range(SHORT_BUCKET_COUNT, 30)}
    assert entered[29] == 1
    assert sum(entered.values()) <= 2 * (2 * 28.3 + 3)
