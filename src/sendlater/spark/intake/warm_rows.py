"""Records that nobody has sent: they pass decoding, and the sink throws them away."""

from sendlater.brokers.partition_reader import Read
from sendlater.dialects import names
from sendlater.spark.intake.share import WARM_UP


def warm_rows(topic: str, partition: int = WARM_UP, *, times: int = 1, now_ms: int) -> Read:
    """So many records of each dialect, as read from a `topic`; `partition` tells the sink."""
    due = [(names.DUE_MS, b"%d" % now_ms), (names.TARGET_TOPIC, b"warm-up"), ("other", b"kept")]
    envelope = b'{"topic": "warm-up", "message": "{}", "countdown": 1}'
    both = [(b"warm-up", b"{}" * 50, due), (b"warm-up", envelope, [])] * times
    keys, values, headers = (list(column) for column in zip(*both, strict=True))
    read = Read(keys=keys, values=values, headers=headers)
    read.topics, read.partitions = [topic] * len(both), [partition] * len(both)
    read.positions = read.timestamps_ms = [0] * len(both)
    return read
