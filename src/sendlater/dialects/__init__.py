"""The formats of schedules on an inbox: encoded in Python, decoded by Spark SQL text. No I/O.

`headers` (etf1's and ours): the record key is the id, headers have due time and target, a null
value cancels. `envelope` (the JSON envelope): the value is `{"topic", "message", "countdown"}`.
"""

from sendlater.dialects.decode import SPARK_SETTINGS, stages
from sendlater.dialects.deliver import delivered_headers, delivered_stages, fingerprint, lane_stages
from sendlater.dialects.encode import (
    encode_again,
    encode_cancel,
    encode_envelope,
    encode_headers,
    encode_schedule,
    encode_tombstone,
)
from sendlater.dialects.when import duration_ms, instant_ms, share_of

__all__ = [
    "SPARK_SETTINGS",
    "delivered_headers",
    "delivered_stages",
    "duration_ms",
    "encode_again",
    "encode_cancel",
    "encode_envelope",
    "encode_headers",
    "encode_schedule",
    "encode_tombstone",
    "fingerprint",
    "instant_ms",
    "lane_stages",
    "share_of",
    "stages",
]
