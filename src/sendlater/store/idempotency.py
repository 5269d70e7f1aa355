"""Answers to requests with an Idempotency-Key, kept for repeated requests.

<space>:request:<h>  when a request began, and its answer once there is one; expires after a day
<space>:running:<h>  it is being answered now; expires soon, because its process may have crashed
"""

import msgspec

from sendlater.limits import ANSWER_AWAITED_S, ANSWER_KEPT_S
from sendlater.store.connection import answering
from sendlater.store.pending import Pending


class Begun(msgspec.Struct, frozen=True, array_like=True):
    """A request as its first attempt began it, so that another attempt does the same."""

    digest: bytes
    """Of the request: a key stands for one request only."""
    at_ms: int
    answer: bytes | None = None
    """None: it has not ended; its process crashed, or a part of it could not be done."""
    so_far: bytes | None = None
    """The last answer that said so."""


class IdempotencyKeys:
    """The answers of one space, in the store's Redis."""

    def __init__(self, pending: Pending) -> None:
        self._client = pending.client
        self._space = pending.space

    def begin(self, name: str, digest: bytes, *, now_ms: int) -> Begun | None:
        """How the first request with this name began. Without an answer, the caller must do what is
        left and then `keep` or `leave` it. None: another request is doing so."""
        key, running = self._key("request", name), self._key("running", name)
        with answering():
            first = _encode(Begun(digest, now_ms))
            self._client.set(key, first, nx=True, ex=ANSWER_KEPT_S)
            mine = self._client.set(running, b"", nx=True, ex=ANSWER_AWAITED_S)
            # Only now: the request that was running may just have been answered.
            begun = msgspec.msgpack.decode(self._client.get(key) or first, type=Begun)
            if begun.answer is None and begun.digest == digest:
                return begun if mine else None
            if mine:
                self._client.delete(running)
            return begun

    def keep(self, name: str, begun: Begun) -> None:
        """Keep an answer, or what is done so far, for repeated requests."""
        with answering():
            self._client.set(self._key("request", name), _encode(begun), ex=ANSWER_KEPT_S)
        self.leave(name)

    def leave(self, name: str) -> None:
        """A request has not been answered: the next one with its name goes on."""
        with answering():
            self._client.delete(self._key("running", name))

    def drop(self, name: str) -> None:
        """Forget a request that was refused and changed nothing, so that it can be corrected."""
        with answering():
            self._client.delete(self._key("request", name))
        self.leave(name)

    def _key(self, kind: str, name: str) -> str:
        return f"{self._space}:{kind}:{name}"


def _encode(begun: Begun) -> bytes:
    return msgspec.msgpack.encode(begun)
