"""Commands that run something: the service, a Kafka, the demo, the loads."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.progress import Progress

from sendlater import __version__
from sendlater.cli.door import (
    FAILED,
    HERE,
    INTERRUPTED,
    OK,
    AtLeastOne,
    Connection,
    Json,
    NotNegative,
    Port,
    Positive,
    app,
    bench_app,
    err,
    etf1_settings,
    open_scheduler,
    out,
    token_of,
)
from sendlater.config import Settings, load
from sendlater.errors import BadRequest


@app.command
def serve(
    *,
    connection: Connection = HERE,
    shards: int | None = None,
    lanes: int | None = None,
    data_dir: Path | None = None,
    metrics_addr: str | None = None,
    http: Annotated[str | None, Parameter(name="--http")] = None,
    pending: Literal["redis", "buckets"] | None = None,
    etf1: Annotated[bool, Parameter(negative="")] = False,
    mini: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run the service until SIGTERM or SIGINT; a second one ends it at once.

    Args:
        shards: Parts of the pending store; fixed for the life of a space.
        lanes: Delivery queries that overlap.
        data_dir: Where the embedded Redis keeps its data.
        metrics_addr: host:port of Prometheus metrics.
        http: host:port of REST and the page; without: neither.
        pending: Where schedules wait: in Redis, or (buckets) in Kafka alone.
        etf1: Take the environment of an etf1 kafka-message-scheduler, and serve its REST API.
        mini: Serve that REST API alone, with three schedules that renew themselves.
    """
    from sendlater.bucket_service import BucketService
    from sendlater.doctor import store_troubles
    from sendlater.local.installation import Installation
    from sendlater.service import Service

    settings = connection.settings(
        shards=shards,
        lanes=lanes,
        data_dir=data_dir,
        metrics_addr=metrics_addr,
        http_addr=http,
        pending=pending,
        **(etf1_settings() if etf1 or mini else {}),
    )
    stop = _stop_on_signals()
    if mini:
        return _serve_mini(settings, stop)
    installation = Installation.prepare(settings)
    doors = ExitStack()
    try:
        if settings.pending == "redis":
            for trouble in store_troubles(installation.redis_url):
                told = f"warning: {trouble.name}: {trouble.found}. {trouble.mend}"
                err.print(told, style="yellow")
        doors.enter_context(_http(settings, installation.redis_url))
        if settings.pending == "buckets":
            service: Service | BucketService = BucketService(settings, installation)
        else:
            service = Service(settings, installation, etf1=os.environ if etf1 else None)
        _run(service, stop)
    finally:
        doors.close()
        installation.close()
    return OK


def _run(service: Any, stop: threading.Event) -> None:
    """Start it, keep it running until `stop`, end it gracefully; at once when something fails."""
    try:
        if not service.start(stop=stop, on_standby=_stands_by):
            service.close()
            return
        where = service.settings.bootstrap_servers or "topics on Redis"
        err.print(f"sendlater {__version__} is ready: space {service.settings.space!r}, {where}")
        service.watch(stop)
        err.print("stopping: finishing what is claimed")
        service.stop()
    except BaseException:
        service.close()
        raise


def _serve_mini(settings: Settings, stop: threading.Event) -> int:
    from sendlater.etf1 import Etf1Server, Mini

    server = Etf1Server(settings, Mini(), environment=os.environ)
    err.print(f"sendlater {__version__} is ready: three schedules at {server.server_address}")
    stop.wait()
    server.close()
    return OK


def _stands_by() -> None:
    err.print(f"sendlater {__version__} stands by: another service is active")


@contextmanager
def _http(settings: Any, redis_url: str) -> Iterator[None]:
    """REST and the page, where an address is set."""
    if not settings.http_addr:
        yield
        return
    from sendlater.api.serving import HttpProcess

    process = HttpProcess(settings, redis_url=redis_url)
    err.print(f"page and REST at {process.url}", highlight=False)
    try:
        yield
    finally:
        process.close()


@app.command
def kafka(*, port: Port = 9092, data_dir: Path | None = None) -> int:
    """Run a real single-node Kafka in the foreground, for trying and for tests.

    Args:
        port: Port on 127.0.0.1.
        data_dir: Where its data is kept.
    """
    from sendlater.local.kafka_server import run_in_foreground

    settings = load(data_dir=data_dir)
    run_in_foreground(
        port,
        settings.data_dir,
        cache_dir=settings.cache_dir,
        mirror=settings.maven_mirror,
        ready=lambda server: err.print(f"Kafka is ready at {server.bootstrap_servers}"),
    )
    return OK


