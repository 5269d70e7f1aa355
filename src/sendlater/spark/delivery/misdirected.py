"""Rows for a partition that their topic on Redis does not have: the rejected topic gets them. On
Kafka the service knows what targets take, and such rows are set aside before."""

import sys

from sendlater.dialects.rejected import rejected_schedule
from sendlater.model import Schedule, Target
from sendlater.spark.delivery.lane import Lane
from sendlater.spark.delivery.refusal import refusal
from sendlater.store import Claim
from sendlater.store.codec import unpack
from sendlater.topics import Topics


def misdirected(lane: Lane, got: Claim) -> dict[bytes, Schedule]:
    """What is delivered instead of such rows of a claim, by their ids. Raises what Redis does."""
    found = {}
    with Topics(lane.redis_url, space=lane.space) as topics:

        def known(topic: str) -> Target:
            return Target(sys.maxsize, topics.partitions(topic) or lane.partitions)

        for schedule_id, packed in zip(got.ids, got.packed, strict=True):
            schedule = unpack(schedule_id, packed)
            if refused := refusal(schedule, known):
                instead = rejected_schedule(schedule, *refused, topic=lane.rejected_topic)
                found[schedule_id] = instead
    return found
