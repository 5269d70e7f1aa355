"""The Spark session, with settings that make a single message fast."""

import os
import sys
import threading
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import py4j.protocol
import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.types import NumpyArrayConverter, NumpyScalarConverter

from sendlater.config import Settings
from sendlater.dialects import SPARK_SETTINGS
from sendlater.errors import BadSettings
from sendlater.local.class_archive import ClassArchive
from sendlater.local.java import FIRST_COMPILER
from sendlater.spark import python_server
from sendlater.spark.home import spark_home
from sendlater.spark.jvm import is_submitted, launch
from sendlater.spark.pipe import PIPE_BYTES
from sendlater.spark.warm_up import read_sql

PACKAGE = "org.apache.spark.sql.execution.streaming.checkpointing"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
PATIENT = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Options of Java: its second compiler takes what has run ten times as often as by default. It took
a third of a start's CPU, most of it for what is used at a start only (docs/adr/0025)."""
STEADY_HEAP = (
    "-Xms448m -XX:+AlwaysPreTouch -XX:GCTimeRatio=1 -XX:+UseTransparentHugePages "
    "-XX:MetaspaceSize=192m"
)
"""Options of Java: the heap begins with the least that Spark takes, all of it at once and not bit
by bit for half an hour, and grows if what lives needs it, not if collecting takes long for a
moment, as in a start. G1 takes 0 for 12 (docs/adr/0030). Its pages have 2 MiB where Linux gives
such to who asks: a third of the page faults (docs/adr/0031). The classes of a start alone are no
reason to look for garbage among all objects."""
COLLECTS_BESIDE = "-XX:+ExplicitGCInvokesConcurrent"
"""Option of Java: the collection that Spark asks for every half an hour stops nobody. It stopped
everything for 0.3 s (docs/adr/0030)."""
CLASS_PATH = "spark.driver.extraClassPath"
CONNECT = "sc://"
"""How an address of Spark Connect begins."""
END_TIMEOUT_S = 120.0
"""Longest wait for the end of a JVM, which may write an archive of its classes first."""
BUFFER = "spark.sql.execution.pandas.udf.buffer.size"
"""Spark's setting of the buffers in bytes between the JVM and a Python worker. Queries with another
value have workers of another daemon, which imports everything once more."""
STREAMING = {
    # So small that nothing waits in a buffer, for the Python sink of topics on Redis. Each message
    # is read in pieces.
    BUFFER: "64",
    # A log write takes 10 ms instead of 60-100: no fork and no checksum file. Checkpoints are
    # temporary here, so a damaged one costs nothing.
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
    # Workers start slowly on a busy machine; the default of 15 s makes the whole query fail.
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.driver.memory": "2g",
}
IMPORTS = "sendlater.spark.datasource.imports"
"""What the server of forks imports, see python_server.py."""
WORKERS = "sendlater.spark.datasource.workers"
"""The daemon that workers are forks of, here and in the executors of a cluster."""
OURS = {
    # A second attempt while the first one lives has no use: the store then refuses the first.
    "spark.speculation": "false",
    # Tasks tell it what to pass on: from another one, rows would wait in the pipe.
    "spark.python.daemon.module": WORKERS,
}
"""Settings that users cannot change: the store's guarantees, and what is due, depend on them."""
ATTEMPTS_MAX = 2
"""How often a local Spark tries a task of a lane: the second attempt finds what the first has
delivered. Time buckets and topics on Redis know no such look-up: their queries begin anew."""


LOOK_UP_SLOTS = 4
"""More task slots of a local Spark, for look-ups of what has arrived: their tasks mostly wait for
Kafka, and lanes that take part in an outage do not end theirs."""


def slots(settings: Settings) -> int:
    """Task slots a Spark needs: lane tasks keep theirs, so all other tasks need more."""
    lanes = (settings.lanes if settings.pending == "redis" else 1) * settings.shards
    copying = any(inbox.copy_to for inbox in settings.inboxes)
    planning = 1 if settings.horizon else 0
    return lanes + settings.intake_slots * (1 + copying) + planning


def local_master(settings: Settings) -> str:
    """A Spark in this process: how many tasks it runs at once, and how often it tries each."""
    at_once = slots(settings) + (LOOK_UP_SLOTS if _looks_up(settings) else 0)
    return f"local[{at_once},{ATTEMPTS_MAX if _looks_up(settings) else 1}]"


def _looks_up(settings: Settings) -> bool:
    """Whether a second attempt of a task finds what the first has delivered."""
    return settings.on_kafka and settings.pending == "redis"


def enforced(settings: Settings) -> dict[str, str]:
    """Spark settings that users cannot change; a local master has the attempts in its name."""
    return OURS | ({} if _looks_up(settings) else {"spark.task.maxFailures": "1"})


