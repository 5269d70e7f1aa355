"""Opens a client's transport to an installation on Kafka, on Redis alone, or on both."""

from typing import TYPE_CHECKING, Any

from sendlater.errors import BadSettings, Unavailable
from sendlater.operations.transport import Transport

if TYPE_CHECKING:
    from sendlater.config import Settings


REDIS_SCHEMES = ("redis://", "rediss://", "unix://", "redis+cluster://")
HTTP_SCHEMES = ("http://", "https://")


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
