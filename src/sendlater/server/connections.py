"""Connections: one that sends nothing, too slowly or too much leaves room for the others.

uvicorn gives a connection all the time in the world to send a request, and refuses everybody once
it has too many connections, however many of them are silent.
"""

import asyncio
from itertools import count

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sendlater.limits import CONNECTIONS_COUNT_MAX, HEAD_BYTES_MAX, HEAD_S_MAX, STALL_S_MAX

LOOK_S = 1.0
"""Pause between two looks at a connection."""
_NUMBERS = count()


class Connection(HttpToolsProtocol):
    """One connection.

    It is closed when a request's head takes longer than HEAD_S_MAX, or when the client neither
    sends the body that it owes nor takes the answer that it asked for during STALL_S_MAX. If there
    are CONNECTIONS_COUNT_MAX, a new one takes the place of the one whose client has been silent
    for longest, among those that wait for their client.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._number = next(_NUMBERS)
        self._moved_s = self.loop.time()
        self._head_since_s: float | None = self._moved_s
        self._in_head = False
        self._head_bytes = self._untaken_bytes = 0
        self._answering: RequestResponseCycle | None = None
        if len(self.connections) > CONNECTIONS_COUNT_MAX:
            self._make_room()
        self._timer = self.loop.call_later(LOOK_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._timer.cancel()
        self._forget_answer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """The client has sent something."""
        self._moved_s = self.loop.time()
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.send_400_response(f"expected at most {HEAD_BYTES_MAX} bytes of headers")

    def on_message_begin(self) -> None:
        """The head of a request has begun."""
        super().on_message_begin()
        self._head_since_s, self._in_head, self._head_bytes = self.loop.time(), True, 0

    def on_headers_complete(self) -> None:
        """The head of a request is there."""
        self._head_since_s, self._in_head = None, False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is there, too."""
        self._head_since_s = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A request is answered; the rest of a refused body must come as fast as a head."""
        if self.cycle.more_body:
            self._head_since_s = self.loop.time()
        super().on_response_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _forget_answer(self) -> None:
        """Have what is being answered write no more. uvicorn says so only to the last of several
        requests at once; the others would write to a closed connection, an error in the log."""
        if self._answering is not None:
            self._answering.disconnected = True

    def _hang_up(self) -> None:
        self._forget_answer()
        self.transport.abort()

    @property
    def idle(self) -> bool:
        """Whether it has no request that is being answered."""
        return self._answering is None or self._answering.response_complete

    @property
    def waits(self) -> bool:
        """Whether it is the client's turn: to send a request, or the rest of a body."""
        return self.idle or (self.cycle.more_body and not self.flow.read_paused)

    def _make_room(self) -> None:
        """Close a connection that waits for its client; if there is none, uvicorn refuses."""
        others = (other for other in self.connections if other is not self)
        waiting = [other for other in others if isinstance(other, Connection) and other.waits]
        if waiting:
            oldest = min(waiting, key=lambda other: (other._moved_s, other._number))
            self.connections.discard(oldest)
            oldest._hang_up()

    def _look(self) -> None:
        now_s = self.loop.time()
        untaken_bytes = self.transport.get_write_buffer_size()
        if untaken_bytes != self._untaken_bytes:
            self._untaken_bytes, self._moved_s = untaken_bytes, now_s
        stalls = (
            (self.waits and not self.idle) or untaken_bytes > 0
        ) and now_s - self._moved_s > STALL_S_MAX
        slow = self._head_since_s is not None and now_s - self._head_since_s > HEAD_S_MAX
        if stalls or slow:
            self._hang_up()
        else:
            self._timer = self.loop.call_later(LOOK_S, self._look)
