"""Topics on Redis Streams, which replace Kafka for development (docs/topics-on-redis.md)."""

from sendlater.topics.consumer import Consumer
from sendlater.topics.layout import TopicRecord
from sendlater.topics.streams import Topics

__all__ = ["Consumer", "TopicRecord", "Topics"]
