"""Waiting for what is parked, to the millisecond and without asking again and again.

Redis ends a blocking read that finds nothing only when its timer looks: up to 100 ms late at its
default `hz`. So the read has no end of its own: it stands on a connection of its own, and we wait
for that connection to say something, for as long as we like.
"""

from typing import Any

from redis.cluster import RedisCluster

FOREVER = 0
"""As XREAD's BLOCK."""


class Wake:
    """One reader of a shard's wake stream, which gets an entry when something earlier is parked."""

    def __init__(self, client: Any, key: str) -> None:
        last = client.xrevrange(key, count=1)
        self._key = key
        self._place = last[0][0] if last else b"0-0"
        if isinstance(client, RedisCluster):
            node = client.get_node_from_key(key)  # type: ignore[no-untyped-call]
            client = client.get_redis_connection(node)
        self._pool = client.connection_pool
        self._connection = self._pool.get_connection()
        self._asked = False

    def wait(self, timeout_ms: float) -> bool:
        """Return at once when something earlier was parked, or after the time; which of the two."""
        if not self._asked:
            self._connection.send_command(
                "XREAD", "COUNT", 1, "BLOCK", FOREVER, "STREAMS", self._key, self._place
            )
            self._asked = True
        if not self._connection.can_read(timeout_ms / 1_000):
            return False
        got = self._connection.read_response()
        self._asked = False
        # RESP3 answers a map, RESP2 a list of pairs.
        entries = got[self._key.encode()] if isinstance(got, dict) else got[0][1]
        self._place = entries[-1][0]
        return True

    def close(self) -> None:
        """Give the connection up: an answer may still be on its way there."""
        self._connection.disconnect()
        self._pool.release(self._connection)
