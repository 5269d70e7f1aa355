"""Answers to requests with an Idempotency-Key, kept for repeated requests.

<space>:answer:<h>   the answer to a request; expires after a day
"""

from sendlater.limits import ANSWER_AWAITED_S, ANSWER_KEPT_S
from sendlater.store.connection import answering
from sendlater.store.pending import Pending


class IdempotencyKeys:
    """The answers of one space, in the store's Redis."""

    def __init__(self, pending: Pending) -> None:
        self._client = pending.client
        self._space = pending.space

    def begin(self, name: str, request: bytes) -> bytes | None:
        """None if the name is new: the caller must answer. Otherwise what was kept for it: the
        request's digest, followed by the answer once there is one."""
        key = f"{self._space}:answer:{name}"
        with answering():
            if self._client.set(key, request, nx=True, ex=ANSWER_AWAITED_S):
                return None
            found: bytes | None = self._client.get(key)
            return found or request

    def keep(self, name: str, request: bytes, answer: bytes) -> None:
        """Keep an answer for repeated requests."""
        with answering():
            self._client.set(f"{self._space}:answer:{name}", request + answer, ex=ANSWER_KEPT_S)

    def drop(self, name: str) -> None:
        """Forget a request that got no answer, so that it can be repeated."""
        with answering():
            self._client.delete(f"{self._space}:answer:{name}")
