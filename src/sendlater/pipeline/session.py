"""The Spark session, with the settings that make a lone message fast."""

import os
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from sendlater.config import Settings
from sendlater.dialects import SPARK_SETTINGS

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
    """Task slots a local Spark needs: lane tasks hold theirs, whatever else runs needs its own."""
    lanes = (settings.lanes if settings.pending == "redis" else 1) * settings.shards
    copying = any(inbox.copy_to for inbox in settings.inboxes)
    planning = 1 if settings.horizon else 0
    return lanes + settings.intake_slots * (1 + copying) + planning


def spark_home(cache_dir: Path) -> Path:
    """PySpark's Spark without its zip of PySpark: workers then import the installed package.

    The zip holds sources only; compiling them costs each of a dozen processes 0.6 s of CPU at
    start. Links, made anew when PySpark has moved.
    """
    real = Path(pyspark.__file__).parent
    home = cache_dir / f"spark-{pyspark.__version__}-{zlib.crc32(str(real).encode()):08x}"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars", "sbin", "data", "licenses"):
        link = home / name
        if not link.exists() and (real / name).exists():
            link.unlink(missing_ok=True)
            with suppress(FileExistsError):  # two services may start at once
                link.symlink_to(real / name)
    return home


def start_session(settings: Settings, *, java_home: Path, jars: Sequence[Path]) -> SparkSession:
    """A session on the configured master; `jars` are the Kafka connector's, where Kafka is used."""
    os.environ["JAVA_HOME"] = str(java_home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not settings.spark_master:
        os.environ.setdefault("SPARK_HOME", str(spark_home(settings.cache_dir)))
    builder = SparkSession.builder.appName(f"sendlater {settings.space}")
    builder = builder.master(settings.spark_master or f"local[{slots(settings)}]")
    logging = resources.files(__package__) / "log4j2.properties"
    java = f"-Dlog4j2.configurationFile=file:{logging} {settings.spark.get(JAVA_OPTIONS, '')}"
    config = STREAMING | SPARK_SETTINGS | ({"spark.jars": ",".join(map(str, jars))} if jars else {})
    for name, value in (config | settings.spark | {JAVA_OPTIONS: java}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
