"""The command that runs handlers."""

import asyncio
import os
import signal
import sys
import threading
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from sendlater.cli.connection import INTERRUPTED, OK, AtLeastOne, app, err
from sendlater.errors import BadRequest

if TYPE_CHECKING:
    from sendlater.client.handlers import Handlers
RELOAD_S = 10
"""How long handlers may take to finish before a changed program is started."""

IDLE_S = 0.2
"""Within this time a thread ends that runs no handler."""


@app.command
def worker(
    target: str,
    *,
    concurrency: AtLeastOne | None = None,
    health: str | None = None,
    reload: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run handlers until SIGTERM or SIGINT; those that have begun finish first.

    A second signal ends the process at once: what was being handled is handled again.

    Args:
        target: `package.module:app`, an object of class Handlers. Searched here first.
        concurrency: How many events of a type at once, in place of each handler's parallelism.
        health: host:port of GET /healthz and /metrics.
        reload: Start again when a Python file here changes, for development.
    """
    if reload:
        _run_again_on_changes(target, concurrency=concurrency, health=health)
    else:
        _run(target, concurrency=concurrency, health=health)
    return OK


def _run(target: str, *, concurrency: int | None, health: str | None) -> None:
    from sendlater.config import load
    from sendlater.logs import configure

    configure(load())
    asyncio.run(_work(loaded(target), concurrency=concurrency, health=health))
    _leave_stuck()


def _leave_stuck() -> None:
    """Python would wait at its exit for a plain function that hangs, whose time is over."""
    from sendlater.client.event_worker import HANDLES

    mine = [thread for thread in threading.enumerate() if thread.name.startswith(HANDLES)]
    for thread in mine:
        thread.join(IDLE_S)
    if any(thread.is_alive() for thread in mine):
        err.print("stopped: a handler has not ended in time, and is left; its event comes again")
        sys.stdout.flush()
        os._exit(OK)


def _run_again_on_changes(target: str, **flags: Any) -> None:
    from watchfiles import PythonFilter, run_process

    run_process(
        Path.cwd(),
        target=_run,
        args=(target,),
        kwargs=flags,
        callback=lambda changes: err.print(f"{len(changes)} files changed: starting again"),
        watch_filter=PythonFilter(),
        sigint_timeout=RELOAD_S,
    )


def loaded(target: str) -> "Handlers":
    """The Handlers that `package.module:name` names. Raises BadRequest."""
    from sendlater.client.handlers import Handlers

    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise BadRequest(f"expected package.module:app, got {target!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that their module imports
        raise BadRequest(f"{target}: there is no module {error.name!r} here") from error
    app = getattr(found, name, None)
    if not isinstance(app, Handlers):
        raise BadRequest(f"{target}: expected Handlers, got {type(app).__name__}")
    return app


async def _work(handlers: "Handlers", *, concurrency: int | None, health: str | None) -> None:
    from sendlater.client.health_server import HealthServer

    stop = asyncio.Event()

    def asked() -> None:
        if stop.is_set():
            os._exit(INTERRUPTED)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked)
    with ExitStack() as doors:
        try:
            await handlers.start(parallelism=concurrency)
            if health is not None:
                server = HealthServer(health, handlers)
                doors.callback(server.close)
            err.print(f"sendlater worker is ready: {', '.join(sorted(handlers.tallies()))}")
            await stop.wait()
            err.print("stopping: finishing what has begun")
        finally:
            await handlers.close()
