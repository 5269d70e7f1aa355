"""A load on REST: single POSTs at a steady rate, each timed from when its request was planned.

Requests are sent at their planned times and do not wait for earlier answers (an open loop), so a
server that stalls is measured with all the delay it causes. The client shares the machine with the
server, so it does little: requests are built once, connections are kept open, and only the head of
an answer is read.
"""

import asyncio
import json
import os
import platform
import ssl
import time
from collections import deque
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib.metadata import version
from typing import Any, cast
from urllib.parse import urlsplit

import psutil
from ulid import ULID

from sendlater.bench.ledger import percentiles
from sendlater.bench.load import PAYLOAD_BYTES
from sendlater.errors import BadSettings, Unavailable

TOPIC = "bench-rest"
"""Target of the schedules, which are cancelled before they are due."""
DAY_MS = 86_400_000
CANCEL_COUNT = 50_000
"""Schedules cancelled by one request: half the limit of a bulk change."""
PACE_S = 0.001
"""How often the requests that are due are sent."""
ANSWER_S = 30.0
"""Longest wait for an answer, and for a connection."""
HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length:"


@dataclass(slots=True)
class Tally:
    """Results of the requests: milliseconds of those measured, and refusals by status."""

    sent: int = 0
    answered: int = 0
    unanswered: int = 0
    answer_ms: list[float] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)


