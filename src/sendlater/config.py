"""All settings, with unit, default and limits.

Precedence: command-line flags, then `SENDLATER_*` environment, then secret files, then the TOML
file, then the default.
"""

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self

import durationpy
import platformdirs
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from sendlater.addresses import redis_urls
from sendlater.config_environment import ENV_PREFIX, unknown_variable
from sendlater.config_file import FileSettings, secret_files
from sendlater.config_secrets import hide_secrets
from sendlater.config_tables import Inbox, Limit, TopicName
from sendlater.errors import BadSettings
from sendlater.limits import CLAIM_COUNT_MAX, HORIZON_MS_MIN, LANES_MAX, LIMITS_COUNT_MAX


def data_dir() -> Path:
    """Default directory for the data of the embedded Redis and for checkpoints."""
    return Path(platformdirs.user_data_dir("sendlater"))


def cache_dir() -> Path:
    """Default directory for downloaded jars; safe to delete."""
    return Path(platformdirs.user_cache_dir("sendlater"))


class Settings(BaseSettings):
    """The settings of one installation. Unknown names are refused."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    space: str = Field("sendlater", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Key prefix of this installation in Redis; installations with other spaces are separate."""
    bootstrap_servers: str = ""
    """Kafka brokers, `host:port,host:port`. Empty: topics on Redis Streams, for development."""
    redis: SecretStr = SecretStr("")
    """Redis URL, see redis_client.py; or a list (in one text: separated by commas) of servers that
    share the shards. Empty: embedded Redis."""
    kafka: dict[str, str] = {}
    """Client settings for every Kafka client, in librdkafka's names (security.protocol, ...)."""
    kafka_java: dict[str, str] = {}
    """More settings for Spark's Kafka client only, in Kafka's Java names; they take precedence."""
    inboxes: tuple[Inbox, ...] = (
        Inbox(topic="schedules", dialect="headers"),
        Inbox(topic="envelopes", dialect="envelope"),
    )
    """Topics to read schedules from, each with its dialect."""
    pending: Literal["redis", "buckets"] = "redis"
    """Where schedules wait: in Redis, or in Kafka alone, in topics of exponential time buckets."""
    bucket_count: int = Field(30, ge=2, le=40)
    """Buckets of 0-1 s, 1-2 s, 2-4 s ...; thirty reach 17 years. Each is a topic."""
    bucket_topics: str = Field("", pattern=r"^[A-Za-z0-9_.-]{0,240}$")
    """Prefix of the bucket topics' names, before `-00` and so on. Empty: `SPACE-bucket`."""
    on_empty_store: Literal["replay", "skip", "stop"] = "replay"
    """What to do if Redis is empty but an inbox that is not a journal has records.

    replay: read what the topic still holds; nothing is lost, but delivered records are delivered
    again. skip: start at its end; pending schedules are lost. stop: do not start.
    """
    rejected_topic: str = "rejected"
    """Topic for records that cannot be scheduled, with the reason in headers."""
    dead_topic: str = "dead-letters"
    """Topic for what expired before it was delivered, and for events that handlers gave up on; the
    page and the metrics count them."""
    expired: Literal["dead-letter", "drop"] = "dead-letter"
    """Whether a schedule that has expired goes to dead_topic or is dropped."""
    ce_expirytime: bool = False
    """Take the expiry from CloudEvents' header `ce_expirytime` too."""
    limits: dict[TopicName, Limit] = Field({}, max_length=LIMITS_COUNT_MAX)
    """Target topics that get no more than so many messages per second, each with its limit."""
    history_topic: str = "history"
    """Topic for a copy of each delivery from a journal. Empty: none."""
    horizon: str = ""
    """How far ahead schedules of journals are kept in Redis, such as `24h`; the rest waits in Kafka
    and is read into Redis before it is due. Empty: everything is in Redis."""
    liveness_topic: str = "sendlater-liveness"
    """Topic that probes of `/liveness` are delivered to; they have no history."""
    past: Literal["deliver", "reject"] = "deliver"
    """Whether a schedule that was due before it was written is delivered at once or rejected."""
    past_grace_s: int = Field(0, ge=0)
    """With past = "reject", seconds in the past still delivered (etf1's grace interval)."""
    keep_input_headers: bool = False
    """Leave scheduler-epoch and the other control headers on delivered records, as etf1 does."""
    max_delay_days: int = Field(3_660, gt=0)
    """Schedules further ahead are rejected: usually a wrong unit. Default: ten years."""
    max_payload_bytes: int = Field(1_000_000, gt=0)
    """Larger payloads are rejected. Kafka's default record limit is 1,048,588 bytes."""
    create_topics: bool = True
    """Create missing inboxes and the rejected topic at start."""
    topic_partitions: int = Field(4, gt=0, le=1_000)
    """Partitions of topics we create."""
    shards: int = Field(2, gt=0, le=64)
    """Parts of the pending store, changed by `sendlater reshard`. Each lane has a task for each."""
    lanes: int = Field(2, ge=2, le=LANES_MAX)
    """Overlapping delivery queries; one works during the pause of another."""
    window_ms: int = Field(2_000, ge=500, le=60_000)
    """Length of a delivery batch: a shorter one duplicates less after a crash, a longer one costs
    less. Where Spark is slow between two of them, or while they have less than 20,000 rows, they
    are longer, up to `idle_window_ms`."""
    idle_window_ms: int = Field(10_000, ge=500, le=60_000)
    """The longest such batch, as while nothing is due soon."""
    poll_ms: int = Field(10, ge=1, le=1_000)
    """Pause of a task between two claims while schedules are due: a shorter one makes them less
    late, and costs more. Up to three times as long where claims take long and find many."""
    standby_poll_ms: int = Field(50, ge=1, le=1_000)
    """The same for a lane while another is in the middle of its batch and claims for both."""
    prefetch_ms: int = Field(5_000, ge=0, le=60_000)
    """How long before it is due a lane takes in hand what many are due with, so that it leaves at
    once; it can be cancelled and changed as before. 0: never."""
    prefetch_bytes_max: int = Field(96 * 1024**2, gt=0)
    """Most memory in which a task of a lane holds that: the default is 200,000 small messages."""
    claim_count: int = Field(CLAIM_COUNT_MAX, gt=0, le=CLAIM_COUNT_MAX)
    """Most schedules in one claim."""
    intake_rows: int = Field(200_000, gt=0)
    """Most records that one batch copies from an inbox with `copy_to`."""
    intake_trigger_ms: int = Field(200, ge=0, le=60_000)
    """Shortest time between two such batches, and between two polls of inboxes with time buckets:
    a batch is expensive, even for few records."""
    intake_slots: int = Field(1, gt=0, le=64)
    """Tasks of intake; each has a slot for itself, besides lanes x shards."""
    linger_ms: int = Field(1, ge=0, le=1_000)
    """`linger.ms` of the delivering producer; longer while a burst leaves (docs/adr/0052)."""
    compile_twice: bool = False
    """With a local Spark: bursts leave faster, a start takes longer. With buckets always so."""
    spark_master: str = ""
    """Spark master URL. Empty: local, with as many slots as the queries need."""
    clock_skew_ms_max: int = Field(1_000, gt=0)
    """With `spark_master`: a task claims nothing while its host's clock is further from Redis'."""
    spark: dict[str, str] = {}
    """More Spark settings, by their full names."""
    topics_retention_ms: int = Field(7 * 24 * 3_600_000, gt=0)
    """Age at which records are removed from topics on Redis."""
    topics_length_max: int = Field(1_000_000, gt=0)
    """Most records per partition of a topic on Redis."""
    stop_timeout_ms: int = Field(30_000, gt=0)
    """Longest a graceful stop waits for the lanes to finish their batch."""
    stand_by: bool | None = None
    """If another service is active on the space: true waits until it ends, false takes over from it
    and ends it. Not set: true if an inbox is a journal."""
    lease_ms: int = Field(4_000, ge=1_000, le=60_000)
    """Only one service on a space is active; one that is silent for so long counts as dead."""
    margin_ms: int = Field(1_000, ge=0, le=600_000)
    """A cancellation or newer version always takes effect if its inbox acknowledged it this long
    before the due time: schedules due later wait until intake has read the inboxes."""
    hold_ms_max: int = Field(30_000, ge=0, le=3_600_000)
    """Longest that a schedule waits for that, from when intake is running; then it is delivered,
    and the log says so."""
    recovery_pause_ms: int = Field(1_000, ge=0, le=600_000)
    """Pause before the deliveries of a dead service are looked up: its producer may still send."""
    jvm_silent_ms_max: int = Field(120_000, ge=10_000)
    """A JVM that answers nothing for so long is ended, and the service with it."""
    restart_delay_ms_max: int = Field(10_000, gt=0)
    """Longest pause before a failed query is restarted; the first is 500 ms, then doubled."""
    metrics_addr: str = ""
    """`host:port` of Prometheus metrics; empty: none."""
    http_addr: str = ""
    """`host:port` of REST and the page; empty: none. Unless on loopback, it needs http_tokens."""
    http_tokens: Path | None = None
    """File of tokens, one per line: name, role (read, write, admin) and SHA-256. None: everybody on
    this machine has all rights."""
    http_cert: Path | None = None
    """Certificate (PEM) for https; with http_key."""
    http_key: Path | None = None
    """Private key (PEM) for https."""
    http_payload_role: Literal["read", "write", "admin"] = "read"
    """Lowest role that may see payloads, keys and headers."""
    http_topics: tuple[str, ...] = ()
    """More topics whose records roles below admin may read."""
    http_badge: str = Field("", max_length=40)
    """Name of the environment, shown on every page: production, staging, ..."""
    undo_hours: int = Field(24, ge=0, le=24 * 30)
    """How long a change made through REST or the page can be undone; 0: not at all."""
    canary_topic: str = ""
    """Topic for a test message per minute through the whole pipeline; empty: none."""
    log_level: Literal["debug", "info", "warning", "error", "critical"] = "info"
    """Lowest severity that is logged."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """Format of the log on standard error; auto: text on a terminal, else JSON."""
    graylog: str = Field("", pattern=r"^$|^.+:[0-9]{1,5}$")
    """`host:port` of a Graylog server (GELF over UDP) that gets the log too; empty: none."""
    data_dir: Path = Field(default_factory=data_dir)
    """Data of the embedded Redis, and temporary checkpoints."""
    cache_dir: Path = Field(default_factory=cache_dir)
    """Downloaded jars."""
    maven_mirror: str = ""
    """URL of a Maven repository to download the jars from. Empty: Maven Central."""

    @field_validator("redis", mode="before")
    @classmethod
    def _redis_urls(cls, given: Any) -> Any:
        """A list as one text."""
        if isinstance(given, list | tuple):
            given = ",".join(map(str, given))
        return ",".join(redis_urls(given)) if isinstance(given, str) else given

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        topics = [inbox.topic for inbox in self.inboxes]
        if not topics:
            raise ValueError("inboxes: expected at least one topic, got none")
        if len(set(topics)) != len(topics):
            raise ValueError(f"inboxes: expected each topic once, got {topics}")
        if self.rejected_topic in topics:
            raise ValueError(f"rejected_topic: {self.rejected_topic!r} is an inbox too")
        if (self.http_cert is None) != (self.http_key is None):
            raise ValueError("http_cert and http_key: expected both or neither")
        if self.pending == "buckets":
            self._buckets_consistent()
        if self.journals and self.history_topic in topics:
            raise ValueError(f"history_topic: {self.history_topic!r} is an inbox too")
        if self.horizon:
            try:
                ahead_ms = self.horizon_ms or 0
            except durationpy.DurationError as error:
                raise ValueError(f"horizon: expected a duration like 24h: {error}") from error
            if ahead_ms < HORIZON_MS_MIN:
                raise ValueError(f"horizon: expected at least {HORIZON_MS_MIN} ms, got {ahead_ms}")
        if self.journals and not self.on_kafka:
            raise ValueError("inboxes: a journal needs Kafka (bootstrap_servers), got none")
        for inbox in self.inboxes:
            if inbox.copy_to and inbox.copy_to not in self.journals:
                raise ValueError(
                    f"inbox {inbox.topic!r}: copy_to names a journal among {list(self.journals)}, "
                    f"got {inbox.copy_to!r}"
                )
        return self

    def _buckets_consistent(self) -> None:
        if not self.on_kafka:
            raise ValueError("pending: buckets are topics on Kafka, expected bootstrap_servers")
        for name in ("http_addr", "metrics_addr", "canary_topic"):
            if getattr(self, name):
                raise ValueError(f"{name}: asks the store in Redis, and pending = buckets has none")
        if self.limits:
            raise ValueError(
                f"limits: what waits for a limit waits in Redis, and pending = buckets has none; "
                f"got {sorted(self.limits)}"
            )
        reach_days = (1 << self.bucket_count - 1) // 86_400
        if self.max_delay_days > reach_days:
            raise ValueError(
                f"bucket_count: {self.bucket_count} buckets reach {reach_days} days, "
                f"expected at least max_delay_days, {self.max_delay_days}"
            )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources in their precedence: flags, environment, secrets, file."""
        return init_settings, env_settings, secret_files(settings_cls), FileSettings(settings_cls)

    @property
    def on_kafka(self) -> bool:
        """Whether topics are on Kafka; otherwise they are on Redis."""
        return bool(self.bootstrap_servers)

    @property
    def horizon_ms(self) -> int | None:
        """The horizon in milliseconds; None if there is none."""
        if not self.horizon:
            return None
        return round(durationpy.from_str(self.horizon).total_seconds() * 1_000)

    @property
    def taken_in(self) -> tuple[Inbox, ...]:
        """Inboxes that intake reads: all except those copied to a journal first."""
        return tuple(inbox for inbox in self.inboxes if not inbox.copy_to)

    @property
    def journals(self) -> tuple[str, ...]:
        """Inboxes that are journals."""
        return tuple(inbox.topic for inbox in self.inboxes if inbox.journal)

    @property
    def expired_topic(self) -> str:
        """Topic for what has expired; empty: it is dropped."""
        return self.dead_topic if self.expired == "dead-letter" else ""

    @property
    def stands_by(self) -> bool:
        """Whether a start waits until another active service ends."""
        return bool(self.journals) if self.stand_by is None else self.stand_by

    def shown(self) -> dict[str, Any]:
        """The effective settings as JSON values, with secrets hidden."""
        plain = self.model_dump(mode="json") | {"redis": self.redis.get_secret_value()}
        shown: dict[str, Any] = hide_secrets(plain)
        return shown


