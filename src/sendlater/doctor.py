"""Checks what an installation needs, and says how to fix what is missing."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from sendlater.addresses import redis_urls, server_name
from sendlater.config import Settings
from sendlater.errors import SendlaterError
from sendlater.limits import CLOCK_SKEW_MS_MAX, REDIS_MEMORY_SHARE_MAX, REJECTED_HEADERS_BYTES_MAX
from sendlater.local.jars import cached
from sendlater.local.java import find_java
from sendlater.local.kafka_facts import broker_clock as read_clock
from sendlater.local.kafka_server import admin
from sendlater.local.redis_facts import RedisFacts, redis_facts
from sendlater.local.redis_server import VERSION_MIN, dotted, embedded_url, find_redis
from sendlater.spark.buckets.ladder import Ladder
from sendlater.spark.buckets.topics import forgetful

PYSPARK_VERSION = "4.2."
"""The PySpark series that the connector's jars in ivy.xml are made for."""
BROKER_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `ok` None is a warning. `mend` says what to do."""

    name: str
    ok: bool | None
    found: str
    mend: str = ""


def checks(settings: Settings, *, broker_clock: bool = False) -> Iterator[Finding]:
    """Run all checks, one finding after another. Never raises: a failed check is a finding.

    They change nothing, except that `broker_clock` creates a topic for a moment and deletes it.
    """
    looks: dict[str, Look] = {"java": _java, "pyspark": _pyspark}
    if settings.pending == "redis":
        looks["redis"] = _redis
    if settings.pending == "buckets":
        looks |= {"connector": _connector, "broker": _broker, "buckets": _buckets}
    elif settings.on_kafka:
        looks |= {"connector": _connector, "broker": _broker}
    else:
        yield Finding("broker", True, "topics on Redis Streams, for development")
    if broker_clock and settings.on_kafka:
        looks["clock of the broker"] = _broker_clock
    for name, look in looks.items():
        try:
            yield from look(settings)
        except SendlaterError as error:
            yield Finding(name, False, str(error), _MEND.get(name, ""))
        except Exception as error:
            yield Finding(name, False, f"{type(error).__name__}: {error}", _MEND.get(name, ""))


Look = Callable[[Settings], Iterator[Finding]]
_MEND = {
    "clock of the broker": "allow sendlater to create and delete topics sendlater-clock-*",
    "redis": "start it, or correct the setting redis",
    "broker": "start it, or correct the settings bootstrap_servers and kafka",
}


def store_troubles(redis_url: str) -> list[Finding]:
    """Problems of a Redis that answers, to report when a service starts."""
    servers = _servers(redis_url).items()
    return [one for where, url in servers for one in _about_redis(url, where) if not one.ok]


def _java(settings: Settings) -> Iterator[Finding]:
    java = find_java(settings.cache_dir)
    yield Finding("java", True, f"Java {java.version} in {java.home}")


def _pyspark(_: Settings) -> Iterator[Finding]:
    mend = "pip install 'sendlater[pipeline]'"
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        yield Finding("pyspark", False, "not installed", mend)
        return
    fits = found.startswith(PYSPARK_VERSION)
    yield Finding("pyspark", fits or None, f"PySpark {found}", "" if fits else mend)


def _connector(settings: Settings) -> Iterator[Finding]:
    found = cached("connector", cache_dir=settings.cache_dir)
    if found:
        yield Finding("connector", True, f"{len(found)} jars in {found[0].parent}")
    else:
        mend = "the first start downloads them; without access to Maven Central, set maven_mirror"
        yield Finding("connector", None, "jars not downloaded yet", mend)


def _redis(settings: Settings) -> Iterator[Finding]:
    url = settings.redis.get_secret_value() or embedded_url(settings.data_dir)
    if url is None:
        binary = find_redis()
        told = f"not running; sendlater serve starts {binary.path}"
        yield Finding("redis", True, f"{told}, version {dotted(binary.version)}")
        return
    for where, one in _servers(url).items():
        try:
            yield from _about_redis(one, where)
        except SendlaterError as error:
            yield Finding(f"redis{where}", False, str(error), _MEND["redis"])


def _servers(urls: str) -> dict[str, str]:
    """The URL of each server, by what is added to names of findings."""
    each = redis_urls(urls)
    return {f" {server_name(url)}" if len(each) > 1 else "": url for url in each}


def _about_redis(url: str, where: str) -> Iterator[Finding]:
    facts = redis_facts(url)
    recent = facts.version >= VERSION_MIN
    yield Finding(
        f"redis{where}",
        recent,
        f"{facts.product} {dotted(facts.version)}",
        "" if recent else f"upgrade it to {dotted(VERSION_MIN)} or newer",
    )
    yield Finding(
        f"redis{where} persistence",
        facts.appends,
        f"append-only file {'on' if facts.appends else 'off'}",
        "" if facts.appends else "a restart loses every schedule: set appendonly yes",
    )
    keeps = facts.eviction == "noeviction"
    yield Finding(
        f"redis{where} eviction",
        keeps,
        f"maxmemory-policy {facts.eviction}",
        "" if keeps else "Redis may delete schedules: set maxmemory-policy noeviction",
    )
    yield _memory(facts, where)
    yield _clock(f"Redis{where}", facts.ahead_ms, facts.ahead_error_ms)


def _clock(whose: str, ahead_ms: float, error_ms: float) -> Finding:
    apart = abs(ahead_ms) - error_ms > CLOCK_SKEW_MS_MAX
    return Finding(
        f"clock of {whose}",
        not apart,
        f"{ahead_ms:+.1f} ms from ours, ± {error_ms:.1f}; limit {CLOCK_SKEW_MS_MAX} ms",
        "run NTP (chrony, systemd-timesyncd) on both hosts" if apart else "",
    )


def _memory(facts: RedisFacts, where: str) -> Finding:
    used = f"{facts.used_bytes / 2**20:,.0f} MiB used"
    if not facts.max_bytes:
        return Finding(f"redis{where} memory", True, f"{used}, no maxmemory")
    fits = facts.used_bytes <= REDIS_MEMORY_SHARE_MAX * facts.max_bytes
    return Finding(
        f"redis{where} memory",
        fits or None,
        f"{used} of {facts.max_bytes / 2**20:,.0f}",
        "" if fits else "raise maxmemory: a full Redis accepts no schedules",
    )


def _broker(settings: Settings) -> Iterator[Finding]:
    try:
        client = admin(settings.bootstrap_servers, settings.kafka)
        known = client.list_topics(timeout=BROKER_TIMEOUT_S)
    except KafkaException as error:
        told = f"{settings.bootstrap_servers} does not answer: {error.args[0].str()}"
        yield Finding("broker", False, told, _MEND["broker"])
        return
    yield Finding("broker", True, f"{len(known.brokers)} at {settings.bootstrap_servers}")
    inboxes = [inbox.topic for inbox in settings.inboxes]
    history = [settings.history_topic] if settings.journals and settings.history_topic else []
    wanted = [*inboxes, *history, settings.rejected_topic]
    there = [topic for topic in wanted if topic in known.topics]
    for topic in wanted:
        if topic in there:
            partitions = len(known.topics[topic].partitions)
            yield Finding(f"topic {topic}", True, f"{partitions} partitions")
        elif settings.create_topics:
            compacted = ", compacted" if topic in settings.journals else ""
            yield Finding(f"topic {topic}", True, f"missing; the first start creates it{compacted}")
        else:
            yield Finding(f"topic {topic}", False, "missing", "create it, or set create_topics")
    if there:
        yield from _topic_settings(client, there, settings)


def _broker_clock(settings: Settings) -> Iterator[Finding]:
    yield _clock("the broker", *read_clock(settings.bootstrap_servers, settings.kafka))


def _buckets(settings: Settings) -> Iterator[Finding]:
    """Whether the bucket topics keep their records long enough."""
    ladder = Ladder.of(settings)
    client = admin(settings.bootstrap_servers, settings.kafka)
    known = client.list_topics(timeout=BROKER_TIMEOUT_S).topics
    missing = [topic for topic in ladder.topics if topic not in known]
    if missing:
        mend = "" if settings.create_topics else "create them, or set create_topics"
        told = f"{len(missing)} missing; the first start creates them"
        yield Finding("buckets", settings.create_topics, told, mend)
        return
    wrong = forgetful(client, ladder)
    told = "; ".join(wrong) or f"{ladder.count} topics, reach {ladder.reach_ms // 86_400_000} days"
    yield Finding("buckets", not wrong, told, "set retention.ms to -1" if wrong else "")


def _topic_settings(
    client: AdminClient, topics: list[str], settings: Settings
) -> Iterator[Finding]:
    """Whether delays count from the broker's or the producer's clock, whether the rejected topic
    accepts every record of an inbox, and whether journals are compacted."""
    inboxes = {inbox.topic for inbox in settings.inboxes}
    wanted = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    futures = client.describe_configs(wanted, request_timeout=BROKER_TIMEOUT_S)
    bytes_max: dict[str, int] = {}
    for resource, future in futures.items():
        try:
            entries: Mapping[str, object] = {k: e.value for k, e in future.result().items()}
        except KafkaException as error:
            told = f"settings unreadable: {error.args[0].str()}"
            yield Finding(f"topic {resource.name}", None, told, "allow DescribeConfigs on it")
            continue
        bytes_max[resource.name] = int(str(entries["max.message.bytes"]))
        if resource.name in settings.journals:
            policy = str(entries["cleanup.policy"])
            mend = f"kafka-configs --alter --topic {resource.name} --add-config "
            fits = policy == "compact"
            yield Finding(
                f"journal {resource.name}",
                fits,
                f"cleanup.policy {policy}",
                "" if fits else f"schedules would be lost: {mend}cleanup.policy=compact",
            )
        if resource.name in inboxes:
            kind = str(entries["message.timestamp.type"])
            whose = "broker" if kind == "LogAppendTime" else "producer"
            told = f"{kind}: a delay counts from the {whose}'s clock"
            yield Finding(f"topic {resource.name} time", True, told)
    rejected = bytes_max.pop(settings.rejected_topic, None)
    bytes_max = {topic: most for topic, most in bytes_max.items() if topic in inboxes}
    if rejected is not None and bytes_max:
        needed = max(bytes_max.values()) + REJECTED_HEADERS_BYTES_MAX
        fits = rejected >= needed
        yield Finding(
            f"topic {settings.rejected_topic} size",
            fits or None,
            f"max.message.bytes {rejected:,}",
            "" if fits else f"set it to {needed:,}: a rejected record gets more headers",
        )
