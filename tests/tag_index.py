"""The index of tags as it is, and as what is pending says it should be. Reads everything."""

from collections import defaultdict

from sendlater.store import Pending
from sendlater.store.codec import LIMITED_MS, unpack, with_due

Index = dict[tuple[int, str], dict[bytes, float]]
"""(shard, tag) -> id -> due time; under the tag '' the tags themselves: id -> hash of them."""


def index_of(pending: Pending) -> Index:
    """What the index holds."""
    found: Index = {}
    for shard in pending.shards:
        start = shard.due_key("x")[:-1]
        for key in shard.client.scan_iter(match=_literal(start) + "*", count=1_000):
            rows = dict(shard.client.zrange(key, 0, -1, withscores=True))
            found[shard.number, key.decode().removeprefix(start)] = rows
        tags = shard.client.hgetall(f"{shard.keys['due']}:tags")
        if tags:
            found[shard.number, ""] = {i: hash(text) for i, text in tags.items()}
    return found


def index_meant(pending: Pending) -> Index:
    """What it should hold: exactly what is pending and has tags."""
    meant: Index = defaultdict(dict)
    for shard in pending.shards:
        records = shard.client.hgetall(shard.keys["record"])
        for one, score in shard.client.zrange(shard.keys["due"], 0, -1, withscores=True):
            due_ms = score % LIMITED_MS
            tags = unpack(one, with_due(int(due_ms), records[one])).tags
            for tag in tags:
                meant[shard.number, tag][one] = due_ms
            if tags:
                meant[shard.number, ""][one] = hash(",".join(tags).encode())
    return dict(meant)


def _literal(start: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in start)
