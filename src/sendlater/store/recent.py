"""What delivering tasks tell: counters, and the last deliveries."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from sendlater.limits import RECENT_COUNT_MAX, TALLY_NAMES_MAX
from sendlater.store.scripts import script
from sendlater.store.shard import Shard


@dataclass(frozen=True, slots=True)
class Delivery:
    """One of the last deliveries: when it was due, when it was handed to the producer, and how long
    it had waited for the limit of its topic; all in milliseconds."""

    id: bytes
    topic: str
    due_ms: int
    at_ms: int
    held_ms: int = 0


def tell(shard: Shard, counts: dict[str, int], recent: Sequence[Delivery] = ()) -> None:
    """Add to a shard's counters and last deliveries, in one call."""
    flat = [part for name, count in counts.items() for part in (name, count)]
    rows = [msgspec.msgpack.encode(_row(one)) for one in recent]
    if flat or rows:
        script("tell")(
            shard.client,
            tally=shard.keys["tally"],
            recent=shard.keys["recent"],
            names_max=TALLY_NAMES_MAX,
            recent_max=RECENT_COUNT_MAX,
            recent_count=len(rows),
            rest=rows + flat,
        )


def told(shard: Shard, *, count_max: int) -> Iterator[Delivery]:
    """A shard's last deliveries, latest first. Raises what Redis does."""
    for packed in shard.client.lrange(shard.keys["recent"], 0, count_max - 1):
        schedule_id, topic, *times = msgspec.msgpack.decode(packed)
        yield Delivery(schedule_id, topic.decode(), *times)


def _row(one: Delivery) -> tuple[object, ...]:
    # Without the last field if it is zero: so a service of an older version can read it.
    held = (one.held_ms,) if one.held_ms else ()
    return one.id, one.topic.encode(), one.due_ms, one.at_ms, *held
