"""Schedules that wait in Kafka alone, in bucket topics."""
