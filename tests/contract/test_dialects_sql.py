"""The dialects through real Spark SQL, against a plain model of the rules."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import cycle

import pyarrow as pa
import pytest
from dialects_inputs import (
    ENVELOPED,
    MEDDLING,
    MESSAGES,
    SCHEDULES,
    SOON,
    TARGET,
    envelope,
    hostile_envelopes,
    hostile_schedules,
    schedule,
)
from dialects_model import COLUMNS, READ_MS, SETTINGS, check
from dialects_spark import decode, frame_of
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sendlater.brokers.partition_reader import Read
from sendlater.config import Inbox
from sendlater.dialects import (
    encode_again,
    encode_cancel,
    encode_envelope,
    encode_headers,
    names,
    stages,
)
from sendlater.dialects.deliver import leaving
from sendlater.dialects.progress import left_on_journal
from sendlater.dialects.recurrence import make_plan
from sendlater.model import Origin, Record, Schedule
from sendlater.operations.acceptance import inbox_record
from sendlater.operations.arguments import plan_send, to_id
from sendlater.spark.intake.inbox_rows import chunk
from sendlater.spark.journal.copy_inboxes import Copier
from sendlater.spark.pipe import PASS_BYTES


def test_what_only_passes_records_on_is_not_looked_at(spark):
    """Each chunk of intake ends in markers and fillers; to reject them took a third of its CPU."""
    frame = spark.createDataFrame(pa.Table.from_batches([chunk(Read(), {("in", 0): 7})]))
    for stage in stages(SETTINGS):
        frame = frame.selectExpr(*stage)
    marker, filler, last = frame.collect()
    assert (marker.origin_topic, marker.origin_position) == ("in", 7)
    assert len(filler.value) == PASS_BYTES, "the JVM passes on what is full"
    assert {(one.dialect, one.headers, one.due_ms) for one in (marker, filler, last)} == {
        ("headers", None, None)
    }


def test_whatever_arrives_becomes_a_schedule_or_a_reason(spark):
    records = [*hostile_schedules(), *hostile_envelopes()]
    decoded = decode(spark, records)
    assert len(decoded) == len(records)
    for place, (record, row) in enumerate(zip(records, decoded, strict=True)):
        check(record, place, row)


@settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(SCHEDULES | ENVELOPED, min_size=40, max_size=400))
def test_random_records_follow_the_model(spark, records):
    """A few large batches, as a Spark job costs more than a hundred rows."""
    for place, (record, row) in enumerate(zip(records, decode(spark, records), strict=True)):
        check(record, place, row)


# ---- round trips, delivery, settings -----------------------------------------------------------


def test_what_is_encoded_is_decoded_whole(spark):
    record = Record(topic="t", key=b"", value=b"\xff", headers=[("a", None), ("a", b"\xfe")])
    text = Record(topic="t", key=None, value="é".encode(), headers=[("a", b"1")])
    due_ms = READ_MS + 1_500
    at = "2026-06-01T00:00:00.0001Z"
    rows = decode(
        spark,
        [
            encode_headers(record, inbox="schedules", id=b"\xfd", due_ms=due_ms),
            encode_headers(record, inbox="schedules", id=b"\xfd", delay_ms=1_500),
            encode_headers(record, inbox="schedules", id=b"\xfd", at=at),
            encode_envelope(text, inbox="envelopes", delay_ms=1_500, caller="me"),
            encode_cancel(inbox="schedules", id=b"\xfd"),
        ],
    )
    for row in rows[:3]:
        assert [row[c] for c in COLUMNS[2:7]] == ["t", None, b"", b"\xff", record.headers]
    assert [row["due_ms"] for row in rows] == [due_ms, due_ms, 1_780_272_000_001, due_ms, None]
    assert rows[3]["value"] == text.value
    assert rows[3]["headers"] == [("a", b"1"), ("CALLER_SERVICE", b"me")]
    assert rows[4]["id"] == b"\xfd"


def test_delivered_records_carry_what_each_dialect_promises(spark):
    good = b'{"topic":"t","message":"a","countdown":1}'
    s1, s0, bad = decode(
        spark, [schedule(SOON, TARGET, ("a", b"1")), envelope(good), envelope(b"")]
    )
    assert s1["delivered"] == [
        ("a", b"1"),
        (names.SCHEDULER_TIMESTAMP, b"1780000000"),
        (names.SCHEDULER_KEY, b"id"),
        (names.SCHEDULER_TOPIC, b"schedules"),
        (names.DELIVERED_TO, b"t"),
        (names.ID, b"id"),
        (names.DUE, b"1780000001000"),
    ]
    assert s0["delivered"] == [
        (names.DELIVERED_TO, b"t"),
        (names.ID, b"envelopes-1-1"),
        (names.DUE, str(READ_MS + 1_000).encode()),
    ]
    assert bad["delivered"][-2:] == [
        (names.ID, b"envelopes-1-2"),
        (names.DUE, str(READ_MS).encode()),
    ]


def test_an_inbox_may_add_few_headers(spark):
    few = Inbox(topic="schedules", added_headers="few")
    chosen = SETTINGS.model_copy(update={"inboxes": (few, *SETTINGS.inboxes[1:])})
    good = b'{"topic":"t","message":"a","countdown":1}'
    records = [schedule(SOON, TARGET, ("a", b"1")), envelope(good), schedule(TARGET)]
    own, enveloped, bad = decode(spark, records, chosen)
    assert own["delivered"] == [
        ("a", b"1"),
        (names.ID, b"id"),
        (names.DUE, b"1780000001000"),
    ]
    assert [row["dialect"] for row in (own, enveloped, bad)] == ["few", "envelope", "rejected"]
    record = Record(topic=own["topic"], value=own["value"], headers=own["headers"])
    one = Schedule(id=own["id"], due_ms=own["due_ms"], record=record, dialect=own["dialect"])
    assert leaving(one)[0].headers == own["delivered"]


def test_the_expiry_of_an_event_counts_if_the_setting_says_so(spark):
    """And after our own headers; it is the sender's header, so it is passed on."""
    event = ("ce_expirytime", b"2026-06-01T00:00:00Z")
    records = [
        schedule(SOON, TARGET, event),
        schedule(SOON, TARGET, event, (names.EXPIRES_AFTER, b"1m")),
        schedule(SOON, TARGET, ("ce_expirytime", b"1780272000000")),
        schedule(SOON, TARGET, ("ce_expirytime", b"2020-06-01T00:00:00Z")),
    ]
    assert {row["expires_ms"] for row in decode(spark, records)} == {None}
    chosen = SETTINGS.model_copy(update={"ce_expirytime": True})
    rows = decode(spark, records, chosen)
    assert rows[0]["headers"] == [event]
    assert [(row["expires_ms"], row["expires_after_ms"]) for row in rows] == [
        (1_780_272_000_000, None),
        (None, 60_000),
        (None, None),
        (None, None),
    ]
    assert [dict(row["headers"]).get(names.REJECTED) for row in rows[2:]] == [b"bad-expiry"] * 2


