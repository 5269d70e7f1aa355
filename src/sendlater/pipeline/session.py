"""The Spark session, with the settings that make a lone message fast."""

import os
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from pyspark.sql import SparkSession

from sendlater.config import Settings

PACKAGE = "org.apache.spark.sql.execution.streaming.checkpointing"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
STREAMING = {
    # A Python source's rows reach the JVM through a buffer of this many bytes: smallest is fastest.
    "spark.buffer.size": "64",
    # A log write takes 10 ms instead of 60-100: no fork and no checksum file. Checkpoints are
    # scratch here, so a torn one costs nothing.
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{PACKAGE}.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Workers start slowly on a machine that is busy; 15 s, the default, fails the whole query.
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.driver.memory": "2g",
}


def slots(settings: Settings) -> int:
    """Task slots a local Spark needs: lane tasks hold theirs, intake must find one free."""
    return settings.lanes * settings.shards + settings.intake_slots


def start_session(settings: Settings, *, java_home: Path, jars: Sequence[Path]) -> SparkSession:
    """A session on the configured master; `jars` are the Kafka connector's, where Kafka is used."""
    os.environ["JAVA_HOME"] = str(java_home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"sendlater {settings.space}")
    builder = builder.master(settings.spark_master or f"local[{slots(settings)}]")
    logging = resources.files(__package__) / "log4j2.properties"
    java = f"-Dlog4j2.configurationFile=file:{logging} {settings.spark.get(JAVA_OPTIONS, '')}"
    config = STREAMING | ({"spark.jars": ",".join(map(str, jars))} if jars else {})
    for name, value in (config | settings.spark | {JAVA_OPTIONS: java}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
