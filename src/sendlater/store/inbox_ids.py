"""Which topics the positions in the store are about: one made anew begins with offset 0 again."""

from collections.abc import Mapping

import structlog

from sendlater.store.connection import answering
from sendlater.store.pending import Pending
from sendlater.store.scripts import script
from sendlater.store.shard import Shard

_log = structlog.get_logger()


def recognise(pending: Pending, ids: Mapping[str, str], *, owner: int) -> list[str]:
    """Compare inboxes' topic ids with those of before; the inboxes that were made anew since.

    Of these every shard forgets what it has read, so that intake, which must be started again,
    reads them from their first record. Until then its tasks are refused. Schedules that were read
    before stay. An inbox seen for the first time is remembered, and nothing else.

    To be called after the store was filled, which looks for inboxes it knows nothing of.

    Raises Fenced for an old owner, StoreUnavailable.
    """
    flat = [part for topic, id in sorted(ids.items()) for part in (topic, id)]
    changed: set[str] = set()
    with answering():
        for shard in pending.shards:
            found = script("inboxes")(shard.client, **_keys(shard), owner=owner, rest=flat)
            changed |= {topic.decode() for topic in found}
    for topic in sorted(changed):
        _log.error("an inbox was deleted and made anew: it is read from its beginning", inbox=topic)
    return sorted(changed)


def _keys(shard: Shard) -> dict[str, str]:
    seen = shard.keys["seen"]
    passed = seen.removesuffix("seen") + "passed"
    return {
        "seen": seen,
        "passed": passed,
        "topics": seen + ":topics",
        "state": shard.keys["state"],
    }
