"""Bundles: plain records, packed where they are read, pass Spark as one row.

A bundle stands where its records stood, so the order of a partition stays as it is.
"""

from collections.abc import Callable
from typing import Any
from zlib import crc32

import msgspec

from sendlater.brokers.partition_reader import Read, Row
from sendlater.dialects.plain import Plain, PlainRules
from sendlater.limits import BUNDLE_BYTES_MAX, PARK_COUNT_MAX
from sendlater.spark.intake.share import BUNDLE
from sendlater.store.codec import DIALECT_NUMBER, pack_fields

_HEADERS = DIALECT_NUMBER["headers"]


class Bundle(msgspec.Struct, array_like=True):
    """Schedules from one inbox: no more than one call to a shard takes."""

    topic: str
    firsts: dict[int, int] = {}
    """Per partition the first position in here."""
    ends: dict[int, int] = {}
    """Per partition the position after the last."""
    targets: set[str] = set()
    rows: dict[int, list[Any]] = {}
    """Per shard, flat: id, due_ms, packed record."""
    count: int = 0
    size_bytes: int = 0

    def add(self, row: Row, plain: Plain, *, shards: int) -> None:
        """A record, and what was read from it."""
        key, value, topic, partition, position, timestamp_ms, _ = row
        due_ms, target, target_key, headers = plain
        place = (topic, partition, position, timestamp_ms)
        packed = pack_fields((target, None, target_key, value, headers, _HEADERS, *place))
        self.rows.setdefault(crc32(key) % shards, []).extend((key, due_ms, packed))
        self.firsts.setdefault(partition, position)
        self.ends[partition] = position + 1
        self.targets.add(target)
        self.count += 1
        self.size_bytes += len(key) + len(packed)

    def takes(self, row: Row) -> bool:
        """Whether a record of this inbox can be added: a partition may begin again."""
        *_, partition, position, _, _ = row
        full = self.count >= PARK_COUNT_MAX or self.size_bytes >= BUNDLE_BYTES_MAX
        return not full and position >= self.ends.get(partition, 0)

    def row(self) -> Row:
        """What passes Spark."""
        return None, _encode(self), self.topic, BUNDLE, 0, None, None


_encode: Callable[[Bundle], bytes] = msgspec.msgpack.Encoder().encode
unpack_bundle: Callable[[bytes], Bundle] = msgspec.msgpack.Decoder(Bundle).decode
"""A bundle from the value of its row."""


def bundled(read: Read, rules: PlainRules, *, shards: int) -> Read:
    """The same records, those that are plain in bundles; each partition in its order."""
    found = Read(ends=read.ends)
    bundles: dict[str, Bundle] = {}
    for row in read.rows():
        key, value, topic, partition, _, timestamp_ms, headers = row
        plain = rules.read(topic, key, value, timestamp_ms, headers) if partition >= 0 else None
        bundle = bundles.get(topic)
        if bundle is not None and (plain is None or not bundle.takes(row)):
            found.add(bundles.pop(topic).row())
            bundle = None
        if plain is None:
            found.add(row)
            continue
        if bundle is None:
            bundle = bundles[topic] = Bundle(topic)
        bundle.add(row, plain, shards=shards)
    for bundle in bundles.values():
        found.add(bundle.row())
    return found
