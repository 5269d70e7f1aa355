"""Commands that start servers for trials and tests: Kafka, the demo."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sendlater.cli.bench import _unbalanced
from sendlater.cli.connection import (
    FAILED,
    HERE,
    OK,
    AtLeastOne,
    Connection,
    Json,
    Port,
    Positive,
    app,
    err,
    out,
)
from sendlater.cli.signals import stop_on_signals
from sendlater.config import load
from sendlater.errors import BadRequest


@app.command
def kafka(*, port: Port = 9092, data_dir: Path | None = None) -> int:
    """Run a real single-node Kafka in the foreground, for trials and tests.

    Args:
        port: Port on 127.0.0.1.
        data_dir: Directory for its data.
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
    """Run a complete installation here, send messages through it and show how late they arrive.

    Args:
        count: Messages to send. Default: until interrupted.
        rate: Messages a second.
        exit: End once all have arrived; exit code 1 if any was lost, early or duplicated.
        data_dir: Directory for the data of the embedded Redis.
    """
    if exit and count is None:
        raise BadRequest("demo: expected --count with --exit, got --exit alone")
    from sendlater.bench.demo import run

    settings = connection.settings_here(data_dir=data_dir)
    stop = stop_on_signals()
    result = run(settings, count=count, rate=rate, exit_when_done=exit, stop=stop, console=err)
    if not err.is_terminal:
        err.print()  # the live display ends without a line feed there
    if json_:
        out.print(json.dumps(result))
    return FAILED if _unbalanced(result) else OK