@pytest.mark.parametrize("read_ms", [-1, -(10**13), 0])
def test_who_writes_no_timestamp_is_told(spark, read_ms):
    times = (names.EVERY, names.DELAY, names.RETRY, names.DUE_MS)
    texts = (b"5s", b"5s", b"5s", SOON[1])
    records = [schedule((name, text), TARGET) for name, text in zip(times, texts, strict=True)]
    records.append(envelope(b'{"topic": "t", "message": "m", "countdown": 5}', key=b"k"))
    rows = decode(spark, records, read_ms=read_ms)
    told = [dict(row["headers"] or ()).get(names.REJECTED_DETAIL, b"").decode() for row in rows]
    bad = f"expected a record timestamp since 1970, got {read_ms}"
    # With a delay of five seconds, the last of 1969 is in 1970.
    assert told[0] == (bad if read_ms < 0 else "")
    assert [told[1], told[2], told[4]] == [bad if read_ms < -5_000 else ""] * 3
    assert told[3] == (
        f"expected {names.DUE_MS} within 3660 days of the record timestamp {read_ms}, "
        f'got "{SOON[1].decode()}"'
    )


def test_the_copy_of_a_change_was_accepted_before(spark):
    """Moved past its expiry, a second ago, and larger by the header that marks it."""
    chosen = SETTINGS.model_copy(update={"past": "reject", "past_grace_s": 0})
    expires, change = (names.EXPIRES, b"%d" % (READ_MS - 9_000)), (names.CHANGE, b"c1")
    soon = (names.DUE_MS, b"%d" % (READ_MS - 5_000))
    filler = ("filler", b"x" * SETTINGS.max_payload_bytes)
    copies = [schedule(SOON, TARGET, expires, change), schedule(soon, TARGET, change)]
    copies.append(schedule(SOON, TARGET, filler, change))
    first = [schedule(*(pair for pair in one.headers if pair != change)) for one in copies]
    rows = decode(spark, copies + first, chosen)
    assert [(row["dialect"], row["change"]) for row in rows[:3]] == [("headers", "c1")] * 3
    assert [dict(row["headers"])[names.REJECTED] for row in rows[3:]] == [
        *(b"bad-expiry", b"past", b"too-large")
    ]


