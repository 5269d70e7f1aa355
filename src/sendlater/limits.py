"""Limits set by a format or a machine, not by an installation.

Separate from the settings: Spark's tasks need only these, and start faster without pydantic.
"""

LANES_MAX = 8
"""Most lanes of a service: each has a task for each shard. The next owner of a space has the lanes
after these, and the one after it again the first ones."""
KEPT_LANE = 2 * LANES_MAX
"""Lanes from this number on are nobody's: what lane n had, and nobody can look up yet, is kept in
batches of lane KEPT_LANE + n."""
CLAIM_COUNT_MAX = 1_000
"""Most schedules in one claim: 1,000 of a million block Redis for 1.7 ms, 10,000 for 18 ms."""
CLAIM_BYTES_MAX = 8 * 1024 * 1024
"""Payload after which a claim ends: what one answer of Redis and one Arrow batch can hold."""
PREFETCH_COUNT_MIN, PREFETCH_DENSE_MS = 10_000, 1_000
"""A task prefetches where at least so many fall due within so long: fewer are claimed and sent in a
tenth of a second, and a stream costs less when it is claimed as it falls due."""
PREFETCH_NEAR_MS, PREFETCH_PER_MS = 3_000, 30
"""Earlier than this before they are due, a task holds at most as many rows as it leaves, so that
the next lane's task gets its part: two cores send what two tasks hold. Where that is more, as long
before as the rest takes at so many rows a millisecond, a third of what a task prefetches alone."""
LIST_NEAR_MS = 600_000
"""What is due later than this from when a list of everything begins is not prefetched before the
list ends, so that its ids need not be remembered."""
AHEAD_COUNT_MAX = 1_000
"""Most rows of a batch that one call looks through for what is prefetched and passes a filter: it
takes Redis about a millisecond."""
BATCH_BYTES_MAX, WHOLE_BATCH_BYTES_MAX = 1024**3, 256 * 1024**2
"""Payload after which a batch claims no more from a shard; with journals or topics on Redis."""
LIMITS_COUNT_MAX = 100
"""Most topics with a limit: each claim names all of them."""
WEIGHTS_COUNT_MAX = 100
"""Most callers with a weight of a limited topic; as many more share one queue per shard."""
LIMIT_CHUNK_MS = 50
"""Of a topic's limit a shard reserves what comes in this time: a reservation is a call."""
LIMIT_AHEAD_MS = 50
"""How far ahead it may be reserved, or one interval per shard."""
LIMIT_KEPT_MS = 1_000
"""How long a token that nobody has used is kept, besides the burst."""
PARK_BYTES_MAX = 4 * 1024 * 1024
"""Payload after which a park call is split."""
PARK_COUNT_MAX = 500
"""Most schedules in one park call: limits how long one script blocks Redis."""
PLAIN_BYTES_MAX = 64 * 1024
"""Largest record that is packed where it is read; a larger one is not worth it."""
BUNDLE_BYTES_MAX = 256 * 1024
"""Size after which a bundle of packed rows ends: Java's collector treats half a megabyte in one
piece as an exception."""
CANCEL_COUNT_MAX = 250
"""Most schedules in one call that cancels many: with a tag each, they block Redis for 5 ms."""
WATERMARK_LOOKS_MAX = 1_000
"""Most readings of the inbox ends that wait until intake has read that far."""
RESCUE_COUNT_MAX = 20_000
"""Most rows of a failed batch that are delivered one by one before its lane starts again."""
RELEASE_COUNT_MAX = 500
"""Most schedules that one release call puts back."""
BATCH_COUNT_MAX, WHOLE_BATCH_COUNT_MAX = 2_000_000, 250_000
"""Most schedules one batch claims per shard: limits duplicates after a crash whose look-up fails,
and how long one takes. With journals or topics on Redis: these read into memory all of it."""
LOOK_UP_COUNT_MAX, LOOK_UP_BYTES_MAX = 200_000, 64 * 1024 * 1024
"""Most rows, and their payload, that are looked up at once after a crash: they are in memory."""
SCAN_COUNT = 200
"""Rows of a batch that one call reads: 200 of a megabyte are what a client can hold."""
COPY_COUNT_MAX = 500
"""Most schedules in one step of a copy to other shards."""
COPY_BYTES_MAX = 4 * 1024 * 1024
"""Payload that such a step aims at; the first one reads a single schedule."""
PAGE_COUNT_MAX = 1_000
"""Most schedules in one page of a list."""
PAGE_LOOK_MAX = 2_000
"""Most schedules one call reads for a page with a filter: blocks Redis for about 2 ms."""
PAGE_LOOK_S = 0.5
"""How long one request goes on looking for a page with a filter while it is short, call after
call: about 100,000 schedules. Between calls Redis does other work."""
FIRST_ANSWERS_S_MAX = 0.2
"""How long the page waits for what it would ask for first, to bring the answers with it."""
CHANGES_COUNT_MAX = 100_000
"""Most changes per shard whose copies intake has not read; more mean that intake is far behind."""
CHANGE_KEPT_MS = 24 * 3_600_000
"""How long a change is remembered if its copy never reaches the inbox (its process crashed)."""
ONCE_COUNT_MAX = 100_000
"""Ids that a shard remembers for `sendlater-if: once`, so for retries: about 10 MB, and on a
journal as much for the records that asked. Those that were due first are forgotten first."""
ONCE_KEPT_MS = 3_600_000
"""How long after its due time it remembers one: a consumer that died before it committed is back by
then, and one that reads its topic again next week gets its retries again."""
CANCELLED_COUNT_MAX = 100_000
"""Cancellations that a shard remembers at least, and at most twice as many: about 30 MB. An older
version that is read later, from another partition, is known by them."""
TARGET_TIMESTAMP_MS_MIN = 10_000
"""A target that wants timestamps to be closer than this to its broker's clock takes nothing: a
record waits in the producer for a moment, longer while a partition changes its leader."""
RESERVED_MS = 60_000
"""How long an id stays reserved if the process that creates a schedule under a condition dies: the
broker may take half of it to acknowledge the record, and intake the other half to read it."""
ACKNOWLEDGED_MS = 1_000
"""How long a broker may take to acknowledge that record: what stands under the id and is due within
this and `margin_ms` counts as being delivered."""
TALLY_NAMES_MAX = 500
"""Most counters per shard with a topic's name; further topics share one counter."""
RETRY_PAUSES_MAX = 100
"""Most pauses in a list of `sendlater-retry`."""
RETRY_TEXT_BYTES_MAX = 2_000
"""Longest policy: RETRY_PAUSES_MAX pauses of twenty characters each."""
RETRIES_MAX = 1_000
"""Most retries of an exponential `sendlater-retry`."""
RETRY_ERROR_BYTES_MAX = 1_000
"""How much of `sendlater-error` a dead letter repeats in `event-error`."""
EVERY_MS_MIN = 1_000
"""Shortest interval of a recurring schedule: each occurrence costs a script in Redis."""
CRON_CHARS_MAX = 200
"""Longest cron expression."""
JITTER_MS_MAX = 24 * 3_600_000
"""Longest jitter of a recurring schedule: what it may hide is searched for occurrence by
occurrence."""
PREVIEW_COUNT_MAX = 100
"""Most times that a preview of a plan shows: each costs a tenth of a millisecond."""
MISSED_COUNT_MAX = 1_000
"""With missed `all`, most occurrences that are made up for one after the other; the rest of those
that were missed are skipped, so that an outage of a year does not come as a flood."""
MISSED_LATE_MS_MAX = 60_000
"""With missed `none`, an occurrence that is more than this late is missed: a restart of the
service, and the wait for intake (`hold_ms_max`), take less."""
ID_BYTES_MAX = 512
"""Longest schedule id: it is stored twice and sent in a header."""
SEARCH_CHARS_MAX = ID_BYTES_MAX + 17
"""Longest text to search for: an id, and what `retry-of` has behind it, `@` and a due time."""
TAGS_COUNT_MAX = 8
"""Most tags of a schedule: each costs an entry in Redis (about 100 bytes), and a command whenever
the schedule is written, moved, claimed or cancelled."""
TAG_BYTES_MAX = 64
"""Longest tag: it is stored with every schedule that has it, and in the name of a key. Room for a
word and a UUID."""
TOPIC_CHARS_MAX = 249
"""Kafka's own limit on topic names (org.apache.kafka.common.internals.Topic)."""
EPOCH_SECONDS_MAX = 100_000_000_000
"""A larger `scheduler-epoch` (year 5138) is considered milliseconds and rejected."""
WAIT_BLOCK_MS_MAX = 1_000
"""Longest blocking read on Redis; below the client's socket timeout of 5 s."""
WAIT_MS_MAX = 1_000
"""Longest that a lane task waits for a due schedule without reading the store."""
TIMESTAMP_SPAN_MS_MAX = 9_000_000_000_000_000
"""How far from now a record's timestamp may be: Spark's microseconds end 9.2e15 ms from 1970."""
REJECTED_TOPIC_BYTES_MAX = 16 * 1024 * 1024
"""`max.message.bytes` of a rejected topic we create: it must accept every record of an inbox."""
TOPIC_WRITE_COUNT_MAX = 1_000
"""Most records in one pipeline to a topic on Redis: limits memory and what a retry repeats."""
TOPIC_CHUNK_BYTES = 8 * 1024 * 1024
"""Payload after which a pipeline to a topic on Redis is split."""

