"""The bench's side of the lines: starts a system's sender and receiver, and talks with them."""

import os
import select
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
ANSWER_TIMEOUT_S = 900.0
"""Longest wait for a sender to take orders, or to have them accepted."""
STOP_TIMEOUT_S = 30.0
"""Longest wait until a driver has ended; then it is killed."""


class Drivers:
    """The sender and the receiver of a system, on its running servers."""

    def __init__(self, system: System, servers: Servers, directory: Path, *, name: str) -> None:
        arrivals = directory / f"arrivals-{time.monotonic_ns()}"
        arrivals.touch()
        self._file = arrivals.open("rb")
        self.servers = servers
        environment = {
            **os.environ,
            **servers.environment,
            "BENCH_NAME": name,
            "BENCH_ARRIVALS": str(arrivals),
        }
        self._log = directory / "drivers.log"
        self._unread, self._waiting = bytearray(), 0
        with self._log.open("ab") as log:
            self._receiver = subprocess.Popen(
                system.receiver, cwd=ROOT, env=environment, stdout=log, stderr=log
            )
            self._sender = subprocess.Popen(
                system.sender,
                cwd=ROOT,
                env=environment,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    @property
    def processes(self) -> dict[str, int]:
        """Process ids of the servers, the receiver and the sender."""
        ours = {"receiver": self._receiver.pid, "sender": self._sender.pid}
        return {**self.servers.processes, **ours}

    def start(self) -> None:
        """Wait until both are ready. Raises Unavailable."""
        if not wait_for(lambda: self.waiting() > 0, timeout_s=READY_TIMEOUT_S):
            raise Unavailable(f"the receiver is not ready:\n{last_lines(self._log)}")
        self._expect(b"ready\n")

    def give(self, orders: Sequence[Order], *, began_ms: float) -> None:
        """Write orders to the sender; waits while it is behind. Raises Unavailable if it ended."""
        lines = (f"{o.verb} {o.number} {round(began_ms) + o.due_ms}\n" for o in orders)
        self._write("".join(lines).encode())

    def flush(self) -> None:
        """Wait until all orders are accepted. Raises Unavailable."""
        self._write(b"f\n")
        self._expect(b"flushed\n")

    def waiting(self) -> int:
        """How many arrivals `take` would give: cheap, so that it disturbs nobody.

        Raises Unavailable if the receiver has ended.
        """
        if self._receiver.poll() is not None:
            raise Unavailable(f"the receiver ended:\n{last_lines(self._log)}")
        new = self._file.read()
        self._unread += new
        self._waiting += new.count(b"\n")
        return self._waiting

    def take(self) -> list[tuple[int, int]]:
        """Number and time of what has arrived since the last call."""
        *lines, rest = bytes(self._unread).split(b"\n")
        self._unread, self._waiting = bytearray(rest), 0
        pairs = (line.split() for line in lines if line != b"ready")
        return [(int(number), int(at_ms)) for number, at_ms in pairs]

    def stop(self) -> None:
        """End both."""
        self._file.close()
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

    def _write(self, data: bytes) -> None:
        assert self._sender.stdin is not None
        pipe = self._sender.stdin.fileno()
        os.set_blocking(pipe, False)
        left = memoryview(data)
        while left:
            if not select.select([], [pipe], [], ANSWER_TIMEOUT_S)[1]:
                raise Unavailable(f"the sender takes no orders:\n{last_lines(self._log)}")
            try:
                left = left[os.write(pipe, left) :]
            except BrokenPipeError as error:
                raise Unavailable(f"the sender ended:\n{last_lines(self._log)}") from error

    def _expect(self, wanted: bytes) -> None:
        assert self._sender.stdout is not None
        pipe = self._sender.stdout
        ready = select.select([pipe], [], [], ANSWER_TIMEOUT_S)[0]
        line = pipe.readline() if ready else b"nothing in time"
        if line != wanted:
            raise Unavailable(
                f"expected {wanted!r} from the sender, got {line!r}:\n{last_lines(self._log)}"
            )
