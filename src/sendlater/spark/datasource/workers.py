"""Spark's daemon, of which every Python worker is a fork: with all imported that our tasks need.

A worker that starts because a task is tried again is at work sooner, while others wait for it.
"""

import gc
import os
import socket
import sys
from typing import IO

import pyspark.worker
from pyspark import daemon

import sendlater.spark.datasource.imports  # noqa: F401
from sendlater.spark.pipe import PIPE_BYTES, use_pipe

_work = daemon.worker
_do_task = pyspark.worker.main


def worker(sock: socket.socket, authenticated: bool) -> int:
    """As Spark's own, but silent when the JVM has gone on without this worker: it has told why."""
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
    daemon.worker, pyspark.worker.main = worker, do_task
    os.environ["SPARK_BUFFER_SIZE"] = str(PIPE_BYTES)
    daemon.manager()
