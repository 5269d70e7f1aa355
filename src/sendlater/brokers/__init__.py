"""Brokers behind one small face: Kafka, and topics on Redis."""
