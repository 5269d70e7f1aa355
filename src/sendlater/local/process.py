"""Server processes that we start: shared use, free ports, the end of a log."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Self

from sendlater.addresses import family_of
from sendlater.errors import Unavailable
from sendlater.local import shared_server

GRACE_S = 30.0
"""How long a server may take to stop before it is killed."""
POLL_S = 0.02
LOOPBACK = "127.0.0.1"


class Lease:
    """A share of the server process of one directory; the last user to release it ends the server.

    A child process created by a plain fork (as in multiprocessing) holds the share too.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "users.lock"
        self._held: IO[bytes] | None = None
        self._script: subprocess.Popen[bytes] | None = None

    @property
    def held(self) -> bool:
        """Whether this object has a share."""
        return self._held is not None

    def take(self) -> None:
        """Take a share; waits while an earlier server of this directory is being stopped."""
        assert self._held is None, "the share is already taken"
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._held = self._path.open("a+b")
        fcntl.flock(self._held, fcntl.LOCK_SH)

    def launch(
        self,
        command: Sequence[str],
        *,
        log: Path,
        grace_s: float = GRACE_S,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Start `command`, with output appended to `log`; returns its process id. Signals from the
        terminal do not reach it. `environment`: variables, unless they are set already."""
        assert self._held is not None, "take a share first"
        if self._script is not None:
            self._script.wait(timeout=grace_s)  # its server has ended or is about to
        self._script = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", shared_server.__file__),
                *(str(self._path), str(log), str(grace_s), *command),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**(environment or {}), **os.environ},
            start_new_session=True,
        )
        assert self._script.stdout is not None
        with self._script.stdout as output:
            line = output.readline()
        if not line:
            raise Unavailable(f"cannot start {command[0]}; its log is {log}")
        return int(line)

    def exited(self) -> bool:
        """Whether the server launched by this object has ended."""
        return self._script is not None and self._script.poll() is not None

    def wait(self) -> None:
        """Block until the server launched by this object has ended."""
        assert self._script is not None, "nothing was launched"
        self._script.wait()

    def let_go(self, pid: int | None, *, grace_s: float = GRACE_S) -> bool:
        """Release the share; the last user ends process `pid`. Returns whether the server ended."""
        if self._held is None:
            return False
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Others still use it; or the script is already ending it, and this waits for that.
            fcntl.flock(self._held, fcntl.LOCK_SH)
        else:
            if pid is not None:
                end(pid, grace_s=grace_s)
        self._held.close()
        self._held = None
        ended = pid is None or not alive(pid)
        if ended and self._script is not None:
            self._script.wait()
            self._script = None
        return ended


class Server:
    """A server of our own: `with` starts it and ends it."""

    def start(self) -> Self:
        """Start it, and wait until it answers. Raises Unavailable."""
        raise NotImplementedError

    def stop(self) -> None:
        """End it, or only release it if others use it too."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def alive(pid: int) -> bool:
    """Whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def end(pid: int, *, grace_s: float = GRACE_S) -> None:
    """End process `pid` with SIGTERM, after `grace_s` with SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        if wait_for(lambda: not alive(pid), timeout_s=grace_s):
            return


def wait_for(condition: Callable[[], bool], *, timeout_s: float) -> bool:
    """Whether `condition` became true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def free_ports(count: int) -> list[int]:
    """Different loopback ports that are free at this moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [int(one.getsockname()[1]) for one in sockets]


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there at this moment."""
    try:
        with socket.create_server((host, port), family=family_of(host)):
            return True
    except OSError:
        return False


def last_lines(log: Path, *, count: int = 12) -> str:
    """The end of a log, for an error message."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-count:])
    except OSError:
        return "(no log)"
