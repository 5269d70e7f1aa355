"""Shared by all commands: the apps, the exit codes, the connection options.

Exit codes: 0 ok, 1 failed, 2 usage or settings, 3 not found, 4 partly failed, 5 cannot connect,
6 a condition does not hold, 130 interrupted.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter, Token
from cyclopts.validators import Number
from rich.console import Console

from sendlater import __version__
from sendlater.config import Settings, load
from sendlater.config_file import CONFIG_FILE_VARIABLE
from sendlater.errors import BadRequest, BrokerUnavailable, Unavailable
from sendlater.logs import configure

OK, FAILED, USAGE, NOT_FOUND, PARTLY, NO_CONNECTION, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
NOT_HELD = 6
BROKER_TIMEOUT_S = 10.0
"""Longest wait for the broker's first answer."""

app = App(
    name="sendlater",
    help="Delivery of Kafka messages at the time you choose.",
    version=__version__,
    result_action="return_value",
)
config_app = App(name="config", help="Settings.")
bench_app = App(name="bench", help="Load tests of the configured installation.")
app.command(config_app)
app.command(bench_app)
# Output contains users' data: `[red]` and `:smile:` in it must stay as they are.
_PLAIN: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False, "soft_wrap": True}
out = Console(**_PLAIN)
err = Console(stderr=True, **_PLAIN)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Connection:
    """The installation; other settings come from the environment and the settings file."""

    bootstrap_servers: str | None = None
    "Kafka brokers, host:port. Empty: topics on Redis."
    redis: str | None = None
    "Redis URL. Empty: the embedded Redis."
    space: str | None = None
    "Key prefix of the installation."
    config: Path | None = None
    "Settings file (TOML)."
    url: str | None = None
    "REST address of the installation, http://host:port, instead of Kafka and Redis."
    token_file: Path | None = None
    "File with the token for --url."

    def require_url_alone(self) -> None:
        """Raises BadRequest if there are other flags beside --url, which nothing would heed."""
        if named := self._named():
            flag = "--" + next(iter(named)).replace("_", "-")
            raise BadRequest(f"expected --url alone: it names the installation, got {flag} too")

    def settings_here(self, **flags: Any) -> Settings:
        """As `settings`, for a command that works on Kafka and Redis themselves. Raises BadRequest
        for --url: it names another installation, maybe."""
        if self.url is not None:
            raise BadRequest("--url: this command works on the installation of the settings only")
        return self.settings(**flags)

    def settings(self, **flags: Any) -> Settings:
        """The effective settings; logging is configured by them. Raises BadSettings."""
        if self.config is not None:
            os.environ[CONFIG_FILE_VARIABLE] = str(self.config)
        settings = load(**flags | self._named())
        configure(settings)
        return settings

    def _named(self) -> dict[str, str]:
        """The settings that flags give."""
        names = ("bootstrap_servers", "redis", "space")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


HERE = Connection()
Json = Annotated[bool, Parameter(name="--json", negative="", help="JSON on standard output.")]


def _whole(_: type, words: Sequence[Token]) -> int:
    """A whole number as it is written: what is none would be rounded. Raises ValueError."""
    text = words[0].value
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"expected a whole number, got {text!r}") from None


Whole = Annotated[int, Parameter(converter=_whole)]
AtLeastOne = Annotated[Whole, Parameter(validator=Number(gte=1))]
Positive = Annotated[float, Parameter(validator=Number(gt=0, lt=inf))]
NotNegative = Annotated[float, Parameter(validator=Number(gte=0, lt=inf))]
Port = Annotated[Whole, Parameter(validator=Number(gte=1, lte=65_535))]


def etf1_settings() -> dict[str, Any]:
    """Settings from the environment of etf1's scheduler."""
    from sendlater.etf1.environment import etf1_flags

    return etf1_flags(os.environ)


@contextmanager
def open_scheduler(connection: Connection, *, store_alone: bool = False) -> Iterator[Any]:
    """A Scheduler for the installation; soon raises Unavailable if it cannot be reached.

    `store_alone`: the broker is not needed, and need not answer.
    """
    from sendlater.client.scheduler import Scheduler
    from sendlater.local.redis_server import embedded_url

    if connection.url is not None:
        connection.require_url_alone()
        with Scheduler(connection.url, token=token_of(connection)) as remote:
            yield remote
        return
    settings = connection.settings()
    url = settings.redis.get_secret_value() or embedded_url(settings.data_dir)
    if not url and settings.pending == "redis":
        raise Unavailable(
            "no Redis is configured and no embedded one is running: start `sendlater serve`, "
            "or give --redis URL"
        )
    if settings.on_kafka:
        settings = settings.model_copy(update={"kafka": {"log_level": "0", **settings.kafka}})
        if not store_alone:
            _require_inboxes(settings)
    with Scheduler(settings, redis_url=url or "") as scheduler:
        yield scheduler


def token_of(connection: Connection) -> str | None:
    """The token for --url. Raises BadRequest if its file cannot be read."""
    path = connection.token_file
    try:
        return None if path is None else path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"--token-file: cannot read {path}: {error}") from error


def _require_inboxes(settings: Settings) -> None:
    """Raises BrokerUnavailable with a clear message; a producer would retry for half a minute."""
    from confluent_kafka import KafkaException

    from sendlater.local.kafka_server import admin

    where = f"Kafka at {settings.bootstrap_servers}"
    try:
        known = admin(settings.bootstrap_servers, settings.kafka).list_topics(
            timeout=BROKER_TIMEOUT_S
        )
    except KafkaException as error:
        raise BrokerUnavailable(f"{where} does not answer: {error.args[0].str()}") from error
    missing = [inbox.topic for inbox in settings.inboxes if inbox.topic not in known.topics]
    if missing:
        raise BrokerUnavailable(
            f"{where} has no topic {', '.join(missing)}: `sendlater serve` creates its inboxes"
        )
