"""The command that runs the service."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from sendlater import __version__
from sendlater.cli.connection import (
    HERE,
    OK,
    Connection,
    Whole,
    app,
    err,
    etf1_settings,
)
from sendlater.cli.signals import stop_on_signals
from sendlater.config import Settings
from sendlater.errors import BadRequest, NotSupported, SendlaterError
from sendlater.local.process import is_free


@app.command
def serve(
    *,
    connection: Connection = HERE,
    shards: Whole | None = None,
    lanes: Whole | None = None,
    data_dir: Path | None = None,
    metrics_addr: str | None = None,
    http: Annotated[str | None, Parameter(name="--http")] = None,
    pending: Literal["redis", "buckets"] | None = None,
    etf1: Annotated[bool, Parameter(negative="")] = False,
    mini: Annotated[bool, Parameter(negative="")] = False,
    take_over: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run the service until SIGTERM or SIGINT; a second signal ends it at once.

    Args:
        shards: Parts of the pending store; see `sendlater reshard`.
        lanes: Overlapping delivery queries.
        data_dir: Directory for the data of the embedded Redis.
        metrics_addr: host:port of Prometheus metrics.
        http: host:port of REST and the page. Default: setting http_addr.
        pending: Where schedules wait: in Redis, or (buckets) in Kafka alone.
        etf1: Use the environment of etf1's kafka-message-scheduler, and serve its REST API.
        mini: Serve that REST API only, with three schedules that renew themselves.
        take_over: Get ready, then ask the active service for the space; it hands over and ends.
    """
    from sendlater.doctor import store_troubles
    from sendlater.local.installation import Installation
    from sendlater.service.bucket_service import BucketService
    from sendlater.service.service import Service
    from sendlater.service.submitted import as_submitted, end_with_jvm, is_submitted

    settings = connection.settings_here(
        shards=shards,
        lanes=lanes,
        data_dir=data_dir,
        metrics_addr=metrics_addr,
        http_addr=http,
        pending=pending,
        **(etf1_settings() if etf1 or mini else {}),
    )
    stop = stop_on_signals()
    if mini:
        return _serve_mini(settings, stop)
    java_home = None
    if is_submitted():
        settings, java_home = as_submitted(settings), Path(os.environ.get("JAVA_HOME", "/"))
        end_with_jvm(stop)
    installation = Installation.prepare(settings, java_home=java_home)
    doors = ExitStack()
    try:
        if settings.pending == "redis":
            for trouble in store_troubles(installation.redis_url):
                told = f"warning: {trouble.name}: {trouble.found}. {trouble.mend}"
                err.print(told, style="yellow")
        ready = threading.Event()
        waits = take_over or settings.stands_by
        doors.enter_context(_http(settings, installation.redis_url, ready, waits=waits))
        if settings.pending == "buckets":
            if take_over:
                raise NotSupported("--take-over: time buckets have no service that stands by")
            service: Service | BucketService = BucketService(settings, installation)
        else:
            service = Service(settings, installation, etf1=os.environ if etf1 else None)
        _run(service, stop, ready, **({"take_over": True} if take_over else {}))
    finally:
        doors.close()
        installation.close()
    return OK


def _run(service: Any, stop: threading.Event, ready: threading.Event, **how: bool) -> None:
    """Start the service, run it from `ready` until `stop`, and stop it gracefully; at once after an
    error."""
    try:
        if not service.start(stop=stop, on_standby=_stands_by, **how):
            service.close()
            return
        where = service.settings.bootstrap_servers or "topics on Redis"
        ready.set()
        err.print(f"sendlater {__version__} is ready: space {service.settings.space!r}, {where}")
        service.watch(stop)
        err.print("stopping: finishing what is claimed")
        service.stop()
    except BaseException:
        service.close()
        raise


def _serve_mini(settings: Settings, stop: threading.Event) -> int:
    from sendlater.etf1.http import Etf1Server
    from sendlater.etf1.mini import Mini

    server = Etf1Server(settings, Mini(), environment=os.environ)
    err.print(f"sendlater {__version__} is ready: three schedules at {server.server_address}")
    stop.wait()
    server.close()
    return OK


def _stands_by() -> None:
    err.print(f"sendlater {__version__} stands by: another service is active")


@contextmanager
def _http(settings: Any, redis_url: str, ready: threading.Event, *, waits: bool) -> Iterator[None]:
    """REST and the page, if an address is set; started again whenever they end by themselves. Until
    the service is `ready`, they know that it starts. `waits`: on the same host the last service may
    have the address until it has handed over."""
    if not settings.http_addr:
        yield
        return
    from sendlater.server.app import address_of
    from sendlater.server.process import HttpProcess
    from sendlater.service.supervision import WATCH_S, Loop, Worker

    def start() -> HttpProcess:
        process = HttpProcess(settings, redis_url=redis_url, starting=not ready.is_set())
        err.print(f"page and REST at {process.url}", highlight=False)
        return process

    def look_after() -> float:
        if rest.query is None and waits and not is_free(*address_of(settings)):
            return WATCH_S
        rest.look_after(time.monotonic(), delay_s_max=settings.restart_delay_ms_max / 1_000)
        return WATCH_S

    rest = Worker("REST", start)
    try:
        rest.begin()
    except SendlaterError as error:
        if not waits or isinstance(error, BadRequest):
            raise
        err.print(f"the page and REST will be tried again: {error}", highlight=False)
    watch = Loop("rest", look_after)
    try:
        yield
    finally:
        watch.stop()
        if rest.query is not None:
            rest.query.stop()
