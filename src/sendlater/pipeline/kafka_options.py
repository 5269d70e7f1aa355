"""Kafka client settings: one way to write them for two client families."""

from sendlater.config import Settings
from sendlater.errors import BadSettings

_SAME = (
    "security.protocol",
    "client.id",
    "sasl.mechanism",
    "socket.connection.setup.timeout.ms",
    "request.timeout.ms",
)
_RENAMED = {"sasl.mechanisms": "sasl.mechanism", "ssl.key.password": "ssl.key.password"}
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_PEM_STORES = {"ssl.ca.location": "ssl.truststore", "ssl.keystore.location": "ssl.keystore"}


def java_options(settings: Settings) -> dict[str, str]:
    """For Kafka's Java client: librdkafka's security settings translated, `kafka_java` on top.

    Raises BadSettings for a SASL user name with a mechanism that needs `kafka_java`.
    """
    given, java = settings.kafka, {}
    for name, value in given.items():
        if name in _SAME:
            java[name] = value
        elif name in _RENAMED:
            java[_RENAMED[name]] = value
        elif name in _PEM_STORES:
            java[f"{_PEM_STORES[name]}.location"] = value
            java[f"{_PEM_STORES[name]}.type"] = "PEM"
    if "sasl.username" in given:
        mechanism = java.get("sasl.mechanism", "")
        if mechanism not in _LOGIN:
            raise BadSettings(
                f"kafka: sasl.username goes with sasl.mechanism {' or '.join(_LOGIN)}, "
                f"got {mechanism!r}; set kafka_java for anything else"
            )
        user, password = (
            value.replace("\\", "\\\\").replace('"', '\\"')
            for value in (given["sasl.username"], given.get("sasl.password", ""))
        )
        java["sasl.jaas.config"] = (
            f'{_LOGIN[mechanism]} required username="{user}" password="{password}";'
        )
    return java | settings.kafka_java


def spark_options(settings: Settings) -> dict[str, str]:
    """The same as options of Spark's Kafka source and sink."""
    return {
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        **{f"kafka.{name}": value for name, value in java_options(settings).items()},
    }
