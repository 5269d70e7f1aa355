"""Answers to requests with an Idempotency-Key, for those who ask again.

<space>:answer:<h>   the answer to a request, gone after a day
"""

from sendlater.limits import ANSWER_AWAITED_S, ANSWER_KEPT_S
from sendlater.store.connection import answering
from sendlater.store.pending import Pending


class IdempotencyKeys:
    """Kept for every space, in the store's Redis."""

    def __init__(self, pending: Pending) -> None:
        self._client = pending.client
        self._space = pending.space

    def begin(self, name: str, request: bytes) -> bytes | None:
        """None: nobody has asked this, the caller must answer. Else what was kept for the name:
        the request's digest, and the answer behind it once there is one."""
        key = f"{self._space}:answer:{name}"
        with answering():
            if self._client.set(key, request, nx=True, ex=ANSWER_AWAITED_S):
                return None
            found: bytes | None = self._client.get(key)
            return found or request

    def keep(self, name: str, request: bytes, answer: bytes) -> None:
        """Remember an answer for those who ask again."""
        with answering():
            self._client.set(f"{self._space}:answer:{name}", request + answer, ex=ANSWER_KEPT_S)

    def drop(self, name: str) -> None:
        """Forget a question that got no answer, so that it can be asked again."""
        with answering():
            self._client.delete(f"{self._space}:answer:{name}")
