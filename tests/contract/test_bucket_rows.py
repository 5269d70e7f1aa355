"""What becomes of a record that a bucket does not take whole, through real Spark SQL."""

from dialects_model import READ_MS
from dialects_spark import frame_of

from sendlater.config import Settings
from sendlater.dialects import names
from sendlater.model import Record
from sendlater.spark.buckets import crash_lookup, passes
from sendlater.spark.buckets.ladder import Ladder
from sendlater.spark.buckets.record import parse

SETTINGS = Settings(
    bootstrap_servers="here:9092",
    pending="buckets",
    inboxes=[{"topic": "in"}, {"topic": "envelopes", "dialect": "envelope"}],
    rejected_topic="bad",
    max_payload_bytes=100_000,
)
ROOM_BYTES = 120_000
DUE = [("scheduler-target-topic", b"out"), ("sendlater-due-ms", b"%d" % (READ_MS + 60_000))]
BIG = b"\x00" * 300_000
KEPT_BYTES_MAX = 8_192
TRIED = [("sendlater-retry", b"1s"), ("retry-attempt", b"9")]


def rows_of(spark, *records):
    """What is written to the buckets, read as the delivering task reads it."""
    frame = frame_of(spark, records)
    rows = passes.decoded(frame, SETTINGS, passes.SystemClock(), room_bytes=ROOM_BYTES)
    read = []
    for row in rows.select("key", "value", "headers").collect():
        headers = [(h.key, h.value and bytes(h.value)) for h in row.headers]
        value = row.value and bytes(row.value)
        read.append(parse(0, bytes(row.key), value, headers))
    return read


def record(*, topic="in", key=b"k", value=b"v", headers=()):
    return Record(topic=topic, key=key, value=value, headers=[*headers, *DUE])


REFUSED = [
    (record(value=BIG), b"too-large"),
    (record(headers=[("h", BIG)]), b"too-large"),
    (record(headers=[("", None)] * 20_000), b"too-large"),
    (record(value=BIG, headers=[("sendlater-change", b"x")]), b"too-large"),
    (record(key=BIG), b"id-too-long"),
    (record(topic="envelopes", value=BIG), b"bad-envelope"),
    (record(topic="envelopes", key=BIG), b"bad-envelope"),
    (Record(topic="in", key=b"k", value=BIG), b"no-time"),
    (record(key=BIG, headers=TRIED), b"no-attempts-left"),
]


def test_what_is_larger_than_a_bucket_takes_is_rejected_and_cut(spark):
    """Kafka's producer would refuse it in every pass, and intake stand still for everybody."""
    rows = rows_of(spark, *(sent for sent, _ in REFUSED))

    for place, (row, (sent, reason)) in enumerate(zip(rows, REFUSED, strict=True)):
        told, topic = dict(row.headers), sent.topic.encode()
        assert told[names.REJECTED] == reason, (place, told)
        assert b"left out" in told[names.REJECTED_DETAIL]
        assert told[names.ORIGIN] == b"%s/1/%d" % (topic, place)
        assert told[names.ORIGIN_TIMESTAMP_MS] == b"%d" % READ_MS
        assert (row.dialect, row.partition) == ("rejected", None)
        assert row.value == sent.value[:1_024]
        assert row.key == (b"%s-1-%d" % (topic, place) if sent.key == BIG else sent.key)
        assert row.bytes_count < KEPT_BYTES_MAX


def test_what_fits_stays_as_it_is(spark):
    """A schedule, a rejected record with all its headers and value, and a cancellation."""
    fine = record(headers=[("h", b"1")])
    refused = record(value=b"x" * 110_000, headers=[("h", b"1")])
    cancelled = Record(topic="in", key=b"k", value=None)
    schedule, rejected, clear = rows_of(spark, fine, refused, cancelled)

    assert (schedule.dialect, schedule.topic, schedule.key) == ("headers", b"out", None)
    assert schedule.headers == [("h", b"1")]
    assert (rejected.dialect, rejected.topic, rejected.value) == ("rejected", b"bad", refused.value)
    assert rejected.headers[: len(refused.headers)] == refused.headers
    assert (clear.value, clear.key) == (None, b"k")
    assert dict(clear.headers)[names.REJECTED] == b"cannot-cancel"


def test_what_somebody_else_wrote_on_a_bucket_moves_on_without_a_due_time(spark):
    """Rather than fail each pass: it is passed over in bucket 0."""
    strange = [
        Record(topic="b", key=b"k", value=b"v", headers=headers)
        for headers in ([], [("schedule", None)], [("schedule", b"soon headers")])
    ]
    moved = passes.waiting(frame_of(spark, strange)).collect()
    assert [row.due_ms for row in moved] == [None] * len(strange)


class Group:
    """Nothing committed, and these records in bucket 0."""

    def __init__(self, count):
        self.count = count

    def committed(self, places):
        return {}

    def firsts(self, places):
        return dict.fromkeys(places, 0)

    def ends(self, places):
        return dict.fromkeys(places, self.count)


def test_what_somebody_else_wrote_does_not_stop_the_look_up_after_a_crash(spark, monkeypatch):
    """It would fail, and all of the last window come twice."""
    control = b"%d headers in 0 1 1 out" % READ_MS
    told = ([], [("schedule", b"soon")], [("schedule", b"1 2")], [("schedule", control)])
    headers = [[*one, ("key", None)] for one in told]
    records = [Record(topic="b", key=b"k", value=b"v", headers=one) for one in headers]
    monkeypatch.setattr(crash_lookup, "read", lambda *_: frame_of(spark, records))
    monkeypatch.setattr(crash_lookup, "readable_topics", lambda _, targets: targets)

    def deliveries(*_, **__):
        """All of them: the last one has arrived under its place."""
        columns = "id BINARY, due_ms BIGINT, version STRING"
        return spark.createDataFrame([(b"k", READ_MS, "in/0/1")], columns)

    monkeypatch.setattr(crash_lookup, "deliveries", deliveries)
    ladder, group = Ladder.of(SETTINGS), Group(len(records))
    found = crash_lookup.arrived(spark, SETTINGS, ladder, group, topics=None)
    assert found == {"1": [[3, 4]]}
