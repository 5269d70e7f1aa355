"""sendlater, in its three kinds: on Kafka with Redis, embedded, and on Kafka alone."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

from bench.system import REDIS_SETTINGS, Servers, System, redis_version
from sendlater.bench.all import PACKAGES, alone, serving
from sendlater.local.kafka_server import HEAP_MIB, YOUNG_MIB, KafkaServer
from sendlater.local.redis_server import RedisServer

MOST = 10_000_000
"""Messages of the largest workload."""
_KAFKA = {
    "Kafka": f"one node, heap {HEAP_MIB} MiB, by sendlater's launcher {YOUNG_MIB} of them for new "
    "objects and as many threads as cores; its log is flushed by the system, the default",
    "acks": "all, the default of sendlater's client and of its sink",
}
_ALL = {
    "service": "`sendlater serve` with no other settings",
    "sender": "the Python client: send_many of what is there, a null value to cancel",
    "receiver": "a Kafka consumer in Python (embedded: of a Redis stream), without commits, "
    "fetch.queue.backoff.ms 10; its garbage collector leaves alone what is imported",
}
ON_KAFKA_AND_REDIS = {**_KAFKA, **REDIS_SETTINGS, **_ALL}


def kind(
    *, kafka: bool, redis: bool, settings: Mapping[str, str], python: str = sys.executable
) -> Callable[[Path], AbstractContextManager[Servers]]:
    """The servers of one kind of installation."""

    @contextmanager
    def servers(directory: Path) -> Iterator[Servers]:
        processes: dict[str, int] = {}
        chosen = {**settings, "SENDLATER_DATA_DIR": str(directory / "service")}
        with ExitStack() as stack:
            if redis:
                store = stack.enter_context(RedisServer(directory))
                assert store.pid is not None
                processes["store"], chosen["SENDLATER_REDIS"] = store.pid, store.url
            if kafka:
                broker = stack.enter_context(KafkaServer(directory, port=0))
                assert broker.pid is not None
                processes["broker"] = broker.pid
                chosen["SENDLATER_BOOTSTRAP_SERVERS"] = broker.bootstrap_servers
            environment = alone(directory) | chosen
            log = directory / "service.log"
            service = stack.enter_context(ExitStack())

            def start() -> None:
                running = service.enter_context(serving(environment, log=log, python=python))
                processes["service"] = running.pid

            start()
            at = chosen.get("SENDLATER_REDIS", "")
            yield Servers(chosen, processes, at, stop=service.close, start=start)

    return servers


def _driver(what: str) -> list[str]:
    return [sys.executable, "-m", "bench.drivers.sendlater_driver", what]


def _versions() -> dict[str, str]:
    found = {name: version(name) for name in PACKAGES}
    return {"python": sys.version.split()[0], **found, **redis_version()}


def _system(
    name: str,
    settings: Mapping[str, str],
    *,
    kafka: bool,
    redis: bool,
    verbs: str = "smc",
    sends_per_s: float = 10_000,
    messages_max: int = 300_000,
    **env: str,
) -> System:
    return System(
        name=name,
        settings=settings,
        versions=_versions,
        sender=_driver("send"),
        receiver=_driver("receive"),
        servers=kind(kafka=kafka, redis=redis, settings=env),
        verbs=verbs,
        sends_per_s=sends_per_s,
        has_inbox=kafka,
        messages_max=messages_max,
    )


SYSTEMS = (
    _system(
        "sendlater",
        {
            **ON_KAFKA_AND_REDIS,
            "service": "`sendlater serve` with compile_twice, see docs/production.md",
            "inbox": "one partition, as intake has one task; "
            'added_headers = "few": deliveries get an id and a due time',
            "millions in one instant": "prefetch_ms 60000, idle_window_ms 60000, "
            "prefetch_bytes_max 1 GiB, as docs/production.md has it",
            "shards": "1: with two lanes as many tasks as cores",
            "pauses": "poll_ms 1, linger_ms 0, as docs/production.md has it for what is least late",
        },
        kafka=True,
        redis=True,
        messages_max=MOST,
        SENDLATER_COMPILE_TWICE="true",
        SENDLATER_INBOXES='[{"topic": "schedules", "added_headers": "few"}]',
        SENDLATER_PREFETCH_MS="60000",
        SENDLATER_IDLE_WINDOW_MS="60000",
        SENDLATER_PREFETCH_BYTES_MAX=str(1024**3),
        SENDLATER_SHARDS="1",
        SENDLATER_POLL_MS="1",
        SENDLATER_LINGER_MS="0",
        SENDLATER_TOPIC_PARTITIONS="1",
    ),
    _system(
        "sendlater embedded",
        {**REDIS_SETTINGS, **_ALL, "topics": "in the Redis that the service starts"},
        kafka=False,
        redis=False,
        sends_per_s=3_000,
    ),
    _system(
        "sendlater buckets",
        {**_KAFKA, **_ALL, "pending": "buckets: Kafka alone, no changes"},
        kafka=True,
        redis=False,
        verbs="s",
        sends_per_s=5_000,
        messages_max=MOST,
        SENDLATER_PENDING="buckets",
    ),
)