EXECUTORS_S_MAX = 60.0
"""Longest wait for a cluster's executors at a start: they must have a slot for each task."""
CLOCK_SKEW_MS_MAX = 100
"""A larger difference between two hosts' clocks is reported: deliveries are that much late, or
early for others."""
REDIS_MEMORY_SHARE_MAX = 0.8
"""A larger share of `maxmemory` in use is reported: a full Redis accepts no schedules."""
REJECTED_HEADERS_BYTES_MAX = 16 * 1024
"""Size of the headers added to a rejected record: reason and origin."""
REJECTED_VALUE_BYTES_MAX = 1_024
"""How much is kept of a value that is too large for the rejected topic."""
REJECTED_DETAIL_CHARS_MAX = 500
"""Longest detail of a rejection, before the note about what was left out is added."""
REJECTED_BYTES_MAX = 8_192
"""Largest rejected record after its value is cut and its headers are removed: every rejected topic
must accept that size."""
ADDED_BYTES_MAX = 1_536
"""What delivery adds to a record besides three times its id: batch framing and our headers."""

LATE_BUCKETS_MS = (
    *(1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700),
    *(1_000, 1_500, 2_000, 3_000, 5_000, 7_000, 10_000, 15_000, 20_000, 30_000, 45_000),
    *(60_000, 120_000, 300_000, 900_000, 3_600_000),
)
"""Upper edges, inclusive, of the lateness histogram; one more bucket follows the last edge."""
RECENT_COUNT_MAX = 5_000
"""Last deliveries that each shard keeps for the page: about half a megabyte."""
RECENT_TOLD_MAX = 50
"""Most deliveries one call adds to that list; at higher rates the list is a sample."""
HANDLERS_HEARD_MS = 15_000
"""A worker that has told nothing of its handlers for this long is forgotten."""
OVERDUE_AFTER_MS = 1_000
"""A schedule still pending this long after its due time counts as overdue."""

