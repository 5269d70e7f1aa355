"""Where a space lies: over how many shards, and on which servers in which order.

The first server knows the number of shards. Of several servers each knows its place in the list, so
that a list in another order, or of another length, is refused before anything is written to it.
"""

from typing import Any

from sendlater.errors import BadSettings, StoreUnavailable
from sendlater.redis_client import told_by_each
from sendlater.store.connection import Clients, answering

RESHARDING, MOVED = "resharding", "moved"
"""Instead of its place: the space is being moved; it was moved away from this server."""
CHANGES = "; `sendlater reshard` changes that"


def place_key(space: str) -> str:
    """The key by which a server knows its place, `0/2`: the first of two. A server that has always
    been the only one, and a cluster, need none."""
    return f"{space}:server"


def require_layout(clients: Clients, *, space: str, shards: int) -> None:
    """Claim a space for this number of shards on these servers.

    Raises BadSettings if it has another layout, StoreUnavailable.
    """
    if len(clients) > shards:
        raise BadSettings(
            f"redis: expected at most as many servers as shards, got {len(clients)} servers and "
            f"{shards} shards"
        )
    key, state = place_key(space), f"{{{space}:0}}:state"
    with answering():
        # Read first: a full Redis refuses even a write that changes nothing.
        places = _places(clients, key)
        stands = clients[0].hget(state, "shards")
        _require_places(places, space=space, laid_out=stands is not None)
        several = len(clients) > 1
        if stands is None or (several and not all(places)):
            # The places first: a first server that knows its shards knows its place too.
            for number, client in enumerate(clients if several else ()):
                client.set(key, f"{number}/{len(clients)}", nx=True)
            _require_places(_places(clients, key), space=space, laid_out=False)
            clients[0].hsetnx(state, "shards", shards)
            stands = clients[0].hget(state, "shards")
    if int(stands or 0) != shards:
        raise BadSettings(
            f"shards: space {space!r} was laid out with {int(stands or 0)}, got {shards}{CHANGES}"
        )


def require_same(clients: Clients, *, space: str, shards: int) -> None:
    """Raises StoreUnavailable if the space has been laid out anew since these were opened: the
    caller would look for ids, and write them, where they are not."""
    with answering():
        place = clients[0].get(place_key(space))
        stands = clients[0].hget(f"{{{space}:0}}:state", "shards")
    changed = stands is not None and int(stands) != shards
    if changed or (place or b"").startswith((RESHARDING.encode(), MOVED.encode())):
        raise StoreUnavailable(
            f"space {space!r} was laid out anew by `sendlater reshard`, or is at the moment: open "
            "it again, with the servers that it is on"
        )


def identities(clients: Clients) -> list[Any]:
    """What tells each server from others, however it is named; a cluster is one. Raises
    StoreUnavailable."""
    found = []
    for client in clients:
        with answering():
            told = told_by_each(client, "server").values()
            runs = frozenset(server["run_id"] for server in told)
        pool = getattr(client, "connection_pool", None)
        db = pool.connection_kwargs.get("db") or 0 if pool else 0
        found.append((runs, db))
    return found


def _places(clients: Clients, key: str) -> list[str]:
    return [(client.get(key) or b"").decode() for client in clients]


def _require_places(places: list[str], *, space: str, laid_out: bool) -> None:
    """Raises BadSettings unless each server is, or can become, what the list says."""
    count = len(places)
    for number, stands in enumerate(places):
        if stands.startswith(RESHARDING):
            raise BadSettings(
                f"redis: space {space!r} is being laid out anew: wait, or, if `sendlater reshard` "
                "was killed, run the same command again"
            )
        if stands == MOVED:
            raise BadSettings(
                f"redis: space {space!r} was moved away from server {number + 1} of {count} by "
                "`sendlater reshard`: correct the setting"
            )
        if stands and stands != f"{number}/{count}":
            place, _, of = stands.partition("/")
            raise BadSettings(
                f"redis: expected server {int(place) + 1} of the {of} of space {space!r}, got it "
                f"as server {number + 1} of {count}; their order and number stay{CHANGES}"
            )
    if laid_out and count > 1 and not places[0]:
        raise BadSettings(
            f"redis: expected the one server of space {space!r}, got a list of {count}{CHANGES}"
        )