def test_time_buckets_refuse_an_expiry_and_tags(spark):
    chosen = SETTINGS.model_copy(update={"pending": "buckets"})
    rows = [schedule(SOON, TARGET, (names.EXPIRES_AFTER, b"1m"))]
    rows.append(schedule(SOON, TARGET, (names.TAGS, b"order-17")))
    told = [dict(row["headers"])[names.REJECTED] for row in decode(spark, rows, chosen)]
    assert told == [b"cannot-expire", b"cannot-tag"]


@pytest.mark.parametrize(
    "more",
    [
        {"pending": "buckets"},
        {"inboxes": (Inbox(topic="schedules", journal=True),), "horizon": "1h"},
        {
            "inboxes": (
                Inbox(topic="schedules", copy_to="journal"),
                Inbox(topic="journal", journal=True),
            ),
            "horizon": "1h",
        },
    ],
)
def test_a_condition_that_nobody_can_decide_is_rejected(spark, more):
    chosen = SETTINGS.model_copy(update=more)
    (row,) = decode(spark, [schedule(SOON, TARGET, (names.IF, b"absent"))], chosen)
    told = dict(row["headers"])
    assert told[names.REJECTED] == b"bad-condition"
    assert told[names.REJECTED_DETAIL].startswith(b"expected sendlater-if on an inbox of which")
    assert row["change"] is None


def test_a_tombstone_never_has_a_condition(spark):
    """That of a rejected record has the record's headers too, whatever bytes they are."""
    chosen = SETTINGS.model_copy(update={"inboxes": (Inbox(topic="schedules", journal=True),)})
    done = (names.ORIGIN, b"schedules/1/7")
    told = [done, (names.IF, b"\xff|\x00")]
    record = Record(topic="schedules", key=b"a", value=None, headers=told)
    (row,) = decode(spark, [record], chosen)
    assert (row["change"], row["value"]) == ("left ", b"schedules/1/7")


def test_deliveries_of_a_journal_tell_their_version(spark):
    chosen = SETTINGS.model_copy(update={"inboxes": (Inbox(topic="schedules", journal=True),)})
    good, bad = decode(spark, [schedule(SOON, TARGET), schedule(TARGET)], chosen)
    assert good["delivered"][-1] == (names.ORIGIN, b"schedules/1/0")
    assert [name for name, _ in bad["delivered"]].count(names.ORIGIN) == 1


def test_control_headers_are_kept_on_request(spark):
    headers = [(names.EPOCH, b"1780000001"), TARGET, (names.ID, b"old"), (names.DUE, b"1")]
    chosen = SETTINGS.model_copy(update={"keep_input_headers": True})
    (row,) = decode(spark, [schedule(*headers)], chosen)
    assert row["headers"] == headers[:2]


def test_what_was_due_before_it_was_written_is_rejected_on_request(spark):
    """S1's rule for a record that comes in time: the second it was written in is not past."""
    second = READ_MS // 1_000
    chosen = SETTINGS.model_copy(update={"past": "reject", "past_grace_s": 2})
    records = [
        schedule((names.EPOCH, b"%d" % epoch), TARGET) for epoch in (second, second - 2, second - 3)
    ]
    assert [row["dialect"] for row in decode(spark, records, chosen)] == [
        "headers",
        "headers",
        "rejected",
    ]
    past = decode(spark, records[2:], chosen)[0]["headers"]
    assert (names.REJECTED, b"past") in past
    assert [row["dialect"] for row in decode(spark, records)] == ["headers"] * 3


def test_a_tombstone_of_ours_on_a_journal_is_never_rejected(spark):
    """Not even with a blank id; its value is the version that it is about."""
    journal = (Inbox(topic="schedules", journal=True),)
    chosen = SETTINGS.model_copy(update={"inboxes": journal})
    done = (names.ORIGIN, b"schedules/1/7")
    records = [
        Record(topic="schedules", key=key, value=None, headers=headers)
        for key, headers in [(b"a", [done]), (b" ", [done]), (b"a", []), (b" ", [])]
    ]
    rows = decode(spark, records, chosen)
    assert [(row["dialect"], row["value"]) for row in rows[:3]] == [
        ("headers", b"schedules/1/7"),
        ("headers", b"schedules/1/7"),
        ("headers", None),
    ]
    assert [row["due_ms"] for row in rows[:3]] == [None] * 3
    assert rows[3]["dialect"] == "rejected"
    assert [row["dialect"] for row in decode(spark, records)][1] == "rejected"


