"""Graphile Worker: a queue for Node in PostgreSQL."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers import NODE, install_node, node_versions
from bench.system import Servers, System, launched, run
from sendlater.errors import MissingTool
from sendlater.local.process import LOOPBACK, free_ports

DEBIAN = "usr/lib/postgresql/*/bin"
"""Where Debian has the programs of each version, outside of the path."""
USER = "postgres"
"""The server refuses to be root, so it is this one then; Debian's package makes it."""
READY = "database system is ready to accept connections"
SHARED_BUFFERS = "1GB"


def _program(name: str) -> str:
    """A program of the newest version; raises MissingTool."""
    debian = sorted(Path("/").glob(f"{DEBIAN}/{name}"), key=lambda path: int(path.parts[-3]))
    found = shutil.which(name) or next(map(str, reversed(debian)), None)
    if found is None:
        raise MissingTool(f"expected PostgreSQL's {name}, found none: apt-get install postgresql")
    return found


def _unprivileged(*command: str) -> list[str]:
    """The command, as USER if this is root."""
    ids = (f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
    return [*(("setpriv", *ids) if os.geteuid() == 0 else ()), *command]


@contextmanager
def _servers(directory: Path) -> Iterator[Servers]:
    data, port = directory / "postgresql", free_ports(1)[0]
    log = directory / f"postgresql-{port}.log"
    directory.chmod(0o711)  # another user's data is in it
    if not data.exists():
        data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            shutil.chown(data, USER, USER)
        made = (f"--pgdata={data}", f"--username={USER}", "--auth=trust", "--encoding=UTF8")
        run(_unprivileged(_program("initdb"), *made, "--locale=C"), cwd=Path("/"))
    options = (f"--port={port}", f"--listen_addresses={LOOPBACK}", "--unix_socket_directories=")
    command = _unprivileged(_program("postgres"), "-D", str(data), *options)
    command.append(f"--shared_buffers={SHARED_BUFFERS}")
    with launched(directory, command, log=log, ready=READY, name="PostgreSQL") as pid:
        url = f"postgres://{USER}@{LOOPBACK}:{port}/postgres"
        # The queue's tables: sender and receiver would both make them.
        program = NODE / "node_modules" / ".bin" / "graphile-worker"
        run([program, "--schema-only", "--connection", url], cwd=NODE)
        yield Servers({"BENCH_URL": url}, {"store": pid})


def _versions() -> dict[str, str]:
    told = run([_program("postgres"), "--version"], cwd=Path("/"))
    return {**node_versions("graphile-worker"), "postgres": told.split()[2]}


SYSTEM = System(
    name="Graphile Worker",
    settings={
        "PostgreSQL fsync, synchronous_commit": "on, the defaults: what is accepted is on the disk",
        "PostgreSQL shared_buffers": f"{SHARED_BUFFERS} in place of 128MB: the documentation begins"
        " with a quarter of memory, and others run beside it",
        "pollInterval": "10 ms in place of 2 s, for milliseconds' lateness",
        "concurrentJobs": "64 in one worker; the handler only notes the time",
        "localQueue.size": "500: jobs are fetched at once, as its page on performance says",
        "completeJobBatchDelay, failJobBatchDelay": "0: told at once, by the same page",
        "enqueue": "addJobs of what is there, at most 1,000",
        "move, cancel": "a job with the same jobKey; remove_job",
    },
    versions=_versions,
    sender=["node", str(NODE / "graphile.mjs"), "send"],
    receiver=["node", str(NODE / "graphile.mjs"), "receive"],
    servers=_servers,
    install=install_node,
    sends_per_s=4_000,
)