AUDIT_COUNT_MAX = 10_000
"""Entries kept in the audit trail: a few megabytes."""
ANSWER_KEPT_S = 24 * 3_600
"""How long the answer to an Idempotency-Key is kept."""
BULK_COUNT_MAX = 100_000
"""Most schedules in one bulk change: limits its memory and the data kept for undo."""
BULK_IDS_MAX = 1_000
"""Most ids listed in a bulk change."""
BODY_BYTES_MAX = 32 * 1024 * 1024
"""Largest request body."""
BODIES_BYTES_MAX = 256 * 1024 * 1024
"""Largest sum of the bodies of requests that are being answered; further ones get 503."""
OPEN_BODY_BYTES_MAX = 1_000
"""Largest body on a path that needs no token, such as the sign-in."""
HEAD_BYTES_MAX = 64 * 1024
"""Largest request line with headers."""
HEAD_S_MAX = 10
"""Longest that a client may take to send them, or to begin after it has connected."""
STALL_S_MAX = 20
"""Longest that a client may neither send the body it has announced nor take its answer."""
LINES_COUNT_MAX = 100_000
"""Most schedules in one NDJSON request."""
CONNECTIONS_COUNT_MAX = 512
"""Most HTTP connections at once: a further one takes the place of the one whose client has been
silent for longest; if none waits for its client, it gets 503."""
BUCKETS_COUNT_MAX = 500
"""Most buckets of a histogram: each costs two O(log n) counts per shard."""
BUCKET_SAMPLES = 8
"""Schedules read per bucket and shard to find the topics in it, at least."""
HISTOGRAM_SAMPLES = 240
"""So many more are read from a shard, most where most is due."""
SPIKES_COUNT_MAX = 5
"""Buckets of a histogram that are looked into, to see when most of theirs is due."""
ANSWER_AWAITED_S = 120
"""How long a request with an Idempotency-Key counts as running; its process may have crashed."""
TAIL_COUNT_MAX = 2_000
"""Most records read from the end of a partition to show or search a topic."""
LOOK_COUNT_MAX = 50_000
"""Most records of a partition searched for those of one schedule: about half a second."""

