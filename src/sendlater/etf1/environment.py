"""Converts the environment variables and configuration file of etf1's scheduler to settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sendlater.config_tables import Inbox
from sendlater.errors import BadSettings, MissingTool

LOG_LEVELS = {
    **dict.fromkeys(("trace", "debug"), "debug"),
    **dict.fromkeys(("warn", "warning"), "warning"),
    **dict.fromkeys(("fatal", "panic"), "critical"),
    "error": "error",
}
"""etf1's log levels, and ours."""


def etf1_flags(environment: Mapping[str, str]) -> dict[str, Any]:
    """Settings from the environment of etf1's scheduler, mostly with etf1's defaults: without
    GROUP_ID, SCHEDULE_GRACE_INTERVAL or GRAYLOG_SERVER their settings are left out.

    Raises BadSettings in cases where etf1's does not start either: an empty broker list or history
    topic, a SINCE_DELTA after today, a configuration file that cannot be read.
    """

    def given(name: str, default: str) -> str:
        return environment.get(name, default)

    servers, history = (
        given("BOOTSTRAP_SERVERS", "localhost:9092"),
        given("HISTORY_TOPIC", "history"),
    )
    if not servers or not history:
        raise BadSettings("BOOTSTRAP_SERVERS and HISTORY_TOPIC: expected a value, got none")
    since = given("SINCE_DELTA", "0")
    if not since.lstrip("-").isdigit() or int(since) > 0:
        raise BadSettings(f"SINCE_DELTA: expected days of zero or less, got {since!r}")
    grace = environment.get("SCHEDULE_GRACE_INTERVAL")
    session = given("SESSION_TIMEOUT", "6000")
    session_ms = int(session) if session.isdigit() else 6_000
    flags: dict[str, Any] = {
        "bootstrap_servers": servers,
        "inboxes": tuple(
            Inbox(topic=topic, journal=True)
            for topic in given("SCHEDULES_TOPICS", "schedules").split(",")
        ),
        "history_topic": history,
        "lease_ms": min(max(session_ms, 1_000), 60_000),
        "kafka": _configuration(given("CONFIGURATION_FILE", "")),
        "log_level": LOG_LEVELS.get(given("LOG_LEVEL", "info").lower(), "info"),
    }
    if "GROUP_ID" in environment:
        flags["space"] = environment["GROUP_ID"]
    if grace is not None:
        # etf1's scheduler rejects a past schedule that it reads in time, and delivers one that it
        # reads late. Ours rejects only on request; a grace interval counts as that request.
        flags |= {"past": "reject", "past_grace_s": int(grace) if grace.isdigit() else 0}
    if graylog := environment.get("GRAYLOG_SERVER"):
        flags["graylog"] = graylog
    return flags


def _configuration(path: str) -> dict[str, str]:
    """librdkafka settings of a YAML file: common, then consumer, then producer."""
    if not path:
        return {}
    try:
        import yaml
    except ImportError as error:
        raise MissingTool(
            "CONFIGURATION_FILE needs PyYAML: pip install 'sendlater[api]'"
        ) from error
    try:
        read = yaml.safe_load(Path(path).read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise BadSettings(f"CONFIGURATION_FILE: cannot read {path}: {error}") from error
    found: dict[str, str] = {}
    kafka = _section(read, "kafka", {"kafka"})
    for part in ("common", "consumer", "producer"):
        section = _section(kafka, part, {"common", "consumer", "producer"})
        for name, value in _section(section, "configuration", {"configuration"}).items():
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    # Spark's producer always uses the equivalent of murmur2_random.
    found.pop("partitioner", None)
    return found


def _section(parent: Any, name: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(parent, dict) or parent.keys() - known:
        raise BadSettings(f"CONFIGURATION_FILE: expected {sorted(known)}, got {parent!r}")
    section = parent.get(name) or {}
    if not isinstance(section, dict):
        raise BadSettings(f"CONFIGURATION_FILE: {name}: expected a map, got {section!r}")
    return section
