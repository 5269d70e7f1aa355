"""What an earlier attempt at a batch has delivered: looked up by the attempt that follows it.

One record that a broker refuses, or a worker that is killed, fails a task. Spark tries it again at
once. The second attempt reads the topics of what the batch holds, and delivers what is not there:
so nobody waits until a lane has started again. What it is not sure of it leaves to the service,
which ends the lane and looks at everything (see `crash_lookup`).
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sendlater.brokers.partition_reader import KafkaPartitions, Place, Read
from sendlater.clock import Clock
from sendlater.dialects.deliver import leaving
from sendlater.errors import BrokerUnavailable, NotLookedUp, StoreWentBack
from sendlater.limits import RECOVERY_CLOCK_SKEW_MS, RECOVERY_LOOK_BACK_MS
from sendlater.model import Record, Schedule
from sendlater.spark.delivery.lane import Lane
from sendlater.store import Claim, Shard
from sendlater.store.codec import unpack

LOOK_COUNT_MAX = 100_000
"""Most records that are read: about a second's work."""
LOOK_MS_MAX = 5_000
"""Longest time for that; large records take longer."""
LANDED_MS = 350
"""A broker that answers within ANSWER_MS_MAX has taken by then what the failed attempt had sent."""
ANSWER_MS_MAX, ANSWERS_MAX = 300, 5
"""A broker that answers later was away, maybe, and is asked again, so often: it may take only now
what it was sent before."""
ASK_MS_MAX, ASK_PAUSE_MS = 2_000, 20
"""Longest wait until the service has asked again what a target takes, and the time between two."""
YOUNG_MS = 10_000
"""What was due longer ago and has not arrived may still be on its way, held up by a broker."""
QUICK = {"fetch.wait.max.ms": "10", "isolation.level": "read_uncommitted"}
"""At the end of a partition a broker waits before it says so; our records are in no transaction."""

