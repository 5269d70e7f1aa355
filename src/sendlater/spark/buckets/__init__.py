"""Schedules that wait in Kafka alone: which bucket holds what, and how far each has been read."""
