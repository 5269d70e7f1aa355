"""The options of a delivering task of the buckets, and the state of its partition."""

import json
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer
from pyspark.sql.datasource import InputPartition

from sendlater.brokers.group_offsets import Committed

Offsets = dict[str, list[list[int]]]
"""Ranges of offsets, [first, end), per partition; in JSON types, for options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What the delivering query needs; passed in Spark options, which are strings."""

    client: dict[str, str]
    topic: str
    shards: int
    group: str
    prepared: str
    run: str
    window_ms: int
    rejected_topic: str
    record_bytes_max: int
    """The largest record that Spark's producer sends."""
    arrived: Offsets = field(default_factory=dict)
    """What a dead run had delivered in a batch that was not committed."""

    @classmethod
    def from_options(cls, options: Any) -> "Holding":
        """Read the option that `to_options` wrote."""
        return cls(**json.loads(options["secret.holding"]))

    def to_options(self) -> dict[str, str]:
        """Spark options; `secret` in the name makes Spark hide passwords in plans."""
        return {
            "pending": "buckets",
            "secret.holding": json.dumps({n: getattr(self, n) for n in self.__slots__}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of a partition, and the batch after which it has it."""

    resume: int
    read_end: int = 0
    end_ms: int = 0
    run: str = "-"
    batch_ms: int = 0
    drained: bool = False

    @classmethod
    def of(cls, known: Committed) -> "Standing":
        """Read what `noted` gave. Without a note, another tool has reset the offsets."""
        if not known.note:
            return cls(resume=known.offset)
        read_end, end_ms, run, batch_ms, drained = known.note.split(" ")
        return cls(
            resume=known.offset,
            read_end=int(read_end),
            end_ms=int(end_ms),
            run=run,
            batch_ms=int(batch_ms),
            drained=drained == "drained",
        )

    def noted(self) -> Committed:
        """The form that is committed with a group's offsets."""
        drained = "drained" if self.drained else "-"
        note = f"{self.read_end} {self.end_ms} {self.run} {self.batch_ms} {drained}"
        return Committed(self.resume, note)


@dataclass(frozen=True, slots=True)
class HeldSlice(InputPartition):
    """One task: one partition until the end of the batch."""

    partition: int
    standing: Standing
    end_ms: int
    arrived: tuple[tuple[int, int], ...] = ()


def open_consumer(holding: Holding) -> Consumer:
    """A consumer for one partition, not assigned yet; it reads ahead a limited number of bytes."""
    return Consumer(
        {
            **holding.client,
            "group.id": holding.prepared,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 500,
            "queued.max.messages.kbytes": 16 * 1024,
            "log_level": 0,
        }
    )