def load(**flags: Any) -> Settings:
    """The effective settings; flags that are None count as not given.

    Raises BadSettings for unknown names and values out of range.
    """
    if (variable := unknown_variable(os.environ, Settings.model_fields)) is not None:
        expected = _expected(variable[len(ENV_PREFIX) :].lower())
        raise BadSettings(f"unknown setting in the environment: {variable}{expected}")
    try:
        return Settings(**{k: v for k, v in flags.items() if v is not None})
    except SettingsError as error:
        raise BadSettings(f"{error}; expected JSON for lists and tables") from error
    except ValidationError as error:
        # Without the cause: it may quote a password.
        raise BadSettings("; ".join(_told(e) for e in error.errors(include_url=False))) from None


def _expected(name: str) -> str:
    """Existing settings with names similar to `name`."""
    table, _, last = name.rpartition(".")
    tables = {"inboxes": Inbox.model_fields, "limits": Limit.model_fields}
    known = sorted(tables.get(table.partition(".")[0], Settings.model_fields))
    alike = get_close_matches(last, known, n=3, cutoff=0.5) or known
    return f", expected {' or '.join(alike)}"


def _told(error: Any) -> str:
    """The message of a validation error: the setting, what was expected, what was received."""
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown setting: {name}{_expected(name)}"
    message = error["msg"].removeprefix("Value error, ").replace("valid tuple", "list")
    if not name:
        return str(message)
    secret = name == "redis" or hide_secrets("x", name) != "x"
    return f"{name}: {message}" + (
        "" if secret else f", got {str(hide_secrets(error['input']))[:100]!r}"
    )
