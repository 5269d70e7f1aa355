"""Brokers with one small interface: Kafka, and topics on Redis."""
