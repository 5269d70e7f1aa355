"""Spark's daemon, of which every Python worker is a fork: with all imported that our tasks need.

A worker that starts because a task is tried again is at work sooner, while others wait for it.
"""

import ctypes
import gc
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import IO

import pyspark.worker
from pyspark import daemon

import sendlater.spark.datasource.imports  # noqa: F401
from sendlater.spark.pipe import PIPE_BYTES, use_pipe

PR_SET_PDEATHSIG = 1
"""Of prctl(2), which only Linux has: the signal for this process when its parent ends."""

_work = daemon.worker
_do_task = pyspark.worker.main
_daemon = 0
"""The parent of all workers."""
_libc = ctypes.CDLL(None)


def end_with(parent: int) -> None:
    """End this process when its `parent` does, or now if that has ended.

    Spark's daemon tells its workers of its end by a signal, which one that has just begun still
    ignores: it would go on to work at a task whose JVM is gone, and may write nothing for long.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with suppress(AttributeError):  # on macOS
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGHUP)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGHUP)


def worker(sock: socket.socket, authenticated: bool) -> int:
    """As Spark's own, but silent when the JVM has gone on without this worker: it has told why."""
    end_with(_daemon)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        return _work(sock, authenticated)
    except BrokenPipeError:
        return 1


def do_task(infile: IO[bytes], outfile: IO[bytes]) -> None:
    """As Spark's own; the task can pass on what it has yielded."""
    use_pipe(outfile)
    _do_task(infile, outfile)


def forget_jars() -> None:
    """Take Spark's own jar from the path of modules: every task would list its 5,854 names anew."""
    sys.path[:] = [one for one in sys.path if not one.endswith(".jar")]
    for place in [one for one in sys.path_importer_cache if ".jar" in one]:
        del sys.path_importer_cache[place]


if __name__ == "__main__":
    forget_jars()
    # Each worker collects garbage after each task: without this, by going through all that was
    # imported here, two fifths of its work at 200 messages a second (docs/adr/0023).
    gc.collect()
    gc.freeze()
    _daemon = os.getpid()
    daemon.worker, pyspark.worker.main = worker, do_task
    os.environ["SPARK_BUFFER_SIZE"] = str(PIPE_BYTES)
    daemon.manager()
