"""The command line. Data on stdout, talk on stderr; doors hold no rules.

Exit codes: 0 ok, 1 failed, 2 usage or settings, 3 not found, 4 partly failed, 5 cannot connect,
130 interrupted.
"""

import base64
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from sendlater import __version__
from sendlater.config import CONFIG_FILE_VARIABLE, Settings, load
from sendlater.errors import BadRequest, SendlaterError, Stopped, Unavailable
from sendlater.limits import PAGE_COUNT_MAX
from sendlater.model import Cancelled, Schedule

OK, FAILED, USAGE, NOT_FOUND, PARTLY, NO_CONNECTION, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

app = App(
    name="sendlater",
    help="Delivery of Kafka messages at the time you choose.",
    version=__version__,
    result_action="return_value",
)
config_app = App(name="config", help="Settings.")
bench_app = App(name="bench", help="Loads against the configured installation.")
app.command(config_app)
app.command(bench_app)
out = Console(file=sys.stdout, soft_wrap=True)
err = Console(file=sys.stderr)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Connection:
    """Which installation: the rest comes from the environment and the settings file."""

    bootstrap_servers: str | None = None
    "Kafka brokers, host:port; without: topics on Redis."
    redis: str | None = None
    "Redis URL; without: the embedded server."
    space: str | None = None
    "Key prefix of the installation."
    config: Path | None = None
    "Settings file (TOML)."

    def settings(self, **flags: Any) -> Settings:
        """The effective settings. Raises BadSettings."""
        if self.config is not None:
            os.environ[CONFIG_FILE_VARIABLE] = str(self.config)
        return load(
            bootstrap_servers=self.bootstrap_servers,
            redis=self.redis,
            space=self.space,
            **flags,
        )


HERE = Connection()
Json = Annotated[bool, Parameter(name="--json", negative="")]


# --- services -----------------------------------------------------------------------------------


@app.command
def serve(
    *,
    connection: Connection = HERE,
    shards: int | None = None,
    lanes: int | None = None,
    data_dir: Path | None = None,
    metrics_addr: str | None = None,
) -> int:
    """Run the service until SIGTERM or SIGINT; a second one ends it at once."""
    from sendlater.local.installation import Installation
    from sendlater.service import Service

    settings = connection.settings(
        shards=shards, lanes=lanes, data_dir=data_dir, metrics_addr=metrics_addr
    )
    stop = _stop_on_signals()
    installation = Installation.prepare(settings)
    try:
        service = Service(settings, installation)
        try:
            service.start()
            where = settings.bootstrap_servers or "topics on Redis"
            err.print(f"sendlater {__version__} is ready: space {settings.space!r}, {where}")
            service.watch(stop)
            err.print("stopping: finishing what is claimed")
            service.stop()
        except BaseException:
            service.close()
            raise
    finally:
        installation.close()
    return OK


@app.command
def kafka(*, port: int = 9092, data_dir: Path | None = None) -> int:
    """Run a real single-node Kafka in the foreground, for trying and for tests."""
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
    count: int | None = None,
    rate: float = 20.0,
    exit: Annotated[bool, Parameter(negative="")] = False,
    json_: Json = False,
    connection: Connection = HERE,
    data_dir: Path | None = None,
) -> int:
    """Run a whole installation here, send messages through it and show how late they arrive.

    Parameters
    ----------
    count: Messages to send; without: until interrupted.
    rate: Messages a second.
    exit: End once all have arrived; exit code 1 if any was lost, early or doubled.
    json_: Print one JSON object, on the last line.
    """
    from sendlater.bench.demo import run

    settings = connection.settings(data_dir=data_dir)
    stop = _stop_on_signals()
    result = run(settings, count=count, rate=rate, exit_when_done=exit, stop=stop, console=err)
    if json_:
        out.print(json.dumps(result), highlight=False)
    bad = result["lost"] + result["early"] + result["duplicated"]
    return FAILED if bad else OK


