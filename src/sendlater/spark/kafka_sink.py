"""Options of Spark's Kafka sink for all our queries."""

from sendlater.brokers.kafka_options import spark_options
from sendlater.config import Settings
from sendlater.limits import REJECTED_TOPIC_BYTES_MAX

DELIVERY_TIMEOUT_MS = 30_000
"""How long a producer tries to deliver a record, whatever becomes of its query."""
STILL_SENT_MS = DELIVERY_TIMEOUT_MS + 5_000
"""For how long after the end of a lane its producer may send what it had for a topic that took
nothing."""
FRAMING_BYTES_MAX = 21
"""Bytes by which Kafka's producer overestimates a record (DefaultRecord.MAX_RECORD_OVERHEAD)."""


def producer_options(settings: Settings, *, of: str = "") -> dict[str, str]:
    """Large batches after a short wait: 84,000 messages a second; 59,000 with Spark's defaults.

    Spark shares a producer among all queries with the same options; a name in `of` gives a query
    one of its own, so that what blocks it blocks no other.
    """
    options = {
        "kafka.linger.ms": str(settings.linger_ms),
        "kafka.batch.size": "262144",
        "kafka.max.request.size": str(REJECTED_TOPIC_BYTES_MAX),
        # A missing target must not stop a lane for a minute, the default.
        "kafka.max.block.ms": "10000",
        "kafka.delivery.timeout.ms": str(DELIVERY_TIMEOUT_MS),
        "kafka.request.timeout.ms": "15000",
        # A target created again with fewer partitions: by default some records go to those that it
        # had for five minutes, and fail their lane each time.
        "kafka.metadata.max.age.ms": "10000",
        # While a producer knows a topic that was deleted, its records of others take up to 0.2 s:
        # for five minutes by default.
        "kafka.metadata.max.idle.ms": "20000",
        **spark_options(settings),
    }
    if of:
        client = options.get("kafka.client.id", settings.space)
        options["kafka.client.id"] = f"{client}-{of}"
    return options


def request_bytes_max(settings: Settings) -> int:
    """Largest record that the producer sends, even if its topic takes larger ones."""
    return int(producer_options(settings)["kafka.max.request.size"]) - FRAMING_BYTES_MAX
