"""The command that changes the number of shards of a space, or the servers they are on."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sendlater.cli.connection import HERE, OK, Connection, Whole, app, err
from sendlater.errors import NotSupported, Unavailable

LEASES = ("lease:heir", "lease:leaving")
WATCH_S = 0.25
"""Pause between two attempts to get the lease of a service or command that has died."""


@app.command
def reshard(
    *,
    shards: Annotated[Whole, Parameter(validator=Number(gte=1, lte=64))],
    redis_to: str | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    connection: Connection = HERE,
) -> int:
    """Change the number of shards of a space, or its Redis servers, while no service runs.

    Killed at any point and run again it goes on; until it has ended, no service starts. The number
    that the space has gives an unfinished copy up.

    Args:
        shards: The number of shards that the space will have.
        redis_to: The Redis URLs it will lie on, separated by commas. Without it: where it is.
        dry_run: Say what would be done, and whether it can be.
    """
    from sendlater.local.redis_server import embedded_url
    from sendlater.store.connection import connect
    from sendlater.store.reshard import Reshard

    settings = connection.settings_here()
    if settings.pending == "buckets":
        raise NotSupported("reshard: time buckets have no shards in Redis")
    url = settings.redis.get_secret_value() or embedded_url(settings.data_dir)
    if not url:
        raise Unavailable("no Redis is configured and no embedded one is running")
    old = connect(url)
    new = old if redis_to is None else connect(redis_to)
    with _progress() as told:
        work = Reshard(old, new, space=settings.space, shards=shards, told=told.done)
        told.total(0 if work.goes_on else work.pending.counts()["pending"])
        moves = f"{work.shards_from} shards on {len(old)} servers -> {shards} on {len(new)}"
        err.print(f"space {settings.space!r}: {moves}")
        if dry_run:
            _require_nobody(work.pending)
            _tell(work)
            return OK
        with _alone(url, settings, work.pending):
            if not work.stays:
                work.run()
                then = f"set shards = {shards}" + (
                    ", and redis to the new servers" * bool(redis_to)
                )
            elif work.plan is not None:
                work.leave()
                then = "the unfinished copy is given up"
            else:
                then = "nothing was to be changed"
    err.print(f"done: {then}")
    return OK


def _tell(work: Any) -> None:
    """What a run would do. Raises what it would raise."""
    from sendlater.store import Admin

    if work.stays:
        err.print("nothing would change" if work.plan is None else "the copy would be given up")
    elif work.goes_on:
        err.print(f"an earlier run has copied everything; its step `{work.plan.stage}` is left")
    else:
        work.require_ready()
        used, most = Admin(work.pending).fullest()
        told = f" of {most / 2**20:,.0f}" if most else ""
        err.print(
            f"{work.pending.counts()['pending']:,} schedules would be copied, then the old ones "
            f"removed. Redis uses {used / 2**20:,.0f}{told} MiB; the copy takes as much as the "
            "space does now, until the end"
        )


def _require_nobody(pending: Any) -> None:
    """Raises Unavailable while a service has, or waits for, the space."""
    from sendlater.store.at_work import lease_keys, services
    from sendlater.store.connection import answering

    found = services(pending, now_ms=time.time_ns() // 1_000_000)
    with answering():
        keys = [lease_keys(pending.space, one)["lease"] for one in LEASES]
        more = [told.decode() for key in keys if (told := pending.client.get(key))]
    at_work = [*filter(None, [found.active]), *found.standby, *more]
    if at_work:
        raise Unavailable(f"stop every service of the space first: {', '.join(at_work)}")


@contextmanager
def _alone(url: str, settings: Any, pending: Any) -> Iterator[None]:
    """Hold the lease, so that no second command works beside this one."""
    from sendlater.store.lease import Lease

    deadline_s = time.monotonic() + 1.5 * settings.lease_ms / 1_000
    lease = Lease(url, space=settings.space, lease_ms=settings.lease_ms, key="lease:reshard")
    while not lease.acquire():
        if time.monotonic() > deadline_s:
            raise Unavailable("another `sendlater reshard` is at work on this space")
        time.sleep(WATCH_S)
    try:
        while True:
            try:
                _require_nobody(pending)
                break
            except Unavailable:
                # One that was killed a moment ago still has its lease.
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(WATCH_S)
        yield
    finally:
        lease.release()


class _Told:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bar = progress.add_task("copying", total=None, visible=False)

    def total(self, count: int) -> None:
        self._progress.update(self._bar, total=count, visible=count > 0)

    def done(self, count: int) -> None:
        self._progress.update(self._bar, completed=count)


@contextmanager
def _progress() -> Iterator[_Told]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err) as progress:
        yield _Told(progress)
