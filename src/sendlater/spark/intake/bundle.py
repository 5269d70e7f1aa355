"""Bundles: plain records, packed where they are read, pass Spark as one row.

A bundle stands where its records stood, so the order of a partition stays as it is.
"""

from collections.abc import Callable
from typing import Any
from zlib import crc32

import msgspec

from sendlater.brokers.partition_reader import Place, Read, Row
from sendlater.dialects.plain import Plain, PlainRules
from sendlater.limits import BUNDLE_BYTES_MAX, PARK_COUNT_MAX
from sendlater.model import DUE_MS_MAX
from sendlater.spark.intake.share import BUNDLE
from sendlater.store.codec import DIALECT_NUMBER, pack_fields

_HEADERS, _FEW = DIALECT_NUMBER["headers"], DIALECT_NUMBER["few"]


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

    def add(self, row: Row, plain: Plain, *, shards: int, kind: int = _HEADERS) -> None:
        """A record, and what was read from it."""
        key, value, topic, partition, position, timestamp_ms, _ = row
        due_ms, target, target_key, headers = plain
        place = (topic, partition, position, timestamp_ms)
        packed = pack_fields((target, None, target_key, value, headers, kind, *place))
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


class Gathered:
    """What has been read and not passed on, its plain records in bundles; each partition in its
    order."""

    def __init__(self, rules: PlainRules, *, shards: int) -> None:
        self._rules, self._shards = rules, shards
        self._few = frozenset(rules.few)
        self._read = Read()
        self._bundles: dict[str, Bundle] = {}
        self.count = 0
        self.soonest_ms = DUE_MS_MAX
        """When the first of it is due; 0 if that is not known, or a bundle is full."""

    @property
    def ends(self) -> dict[Place, int]:
        """How far each partition is read."""
        return self._read.ends

    def add(self, read: Read) -> None:
        """What has been read after that."""
        for row in read.rows():
            self._add(row)
        self.count += len(read.positions)
        self._read.ends |= read.ends

    def _add(self, row: Row) -> None:
        key, value, topic, partition, _, timestamp_ms, headers = row
        is_record = partition >= 0
        plain = self._rules.read(topic, key, value, timestamp_ms, headers) if is_record else None
        bundle = self._bundles.get(topic)
        if bundle is not None and (plain is None or not bundle.takes(row)):
            self._read.add(self._bundles.pop(topic).row())
            bundle, self.soonest_ms = None, 0
        if plain is None:
            self._read.add(row)
            self.soonest_ms = 0
            return
        if bundle is None:
            bundle = self._bundles[topic] = Bundle(topic)
        kind = _FEW if topic in self._few else _HEADERS
        bundle.add(row, plain, shards=self._shards, kind=kind)
        self.soonest_ms = min(self.soonest_ms, plain[0])

    def take(self) -> Read:
        """All of it; then there is nothing."""
        for bundle in self._bundles.values():
            self._read.add(bundle.row())
        taken = self._read
        self._read, self._bundles = Read(), {}
        self.count, self.soonest_ms = 0, DUE_MS_MAX
        return taken
