"""A Spark of several processes: what must be there before queries start. A local one has a slot
for each task, because it is made for them."""

import threading

from pyspark.sql import SparkSession

from sendlater.config import Settings
from sendlater.errors import Unavailable
from sendlater.limits import EXECUTORS_S_MAX
from sendlater.spark.session import slots

DYNAMIC = "spark.dynamicAllocation.enabled"
WATCH_S = 0.2
"""Pause between two looks at what executors have registered."""


def await_slots(spark: SparkSession, settings: Settings, stop: threading.Event) -> bool:
    """Wait until the executors have a slot for each task that runs all the time; False if `stop`
    was set first. With dynamic allocation they start when there are tasks, so nobody waits.

    Raises Unavailable if they do not have that many within EXECUTORS_S_MAX, or the master is gone.
    """
    if not settings.spark_master or settings.spark.get(DYNAMIC, "").lower() == "true":
        return True
    expected, found = slots(settings), 0
    for _ in range(round(EXECUTORS_S_MAX / WATCH_S)):
        found = _slots_of(spark, settings.spark_master)
        if found >= expected:
            return True
        if stop.wait(WATCH_S):
            return False
    raise Unavailable(
        f"spark_master: {settings.spark_master} has {found} task slots for this application, "
        f"expected at least {expected}: lanes x shards ({settings.lanes} x {settings.shards}), and "
        "one for each other task that runs all the time; give it more cores, or set fewer shards"
    )


def _slots_of(spark: SparkSession, master: str) -> int:
    context = spark.sparkContext._jsc.sc()
    if context.isStopped():
        raise Unavailable(f"spark_master: no Spark master answers at {master}")
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))
