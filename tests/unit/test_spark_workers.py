"""A worker of Spark ends with the daemon that it is a fork of, whenever that ends."""

import subprocess
import sys

import psutil
import pytest
from servers import wait_until

PROGRAM = """
import os, signal, sys
from sendlater.spark.datasource.workers import end_with

signal.signal(signal.SIGHUP, signal.SIG_IGN)
parent = os.getpid()
if not os.fork():
    # A pipe's end comes before the parent's: the kernel closes its files first.
    while sys.argv[1] == "orphan" and os.getppid() == parent:
        os.sched_yield()
    end_with(parent)
    print(os.getpid(), flush=True)
    signal.pause()
if sys.argv[1] == "orphan":
    os._exit(0)
sys.stdin.read()
"""


def parent(what: str) -> "subprocess.Popen[bytes]":
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", PROGRAM, what], stdin=pipe, stdout=pipe)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of a parent's end")
def test_a_worker_ends_when_its_daemon_is_killed() -> None:
    with parent("lives") as one:
        assert one.stdout is not None
        worker = psutil.Process(int(one.stdout.readline()))
        one.kill()
        wait_until(lambda: not worker.is_running(), "the worker has ended")


def test_a_worker_whose_daemon_has_ended_does_not_begin() -> None:
    with parent("orphan") as one:
        assert one.stdout is not None
        assert one.stdout.readline() == b"", "it has ended, and said nothing"
