"""sendlater: delivery of Kafka messages at the time you choose."""

__version__ = "0.1.0"
