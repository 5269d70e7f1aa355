"""Options of every confluent-kafka client of an installation."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluent_kafka import IsolationLevel

    from sendlater.config import Settings


def client_options(settings: "Settings") -> dict[str, str]:
    """Settings of every confluent-kafka client (librdkafka's names)."""
    return {"bootstrap.servers": settings.bootstrap_servers, **settings.kafka}


ASKING = {"allow.auto.create.topics": "false"}
"""Options of an admin client, which by default asks for a topic as a producer does: a broker with
auto.create.topics.enable then makes it, and not as an inbox or a journal must be."""


def isolation(client_options: Mapping[str, str]) -> "IsolationLevel":
    """The isolation level that decides which position is the end of a topic.

    By default the end is before the first open transaction: consumers cannot read further, so
    nothing may wait for more.
    """
    from confluent_kafka import IsolationLevel

    uncommitted = client_options.get("isolation.level") == "read_uncommitted"
    return IsolationLevel.READ_UNCOMMITTED if uncommitted else IsolationLevel.READ_COMMITTED
