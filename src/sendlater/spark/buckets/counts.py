"""What waits in the buckets, asked of Kafka itself."""

from typing import NamedTuple

from sendlater.brokers.client_options import client_options
from sendlater.brokers.group_offsets import Progress
from sendlater.config import Settings
from sendlater.spark.buckets.ladder import Ladder


class BucketCount(NamedTuple):
    """One bucket: bounds, number of records, and since when the oldest waits (None: empty)."""

    bucket: int
    topic: str
    lower_ms: int
    upper_ms: int
    rows: int
    oldest_ms: int | None


def group_of(settings: Settings) -> str:
    """The consumer group whose committed offsets are the progress."""
    return f"{settings.space}-buckets"


def prepared_of(settings: Settings) -> str:
    """The group to which delivering tasks commit; it counts once Spark has committed the batch."""
    return f"{settings.space}-buckets-prepared"


def bucket_counts(settings: Settings) -> list[BucketCount]:
    """Every bucket, the nearest first.

    Rows are offsets between the progress and the end: they include what is just being moved or
    delivered. Raises BrokerUnavailable.
    """
    ladder = Ladder.of(settings)
    progress = Progress(client_options(settings), group=group_of(settings))
    places = [place for bucket in range(ladder.count) for place in ladder.places(bucket)]
    known, firsts, ends = (
        progress.committed(places),
        progress.firsts(places),
        progress.ends(places),
    )
    starts = {p: max(firsts[p], known[p].offset) if p in known else firsts[p] for p in places}
    heads = progress.timestamps({p: at for p, at in starts.items() if at < ends[p]})
    counted = []
    for bucket, topic in enumerate(ladder.topics):
        mine = ladder.places(bucket)
        counted.append(
            BucketCount(
                bucket=bucket,
                topic=topic,
                lower_ms=ladder.lower_ms(bucket),
                upper_ms=ladder.upper_ms(bucket),
                rows=sum(max(0, ends[place] - starts[place]) for place in mine),
                oldest_ms=min((heads[p] for p in mine if p in heads), default=None),
            )
        )
    return counted