_Content = tuple[str, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def not_arrived(lane: Lane, shard: Shard, got: Claim, *, end_ms: int, clock: Clock) -> Claim:
    """The rows of `got`, which a batch that ends at `end_ms` holds, that must be delivered still.

    One of their targets has refused a record, maybe: what they take is asked again meanwhile.
    Raises NotLookedUp where it is not certain what has arrived, StoreWentBack, StoreUnavailable.
    """
    schedules = [unpack(*row) for row in zip(got.ids, got.packed, strict=True)]
    _ask_again({one.record.topic for one in schedules}, lane, shard)
    missing = _missing(lane, schedules, end_ms=end_ms, clock=clock)
    if not shard.is_armed(f"{lane.space}/{lane.owner}/{lane.lane}/{lane.run}"):
        raise StoreWentBack("it was restarted: what a batch holds may have been settled")
    _await_answers({topic.encode() for topic in missing.values()}, shard, clock)
    return Claim([got.ids[n] for n in missing], [got.packed[n] for n in missing])


def earliest_ms(due_ms: Iterable[int], end_ms: int) -> int:
    """Nothing of a batch with these due times that was to end at `end_ms` was delivered before, by
    any broker's time."""
    first_ms = min(due_ms, default=end_ms)
    return max(first_ms, end_ms - RECOVERY_LOOK_BACK_MS) - RECOVERY_CLOCK_SKEW_MS


def _missing(
    lane: Lane, schedules: Sequence[Schedule], *, end_ms: int, clock: Clock
) -> dict[int, str]:
    """Numbers of rows that are on no topic, and their targets. Recurring schedules are among them:
    it is their occurrences that are delivered."""
    sent = {n: _sent(one, lane) for n, one in enumerate(schedules) if not one.plan}
    since_ms = earliest_ms((one.due_ms for one in schedules), end_ms)
    found = _found(lane, sent, since_ms=since_ms, clock=clock)
    for n, parts in found.items():
        if len(parts) < len(sent[n]):
            raise NotLookedUp(f"{schedules[n].id[:100]!r} has arrived in part")
    young_ms = clock.now_ms() - YOUNG_MS
    missing = {n: one.record.topic for n, one in enumerate(schedules) if n not in found}
    for n in missing.keys() & sent.keys():
        if schedules[n].due_ms < young_ms:
            raise NotLookedUp(f"{schedules[n].id[:100]!r} may still be on its way")
    return missing


def _ask_again(topics: set[str], lane: Lane, shard: Shard) -> None:
    """Have the service look again at what these topics take."""
    for number in range(lane.shards):
        shard.beside(number).mark("targets", dict.fromkeys(topics, ""))
    shard.beside(0).want(topic.encode() for topic in topics)


def _await_answers(topics: set[bytes], shard: Shard, clock: Clock) -> None:
    until_ms = clock.elapsed_ms() + ASK_MS_MAX
    while not topics <= shard.targets().keys():
        if clock.elapsed_ms() > until_ms:
            raise NotLookedUp("one of its targets takes nothing now")
        time.sleep(ASK_PAUSE_MS / 1_000)


def _found(
    lane: Lane, sent: dict[int, list[Record]], *, since_ms: int, clock: Clock
) -> dict[int, set[int]]:
    """By row, which of its records are on their topics."""
    wanted = {
        _content(one.topic, one.key, one.value, one.headers): (n, part)
        for n, records in sent.items()
        for part, one in enumerate(records)
    }
    topics = {one.topic for records in sent.values() for one in records}
    found: dict[int, set[int]] = {}
    try:
        for read in _records(lane, topics, since_ms, clock) if topics else ():
            for told in zip(read.topics, read.keys, read.values, read.headers, strict=True):
                if place := wanted.get(_content(*told)):
                    found.setdefault(place[0], set()).add(place[1])
    except BrokerUnavailable as error:
        raise NotLookedUp(str(error)) from error
    return found


def _records(lane: Lane, topics: Iterable[str], since_ms: int, clock: Clock) -> Iterator[Read]:
    """All records that were written to these topics since an instant, and have landed now.

    Most are read while the last ones may still land.
    """
    landed_at = clock.elapsed_ms() + LANDED_MS
    reader = KafkaPartitions({**lane.broker_options(), **QUICK}, topics)
    try:
        early = reader.since(since_ms)
        yield from _within_bounds(reader, early, clock)
        time.sleep(max(0, landed_at - clock.elapsed_ms()) / 1_000)
        for _ in range(ANSWERS_MAX):
            asked_ms = clock.elapsed_ms()
            bounds = reader.since(since_ms)
            if clock.elapsed_ms() - asked_ms <= ANSWER_MS_MAX:
                break
        else:
            raise BrokerUnavailable("Kafka takes long to tell positions")
        read = {place: end for place, (_, end) in early.items()}
        late = {at: (max(first, read.get(at, 0)), end) for at, (first, end) in bounds.items()}
        yield from _within_bounds(reader, late, clock)
    finally:
        reader.close()


def _within_bounds(
    reader: KafkaPartitions, bounds: Mapping[Place, tuple[int, int]], clock: Clock
) -> Iterator[Read]:
    count = sum(max(0, end - first) for first, end in bounds.values())
    if count > LOOK_COUNT_MAX:
        raise NotLookedUp(f"expected at most {LOOK_COUNT_MAX} records to read, got {count}")
    until_ms = clock.elapsed_ms() + LOOK_MS_MAX
    for read in reader.read_through(bounds):
        yield read
        if clock.elapsed_ms() > until_ms:
            raise NotLookedUp(f"expected to read it within {LOOK_MS_MAX} ms")


def _content(
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]] | None,
) -> _Content:
    return topic, key, value, tuple(headers or ())


def _sent(schedule: Schedule, lane: Lane) -> list[Record]:
    """All that a lane sends for it."""
    origin, journals = schedule.origin, lane.journals.split(",")
    if origin is None or origin.topic not in journals:
        return leaving(schedule)
    history = (lane.history_topic,) if lane.history_topic else ()
    return leaving(schedule, (origin.topic, *history))
