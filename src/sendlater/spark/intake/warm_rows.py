"""Records that nobody has sent: they pass decoding, and the sink throws them away."""

from sendlater.brokers.partition_reader import Read
from sendlater.dialects import names
from sendlater.spark.intake.share import WARM_UP

Row = tuple[bytes, bytes | None, list[tuple[str, bytes | None]]]
"""Key, value, headers."""
PLAIN_COUNT = 4
"""Of each dialect so many plain records to one of each other kind."""


def warm_rows(topic: str, partition: int = WARM_UP, *, times: int = 1, now_ms: int) -> Read:
    """So many times records of all kinds, as read from a `topic`; `partition` tells the sink."""
    found = _kinds(now_ms) * times
    keys, values, headers = (list(column) for column in zip(*found, strict=True))
    read = Read(keys=keys, values=values, headers=headers)
    read.topics, read.partitions = [topic] * len(found), [partition] * len(found)
    read.positions, read.timestamps_ms = [0] * len(found), [0] * len(found)
    return read


def _kinds(now_ms: int) -> list[Row]:
    """Bad ones too: what the JVM compiled before it met one is thrown away when it does."""
    due, to = (names.DUE_MS, b"%d" % now_ms), (names.TARGET_TOPIC, b"warm-up")
    plain: Row = (b"warm-up", b"{}" * 50, [due, to, ("other", b"kept")])
    envelope: Row = (b"warm-up", b'{"topic": "warm-up", "message": "{}", "countdown": 1}', [])
    more: list[list[tuple[str, bytes | None]]] = [
        [(names.DELAY, b"5s"), to, (names.TAGS, b"a,b"), (names.EXPIRES_AFTER, b"1h")],
        [(names.AT, b"2030-01-01T00:00:00Z"), to, (names.IF, b"later"), (names.SPREAD, b"1m")],
        [(names.EPOCH, b"%d" % (now_ms // 1_000)), to, (names.TARGET_KEY, b"k")],
        [(names.EVERY, b"1h"), to],
        [(names.RETRY, b"5s"), to],
        [due, to, (names.TARGET_PARTITION, b"-1")],
        [(names.DELAY, b"\xff"), to],
        [due, (names.TARGET_TOPIC, b"a b")],
        [to],
        [],
    ]
    others: list[Row] = [(b"warm-up", b"{}" * 50, headers) for headers in more]
    bad: Row = (b"warm-up", b'{"topic": [', [])
    return [*[plain, envelope] * PLAIN_COUNT, *others, bad, (b"warm-up", None, [])]
