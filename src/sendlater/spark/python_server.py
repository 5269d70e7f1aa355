"""One Python with everything imported; what a local Spark starts as Python is a fork of it.

A start needs a dozen of them, and each would spend most of its time on the same imports
(docs/adr/0032). The server ends, and removes its directory, when its standard input does.
"""

import atexit
import contextlib
import gc
import importlib
import marshal
import os
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import struct
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

from sendlater.spark import python_command
from sendlater.spark.python_command import FAILED, LENGTH, STARTED

COMMAND, SOCKET = "python", "socket"
"""In the server's directory: the program for Spark, and where it finds the server."""
PATH_BYTES_MAX = 100
"""Of a socket: Linux takes 107 bytes, macOS 103."""
ASKED_MAX = 64
"""So many programs may wait for an answer."""
ASK_TIMEOUT_S = 10.0
"""Longest wait for the next part of a question."""
TOUCH_S = 6 * 3600.0
"""How often the directory's files are touched: systems remove temporary ones that are days old."""
DIED = 128
"""Exit code of what a signal has ended, above the signal's number, as in a shell."""


def prepare() -> Path | None:
    """A directory for a server, with the program that Spark can run as Python; it goes with this
    process. None where a temporary file cannot be run, or its path is too long for a socket."""
    directory = Path(tempfile.mkdtemp(prefix="sendlater-python-"))
    words = [sys.executable, "-I", "-S", python_command.__file__, str(directory / SOCKET)]
    command = directory / COMMAND
    command.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    command.chmod(0o700)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    fits = len(os.fsencode(directory / SOCKET)) <= PATH_BYTES_MAX
    if fits and os.access(command, os.X_OK):  # on what is mounted with noexec, it is not
        return directory
    shutil.rmtree(directory)
    return None


class Server:
    """Forks itself for each program that asks on `listening`, and tells it the exit code."""

    def __init__(self, listening: socket.socket, directory: Path) -> None:
        self._listening, self._directory = listening, directory
        self._asked_by: dict[int, socket.socket] = {}
        self._ready = selectors.DefaultSelector()
        # The second is told of each signal, which the first then reads.
        self._ended, self._told = socket.socketpair()
        self._told.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        for source in (0, listening, self._ended):
            self._ready.register(source, selectors.EVENT_READ)

    def run(self) -> None:
        """Until standard input ends."""
        while True:
            with contextlib.suppress(OSError):
                for path in (self._directory, *self._directory.iterdir()):
                    os.utime(path)
            for key, _ in self._ready.select(TOUCH_S):
                if key.fileobj == 0:
                    return
                if key.fileobj is self._listening:
                    self._answer()
                elif key.fileobj is self._ended:
                    self._ended.recv(4096)
                    self._reap()
                elif key.data in self._asked_by:  # the program was killed
                    self._ready.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGTERM)

    def _answer(self) -> None:
        with contextlib.suppress(OSError):
            asking, _ = self._listening.accept()
            try:
                asking.settimeout(ASK_TIMEOUT_S)
                pid = self._fork(asking)
            except (OSError, EOFError):
                asking.close()  # Python is then run without us
            else:
                self._asked_by[pid] = asking
                self._ready.register(asking, selectors.EVENT_READ, pid)

    def _fork(self, asking: socket.socket) -> int:
        program = Program.asked(asking)
        try:
            if not (pid := os.fork()):
                program.run(leave=lambda: self._leave(asking))
        finally:
            program.close()
        return pid

    def _leave(self, asking: socket.socket) -> None:
        """Be the server no longer. `asking` stays open: if the server dies, the program waits for
        the end of its fork all the same."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._ready.close()
        for ours in (self._listening, self._ended, self._told, *self._asked_by.values()):
            ours.close()
        asking.sendall(STARTED)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                code = os.waitstatus_to_exitcode(ended[1])
                asking = self._asked_by.pop(ended[0])
                with contextlib.suppress(KeyError):
                    self._ready.unregister(asking)
                with asking, contextlib.suppress(OSError):
                    asking.sendall(bytes([code if code >= 0 else DIED - code]))


@dataclass(frozen=True, slots=True)
class Program:
    """What is asked for: `python -m MODULE ARGUMENTS...` with other streams and environment."""

    streams: list[int]
    arguments: list[str]
    environment: dict[str, str]

    @classmethod
    def asked(cls, asking: socket.socket) -> Self:
        """As python_command.py sends it. Raises OSError, and EOFError if that has ended."""
        length, streams, _, _ = socket.recv_fds(asking, LENGTH.size, 3)
        try:
            with asking.makefile("rb") as file:
                return cls(streams, *marshal.loads(file.read(*LENGTH.unpack(length))))
        except (EOFError, ValueError, TypeError, struct.error) as error:
            for stream in streams:
                os.close(stream)
            raise EOFError("the question is not whole") from error

    def close(self) -> None:
        """Close the streams: the fork has its own."""
        for stream in self.streams:
            os.close(stream)

    def run(self, *, leave: Callable[[], None]) -> NoReturn:
        """`leave` the server, be this program, and end."""
        code = FAILED
        try:
            leave()
            for number, stream in enumerate(self.streams):
                os.dup2(stream, number)
            self.close()
            os.environ.clear()
            os.environ.update(self.environment)
            path = self.environment.get("PYTHONPATH", "").split(os.pathsep)
            new = (one for one in path if one and one not in sys.path and Path(one).is_dir())
            sys.path[1:1] = new
            sys.argv[:] = self.arguments[1:]
            warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            code = _exit_code(end)
        except BaseException:
            traceback.print_exc()
        finally:
            for written in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # closed, or none
                    written.flush()
            os._exit(code)


def _exit_code(end: SystemExit) -> int:
    """As Python has it: what is no number is said, and a failure."""
    if isinstance(end.code, int):
        return end.code & 0xFF
    if end.code is not None:
        sys.stderr.write(f"{end.code}\n")
    return int(end.code is not None)


def main(directory: str, imports: str) -> None:
    """Serve on a socket in `directory`; who asks before all is imported, waits."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(Path(directory) / SOCKET))
        listening.listen(ASKED_MAX)
        importlib.import_module(imports)
        gc.collect()
        gc.freeze()
        Server(listening, Path(directory)).run()
    # Not after an error: the JVM goes on to run what is in there.
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
