"""Filtered pages of what is pending on one shard, in due order."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sendlater.limits import AHEAD_COUNT_MAX, PAGE_COUNT_MAX, PAGE_LOOK_MAX
from sendlater.model import DUE_MS_MAX, Headers, Schedule
from sendlater.store.codec import unpack, written_topics
from sendlater.store.connection import answering
from sendlater.store.scripts import script

if TYPE_CHECKING:
    from sendlater.store.shard import Shard

Place = tuple[float, bytes]
"""Due time and id of a schedule: where a page ends and the next one begins. What was made due at
once comes half a millisecond later here: see lua/claim.lua."""


def look(
    shard: "Shard",
    *,
    count_max: int,
    from_ms: int = 0,
    to_ms: int | None = None,
    after: Place | None = None,
    id_prefix: bytes = b"",
    topic: str = "",
    header: tuple[str, bytes] | None = None,
    tag: str = "",
    backwards: bool = False,
    shift_ms: int = 0,
) -> tuple[list[tuple[Place, Schedule]], Place | None]:
    """Pending schedules that pass the filter, in due order, each with its place, and where the next
    page begins. With a `shift_ms` of LIMITED_MS those that wait for the limit of their topic,
    otherwise the others.

    `header` is compared with the first value of that name that is not empty. `backwards` begins
    with the last schedule. With `tag` only those that have it are looked at. At most PAGE_LOOK_MAX
    are read: a short page may not be the last.
    """
    assert 0 < count_max <= PAGE_COUNT_MAX, count_max
    topics = written_topics(topic) if topic else (b"", b"")
    place_ms, place_id, *rows = script("page")(
        shard.client,
        due=shard.due_key(tag),
        record=shard.keys["record"],
        from_ms=from_ms + shift_ms,
        to_ms=min(DUE_MS_MAX if to_ms is None else to_ms, DUE_MS_MAX) + shift_ms,
        after_ms="" if after is None else after[0] + shift_ms,
        after_id=b"" if after is None else after[1],
        count_max=count_max,
        look_max=PAGE_LOOK_MAX if id_prefix or topic or header else count_max,
        id_prefix=id_prefix,
        topic_a=topics[0],
        topic_b=topics[1],
        header_name=header[0] if header else "",
        header_value=header[1] if header else b"",
        backwards="backwards" if backwards else "",
    )
    ids, since = rows[::3], [None] * len(rows)
    if shift_ms and ids:
        with answering():
            since = shard.client.hmget(f"{shard.keys['limits']}-since", ids)
    found = [
        ((float(score) - shift_ms, i), unpack(i, packed, held_since=held))
        for i, packed, score, held in zip(ids, rows[1::3], rows[2::3], since, strict=False)
    ]
    if header:
        found = [one for one in found if _first(one[1].record.headers, header[0]) == header[1]]
    return found, (float(place_ms) - shift_ms, place_id) if place_ms else None


def look_ahead(
    shard: "Shard",
    *,
    from_ms: int,
    to_ms: int | None,
    id_prefix: bytes,
    topic: str,
    header: tuple[str, bytes] | None,
    tag: str,
) -> Iterator[tuple[Place, Schedule]]:
    """The same of what lanes have prefetched on the shard, in no order: it is in their batches."""
    with answering():
        names = shard.client.hkeys(f"{shard.keys['batches']}-ripe")
    topics = written_topics(topic) if topic else (b"", b"")
    for name in names:
        cursor = b""
        while cursor != b"0":
            cursor, *rows = script("ahead")(
                shard.client,
                batches=shard.keys["batches"],
                name=name,
                cursor=cursor or 0,
                count_max=AHEAD_COUNT_MAX,
                from_ms=from_ms,
                to_ms=DUE_MS_MAX if to_ms is None else to_ms,
                id_prefix=id_prefix,
                tag=tag,
                topic_a=topics[0],
                topic_b=topics[1],
                header_name=header[0] if header else "",
                header_value=header[1] if header else b"",
            )
            for found in map(unpack, rows[::2], rows[1::2]):
                if not header or _first(found.record.headers, header[0]) == header[1]:
                    yield (found.due_ms, found.id), found


def _first(headers: Headers, name: str) -> bytes | None:
    return next((value for known, value in headers if known == name and value), None)
