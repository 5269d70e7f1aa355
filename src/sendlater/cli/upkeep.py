"""Commands that look after an installation: doctor, config."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from sendlater.cli.door import (
    FAILED,
    HERE,
    OK,
    Connection,
    Json,
    app,
    config_app,
    err,
    etf1_settings,
    out,
)
from sendlater.errors import Unavailable
from sendlater.pending.takeover import Copy

PROGRESS_PAUSE_S = 0.25


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
            out.print(json.dumps(row))
        else:
            out.print(f"{mark:5} {finding.name}: {finding.found}")
            if finding.ok is not True and finding.mend:
                out.print(f"      {finding.mend}")
    return worst


@app.command
def token(name: str, *, role: Literal["read", "write", "admin"] = "read") -> int:
    """Make a token for REST and the page: it is shown once, its line goes into http_tokens.

    Args:
        name: Whose it is; shown in the audit trail.
        role: read looks, write changes single schedules, admin changes many and undoes.
    """
    from sendlater.api.access import new_token

    made, line = new_token(name, role)
    out.print(line)
    err.print(f"the token, shown only now: {made}")
    return OK


@app.command
def rebuild(
    *,
    etf1: Annotated[bool, Parameter(negative="")] = False,
    connection: Connection = HERE,
) -> int:
    """Fill the store anew from its journals, for example after a restored backup.

    A running service does it when asked so; without one it is done here, and nothing is delivered
    meanwhile.

    Args:
        etf1: Take the environment of an etf1 kafka-message-scheduler, as `serve --etf1` does.
    """
    from sendlater.local.installation import Installation
    from sendlater.service import Service

    settings = connection.settings(**(etf1_settings() if etf1 else {}))
    installation = Installation.prepare(settings)
    try:
        service = Service(settings, installation)
        copy = Copy(service.pending, owner=0)
        if service.is_active():
            copy.forget()
            _watch(copy, lambda: copy.is_one() or not service.is_active())
            if not copy.is_one():
                raise Unavailable(
                    "the service ended before the store was rebuilt; its next start does"
                )
        else:
            with ThreadPoolExecutor(1) as pool:
                work = pool.submit(service.rebuild)
                _watch(copy, work.done)
                work.result()
    finally:
        installation.close()
    pending = service.pending.counts()["pending"]
    err.print(f"the store is rebuilt: {pending:,} schedules are pending", highlight=False)
    return OK


class _Rate(ProgressColumn):
    """Records a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:,.0f}/s")


def _watch(copy: Copy, done: Callable[[], bool]) -> None:
    """A bar with rate and time left until `done`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err) as progress:
        bar = progress.add_task("reading the journals", total=None)
        while not done():
            told = copy.progress()
            if told:
                progress.update(bar, completed=int(told["done"]), total=int(told["total"]))
            time.sleep(PROGRESS_PAUSE_S)


@config_app.command(name="show")
def config_show(*, connection: Connection = HERE) -> int:
    """Print the effective settings as JSON, secrets hidden."""
    out.print(json.dumps(connection.settings().shown(), indent=2))
    return OK
