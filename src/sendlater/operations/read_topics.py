"""Reads topics for REST, the page and the command line: the last records, and new ones."""

import threading
import time
from collections.abc import Iterator, Mapping

from sendlater.brokers.broker import Arrived, Broker
from sendlater.dialects import names

TOLD = {
    "reason": names.REJECTED,
    "detail": names.REJECTED_DETAIL,
    "origin": names.ORIGIN,
    "target": names.REJECTED_TARGET,
    "id": names.ID,
    "due_ms": names.DUE,
    "event_type": names.EVENT_TYPE,
    "event_id": names.EVENT_ID,
    "event_error": names.EVENT_ERROR,
}
"""Fields of a record in REST and their headers; shown even where payloads are hidden."""
QUIET_READS_MAX = 20
"""Reading a topic ends after this many empty reads of 0.1 s each: its last offsets may belong to
compacted records or to transaction markers."""


def last_records(broker: Broker, topic: str, *, count_max: int) -> list[Arrived]:
    """The last records of a topic by time, oldest first. Raises BrokerUnavailable."""
    ends = broker.ends(topic)
    starts = {number: broker.back(end, count=count_max) for number, end in ends.items()}
    found: list[Arrived] = []
    missing = {number for number, end in ends.items() if end > starts[number]}
    quiet = 0
    if not missing:
        return found
    for some in broker.follow(topic, stop=threading.Event(), starts=starts):
        quiet = 0 if some else quiet + 1
        for record in some:
            if record.position < ends.get(record.partition, 0):
                found.append(record)
            if record.position >= ends.get(record.partition, 0) - 1:
                missing.discard(record.partition)
        if len(found) > 2 * count_max * len(ends):
            found = _latest(found, count_max)
        if not missing or quiet >= QUIET_READS_MAX:
            break
    return _latest(found, count_max)


def records_behind(
    broker: Broker, topic: str, *, starts: Mapping[int, int], count_max: int, wait_s: float
) -> tuple[list[Arrived], dict[int, int]]:
    """Up to `count_max` records from `starts` on, as soon as there are any, and the positions
    after them. Raises BrokerUnavailable."""
    deadline = time.monotonic() + wait_s
    following = dict(starts)
    for some in broker.follow(topic, stop=threading.Event(), starts=starts):
        found = some[:count_max]
        following |= {record.partition: record.position + 1 for record in found}
        if found or time.monotonic() >= deadline:
            return found, following
    return [], following


def coming_records(
    broker: Broker, topic: str, *, stop: threading.Event, from_start: bool = False
) -> Iterator[list[Arrived]]:
    """New records, or all from the first one kept, until `stop` is set."""
    starts = None if from_start else broker.ends(topic)
    return broker.follow(topic, stop=stop, starts=starts)


def _latest(found: list[Arrived], count_max: int) -> list[Arrived]:
    return sorted(found, key=lambda one: (one.timestamp_ms, one.position))[-count_max:]
