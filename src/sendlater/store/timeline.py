"""What is due when: counts by due time and target topic, for charts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sendlater.limits import BUCKET_SAMPLES, HISTOGRAM_SAMPLES
from sendlater.model import PAUSED_MS
from sendlater.store.connection import answering
from sendlater.store.pending import Pending
from sendlater.store.scripts import script


@dataclass(frozen=True, slots=True)
class Timeline:
    """How many are due in each [edge, next edge), also by topic, and how many of them recur: these
    two are estimated where `estimated`, from a sample."""

    edges_ms: list[int]
    counts: list[int]
    topics: dict[str, list[int]]
    recurring: list[int]
    estimated: list[bool]


def timeline(pending: Pending, edges_ms: Sequence[int]) -> Timeline:
    """Counts by due time and target topic: O(log n) per edge, however many are pending."""
    width = len(edges_ms) - 1
    counts, recurring, estimated = [0] * width, [0.0] * width, [False] * width
    topics: dict[str, list[float]] = {}
    for shard in pending.shards:
        got = script("sample")(
            shard.client,
            due=shard.keys["due"],
            record=shard.keys["record"],
            samples_min=BUCKET_SAMPLES,
            samples_sum=HISTOGRAM_SAMPLES,
            rest=list(edges_ms),
        )
        for n, (count, seen, recur) in enumerate(zip(got[::3], got[1::3], got[2::3], strict=True)):
            counts[n] += count
            recurring[n] += count * recur / max(1, len(seen))
            estimated[n] |= count > len(seen)
            for topic in seen:
                topics.setdefault(topic.decode(), [0.0] * width)[n] += count / len(seen)
    rounded = {name: [round(c) for c in each] for name, each in sorted(topics.items())}
    return Timeline(list(edges_ms), counts, rounded, [round(n) for n in recurring], estimated)


def counts(pending: Pending, edges_ms: Sequence[int]) -> list[int]:
    """How many are due in each [edge, next edge)."""
    below = [0] * len(edges_ms)
    with answering():
        for shard in pending.shards:
            with shard.client.pipeline(transaction=False) as calls:
                for edge_ms in edges_ms:
                    calls.zcount(shard.keys["due"], "-inf", f"({edge_ms}")
                below = [one + more for one, more in zip(below, calls.execute(), strict=True)]
    return [high - low for low, high in pairwise(below)]


def first_dense_ms(
    pending: Pending, from_ms: int, to_ms: int, *, width_ms: int, least: int
) -> int | None:
    """The beginning of the first `width_ms` from `from_ms` on in which at least so many are due;
    None if there are none until `to_ms`."""
    if to_ms <= from_ms or counts(pending, (from_ms, to_ms + 1))[0] < least:
        return None
    edges_ms = range(from_ms, to_ms + width_ms, width_ms)
    each = zip(edges_ms, counts(pending, edges_ms), strict=False)
    return next((begin_ms for begin_ms, count in each if count >= least), None)


def due_ms_of_share(pending: Pending, share: float) -> int | None:
    """By when about this share of what is pending is due; None when nothing is pending. What waits
    for a limit is due, and what is paused comes at no time: neither is counted."""
    found = []
    with answering():
        for shard in pending.shards:
            due = shard.keys["due"]
            if count := int(shard.client.zcount(due, 0, PAUSED_MS - 1)):
                rank = int(share * (count - 1))
                found += shard.client.zrange(due, rank, rank, withscores=True)
    return max((int(due_ms) for _, due_ms in found), default=None)
