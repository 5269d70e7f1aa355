"""Deprecated name of `sendlater.client.etf1_records`."""

from sendlater.client.etf1_records import (
    attempts_made,
    delete_record,
    is_retried,
    is_scheduled,
    retried,
    schedule_record,
)

__all__ = [
    "attempts_made",
    "delete_record",
    "is_retried",
    "is_scheduled",
    "retried",
    "schedule_record",
]
