"""Opens a client's transport to an installation: on Kafka, on Redis alone, or over REST."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sendlater.addresses import CA_FILE_VARIABLE, TOKEN_FILE_VARIABLE, URL_VARIABLE
from sendlater.errors import BadSettings, Unavailable
from sendlater.operations.transport import Opens, Transport

if TYPE_CHECKING:
    from sendlater.config import Settings


REDIS_SCHEMES = ("redis://", "rediss://", "unix://", "redis+cluster://")
HTTP_SCHEMES = ("http://", "https://")


def open_transport(
    where: "Settings | Opens | str | None",
    *,
    redis_url: str | None,
    space: str | None,
    token: str | None,
    ca_file: "str | Path | None",
    **settings: Any,
) -> Transport:
    """See Scheduler. Raises BadSettings, StoreUnavailable, BrokerUnavailable."""
    named = redis_url or space or settings
    if where is None and not named:
        where = os.environ.get(URL_VARIABLE) or None
    if where is not None and hasattr(where, "open_transport"):
        if named or token or ca_file:
            raise BadSettings(f"expected {where!r} alone: it has settings of its own")
        return where.open_transport()
    if isinstance(where, str) and where.startswith(HTTP_SCHEMES):
        if named:
            raise BadSettings("over HTTP the server has the settings; expected only a token")
        from sendlater.client.rest_transport import HttpTransport

        trusted = ca_file or os.environ.get(CA_FILE_VARIABLE) or None
        return HttpTransport(where, token=token or _token(), ca_file=trusted)
    if token is not None or ca_file is not None:
        raise BadSettings("token and ca_file: expected with an http:// or https:// address only")
    return _open(where, redis_url, space=space, **settings)


def _token() -> str | None:
    path = os.environ.get(TOKEN_FILE_VARIABLE)
    try:
        return Path(path).read_text().strip() if path else None
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"{TOKEN_FILE_VARIABLE}: cannot read {path}: {error}") from error


def _open(
    where: "Settings | str | None", redis_url: str | None, *, space: str | None, **settings: Any
) -> Transport:
    """A local transport. Raises BadSettings, or Unavailable if it finds no Redis."""
    from sendlater.config import Settings, load
    from sendlater.operations.local_transport import open_local

    if isinstance(where, Settings):
        if space is not None or settings:
            raise BadSettings("expected either a Settings or single settings, got both")
        found = where
    elif where is not None and where.startswith(REDIS_SCHEMES):
        if redis_url is not None:
            raise BadSettings("redis_url: expected one Redis URL, got two")
        found = load(**{"bootstrap_servers": "", "redis": where, "space": space} | settings)
    else:
        found = load(**{"bootstrap_servers": where, "space": space} | settings)
    if found.pending == "buckets":
        return open_local(found, redis_url="")
    url = redis_url or found.redis.get_secret_value()
    if not url:
        from sendlater.local.redis_server import embedded_url

        url = embedded_url(found.data_dir) or ""
    if not url:
        raise Unavailable(
            "no Redis is configured and no embedded one is running: start `sendlater serve`, "
            "or give redis_url="
        )
    return open_local(found, redis_url=url)