def test_a_tombstone_names_the_id_that_its_record_waited_under(spark):
    """Of a rejected record its place, of an occurrence its planned time; whatever the record came
    with: ours come first, and only the place of the version counts."""
    chosen = SETTINGS.model_copy(update={"inboxes": (Inbox(topic="schedules", journal=True),)})
    done, waited = (names.ORIGIN, b"schedules/1/7"), (names.ID, b"schedules-1-7")
    stale = [(names.ID, b"a"), (names.ORIGIN, b"schedules/0/1")]
    rows = decode(
        spark,
        [
            Record(topic="schedules", key=b"a", value=None, headers=headers)
            for headers in (
                [waited, done, *stale],
                [(names.ID, b"schedules-1-7-1800"), done],
                [(names.ID, b"a@1800"), (names.DUE, b"1800"), done],
                [(names.ID, b"schedules-1-71"), done],
                [(names.ID, b"a"), done],
                [(names.ID, b"a@1800x"), done],
                [(names.ID, b"b@1800"), done],
                [(names.ID, b"\xff@1"), done],
                [done],
                [waited],
            )
        ],
        chosen,
    )
    assert [row["id"] for row in rows] == [b"a"] * 10
    assert [row["value"] for row in rows] == [b"schedules/1/7"] * 9 + [None]
    told = ["left  schedules-1-7", "left  schedules-1-7-1800", "left 1800 @1800"]
    assert [row["change"] for row in rows] == told + ["left "] * 6 + [None]


def test_what_is_written_again_is_the_same_schedule_and_names_its_version(spark):
    """However large it became by that; elsewhere the name means nothing, and is not passed on."""
    chosen = SETTINGS.model_copy(update={"inboxes": (Inbox(topic="schedules", journal=True),)})
    record = Record(topic="t", key=b"", value=b"x" * 890, headers=[("a", None), ("a", b"1")])
    origin = Origin(topic="schedules", partition=1, position=0, timestamp_ms=READ_MS)
    first = Schedule(
        id=b"id", due_ms=READ_MS + 60_000, record=record, dialect="headers", origin=origin
    )
    copy, anew = encode_again(first), encode_again(first, anew=True)
    elsewhere = schedule(SOON, TARGET, (names.AGAIN, b"schedules/2/0"))
    nothing = schedule(TARGET, (names.AGAIN, b"schedules/1/0"))
    forged, change = (
        schedule(SOON, TARGET, (names.CHANGE, told)) for told in (b"again elsewhere/0/0", b"c1")
    )

    rows = decode(spark, [copy, copy, anew, elsewhere, nothing, forged, change], chosen)
    assert [row["change"] for row in rows[:2]] == ["again schedules/1/0"] * 2
    assert [row["change"] for row in rows[2:]] == [None] * 4 + ["c1"]
    assert [row["dialect"] for row in rows[:5]] == ["headers"] * 4 + ["rejected"]
    for row in rows[:3]:
        assert [row[c] for c in COLUMNS[:7]] == [
            *(b"id", first.due_ms, "t", None, b"", record.value, record.headers)
        ]
    assert [row["change"] for row in decode(spark, [copy])] == [None]
    assert decode(spark, [elsewhere])[0]["headers"] is None


def test_what_our_client_asks_for_now_is_not_past_a_second_later(spark):
    """A time that is longer ago is, and what is beside a plan has its due time for its reader."""
    chosen = SETTINGS.model_copy(update={"past": "reject", "past_grace_s": 0})
    now_ms = READ_MS // 1_000 * 1_000 - 1

    def sent(ago_ms, headers=(), id=b"a", **more):
        record = Record(topic="t", value=b"v", headers=list(headers))
        one = Schedule(id=id, due_ms=now_ms - ago_ms, record=record, **more)
        return inbox_record(one, settings=chosen, inbox="schedules", now_ms=now_ms)

    plan = make_plan(now_ms=now_ms, every_ms=60_000).text
    records = [sent(0), sent(1_000), sent(1_001), sent(-1), sent(0, plan=plan)]
    records.append(sent(0, [(names.SCHEDULE, b"i")], id=b"i@5"))
    rows = decode(spark, records, chosen)
    assert [row["dialect"] for row in rows] == [
        *("headers", "headers", "rejected", "headers", "headers", "headers")
    ]
    assert [row["due_ms"] for row in rows[:2]] == [READ_MS] * 2
    assert [dict(one.headers).get(names.DUE_MS) is None for one in records] == [
        *(True, True, False, False, False, False)
    ]
    assert sent(0).headers[0] == (names.DELAY, b"0")
    chosen = SETTINGS
    assert names.DUE_MS in dict(sent(0).headers), "where the past is delivered, as before"