@bench_app.command
def steady(
    *,
    rate: float = 2000.0,
    seconds: float = 30.0,
    warm_up: float = 10.0,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """A steady stream of schedules, each due 3 s after it is sent.

    Parameters
    ----------
    rate: Schedules a second.
    seconds: How long, after the warm-up.
    warm_up: Seconds at the same rate that are not measured.
    """
    from sendlater.bench.load import steady as run

    with _scheduler(connection) as scheduler, _bars() as tell:
        result = run(scheduler, rate=rate, seconds=seconds, warm_up_s=warm_up, tell=tell)
    return _show_result(result, json_)


@bench_app.command
def burst(
    *,
    count: int = 300_000,
    warm_up: int = 20_000,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """Many schedules due in one instant.

    Parameters
    ----------
    count: How many.
    warm_up: Schedules delivered before, not measured.
    """
    from sendlater.bench.load import burst as run

    with _scheduler(connection) as scheduler, _bars() as tell:
        result = run(scheduler, count=count, warm_up=warm_up, tell=tell)
    return _show_result(result, json_)


# --- schedules ----------------------------------------------------------------------------------


@app.command
def send(
    topic: str | None = None,
    value: str | None = None,
    *,
    key: Annotated[str | None, Parameter(alias="-k")] = None,
    header: Annotated[list[str] | None, Parameter(alias="-H", negative="")] = None,
    delay: str | None = None,
    at: str | None = None,
    id: str | None = None,
    partition: int | None = None,
    jsonl: Path | None = None,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """Schedule a message, or many from a file.

    Parameters
    ----------
    topic: Target topic.
    value: Payload; `-` reads standard input.
    header: `name=value`; may be repeated.
    delay: 90, 1.5, 15m, 2h30m or PT15M.
    at: An instant with a time zone, 2026-12-01T09:00:00+01:00, or epoch seconds.
    id: Identity of the schedule: the same id again replaces it. Default: a new one.
    jsonl: One JSON object a line: topic, value, and optionally key, headers, delay or at, id,
        partition. `-` reads standard input.
    """
    from sendlater.client.send import SendRequest, read_lines

    with _scheduler(connection) as scheduler:
        if jsonl is not None:
            return _send_file(scheduler, jsonl, read_lines)
        if topic is None or value is None:
            raise BadRequest("send: expected TOPIC and VALUE, or --jsonl FILE")
        payload = sys.stdin.buffer.read() if value == "-" else value.encode()
        request = SendRequest(
            topic=topic,
            value=payload,
            key=key,
            headers=header or [],
            delay=delay,
            at=at,
            id=id,
            partition=partition,
        )
        sent = request.send(scheduler)
        scheduler.flush()
    if json_:
        out.print(json.dumps({"id": sent.id, "due_ms": sent.due_ms}), highlight=False)
    else:
        out.print(sent.id, highlight=False)
        err.print(f"due {_time(sent.due_ms)}")
    return OK


def _send_file(scheduler: Any, path: Path, read_lines: Any) -> int:
    """Send every good line; bad ones are told with their number."""
    stream = sys.stdin.buffer if str(path) == "-" else path.open("rb")
    size = None if str(path) == "-" else path.stat().st_size
    sent, bad = 0, 0
    with Progress(console=err, transient=True) as progress:
        bar = progress.add_task("sending", total=size)
        for number, line, request in read_lines(stream):
            progress.advance(bar, len(line))
            try:
                if isinstance(request, BadRequest):
                    raise request
                request.send(scheduler)
                sent += 1
            except BadRequest as error:
                bad += 1
                err.print(f"line {number}: {error}", style="red", highlight=False)
        scheduler.flush()
    err.print(f"{sent} sent, {bad} refused")
    out.print(sent, highlight=False)
    return OK if not bad else PARTLY if sent else FAILED


@app.command
def cancel(*ids: str, json_: Json = False, connection: Connection = HERE) -> int:
    """Take schedules back: cancelled, delivering (too late) or unknown."""
    if not ids:
        raise BadRequest("cancel: expected at least one id")
    with _scheduler(connection) as scheduler:
        answers = {name: scheduler.cancel(name) for name in ids}
    for name, answer in answers.items():
        if not json_:
            out.print(f"{name}\t{answer}", highlight=False)
    if json_:
        out.print(json.dumps(answers), highlight=False)
    done = sum(answer is Cancelled.CANCELLED for answer in answers.values())
    return OK if done == len(answers) else PARTLY if done else NOT_FOUND


@app.command
def get(id: str, *, json_: Json = False, connection: Connection = HERE) -> int:
    """Show one pending or claimed schedule."""
    with _scheduler(connection) as scheduler:
        schedule = scheduler.get(id)
    if schedule is None:
        err.print(f"{id}: neither pending nor claimed", highlight=False)
        return NOT_FOUND
    shown = as_json(schedule)
    if json_:
        out.print(json.dumps(shown), highlight=False)
    else:
        for name, value in shown.items():
            out.print(f"{name:14} {value}", highlight=False)
    return OK


@app.command(name="list")
def list_(
    *,
    due_after: str | None = None,
    due_before: str | None = None,
    limit: int = 100,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """Pending schedules in due order.

    Parameters
    ----------
    due_after: An instant, `+15m` from now, or epoch seconds.
    due_before: The same; not included.
    limit: Most to show.
    """
    from sendlater.dialects import instant_ms

    now_ms = time.time_ns() // 1_000_000
    low = instant_ms(due_after, now_ms=now_ms) if due_after else 0
    high = instant_ms(due_before, now_ms=now_ms) - 1 if due_before else None
    table = Table("id", "due", "target", "bytes", box=None)
    shown = 0
    after: tuple[int, bytes] | None = None
    with _scheduler(connection) as scheduler:
        while shown < limit:
            page = scheduler.pending.list(
                count_max=min(limit - shown, PAGE_COUNT_MAX), from_ms=low, to_ms=high, after=after
            )
            if not page:
                break
            for schedule in page:
                size = len(schedule.record.value or b"")
                if json_:
                    out.print(json.dumps(as_json(schedule)), highlight=False)
                else:
                    name = schedule.id.decode(errors="backslashreplace")
                    table.add_row(name, _time(schedule.due_ms), schedule.record.topic, str(size))
            shown += len(page)
            after = (page[-1].due_ms, page[-1].id)
    if not json_ and shown:
        out.print(table)
    err.print(f"{shown} shown")
    return OK


@app.command
def stats(*, json_: Json = False, connection: Connection = HERE) -> int:
    """True counts of the pending store."""
    with _scheduler(connection) as scheduler:
        counts: dict[str, Any] = scheduler.pending.counts()
        counts["oldest_due_ms"] = scheduler.pending.oldest_due_ms()
    counts["delivered"] = max(0, counts["settled"] - counts["rejected"])
    if json_:
        out.print(json.dumps(counts), highlight=False)
    else:
        for name, value in counts.items():
            out.print(f"{name:14} {value}", highlight=False)
    return OK


# --- looking after an installation --------------------------------------------------------------


@app.command
def doctor(*, json_: Json = False, connection: Connection = HERE) -> int:
    """Check what an installation needs, and say how to mend what is missing."""
    from sendlater.doctor import checks

    worst = OK
    for finding in checks(connection.settings()):
        mark = {True: "ok", None: "warn", False: "FAIL"}[finding.ok]
        worst = FAILED if finding.ok is False else worst
        if json_:
            row = {
                "check": finding.name,
                "result": mark.lower(),
                "found": finding.found,
                "mend": finding.mend,
            }
            out.print(json.dumps(row), highlight=False)
        else:
            out.print(f"{mark:5} {finding.name}: {finding.found}", highlight=False)
            if finding.ok is not True and finding.mend:
                out.print(f"      {finding.mend}", highlight=False)
    return worst


@config_app.command(name="show")
def config_show(*, connection: Connection = HERE) -> int:
    """Print the effective settings as JSON, secrets hidden."""
    out.print(json.dumps(connection.settings().shown(), indent=2), highlight=False)
    return OK


# --- shared by the commands ---------------------------------------------------------------------


def as_json(schedule: Schedule) -> dict[str, Any]:
    """A schedule as JSON values: bytes as text where they are UTF-8, else `base64:...`."""
    origin = schedule.origin
    record = schedule.record
    return {
        "id": _text(schedule.id),
        "state": schedule.state.value,
        "due_ms": schedule.due_ms,
        "due": _time(schedule.due_ms),
        "topic": record.topic,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
        "partition": record.partition,
        "origin": f"{origin.topic}/{origin.partition}/{origin.position}" if origin else None,
    }


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()


def _time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return f"{ms} ms"


@contextmanager
def _scheduler(connection: Connection) -> Iterator[Any]:
    from sendlater.client.scheduler import Scheduler
    from sendlater.local.redis_server import embedded_url

    settings = connection.settings()
    url = settings.redis.get_secret_value() or embedded_url(settings.data_dir)
    if not url:
        raise Unavailable(
            "no Redis is configured and no embedded one is running: start `sendlater serve`, "
            "or give --redis URL"
        )
    with Scheduler(settings, redis_url=url) as scheduler:
        yield scheduler


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
    if as_json_:
        out.print(json.dumps(result), highlight=False)
    else:
        for name, value in result.items():
            out.print(f"{name:26} {value}", highlight=False)
    return FAILED if result["lost"] or result["early"] else OK


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


def main() -> None:
    """The entry point: runs a command, and turns errors into a line and an exit code."""
    try:
        code = app()
    except BadRequest as error:
        code = _fail(error, USAGE)
    except Unavailable as error:
        code = _fail(error, NO_CONNECTION)
    except (Stopped, SendlaterError) as error:
        code = _fail(error, FAILED)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = OK
    sys.exit(code if isinstance(code, int) else OK)


def _fail(error: Exception, code: int) -> int:
    err.print(f"sendlater: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
    return code
