"""Limits that are facts of a format or of a machine, not choices of an installation.

Apart from the settings, because Spark's tasks need only these and start sooner without pydantic.
"""

CLAIM_COUNT_MAX = 1_000
"""Most schedules in one claim: 1,000 of a million hold Redis for 1.7 ms, 10,000 for 18 ms."""
PARK_COUNT_MAX = 500
"""Most schedules in one park call: bounds how long one script holds Redis."""
RELEASE_COUNT_MAX = 500
"""Most schedules one release call puts back."""
BATCH_COUNT_MAX = 250_000
"""Most schedules one batch claims per shard; bounds what a crash can double, and memory."""
PAGE_COUNT_MAX = 1_000
"""Most schedules in one page of a list."""
ID_BYTES_MAX = 512
"""Longest schedule id: it is stored twice and sent in a header."""
TOPIC_CHARS_MAX = 249
"""Kafka's own limit on topic names (org.apache.kafka.common.internals.Topic)."""
EPOCH_SECONDS_MAX = 100_000_000_000
"""A larger `scheduler-epoch` (year 5138) is taken for milliseconds and rejected."""
WAIT_BLOCK_MS_MAX = 1_000
"""Longest blocking read on Redis; below the client's socket timeout of 5 s."""
WAIT_MS_MAX = 1_000
"""Longest a lane task waits for something due without looking at the store."""
REJECTED_TOPIC_BYTES_MAX = 16 * 1024 * 1024
"""`max.message.bytes` of a rejected topic we create: it must take what an inbox took."""
TOPIC_WRITE_COUNT_MAX = 1_000
"""Most records in one pipeline to a topic on Redis: bounds memory and what a retry repeats."""
TOPIC_CHUNK_BYTES = 8 * 1024 * 1024
"""Payload at which a pipeline to a topic on Redis is cut, however few its records."""

CLOCK_SKEW_MS_MAX = 100
"""Clocks of two hosts further apart than this are reported: that much late, or early to others."""
REDIS_MEMORY_SHARE_MAX = 0.8
"""Share of `maxmemory` in use that is reported: when it is full, nothing more can be parked."""
REJECTED_HEADERS_BYTES_MAX = 16 * 1024
"""What a rejected record carries besides the original: reason and origin, in headers."""
