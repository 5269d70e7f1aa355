"""CPU time and memory of processes with all their children, from /proc."""

import threading
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

ROLES = {
    "org.apache.spark": "service: Spark",
    "pyspark": "service: Spark's Python workers",
    "sendlater.spark.python_server": "service: Spark's Python workers",
    "sendlater.server": "service: REST",
}
"""A service's children, by what is in their command line."""
PAUSE_S = 10.0
"""How often memory is looked at in a burst. Of a process with 1.3 GB a look takes 13 ms of a core,
and what needs memory there waits meanwhile: what is measured would be late once in a while."""


def cpu_s(processes: Mapping[str, int]) -> dict[str, float]:
    """CPU seconds of each process and its children since they started; children that have ended
    count from when their parent has waited for them."""
    return {label: sum(_cpu_s(one) for one in family(pid)) for label, pid in processes.items()}


def memory_mib(processes: Mapping[str, int]) -> dict[str, float]:
    """Memory of each process and its children; a page that several share is counted in parts."""
    return {
        label: round(sum(_pss_bytes(one.pid) for one in family(pid)) / 2**20, 1)
        for label, pid in processes.items()
    }


def memory_by_role(processes: Mapping[str, int]) -> dict[str, float]:
    """Memory of each process by what it does: a service has several kinds of children."""
    found: dict[str, float] = defaultdict(float)
    for label, pid in processes.items():
        for one in family(pid):
            found[role(one, label)] += _pss_bytes(one.pid) / 2**20
    return {role: round(mib, 1) for role, mib in found.items()}


class MemoryWatch:
    """The highest memory of processes when it opens, when it closes, and every `pause_s` between;
    None: not between."""

    def __init__(self, processes: Mapping[str, int], *, pause_s: float | None) -> None:
        self._processes, self._pause_s = processes, pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.highest_mib: dict[str, float] = {}

    def __enter__(self) -> "MemoryWatch":
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._stop.wait(self._pause_s):
            self._look()

    def _look(self) -> None:
        for label, mib in memory_mib(self._processes).items():
            self.highest_mib[label] = max(mib, self.highest_mib.get(label, 0.0))


def family(pid: int) -> list[psutil.Process]:
    """A process and all its children; none if it has ended."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def role(process: psutil.Process, label: str) -> str:
    """What a process does that belongs to the one called `label`: one of ROLES, or `label`."""
    if label != "service":
        return label
    with suppress(psutil.NoSuchProcess):
        words = " ".join(process.cmdline())
        for mark, role in ROLES.items():
            if mark in words:
                return role
    return label


def _cpu_s(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def _pss_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
