"""Starts the JVM of a local Spark as PySpark does, but without a detour (docs/adr/0036).

PySpark runs Spark's script, which runs a JVM that only prints the command of the next one. What it
has printed once for the same settings is run at once from then on.
"""

import json
import os
import shlex
import struct
import sys
import tempfile
import time
import zlib
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from sendlater.errors import Unavailable
from sendlater.local.whole_file import write_whole
from sendlater.spark import jvm_command

MAIN = b"org.apache.spark.deploy.SparkSubmit"
"""The program of the JVM; what stands before it on its command line depends on few settings."""
GATEWAY_PORT, GATEWAY_SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
"""Environment: where PySpark finds a JVM that runs already, as that of spark-submit."""
CONNECTION = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""Environment: the file in which the JVM tells the two: port, length and bytes of the secret."""
NUMBER = struct.Struct(">i")
UNKNOWN = ("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Environment: more settings, which only Spark's launcher knows to read."""
PYSPARKS = ("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE")
"""Environment: what a session leaves there, and the launcher does not read."""
LIBRARIES = "spark.driver.extraLibraryPath"
"""Setting that becomes environment of the JVM, and stands not on its command line."""
KEPT, KEPT_MAX = "jvm-*.json", 32
"""Files with commands in the cache, and how many of them: one for each version of the settings."""
LOOK_S = 0.01
"""Pause between two looks whether the JVM is there."""


def is_submitted() -> bool:
    """Whether spark-submit has started this process, with a JVM."""
    return GATEWAY_PORT in os.environ


def launch(conf: SparkConf, *, cache_dir: Path, server: Path | None, imports: str) -> Any:
    """PySpark's gateway to a new JVM in a process session of its own; SPARK_HOME and JAVA_HOME tell
    which. `server`: the directory of python_server.py, which begins now, and what that imports.

    Raises Unavailable if the JVM ends before it can be reached.
    """
    words = [word for name, value in conf.getAll() for word in ("--conf", f"{name}={value}")]
    words += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    path = _path(conf, cache_dir)
    kept = _kept(path)
    script = [str(Path(os.environ["SPARK_HOME"], "bin", "spark-submit"))]
    before = [sys.executable, "-I", "-S", jvm_command.__file__, str(server or ""), imports]
    try:
        gateway = _start([*before, *(kept or script), *words])
    except Unavailable:
        if kept and path:
            with suppress(OSError):
                path.unlink()  # the next start asks the script
        raise
    if path and not kept:
        _keep(path, gateway.proc.pid)
    return gateway


def _start(command: list[str]) -> Any:
    with tempfile.TemporaryDirectory() as directory:
        told = Path(directory, "connection")
        environment = {"SPARK_CONNECT_MODE": "0", "PYTHONHASHSEED": "0", CONNECTION: str(told)}
        # Linux divides the cores between process sessions first: with its own session, Spark leaves
        # other programs their share, however many threads it runs (docs/adr/0009).
        process = Popen(
            command,
            stdin=PIPE,  # the JVM ends with it
            env=os.environ | environment,
            start_new_session=True,
        )
        while not told.exists():
            if process.poll() is not None:
                raise Unavailable(f"expected Spark's JVM to run, it ended with {process.poll()}")
            time.sleep(LOOK_S)
        answer = told.read_bytes()
    gateway = _reach(answer)
    gateway.proc = process
    return gateway


def _reach(answer: bytes) -> Any:
    [port] = NUMBER.unpack_from(answer)
    os.environ[GATEWAY_PORT] = str(port)
    os.environ[GATEWAY_SECRET] = answer[2 * NUMBER.size :].decode()
    try:
        return launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ[GATEWAY_PORT], os.environ[GATEWAY_SECRET]


def _path(conf: SparkConf, cache_dir: Path) -> Path | None:
    """Where the command is kept that Spark's launcher makes of these settings; None if it makes it
    of others, too, as those in the directory of another Spark."""
    home = Path(os.environ["SPARK_HOME"])
    if home.parent != cache_dir or (home / "conf").exists() or conf.contains(LIBRARIES):
        return None
    if any(name in os.environ for name in UNKNOWN):
        return None
    settings = [one for one in conf.getAll() if one[0].startswith("spark.driver.")]
    names = {name for name in os.environ if name.startswith("SPARK_")} - {*PYSPARKS}
    around = [(name, os.environ.get(name, "")) for name in (*names, "JAVA_HOME")]
    parts = json.dumps(sorted(settings) + sorted(around))
    return cache_dir / KEPT.replace("*", f"{zlib.crc32(parts.encode()):08x}")


def _kept(path: Path | None) -> list[str]:
    """The command that is kept there; nothing if there is none that can be read and run."""
    words: list[str] = []
    if path is not None:
        with suppress(OSError, ValueError):
            words = json.loads(path.read_text())
    return words if words and os.access(words[0], os.X_OK) else []


def _keep(path: Path, pid: int) -> None:
    """Keep the command line of a JVM, without what is for its program. Only Linux shows it."""
    with suppress(OSError, ValueError):
        line = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
        words = [os.fsdecode(word) for word in line[: line.index(MAIN) + 1]]
        write_whole(path, json.dumps(words), mode=0o600)  # options of Java may have passwords
        kept = sorted(path.parent.glob(KEPT), key=lambda one: one.stat().st_mtime)
        for old in kept[:-KEPT_MAX]:
            old.unlink()
