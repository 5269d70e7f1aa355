"""The command that fills the store from its journals, and its progress bar."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

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

from sendlater.cli.connection import (
    HERE,
    OK,
    Connection,
    app,
    err,
    etf1_settings,
)
from sendlater.errors import Unavailable
from sendlater.store.rebuild import JournalCopy

PROGRESS_PAUSE_S = 0.25


@app.command
def rebuild(
    *,
    etf1: Annotated[bool, Parameter(negative="")] = False,
    connection: Connection = HERE,
) -> int:
    """Fill the store again from its journals, for example after a restored backup.

    If a service is running, it rebuilds the store. Otherwise this command does, and nothing is
    delivered meanwhile.

    Args:
        etf1: Use the environment of etf1's kafka-message-scheduler, as `serve --etf1` does.
    """
    from sendlater.local.installation import Installation
    from sendlater.service.service import Service

    settings = connection.settings_here(**(etf1_settings() if etf1 else {}))
    installation = Installation.prepare(settings)
    try:
        service = Service(settings, installation)
        copy = JournalCopy(service.pending, owner=0)
        if service.is_active():
            copy.forget()
            _watch(copy, lambda: copy.is_one() or not service.is_active())
            if not copy.is_one():
                raise Unavailable(
                    "the service ended before the store was rebuilt; its next start rebuilds it"
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


def _watch(copy: JournalCopy, done: Callable[[], bool]) -> None:
    """Show a progress bar with rate and time left until `done`."""
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