@app.command
def demo(
    *,
    count: AtLeastOne | None = None,
    rate: Positive = 20.0,
    exit: Annotated[bool, Parameter(negative="")] = False,
    json_: Json = False,
    connection: Connection = HERE,
    data_dir: Path | None = None,
) -> int:
    """Run a whole installation here, send messages through it and show how late they arrive.

    Args:
        count: Messages to send; without: until interrupted.
        rate: Messages a second.
        exit: End once all have arrived; exit code 1 if any was lost, early or doubled.
        data_dir: Where the embedded Redis keeps its data.
    """
    if exit and count is None:
        raise BadRequest("demo: expected --count with --exit, got --exit alone")
    from sendlater.bench.demo import run

    settings = connection.settings(data_dir=data_dir)
    stop = _stop_on_signals()
    result = run(settings, count=count, rate=rate, exit_when_done=exit, stop=stop, console=err)
    if not err.is_terminal:
        err.print()  # what was drawn live ends without a line feed there
    if json_:
        out.print(json.dumps(result))
    return FAILED if _unbalanced(result) else OK


@bench_app.command
def steady(
    *,
    rate: Positive = 2000.0,
    seconds: Positive = 30.0,
    warm_up: NotNegative = 20.0,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """A steady stream of schedules, each due 10 s after it is sent.

    Args:
        rate: Schedules a second.
        seconds: How long, after the warm-up.
        warm_up: Seconds at the same rate that are not measured; longer while intake is behind.
    """
    from sendlater.bench.load import steady as run

    with open_scheduler(connection) as scheduler, _bars() as tell:
        result = run(scheduler, rate=rate, seconds=seconds, warm_up_s=warm_up, tell=tell)
    return _show_result(result, json_)


@bench_app.command
def burst(
    *,
    count: AtLeastOne = 300_000,
    warm_up: Annotated[int, Parameter(validator=Number(gte=0))] = 20_000,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """Many schedules due in one instant.

    Args:
        count: How many.
        warm_up: Schedules delivered before, not measured.
    """
    from sendlater.bench.load import burst as run

    with open_scheduler(connection) as scheduler, _bars() as tell:
        result = run(scheduler, count=count, warm_up=warm_up, tell=tell)
    return _show_result(result, json_)


@bench_app.command
def rest(
    *,
    rate: Positive = 1_500.0,
    seconds: Positive = 30.0,
    warm_up: NotNegative = 10.0,
    connections: AtLeastOne = 32,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """Single POSTs to REST at a steady rate; what was posted is taken back in the end.

    Without --url it goes to `http_addr` of the settings.

    Args:
        rate: POSTs a second.
        seconds: How long, after the warm-up.
        warm_up: Seconds at the same rate that are not measured.
        connections: Connections that are kept open.
    """
    from sendlater.bench.rest import rest as run

    url = connection.url
    if url is None:
        settings = connection.settings()
        if not settings.http_addr:
            raise BadRequest("bench rest: expected --url, or http_addr in the settings")
        url = f"{'https' if settings.http_cert else 'http'}://{settings.http_addr}"
    result = run(
        url,
        token=token_of(connection),
        rate=rate,
        seconds=seconds,
        warm_up_s=warm_up,
        connections=connections,
    )
    _tell_result(result, json_)
    return FAILED if result["refused"] or result["unanswered"] else OK


@contextmanager
def _bars() -> Iterator[Any]:
    with Progress(console=err, transient=True) as progress:
        sent_bar = progress.add_task("sent", total=None)
        arrived_bar = progress.add_task("arrived", total=None)

        def tell(sent: int, arrived: int) -> None:
            progress.update(sent_bar, completed=sent, total=sent or None)
            progress.update(arrived_bar, completed=arrived, total=sent or None)

        yield tell


def _show_result(result: dict[str, Any], as_json_: bool) -> int:
    _tell_result(result, as_json_)
    return FAILED if _unbalanced(result) else OK


def _tell_result(result: dict[str, Any], as_json_: bool) -> None:
    if as_json_:
        out.print(json.dumps(result))
    else:
        for name, value in result.items():
            out.print(f"{name:26} {value}")


def _unbalanced(result: dict[str, Any]) -> int:
    """Promises broken, of a ledger's account."""
    return int(result["lost"] + result["early"] + result["duplicated"])


def _stop_on_signals() -> threading.Event:
    """Set by the first SIGTERM or SIGINT; the second ends the process at once."""
    stop = threading.Event()

    asked_before: list[int] = []

    def asked(number: int, _frame: Any) -> None:
        if asked_before:
            os._exit(INTERRUPTED)
        asked_before.append(number)
        # Not from here: the interrupted main thread may hold the event's lock.
        threading.Thread(target=stop.set).start()

    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGINT, asked)
    return stop
