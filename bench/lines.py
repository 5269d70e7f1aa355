"""The bench's side of the lines: starts a system's sender and receiver, and talks with them."""

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bench.system import ROOT, Servers, System
from bench.workloads import Order
from sendlater.errors import Unavailable
from sendlater.local.process import last_lines, wait_for

READY_TIMEOUT_S = 120.0
"""Longest wait until a driver is ready."""
STOP_TIMEOUT_S = 30.0
"""Longest wait until a driver has ended; then it is killed."""


class Drivers:
    """The sender and the receiver of a system, on its running servers."""

    def __init__(self, system: System, servers: Servers, directory: Path, *, name: str) -> None:
        self._arrivals = directory / f"arrivals-{time.monotonic_ns()}"
        self._arrivals.touch()
        environment = {
            **os.environ,
            **servers.environment,
            "BENCH_NAME": name,
            "BENCH_ARRIVALS": str(self._arrivals),
        }
        self._log = directory / "drivers.log"
        self._tail = b""
        with self._log.open("ab") as log:
            self._receiver = subprocess.Popen(
                system.receiver, cwd=ROOT, env=environment, stdout=log, stderr=log
            )
            self._sender = subprocess.Popen(
                system.sender,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.processes = {
            **servers.processes,
            "receiver": self._receiver.pid,
            "sender": self._sender.pid,
        }

    def start(self) -> None:
        """Wait until both are ready. Raises Unavailable."""
        with self._arrivals.open("rb") as file:
            wait_for(lambda: self._ended() or file.read(5) == b"ready", timeout_s=READY_TIMEOUT_S)
        if self._ended() or not self._arrivals.stat().st_size:
            raise Unavailable(f"the receiver did not start:\n{last_lines(self._log)}")
        self._expect(b"ready\n")
        self._file = self._arrivals.open("rb")

    def give(self, orders: Sequence[Order], *, began_ms: float) -> None:
        """Write orders to the sender; waits while it is behind. Raises Unavailable if it ended."""
        lines = (f"{o.verb} {o.number} {round(began_ms) + o.due_ms}\n" for o in orders)
        self._write("".join(lines).encode())

    def flush(self) -> None:
        """Wait until all orders are accepted. Raises Unavailable."""
        self._write(b"f\n")
        self._expect(b"flushed\n")

    def arrived(self) -> list[tuple[int, int]]:
        """Number and time of what has arrived since the last call."""
        *lines, self._tail = (self._tail + self._file.read()).split(b"\n")
        pairs = (line.split() for line in lines if line != b"ready")
        return [(int(number), int(at_ms)) for number, at_ms in pairs]

    def stop(self) -> None:
        """End both."""
        assert self._sender.stdin is not None
        with suppress(BrokenPipeError):
            self._sender.stdin.close()
        self._receiver.terminate()
        for process in (self._sender, self._receiver):
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _ended(self) -> bool:
        return self._receiver.poll() is not None

    def _write(self, data: bytes) -> None:
        assert self._sender.stdin is not None
        try:
            self._sender.stdin.write(data)
            self._sender.stdin.flush()
        except BrokenPipeError as error:
            raise Unavailable(f"the sender ended:\n{last_lines(self._log)}") from error

    def _expect(self, wanted: bytes) -> None:
        assert self._sender.stdout is not None
        line = self._sender.stdout.readline()
        if line != wanted:
            raise Unavailable(
                f"expected {wanted!r} from the sender, got {line!r}:\n{last_lines(self._log)}"
            )