def class_archive(settings: Settings, *, java_home: Path, jars: Sequence[Path]) -> ClassArchive:
    """That of a local Spark with these jars."""
    class_path = [spark_home(settings.cache_dir), *jars]
    return ClassArchive(settings.cache_dir, java_home=java_home, class_path=class_path)


def start_session(settings: Settings, *, java_home: Path, jars: Sequence[Path]) -> SparkSession:
    """A session on the configured master; `jars` are the Kafka connector's, if Kafka is used.

    A JVM that spark-submit has started is taken as it is.

    Raises BadSettings for Spark Connect.
    """
    if settings.spark_master.startswith(CONNECT):
        raise BadSettings(
            "spark_master: expected a master (spark://host:port, k8s://..., yarn), as the service "
            f"needs a Spark of its own, not Spark Connect; got {settings.spark_master!r}"
        )
    if not is_submitted():
        os.environ["JAVA_HOME"] = str(java_home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not settings.spark_master:
        os.environ.setdefault("SPARK_HOME", str(spark_home(settings.cache_dir)))
    conf = SparkConf().setAppName(f"sendlater {settings.space}")
    conf.setMaster(settings.spark_master or local_master(settings))
    logging = resources.files(__package__) / "log4j2.properties"
    java = [f"-Dlog4j2.configurationFile=file:{logging}", COLLECTS_BESIDE]
    if not settings.spark_master:
        twice = settings.compile_twice or settings.pending == "buckets"
        java += [STEADY_HEAP, PATIENT if twice else FIRST_COMPILER]
        java.append(class_archive(settings, java_home=java_home, jars=jars).options())
    java.append(settings.spark.get(JAVA_OPTIONS, ""))
    ours = _with(jars, settings) | enforced(settings) | {JAVA_OPTIONS: " ".join(filter(None, java))}
    buffer = {BUFFER: str(PIPE_BYTES)} if settings.on_kafka else {}
    conf.setAll(list((STREAMING | buffer | SPARK_SETTINGS | settings.spark | ours).items()))
    if SparkContext._gateway is None:  # all sessions of a process use its first JVM
        _launch(conf, settings)
    return SparkSession.builder.config(conf=conf).getOrCreate()


def _launch(conf: SparkConf, settings: Settings) -> None:
    """Start the JVM of a Spark, and for a local one what its Python processes are forks of."""
    if is_submitted():
        raise BadSettings(
            "spark-submit has started a JVM, which only `sendlater serve` takes: start other "
            "commands by themselves, with its master as spark_master"
        )
    asked = os.environ["PYSPARK_PYTHON"]
    local = not settings.spark_master
    server = python_server.prepare() if local and asked == sys.executable else None
    if server:
        os.environ["PYSPARK_PYTHON"] = str(server / python_server.COMMAND)
    _find_launcher()
    _convert_no_arrays()
    try:
        if local:
            gateway = launch(conf, cache_dir=settings.cache_dir, server=server, imports=IMPORTS)
        else:
            gateway = launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]
        threading.Thread(target=read_sql, args=(gateway, settings), daemon=True).start()
        SparkContext(conf=conf, gateway=gateway)
    finally:
        os.environ["PYSPARK_PYTHON"] = asked


def _find_launcher() -> None:
    """Spark's script starts a JVM that only prints the command of the next one, and looks for its
    few classes in 300 jars: half a second, on one core. Name the jar that has them."""
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    launcher = next(home.glob("jars/spark-launcher_*.jar"), None)
    if launcher and not any(map(str.isspace, str(launcher))):  # the script splits it there
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", f"-Xbootclasspath/a:{launcher}")


def _convert_no_arrays() -> None:
    """PySpark looks whether a list that it hands to Java is an array of numpy, and imports pandas
    for that: 0.4 s on one core, and 35 MiB. We hand over none."""
    converters = py4j.protocol.INPUT_CONVERTER
    numpy = (NumpyArrayConverter, NumpyScalarConverter)
    converters[:] = [one for one in converters if not isinstance(one, numpy)]


def _with(jars: Sequence[Path], settings: Settings) -> dict[str, str]:
    """Settings that give Spark the `jars`. A local Spark has them on its class path: it neither
    copies them nor fetches them from itself."""
    if not jars:
        return {}
    paths, theirs = [str(one) for one in jars], settings.spark
    if settings.spark_master:
        return {"spark.jars": theirs.get("spark.jars") or ",".join(paths)}
    return {CLASS_PATH: os.pathsep.join(filter(None, [*paths, theirs.get(CLASS_PATH, "")]))}


def end_session(spark: SparkSession) -> None:
    """Stop a session and its JVM: the process' next session would start in it, with its options."""
    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(END_TIMEOUT_S)


def require_jvm(spark: SparkSession) -> None:
    """Hangs while the JVM hangs, and raises if it is gone."""
    spark.sparkContext._jvm.System.nanoTime()  # type: ignore[union-attr]