def test_behind_own_nobody_writes_what_only_a_delivery_has(spark):
    """Beside each other these made a tombstone without a key, which stopped a whole batch. An
    occurrence beside a plan that is written again keeps the name of its schedule."""
    chosen = SETTINGS.model_copy(update={"inboxes": (Inbox(topic="schedules", journal=True),)})
    front, user = [SOON, TARGET, (names.TARGET_KEY, b"k"), (names.OWN, None)], [("h", b"1"), SOON]
    forged = [(name, value) for name in names.STALE for value in (None, b"", b"x", b"x/0/0")]
    extra = Schedule(
        id=b"i@5",
        due_ms=READ_MS,
        record=Record(topic="t", value=b"v", headers=[(names.SCHEDULE, b"i"), ("h", b"1")]),
        dialect="headers",
        origin=Origin(topic="schedules", partition=1, position=0, timestamp_ms=READ_MS),
    )
    records = [schedule(*front, *forged, *user, *forged), encode_again(extra)]
    rows = decode(spark, records, chosen)
    assert [row["dialect"] for row in rows] == ["headers"] * 2
    assert rows[0]["headers"] == user
    assert rows[1]["headers"] == extra.record.headers


@pytest.mark.parametrize("of", [None, b""])
def test_an_occurrence_of_nothing_leaves_a_tombstone_with_its_own_key(of):
    """As stores may have them from before."""
    headers = [(names.SCHEDULE, of), (names.AGAIN, None)]
    place = Origin(topic="schedules", partition=1, position=0, timestamp_ms=READ_MS)
    record = Record(topic="t", key=b"k", value=b"v", headers=headers)
    one = Schedule(id=b"i", due_ms=1, record=record, dialect="headers", origin=place)
    assert left_on_journal(one, []) is None
    sent, tombstone = leaving(one, ("schedules",))
    assert (tombstone.key, tombstone.value) == (b"i", None)
    assert sent.headers[:2] == headers


@pytest.mark.parametrize("dialect", ["headers", "envelope"])
def test_an_installation_may_have_one_dialect_only(spark, dialect):
    good = {"headers": schedule(SOON, TARGET), "envelope": envelope(MESSAGES[0].encode())}[dialect]
    chosen = SETTINGS.model_copy(update={"inboxes": (Inbox(topic=good.topic, dialect=dialect),)})
    (row,) = decode(spark, [good], chosen)
    assert row["dialect"] == {"headers": "headers", "envelope": "rejected"}[dialect]


def test_a_long_payload_does_not_overflow_the_parsers_stack(spark):
    """Java's regular expressions recurse unless told not to."""
    chosen = SETTINGS.model_copy(update={"max_payload_bytes": 10_000_000})
    long = json.dumps(['\\"1' * 50_000, *range(50_000), "x" * 500_000]).replace(", ", ",")
    good = f'{{"topic": "t", "message": {long}, "countdown": 1}}'.encode()
    cut = good[:-40]
    whole, broken = decode(spark, [envelope(good), envelope(cut)], chosen)
    assert whole["value"] == long.encode()
    assert broken["dialect"] == "rejected"
    assert broken["value"] == cut


def test_the_same_id_is_moved_by_the_same_amount_through_every_door(spark):
    """The header in SQL, and the argument in Python; the amounts are even."""
    instant = datetime(2026, 6, 1, tzinfo=UTC)
    instant_ms = 1_780_272_000_000
    ids = [f"customer-{n}" for n in range(400)] + ["é", "\udcff"]
    at = (names.AT, b"2026-06-01T00:00:00Z")
    headers = [at, (names.SPREAD, b"10m"), TARGET]
    rows = decode(spark, [schedule(*headers, key=to_id(id)) for id in ids])
    moved = [row["due_ms"] - instant_ms for row in rows]
    planned = [
        plan_send("t", "v", now_ms=READ_MS, at=instant, spread=timedelta(minutes=10), id=id)
        for id in ids
    ]
    assert moved == [one.due_ms - instant_ms for one in planned]
    assert 0 <= min(moved) < 60_000 < 540_000 < max(moved) < 600_000
    assert 250_000 < sum(moved) / len(moved) < 350_000
    assert rows[0]["headers"] is None


