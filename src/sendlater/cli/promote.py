"""The command that moves a space to the service that stands by."""

import time

from sendlater.cli.connection import HERE, OK, Connection, app, err
from sendlater.errors import Unavailable

TIMEOUT_S = 30.0
"""Longest wait for the handover; the active service looks once a second whether it is asked."""
WATCH_S = 0.05


@app.command
def promote(*, connection: Connection = HERE) -> int:
    """Ask the active service to hand the space over to the one that stands by, and wait for it."""
    from sendlater.local.redis_server import embedded_url
    from sendlater.store import Pending, succession

    settings = connection.settings_here()
    url = settings.redis.get_secret_value() or embedded_url(settings.data_dir)
    if not url:
        raise Unavailable("no Redis is configured and no embedded one is running")
    pending = Pending.open(url, space=settings.space, shards=settings.shards)
    before = pending.owner()
    if not succession.ask(pending):
        raise Unavailable("no service stands by and is ready; start one with stand_by = true")
    deadline_s = time.monotonic() + TIMEOUT_S
    while pending.owner() == before:
        if time.monotonic() > deadline_s:
            raise Unavailable(f"not handed over within {TIMEOUT_S:.0f} s; deliveries go on")
        time.sleep(WATCH_S)
    err.print(f"space {settings.space!r} was handed over", highlight=False)
    return OK
