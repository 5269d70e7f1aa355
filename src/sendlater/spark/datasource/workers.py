"""Spark's daemon, of which every Python worker is a fork: with all imported that our tasks need.

A worker that starts because a task is tried again is at work sooner, while others wait for it.
"""

import socket
import sys

import confluent_kafka  # noqa: F401
import pandas  # noqa: F401  # as pyarrow does with its first array: half a second of CPU
import pyarrow.compute  # noqa: F401
import pyspark.sql.worker.plan_data_source_read
import pyspark.sql.worker.write_into_data_source
import pyspark.worker  # noqa: F401
from pyspark import daemon

import sendlater.spark.arrow_rows
import sendlater.spark.delivery.claim_task
import sendlater.spark.delivery.due_source
import sendlater.spark.delivery.refusal
import sendlater.spark.delivery.warm_rows
import sendlater.spark.intake.inbox_rows
import sendlater.spark.intake.inbox_task
import sendlater.spark.intake.park_task  # noqa: F401

_work = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """As Spark's own, but silent when the JVM has gone on without this worker: it has told why."""
    try:
        return _work(sock, authenticated)
    except BrokenPipeError:
        return 1


def forget_jars() -> None:
    """Take Spark's own jar from the path of modules: every task would list its 5,854 names anew."""
    sys.path[:] = [one for one in sys.path if not one.endswith(".jar")]
    for place in [one for one in sys.path_importer_cache if ".jar" in one]:
        del sys.path_importer_cache[place]


if __name__ == "__main__":
    forget_jars()
    daemon.worker = worker
    daemon.manager()