def copies_of(spark, records, chosen):
    """The copies of records on their journal."""

    def read(value):
        return None if value is None else bytes(value)

    rows = Copier(spark, chosen, None)._copies(frame_of(spark, records)).collect()
    return [
        Record(
            topic=row.topic,
            key=read(row.key),
            value=read(row.value),
            headers=[(name, read(value)) for name, value in row.headers],
        )
        for row in rows
    ]


def test_a_copy_is_delivered_as_the_record_itself_whatever_its_headers_are(spark):
    """What was decided when it was copied stands: on the journal neither the headers of a rejected
    record nor those beside an envelope count."""
    copied = {"copy_to": "journal"}
    inboxes = (
        Inbox(topic="schedules", **copied),
        Inbox(topic="envelopes", dialect="envelope", **copied),
        Inbox(topic="journal", journal=True),
    )
    chosen = SETTINGS.model_copy(update={"inboxes": inboxes, "bootstrap_servers": "nobody:1"})
    hostile = [*hostile_schedules(), *hostile_envelopes()]
    records = [
        replace(one, headers=[*one.headers, *more])
        for one, more in zip(hostile, cycle(MEDDLING), strict=False)
        if not {*names.PLANS} & {*dict((*one.headers, *more))}
    ]
    first = decode(spark, records, chosen)
    again = decode(spark, copies_of(spark, records, chosen), chosen)
    assert {row["dialect"] for row in first} == {"headers", "envelope", "rejected"}
    assert [row["headers"] for row in again if row["dialect"] != "headers"] == []
    what = ("id", "due_ms", "topic", "partition", "key", "expires_ms", "expires_after_ms", "tags")
    for record, row, copy in zip(records, first, again, strict=True):
        if (row["expires_ms"] or 0) < 0:
            row["expires_ms"] = 0
        assert [copy[name] for name in what] == [row[name] for name in what], record
        assert (copy["value"] or b"") == (row["value"] or b""), record
        assert (copy["value"] is None) == (copy["due_ms"] is None), record
        ours = (*names.STALE, names.COPIED, names.OWN)
        left = [one for one in row["headers"] or () if one[0] not in ours]
        assert (copy["headers"] or []) == left, record


def test_a_copy_on_a_journal_keeps_expiry_condition_and_what_is_tried_again(spark):
    """So an emptied Redis loses neither: the copy is read again, and is the same schedule."""
    plain = Inbox(topic="schedules", copy_to="journal")
    inboxes = (plain, Inbox(topic="journal", journal=True))
    chosen = SETTINGS.model_copy(update={"inboxes": inboxes, "bootstrap_servers": "nobody:1"})
    again = [(names.DELIVERED_TO, b"orders"), (names.ID, b"a"), (names.DUE, b"1")]
    records = [
        schedule(SOON, TARGET, (names.EXPIRES_AFTER, b"10m0.5s")),
        schedule(SOON, TARGET, (names.EXPIRES, b"2026-06-01T00:00:00Z")),
        schedule(SOON, TARGET, (names.SPREAD, b"1h"), (names.TAGS, b"order-17, mail")),
        schedule(*again, (names.EXPIRY, b"1780000009000"), (names.RETRY, b"5s"), key=b"k"),
        schedule(SOON, TARGET, (names.IF, b"later")),
        schedule((names.EVERY, b"1h"), TARGET, (names.IF, b"absent")),
    ]
    on_journal = copies_of(spark, records, chosen)
    what = ("id", "due_ms", "topic", "key", "value", "headers", "tags", "change")
    what += ("expires_ms", "expires_after_ms")
    first = [{name: row[name] for name in what} for row in decode(spark, records, chosen)]
    read = [{name: row[name] for name in what} for row in decode(spark, on_journal, chosen)]
    assert read[:5] == first[:5]
    assert [row["change"] for row in read[4:]] == ["if later", "recurs if absent"]
    read = read[:4]
    assert [row["expires_after_ms"] for row in read] == [600_500, None, None, None]
    assert [row["expires_ms"] for row in read] == [None, 1_780_272_000_000, None, 1_780_000_009_000]
    assert [row["tags"] for row in read] == [None, None, "order-17,mail", None]
    assert read[3]["id"].startswith(b"retry-")