FOLLOW_WAIT_S_MAX = 10
"""Longest that a request waits for the next record of a topic: it occupies a thread meanwhile."""
FOLLOWERS_COUNT_MAX = 32
"""Most such requests at once: each has a thread, and on Kafka a consumer."""
READERS_COUNT_MAX = 8
"""Most requests at once that search a topic: each takes a core for up to half a second."""
WAITING_COUNT_MAX = 32
"""Most requests at once that may wait for intake: each has a thread for up to 30 s."""
TURN_S_MAX = 10
"""Longest that a request waits until one of these has ended; then it is refused (503)."""
READY_S_MAX = 5
"""Longest that /readyz waits for store and broker."""

BUCKET_MARGIN_MS_MAX = 1_000
"""A record leaves its bucket this early: longer than a pass under load takes (0.5 s)."""
BUCKET_PASS_ROWS_MAX = 50_000
"""Most records that one pass moves, and that it reads from an inbox: limits its length, and what a
crash repeats."""
BUCKET_HELD_COUNT_MAX = 100_000
"""Most records a delivering task holds; more wait in Kafka until some are delivered."""
BUCKET_HELD_BYTES_MAX = 64 * 1024 * 1024
"""Payload after which a delivering task stops reading until some of it is delivered."""
BUCKET_ADDED_BYTES_MAX = REJECTED_HEADERS_BYTES_MAX
"""What a record gets more in a bucket: where it came from and goes to, and why it was rejected."""
BUCKET_RETENTION_MARGIN_MS = 7 * 24 * 3_600_000
"""A bucket topic keeps records this much longer than they wait: the longest outage survived."""
GELF_BYTES_MAX = 8_192
"""Largest datagram of a log event to Graylog: the limit of GELF over UDP without chunks."""
LOG_REPEAT_MS = 10_000
"""The same warning or error is logged once in this time, however often a loop tries again."""
LOG_KINDS_MAX = 1_000
"""Most warnings and errors remembered for that, about 200 bytes each; the oldest is forgotten
first, and may be logged again sooner."""

PLAN_RECORDS_PER_TASK = 50_000
"""Records of a journal that one task reads: with more tasks, progress is reported no better."""
RECOVERY_LOOK_BACK_MS = 120_000
"""No batch lasts longer: deliveries of an unsettled batch are at most this much older than its
end."""
RECOVERY_CLOCK_SKEW_MS = 10_000
"""How far a broker's clock may be behind ours when deliveries are looked up by time."""
TORN_MS = 60_000
"""How long before a journal's last tombstone there may be one whose delivery was lost in a killed
producer: twice as long as that tries to send a record."""
TORN_LOOK_BACK_MS = 3_600_000
"""A tombstone is written at most this much later than its delivery (after an outage, say); one
written later still counts as one whose delivery was lost, and its schedule comes again."""
OFFSETS_RECOMMIT_MS = 3_600_000
"""Pause between two commits of unchanged offsets: brokers delete an idle group after a week."""
METADATA_MS_MAX = 10_000
"""How often Spark's Kafka sources look for new partitions."""
HORIZON_MS_MIN = 5_000
"""Shortest horizon: planning reads whole journals twice in this time."""
COMPACTION_LAG_MS = 600_000
"""How long a journal that we create keeps what is followed by a newer record of its id."""
REWRITE_AHEAD_MS = 60_000
"""Schedules due sooner are not written to their journal again: compaction is slower than that."""
REPORTER = "kafka-poll"
"""Name of the thread in which a client hears what Kafka has acknowledged: who waits there for an
acknowledgement waits in vain."""
