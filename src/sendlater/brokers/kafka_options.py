"""Translates Kafka client settings from librdkafka's names to those of Kafka's Java client.

Names on the left are librdkafka's (its CONFIGURATION.md), on the right those of Kafka's Java client
(its documentation, "consumer configs" and "producer configs").
"""

from collections.abc import Mapping
from pathlib import Path

from sendlater.config import Settings
from sendlater.errors import BadSettings

_SAME = (
    "client.id",
    "client.rack",
    "isolation.level",
    "request.timeout.ms",
    "sasl.kerberos.service.name",
    "security.protocol",
    "socket.connection.setup.timeout.ms",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.password",
)
_RENAMED = {
    "sasl.mechanism": "sasl.mechanism",
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
_READ = {
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
}
"""Files in librdkafka. Java's client needs both in one file, or the text of each, as here."""
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_TRANSLATED = {*_SAME, *_RENAMED, *_READ, "sasl.username", "sasl.password"}


def java_options(settings: Settings) -> dict[str, str]:
    """Settings of Kafka's Java client: librdkafka's security settings translated, overridden by
    `kafka_java`.

    Raises BadSettings for a security setting without a translation, unless `kafka_java` has
    settings of its family (`ssl.`, `sasl.`): Spark's client must not be less secure than ours.
    """
    given, own = settings.kafka, settings.kafka_java
    java = {name: given[name] for name in _SAME if name in given}
    java |= {renamed: given[name] for name, renamed in _RENAMED.items() if name in given}
    java |= {renamed: _text(name, given[name]) for name, renamed in _READ.items() if name in given}
    if java.keys() & {"ssl.truststore.location", "ssl.truststore.certificates"}:
        java["ssl.truststore.type"] = "PEM"
    if "ssl.keystore.certificate.chain" in java:
        java["ssl.keystore.type"] = "PEM"
    elif "ssl.keystore.location" in java:
        java["ssl.keystore.type"] = "PKCS12"
    match given.get("ssl.endpoint.identification.algorithm"):
        case "none":
            java["ssl.endpoint.identification.algorithm"] = ""
        case str(algorithm):
            java["ssl.endpoint.identification.algorithm"] = algorithm
    if "sasl.username" in given and "sasl.jaas.config" not in own:
        java["sasl.jaas.config"] = _login(given, java.get("sasl.mechanism", ""))
    _require_translated(given, own)
    return java | own


def spark_options(settings: Settings) -> dict[str, str]:
    """The same as options of Spark's Kafka source and sink."""
    return {
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        **{f"kafka.{name}": value for name, value in java_options(settings).items()},
    }


def reader_options(settings: Settings) -> dict[str, str]:
    """The same for a source, which reads records of a transaction once it is committed."""
    return {"kafka.isolation.level": "read_committed", **spark_options(settings)}


def _login(given: Mapping[str, str], mechanism: str) -> str:
    if mechanism not in _LOGIN:
        raise BadSettings(
            f"kafka: sasl.username goes with sasl.mechanism {' or '.join(_LOGIN)}, "
            f"got {mechanism!r}; set kafka_java for anything else"
        )
    user, password = (
        value.replace("\\", "\\\\").replace('"', '\\"')
        for value in (given["sasl.username"], given.get("sasl.password", ""))
    )
    return f'{_LOGIN[mechanism]} required username="{user}" password="{password}";'


def _text(name: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"kafka: {name}: cannot read {path}: {error}") from error


def _require_translated(given: Mapping[str, str], own: Mapping[str, str]) -> None:
    for name in sorted(given.keys() - _TRANSLATED - {"ssl.endpoint.identification.algorithm"}):
        family = name.partition(".")[0] + "."
        if family in ("ssl.", "sasl.") and not any(other.startswith(family) for other in own):
            raise BadSettings(
                f"kafka: {name} has no translation for Spark's Kafka client; set the equivalent "
                "in kafka_java"
            )
