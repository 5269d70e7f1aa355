"""What is known of a target topic; in the store as text, for the tasks that deliver."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A topic that takes records from us, and which ones.

    `copies` is of what was read from this topic: a journal gets a tombstone for each delivery, the
    history topic behind it a copy.
    """

    record_bytes_max: int
    partitions: int
    compacted: bool = False
    copies: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: bytes) -> "Target":
        """Read what `str` wrote."""
        record_bytes_max, partitions, compacted, *copies = text.decode().split()
        return cls(int(record_bytes_max), int(partitions), compacted == "1", tuple(copies))

    def __str__(self) -> str:
        numbers = (self.record_bytes_max, self.partitions, int(self.compacted))
        return " ".join((*map(str, numbers), *self.copies))
