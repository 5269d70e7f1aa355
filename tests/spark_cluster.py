"""Spark on several processes: a master and workers, from the PySpark package."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyspark
from servers import ServiceProcess, wait_until

from sendlater.config import cache_dir
from sendlater.local.java import find_java
from sendlater.local.process import LOOPBACK

HOME = Path(pyspark.__file__).parent
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
START_S = 120.0
STOP_S = 30.0


class Daemon:
    """A master or a worker, in a process of its own."""

    def __init__(self, directory: Path, name: str, *command: str) -> None:
        self.log = directory / f"{name}.log"
        environment = os.environ | {
            "SPARK_HOME": str(HOME),
            "JAVA_HOME": str(find_java(cache_dir()).home),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "SPARK_LOCAL_IP": LOOPBACK,
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [HOME / "bin" / "spark-class", *command], env=environment, stdout=log, stderr=log
            )

    def wait_for(self, pattern: str) -> str:
        """What its log says, the first group of `pattern`."""

        def said() -> re.Match[str] | None:
            assert self._process.poll() is None, self.log.read_text()
            return re.search(pattern, self.log.read_text(errors="replace"))

        found = wait_until(said, f"{self.log.stem} says {pattern!r}", timeout_s=START_S)
        assert found
        return found[1]

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def kill(self) -> None:
        """Pull the plug of it and of the executors that it has started."""
        if self._process.poll() is not None:
            return
        own = psutil.Process(self.pid)
        family = [own, *own.children(recursive=True)]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self._process.wait()
        psutil.wait_procs(family[1:], STOP_S)


class SparkCluster:
    """A master and its workers, each of which starts an executor for an application."""

    def __init__(self, directory: Path, *, cores: int) -> None:
        self._directory, self._cores = directory, cores
        ports = ("--host", LOOPBACK, "--port", "0", "--webui-port", "0")
        self.master = Daemon(directory, "master", MASTER, *ports)
        self.url = self.master.wait_for(r"Starting Spark master at (spark://\S+)")
        self.workers: list[Daemon] = []

    def add_worker(self) -> Daemon:
        """One more, with all its cores for one executor."""
        name = f"worker-{len(self.workers)}"
        ports = ("--host", LOOPBACK, "--webui-port", "0", "--work-dir", str(self._directory / name))
        size = ("--cores", str(self._cores), "--memory", "6g")
        worker = Daemon(self._directory, name, WORKER, *ports, *size, self.url)
        self.workers.append(worker)
        worker.wait_for(r"(Successfully registered) with master")
        return worker

    def pythons(self) -> list[list[str]]:
        """The command of every Python that executors have started."""
        commands = []
        for worker in self.workers:
            with suppress(psutil.NoSuchProcess):  # it was killed, or one of its processes ends
                family = psutil.Process(worker.pid).children(recursive=True)
                commands += [one.cmdline() for one in family if one.name() != "java"]
        return commands

    def close(self) -> None:
        """Kill all of it."""
        for daemon in (*self.workers, self.master):
            daemon.kill()


@contextmanager
def own_spark_cluster(
    directory: Path, *, workers: int = 2, cores: int = 8
) -> Iterator[SparkCluster]:
    """A cluster of workers with so many task slots each."""
    cluster = SparkCluster(directory, cores=cores)
    try:
        for _ in range(workers):
            cluster.add_worker()
        yield cluster
    finally:
        cluster.close()


def submit(service: ServiceProcess, *arguments: str, wait: bool = True) -> None:
    """Start a service by PySpark's spark-submit: its options, a program, and that one's words."""
    service.environment |= {
        "SPARK_HOME": str(HOME),
        "JAVA_HOME": str(find_java(cache_dir()).home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": LOOPBACK,
    }
    service.command = [str(HOME / "bin" / "spark-submit"), *arguments]
    service.start(wait=wait)