class Line(asyncio.Protocol):
    """One open connection with at most one running request."""

    def __init__(self, load: "Load") -> None:
        self._load = load
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._meant_s = 0.0
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, request: bytes, meant_s: float) -> None:
        """Send a request; `meant_s` is its planned time."""
        assert self._transport is not None, "connected first"
        assert not self.busy, "one at a time"
        self.busy, self._meant_s = True, meant_s
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol. An answer is complete at the length given in its head."""
        self._buffer += data
        end = self._buffer.find(HEAD_END)
        if end < 0:
            return
        head = self._buffer[:end].lower()
        at = head.index(LENGTH) + len(LENGTH)
        length = int(head[at:].partition(b"\r\n")[0])
        if len(self._buffer) < end + len(HEAD_END) + length:
            return
        self._buffer, self.busy = b"", False
        self._load.answered(self, head[9:12].decode(), self._meant_s)

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._load.lost(error)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


class Load:
    """`rate` requests a second over `connections` connections."""

    def __init__(self, url: str, *, token: str | None, rate: float, connections: int) -> None:
        """Raises BadSettings if `url` is not an http:// or https:// address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadSettings(f"expected an http:// or https:// address, got {url!r}")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port or (443 if self._secure else 80)
        self._rate, self._count = rate, connections
        self.tally = Tally()
        self.name = f"bench-{ULID()}".lower()
        self.due_ms = time.time_ns() // 1_000_000 + DAY_MS
        self.headers = {"Host": parts.netloc, "Content-Type": "application/json"}
        if token is not None:
            self.headers["Authorization"] = f"Bearer {token}"
        named = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        self._head = f"POST /v1/schedules HTTP/1.1\r\n{named}Content-Length: %d\r\n\r\n".encode()
        self._body = (
            f'{{"topic":"{TOPIC}","due_ms":{self.due_ms},"key":"%d","value":"{"x" * PAYLOAD_BYTES}"'
            f',"id":"{self.name}-%d-%d"}}'
        ).encode()
        self._idle: deque[Line] = deque()
        self._waiting: deque[float] = deque()
        self._warm_s = 0.0
        self._broken: Exception | None = None
        self._open = True

    async def run(self, *, seconds: float, warm_up_s: float) -> float:
        """Post for this time; returns the seconds from the first measured request to the last
        answer.

        Requests not answered ANSWER_S after the end are given up. Raises Unavailable if the server
        closes a connection.
        """
        lines = await self._connect()
        self._idle.extend(lines)
        began_s = time.perf_counter()
        self._warm_s = began_s + warm_up_s
        end_s = self._warm_s + seconds
        meant = 0
        while (now_s := time.perf_counter()) < end_s and not self._broken:
            due = int((now_s - began_s) * self._rate) + 1
            self._waiting.extend(began_s + number / self._rate for number in range(meant, due))
            meant = due
            self._send()
            await asyncio.sleep(PACE_S)
        deadline_s = time.perf_counter() + ANSWER_S
        while self.tally.answered < meant and time.perf_counter() < deadline_s and not self._broken:
            await asyncio.sleep(PACE_S)
        ended_s = time.perf_counter()
        self._open = False
        for line in lines:
            line.close()
        if self._broken:
            raise Unavailable(f"{meant - self.tally.answered} not answered: {self._broken}")
        self.tally.unanswered = meant - self.tally.answered
        return ended_s - self._warm_s

    async def _connect(self) -> list[Line]:
        loop = asyncio.get_running_loop()
        secure = ssl.create_default_context() if self._secure else None
        try:
            return [
                (
                    await loop.create_connection(
                        lambda: Line(self), self._host, self._port, ssl=secure
                    )
                )[1]
                for _ in range(self._count)
            ]
        except OSError as error:
            raise Unavailable(f"{self._host}:{self._port} does not answer: {error}") from error

    def _send(self) -> None:
        while self._waiting and self._idle:
            number = self.tally.sent
            body = self._body % (number, number // CANCEL_COUNT, number)
            self._idle.popleft().ask(self._head % len(body) + body, self._waiting.popleft())
            self.tally.sent += 1

    def answered(self, line: Line, status: str, meant_s: float) -> None:
        """Note an answer; the connection takes the next request."""
        now_s = time.perf_counter()
        self.tally.answered += 1
        if status != "201":
            self.tally.refused[status] = self.tally.refused.get(status, 0) + 1
        if meant_s >= self._warm_s:
            self.tally.answer_ms.append((now_s - meant_s) * 1_000)
        self._idle.append(line)
        self._send()

    def lost(self, error: Exception | None) -> None:
        """Note that a connection was closed."""
        if self._open and not self._broken:
            self._broken = error or ConnectionError("the server has closed a connection")

    def take_back(self) -> int:
        """Cancel the schedules; returns their number. Raises Unavailable if that is refused."""
        kind = HTTPSConnection if self._secure else HTTPConnection
        connection = kind(self._host, self._port, timeout=10 * ANSWER_S)
        count = 0
        for part in range(-(-self.tally.sent // CANCEL_COUNT)):
            wanted = {
                "id_prefix": f"{self.name}-{part}-",
                "due_from": str(self.due_ms / 1_000),
                "due_to": str((self.due_ms + 1) / 1_000),
            }
            try:
                connection.request("POST", "/v1/schedules:cancel", json.dumps(wanted), self.headers)
                answer = connection.getresponse()
                told = json.loads(answer.read())
            except (OSError, HTTPException, ValueError) as error:
                raise Unavailable(f"schedules not cancelled, due in a day: {error}") from error
            if answer.status != 200:
                detail = told.get("detail", told)
                raise Unavailable(f"schedules not cancelled, due in a day: {detail}")
            count += told["changed"]
        return count


def rest(
    url: str,
    *,
    token: str | None,
    rate: float,
    seconds: float,
    warm_up_s: float,
    connections: int,
) -> dict[str, Any]:
    """Post, cancel, and return the result. Raises BadSettings, Unavailable."""
    load = Load(url, token=token, rate=rate, connections=connections)
    before = psutil.cpu_times()
    span_s = _runner(load.run(seconds=seconds, warm_up_s=warm_up_s))
    after = psutil.cpu_times()
    tally = load.tally
    result = {
        "load": "rest",
        "rate": rate,
        "seconds": seconds,
        "connections": connections,
        "posted": tally.sent,
        "refused": tally.refused,
        "unanswered": tally.unanswered,
        "answered_per_s": round(len(tally.answer_ms) / span_s),
        "answer_ms": percentiles(tally.answer_ms),
        "cpu_s": round(after.user + after.system - before.user - before.system, 1),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("sendlater", "fastapi", "uvicorn", "uvloop")},
        },
    }
    try:
        return {**result, "taken_back": load.take_back()}
    except Unavailable as error:  # the result is still valid
        return {**result, "taken_back": 0, "left": str(error)}


def _runner(work: Any) -> Any:
    """Run on uvloop, which leaves more of the machine to the server."""
    import uvloop

    return uvloop.run(work)
