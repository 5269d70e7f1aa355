"""What a service needs on its machine: Java, the connector's jars, and Redis if none is given."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sendlater.config import Settings
from sendlater.local.jars import jars
from sendlater.local.java import find_java
from sendlater.local.redis_server import RedisServer


@dataclass(slots=True)
class Installation:
    """The tools found and the Redis started. `close` stops what this object started."""

    redis_url: str
    java_home: Path
    jars: list[Path]
    _redis: RedisServer | None = None

    @classmethod
    def prepare(cls, settings: Settings, *, java_home: Path | None = None) -> Self:
        """Find or download everything. `java_home`: of a Java that runs already, with all jars.
        Raises MissingTool or StoreUnavailable, which say what to do."""
        java_home, connector = (java_home, []) if java_home else cls.tools(settings)
        url, redis = settings.redis.get_secret_value(), None
        if not url and settings.pending == "redis":
            redis = RedisServer(settings.data_dir).start()
            url = redis.url
        return cls(redis_url=url, java_home=java_home, jars=connector, _redis=redis)

    @staticmethod
    def tools(settings: Settings) -> tuple[Path, list[Path]]:
        """The home of Java, and the connector's jars if Kafka is used. Raises MissingTool."""
        java = find_java(settings.cache_dir)
        if not settings.on_kafka:
            return java.home, []
        mirror = settings.maven_mirror
        return java.home, jars("connector", cache_dir=settings.cache_dir, mirror=mirror)

    def close(self) -> None:
        """Stop the Redis started here, if any; its data stays."""
        if self._redis is not None:
            self._redis.stop()
