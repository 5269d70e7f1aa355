"""The Spark session, with the settings that make a lone message fast."""

import os
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
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
OURS = {
    # A second attempt beside a first one that lives only has the first one refused.
    "spark.speculation": "false",
}
"""Settings that nobody may change: what the store promises rests on them."""


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
    conf = SparkConf().setAppName(f"sendlater {settings.space}")
    conf.setMaster(settings.spark_master or f"local[{slots(settings)}]")
    logging = resources.files(__package__) / "log4j2.properties"
    java = f"-Dlog4j2.configurationFile=file:{logging} {settings.spark.get(JAVA_OPTIONS, '')}"
    config = STREAMING | SPARK_SETTINGS | ({"spark.jars": ",".join(map(str, jars))} if jars else {})
    conf.setAll(list((config | settings.spark | OURS | {JAVA_OPTIONS: java}).items()))
    if SparkContext._gateway is None:  # a process keeps its JVM, whatever sessions come after
        # Linux shares the cores between sessions first: a program beside Spark then has its share
        # of them, however many threads Spark runs (docs/adr/0009).
        gateway = launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]
        SparkContext(conf=conf, gateway=gateway)
    return SparkSession.builder.config(conf=conf).getOrCreate()


def require_jvm(spark: SparkSession) -> None:
    """Hangs while the JVM does, and raises when it is gone."""
    spark.sparkContext._jvm.System.nanoTime()  # type: ignore[union-attr]
