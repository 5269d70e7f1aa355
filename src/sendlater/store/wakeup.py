"""Waiting for what is parked, to the millisecond and without polling.

A timer of Redis ends blocking reads that find nothing: up to 100 ms late at its default `hz`. So
the read blocks without a time limit, on its own connection, and we wait with our own time limit
until that connection has data.
"""

from typing import Any

from sendlater.store.connection import answering, server_of

FOREVER = 0
"""XREAD's BLOCK without a time limit."""


def wake_readers(client: Any, key: str) -> None:
    """Wake whoever reads this stream, which has one entry. Raises StoreUnavailable."""
    with answering():
        client.xadd(key, {"at": "once"}, maxlen=1, approximate=False)


class Wake:
    """One reader of a shard's wake stream, which gets an entry when something earlier is parked."""

    def __init__(self, client: Any, key: str) -> None:
        self._key = key
        with answering():
            last = client.xrevrange(key, count=1)
            self._pool = server_of(client, key).connection_pool
            self._connection = self._pool.get_connection()
        self._place = last[0][0] if last else b"0-0"
        told = self._connection.repr_pieces()
        self._server = ":".join(
            str(value) for name, value in told if name in ("host", "port", "path")
        )
        self._asked = False

    def wait(self, timeout_ms: float) -> bool:
        """True as soon as something earlier was parked; False after the time."""
        with answering(self._server):
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
        """Drop the connection: an answer may still arrive on it."""
        self._connection.disconnect()
        self._pool.release(self._connection)
