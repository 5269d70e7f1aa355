"""Limits that are facts of a format or of a machine, not choices of an installation.

Apart from the settings, because Spark's tasks need only these and start sooner without pydantic.
"""

CLAIM_COUNT_MAX = 1_000
"""Most schedules in one claim: 1,000 of a million hold Redis for 1.7 ms, 10,000 for 18 ms."""
CLAIM_BYTES_MAX = 8 * 1024 * 1024
"""Payload at which a claim takes no more: what one answer of Redis and one Arrow batch hold."""
BATCH_BYTES_MAX = 256 * 1024 * 1024
"""Payload at which a batch takes no more from a shard, however few its rows: what a crash leaves to
be looked up is read into memory."""
PARK_BYTES_MAX = 4 * 1024 * 1024
"""Payload at which a park call is cut, however few its rows."""
PARK_COUNT_MAX = 500
"""Most schedules in one park call: bounds how long one script holds Redis."""
WATERMARK_LOOKS_MAX = 1_000
"""Most questions about the ends of inboxes that wait until intake has come so far."""
RESCUE_COUNT_MAX = 20_000
"""Most rows of a failed batch that are delivered one by one before its lane starts again."""
RELEASE_COUNT_MAX = 500
"""Most schedules one release call puts back."""
BATCH_COUNT_MAX = 250_000
"""Most schedules one batch claims per shard; bounds what a crash can double, and memory."""
PAGE_COUNT_MAX = 1_000
"""Most schedules in one page of a list."""
PAGE_LOOK_MAX = 2_000
"""Most schedules one call looks at for a page with a filter: holds Redis for about 2 ms."""
CHANGES_COUNT_MAX = 100_000
"""Most changes per shard whose copies intake has not read: beyond it, intake is far behind."""
CHANGE_KEPT_MS = 24 * 3_600_000
"""How long a change is remembered whose copy never reached the inbox (a door died in between)."""
TALLY_NAMES_MAX = 500
"""Most counters per shard that carry a topic's name; further topics count as one."""
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
TIMESTAMP_SPAN_MS_MAX = 9_000_000_000_000_000
"""How far from now a record's timestamp may be: Spark's microseconds end 9.2e15 ms from 1970."""
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
REJECTED_VALUE_BYTES_MAX = 1_024
"""What is kept of a value that the rejected topic does not take in full."""
REJECTED_DETAIL_CHARS_MAX = 500
"""Longest detail of a rejection, before what was left out is told in it."""
REJECTED_BYTES_MAX = 8_192
"""Largest rejected record once its value is cut and its headers are gone: every rejected topic must
take that much."""
ADDED_BYTES_MAX = 1_024
"""What delivery adds to a record besides its id, thrice: a batch's framing, and our headers."""

LATE_BUCKETS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000),
    *(60_000, 300_000, 900_000, 3_600_000),
)
"""Upper edges, included, of the lateness histogram; beyond the last there is one more bucket."""
RECENT_COUNT_MAX = 5_000
"""Last deliveries each shard remembers for people: about half a megabyte."""
RECENT_TOLD_MAX = 50
"""Most deliveries one call adds to that list; at higher rates the list is a sample."""
OVERDUE_AFTER_MS = 1_000
"""A pending schedule due this long ago counts as overdue; what is claimed at once never does."""

AUDIT_COUNT_MAX = 10_000
"""Entries of the audit trail that are kept: a few megabytes."""
ANSWER_KEPT_S = 24 * 3_600
"""How long an answer is remembered for its Idempotency-Key."""
BULK_COUNT_MAX = 100_000
"""Most schedules one bulk change touches: bounds its memory and what undoing it keeps."""
BULK_IDS_MAX = 1_000
"""Most ids named one by one in a bulk change."""
BODY_BYTES_MAX = 32 * 1024 * 1024
"""Largest request body: bounds memory together with the number of connections."""
LINES_COUNT_MAX = 100_000
"""Most schedules in one NDJSON request."""
CONNECTIONS_COUNT_MAX = 512
"""Most HTTP connections at once; more are answered 503."""
BUCKETS_COUNT_MAX = 500
"""Most buckets of a histogram: each costs two O(log n) counts per shard."""
BUCKET_SAMPLES = 8
"""Schedules looked at per bucket and shard to tell the topics in it."""
ANSWER_AWAITED_S = 120
"""How long a question with an Idempotency-Key counts as under way; its process may have died."""
TAIL_COUNT_MAX = 2_000
"""Most records read back from the end of a partition when somebody looks at a topic."""
LOOK_COUNT_MAX = 50_000
"""Most records of a partition that are looked through for one schedule's: half a second or so."""

FOLLOW_WAIT_S_MAX = 10
"""Longest a request waits for the next record of a topic: it holds a thread meanwhile."""
FOLLOWERS_COUNT_MAX = 32
"""Most such requests at once: each has a thread, and on Kafka a consumer."""

BUCKET_MARGIN_MS_MAX = 1_000
"""A record leaves its bucket so long before it must: more than a pass under load takes (0.5 s)."""
BUCKET_PASS_ROWS_MAX = 50_000
"""Most records one pass moves, and of an inbox takes in: bounds its length, and what a crash
repeats."""
BUCKET_HELD_COUNT_MAX = 100_000
"""Most records a delivering task holds; more wait in Kafka until some have gone out."""
BUCKET_HELD_BYTES_MAX = 64 * 1024 * 1024
"""Payload at which a delivering task reads no further until some has gone out."""
BUCKET_RETENTION_MARGIN_MS = 7 * 24 * 3_600_000
"""A bucket topic keeps its records so much longer than they wait: the longest break survived."""
GELF_BYTES_MAX = 8_192
"""Largest datagram of a log event to Graylog: what GELF over UDP takes without chunks."""
LOG_REPEAT_MS = 10_000
"""The same warning or error is logged once in this time, however often a loop tries again."""
LOG_KINDS_MAX = 1_000
"""Most warnings and errors remembered for that, some 200 bytes each; the longest ago is forgotten
first, and would then be logged again sooner."""

PLAN_RECORDS_PER_TASK = 50_000
"""Records of a journal that one task reads: more tasks than that tell progress no better."""
RECOVERY_LOOK_BACK_MS = 120_000
"""No batch lasts longer: what an unsettled one delivered is not older than this before its end."""
RECOVERY_CLOCK_SKEW_MS = 10_000
"""How far a broker's clock may be behind ours when deliveries are looked up by time."""
OFFSETS_RECOMMIT_MS = 3_600_000
"""Pause between two commits of offsets that stand still: brokers forget a group after a week."""
METADATA_MS_MAX = 10_000
"""Age at which Spark's Kafka sources ask for partitions anew: those added are read soon after."""
HORIZON_MS_MIN = 5_000
"""Shortest horizon: planning reads whole journals twice in this time."""
REWRITE_AHEAD_MS = 60_000
"""Schedules due sooner are not written to their journal again: compaction is slower than that."""
