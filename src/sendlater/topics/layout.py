"""The format of topics in Redis: keys, fields of an entry, positions (docs/topics-on-redis.md).

    <space>:topics              hash: topic name -> {"partitions": 4, "created_ms": 1767225600000}
    <space>:topic:{<name>/<p>}  stream: one per partition; the tag spreads them over a cluster

An entry has `key` and `value` (absent means null), then per header, in order, `h:<name>` with its
value, or `n:<name>` with an empty one for null. Other fields are ignored.
"""

import json
import re
from dataclasses import dataclass, field

from sendlater.errors import BadRequest, NotSupported
from sendlater.limits import TOPIC_CHARS_MAX
from sendlater.model import Headers, Record

SEQUENCE_BITS = 20
SEQUENCE_MAX = (1 << SEQUENCE_BITS) - 1
"""Largest sequence number of an entry id: a position has 43 bits for ms and 20 for this."""
MS_MAX = (1 << 43) - 1
"""Largest ms of an entry id (year 2248): positions fit a signed 64-bit integer."""

_TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_CHARS_MAX}}}")
_KEY, _VALUE, _NOTHING = b"key", b"value", b"nothing"
_HEADER, _NULL_HEADER = b"h:", b"n:"

Entry = tuple[bytes, list[bytes]]
"""A stream entry as returned by Redis: id, then a list of alternating fields and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A record read from a topic. Position and time come from the entry's id."""

    topic: str
    partition: int
    position: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = field(default_factory=list)


def topics_key(space: str) -> str:
    """The hash of all topics of a space."""
    return f"{space}:topics"


def stream_key(space: str, *, topic: str, partition: int) -> str:
    """The stream of one partition."""
    return f"{space}:topic:{{{topic}/{partition}}}"


def check_topic(topic: str) -> str:
    """`topic` itself, if Kafka also allows the name. Raises BadRequest."""
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise BadRequest(
            f"topic name: expected 1 to {TOPIC_CHARS_MAX} of A-Z a-z 0-9 . _ -, got {topic!r}"
        )
    return topic


def check_names(headers: Headers) -> None:
    """Raises BadRequest for a header whose name cannot be written."""
    for name, _ in headers:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(f"header name: expected text in UTF-8, got {name!r}") from error


def encode_topic(partitions: int, *, created_ms: int) -> str:
    """A topic's value in the hash of topics."""
    return json.dumps({"partitions": partitions, "created_ms": created_ms})


def decode_partitions(text: bytes) -> int:
    """The partition count in a topic's value. Raises BadRequest if it is not valid."""
    try:
        partitions = json.loads(text)["partitions"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadRequest(f"a topic's record: expected a JSON object, got {text!r}") from error
    if not isinstance(partitions, int) or partitions < 1:
        raise BadRequest(f"a topic's partitions: expected a whole number >= 1, got {partitions!r}")
    return partitions


def decode_created_ms(text: bytes) -> int:
    """When a topic was created, milliseconds since 1970; 0 if not known."""
    return int(json.loads(text).get("created_ms", 0))


def encode(record: Record) -> list[bytes]:
    """The fields of a record's entry, alternating names and values."""
    fields: list[bytes] = []
    if record.key is not None:
        fields += (_KEY, record.key)
    if record.value is not None:
        fields += (_VALUE, record.value)
    for name, value in record.headers:
        if value is None:
            fields += (_NULL_HEADER + name.encode(), b"")
        else:
            fields += (_HEADER + name.encode(), value)
    # XADD needs at least one field; readers ignore this one.
    return fields or [_NOTHING, b""]


def decode(entry: Entry, *, topic: str, partition: int) -> TopicRecord:
    """The record in an entry."""
    entry_id, fields = entry
    key = value = None
    headers: Headers = []
    for i in range(0, len(fields), 2):
        name, content = fields[i], fields[i + 1]
        if name == _VALUE:
            value = content
        elif name == _KEY:
            key = content
        elif name.startswith(_HEADER):
            headers.append((name[2:].decode(errors="replace"), content))
        elif name.startswith(_NULL_HEADER):
            headers.append((name[2:].decode(errors="replace"), None))
    position = position_of(entry_id)
    return TopicRecord(
        topic=topic,
        partition=partition,
        position=position,
        timestamp_ms=timestamp_ms_of(position),
        key=key,
        value=value,
        headers=headers,
    )


def position_of(entry_id: bytes) -> int:
    """`ms << 20 | sequence` of an entry's id; positions have the order of the entries.

    Raises NotSupported for ids that occur only if someone chose an id by hand, or if Redis' clock
    went back and a million entries were written before it caught up.
    """
    ms, sequence = map(int, entry_id.split(b"-"))
    if ms > MS_MAX or sequence > SEQUENCE_MAX:
        raise NotSupported(
            f"entry id {entry_id.decode()}: expected at most {MS_MAX}-{SEQUENCE_MAX}; "
            "remove the entry with XDEL, or delete the topic"
        )
    return ms << SEQUENCE_BITS | sequence


def entry_id_of(position: int) -> str:
    """The entry id at a position."""
    assert position >= 0, f"a position is not negative, got {position}"
    return f"{position >> SEQUENCE_BITS}-{position & SEQUENCE_MAX}"


def timestamp_ms_of(position: int) -> int:
    """The time in a position, milliseconds since 1970 by Redis' clock."""
    return position >> SEQUENCE_BITS


def position_at(timestamp_ms: int) -> int:
    """The first possible position of an entry with that time."""
    return timestamp_ms << SEQUENCE_BITS
