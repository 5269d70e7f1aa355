"""Opens the broker of an installation."""

from sendlater.brokers.broker import Broker
from sendlater.brokers.client_options import client_options
from sendlater.brokers.kafka import KafkaBroker
from sendlater.brokers.redis import RedisBroker, open_topics
from sendlater.config import Settings


def open_broker(settings: Settings, *, redis_url: str) -> Broker:
    """The installation's broker: Kafka, or topics on Redis when none is configured."""
    if settings.on_kafka:
        return KafkaBroker(client_options(settings))
    return RedisBroker(open_topics(redis_url, settings))
