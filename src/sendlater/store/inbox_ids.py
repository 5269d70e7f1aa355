"""Topic ids of the inboxes whose positions are in the store: a new topic begins with offset 0."""

from collections.abc import Mapping

import structlog

from sendlater.store.connection import answering
from sendlater.store.pending import Pending
from sendlater.store.scripts import script
from sendlater.store.shard import Shard

_log = structlog.get_logger()


def recognise(pending: Pending, ids: Mapping[str, str], *, owner: int) -> list[str]:
    """Compare the inboxes' topic ids with the stored ones; returns the inboxes recreated since.

    Every shard forgets how far it has read these, so that intake reads them from their first
    record. Intake must be started again: until then its tasks are refused. Schedules that were
    read before stay. For an inbox seen for the first time only its id is stored.

    Call it after the store was filled: filling looks for inboxes that the store does not know.

    Raises Fenced for an old owner, StoreUnavailable.
    """
    flat = [part for topic, id in sorted(ids.items()) for part in (topic, id)]
    changed: set[str] = set()
    with answering():
        for shard in pending.shards:
            found = script("inboxes")(shard.client, **_keys(shard), owner=owner, rest=flat)
            changed |= {topic.decode() for topic in found}
    for topic in sorted(changed):
        _log.error("an inbox was deleted and recreated: it is read from its beginning", inbox=topic)
    return sorted(changed)


def _keys(shard: Shard) -> dict[str, str]:
    seen = shard.keys["seen"]
    return {
        "seen": seen,
        "topics": seen + ":topics",
        "state": shard.keys["state"],
    }
