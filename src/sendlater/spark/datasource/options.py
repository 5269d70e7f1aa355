"""Converts a user's options of `format("sendlater")` to settings."""

from collections.abc import Mapping
from typing import Any

from sendlater.config import Settings, load
from sendlater.errors import BadRequest, BadSettings
from sendlater.operations.local_transport import open_pending
from sendlater.store import Pending

CONNECTION = ("bootstrap.servers", "redis.url", "space")
SPARKS_OWN = ("checkpointlocation", "path", "queryname")
"""Options that Spark itself reads and passes on."""
KAFKA = "kafka."
"""Options with this prefix go to the Kafka client; names as in librdkafka."""


def installation(options: Mapping[str, str], *, known: tuple[str, ...]) -> Settings:
    """The settings: from options, otherwise from the driver's environment.

    Raises BadSettings for an unknown option.
    """
    # Spark makes some of the names lower case.
    given = {name.lower(): value for name, value in options.items()}
    unknown = {
        name
        for name in given
        if name not in (*CONNECTION, *SPARKS_OWN, *known) and not name.startswith(KAFKA)
    }
    if unknown:
        raise BadSettings(
            f"expected options {sorted((*CONNECTION, *known, KAFKA + '*'))}, "
            f"got also {sorted(unknown)}"
        )
    flags: dict[str, Any] = {
        "bootstrap_servers": given.get("bootstrap.servers", given.get("kafka.bootstrap.servers")),
        "redis": given.get("redis.url"),
        "space": given.get("space"),
    }
    if "inbox" in given:
        flags["inboxes"] = ({"topic": given["inbox"]},)
    kafka = {
        name.removeprefix(KAFKA): value
        for name, value in given.items()
        if name.startswith(KAFKA) and name != "kafka.bootstrap.servers"
    }
    if kafka:
        flags["kafka"] = kafka
    settings = load(**flags)
    if not settings.redis.get_secret_value():
        raise BadSettings("redis.url: expected a Redis URL in an option or in SENDLATER_REDIS")
    return settings


def store(settings: Settings) -> Pending:
    """The pending store of an installation. Raises StoreUnavailable."""
    return open_pending(settings, settings.redis.get_secret_value())


def count(options: Mapping[str, str], name: str, default: int) -> int:
    """A whole number above zero. Raises BadRequest."""
    text = options.get(name, str(default))
    if not text.isdigit() or not int(text):
        raise BadRequest(f"{name}: expected a whole number above zero, got {text!r}")
    return int(text)
