"""Load tests of an installation: `sendlater bench`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.progress import Progress

from sendlater.addresses import bracketed, host_and_port
from sendlater.cli.connection import (
    FAILED,
    HERE,
    OK,
    AtLeastOne,
    Connection,
    Json,
    NotNegative,
    Positive,
    Whole,
    bench_app,
    err,
    open_scheduler,
    out,
    token_of,
)
from sendlater.client.scheduler import Scheduler
from sendlater.errors import BadRequest


@bench_app.command
def steady(
    *,
    rate: Positive = 2000.0,
    seconds: Positive = 30.0,
    warm_up: NotNegative = 20.0,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """Send a steady stream of schedules, each due 10 s after it is sent.

    Args:
        rate: Schedules a second.
        seconds: How long to measure, after the warm-up.
        warm_up: Seconds at the same rate, not measured; extended while intake is behind.
    """
    from sendlater.bench.load import steady as run

    with open_scheduler(connection) as scheduler, _bars() as tell:
        result = run(scheduler, rate=rate, seconds=seconds, warm_up_s=warm_up, tell=tell)
    return _show_result(result, json_)


@bench_app.command
def burst(
    *,
    count: AtLeastOne = 300_000,
    warm_up: Annotated[Whole, Parameter(validator=Number(gte=0))] = 20_000,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """Send many schedules that are due at the same instant.

    Args:
        count: Number of schedules.
        warm_up: Schedules delivered before, not measured.
    """
    from sendlater.bench.load import burst as run

    with open_scheduler(connection) as scheduler, _bars() as tell:
        result = run(scheduler, count=count, warm_up=warm_up, tell=tell)
    return _show_result(result, json_)


@bench_app.command
def short(
    *,
    delays: str = "0,10,100,300,1000",
    rate: Positive = 50.0,
    seconds: Positive = 20.0,
    warm_up: NotNegative = 20.0,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """Send schedules that are due within a second: to the inbox, with the client, and with REST.

    REST is measured where --url or the setting `http_addr` says where it is.

    Args:
        delays: Milliseconds, separated by commas; they alternate.
        rate: Schedules a second.
        seconds: How long to measure each way, after its warm-up.
        warm_up: Seconds at the same rate, not measured.
    """
    from sendlater.bench.short import short as run

    with (
        _rest_client(connection) as rest_client,
        open_scheduler(replace(connection, url=None)) as scheduler,
        _bars() as tell,
    ):
        result = run(
            scheduler,
            delays_ms=_delays(delays),
            rate=rate,
            seconds=seconds,
            warm_up_s=warm_up,
            rest=rest_client,
            tell=tell,
        )
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
    """Send single POSTs to REST at a steady rate; at the end the schedules are cancelled.

    Default of --url: setting `http_addr`.

    Args:
        rate: POSTs a second.
        seconds: How long to measure, after the warm-up.
        warm_up: Seconds at the same rate, not measured.
        connections: Connections kept open.
    """
    from sendlater.bench.rest import rest as run

    url = _rest_url(connection)
    if url is None:
        raise BadRequest("bench rest: expected --url, or http_addr in the settings")
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


def _rest_url(connection: Connection) -> str | None:
    """Where REST is: --url, or what the settings say."""
    if connection.url is not None:
        return connection.url
    settings = connection.settings()
    if not settings.http_addr:
        return None
    host, port = host_and_port(settings.http_addr, setting="http_addr")
    scheme = "https" if settings.http_cert else "http"
    return f"{scheme}://{bracketed(host)}:{port}"


@contextmanager
def _rest_client(connection: Connection) -> Iterator[Scheduler | None]:
    """A client of REST, where there is one."""
    url = _rest_url(connection)
    if url is None:
        yield None
        return
    with Scheduler(url, token=token_of(connection)) as scheduler:
        yield scheduler


def _delays(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 0:
        raise BadRequest(f"--delays: expected milliseconds as in 0,10,1000, got {text!r}")
    return found


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
    """Number of lost, early and duplicated messages in a result."""
    return int(result["lost"] + result["early"] + result["duplicated"])
