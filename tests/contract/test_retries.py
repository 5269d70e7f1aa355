"""A retry by header, in real Spark SQL, and the same by the client: equal for whatever comes."""

from dataclasses import replace

import pytest
from dialects_model import READ_MS, SETTINGS
from dialects_spark import decode
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sendlater.brokers.broker import Arrived
from sendlater.client.backoff import Backoff
from sendlater.client.events import alive_again
from sendlater.client.retries import come_again
from sendlater.config import Inbox
from sendlater.dialects import names
from sendlater.errors import BadRequest, NoAttemptsLeft
from sendlater.model import Expiry, Record

DELIVERED = [
    ("tenant", b"a"),
    ("scheduler-timestamp", b"1780000000"),
    ("scheduler-key", b"order-17"),
    ("scheduler-topic", b"schedules"),
    (names.DELIVERED_TO, b"orders"),
    (names.ID, b"order-17"),
    (names.DUE, b"1780000000000"),
]
"""What a consumer finds on a record that was delivered to it."""


def failed(policy, *headers, delivered=DELIVERED, key=b"k", value=b"v", error=None):
    """What the consumer produces to the inbox."""
    told = [(names.RETRY, policy if isinstance(policy, bytes) else policy.encode())]
    told += [(names.ERROR, error)] if error is not None else []
    return Record(topic="schedules", key=key, value=value, headers=[*delivered, *headers, *told])


def reason_of(row):
    return dict(row["headers"]).get(names.REJECTED)


@pytest.mark.parametrize("policy", [b" " * 300_000, b"exponential " + b"." * 300_000])
def test_a_long_policy_is_rejected_without_being_searched(spark, policy):
    """The search would take time that grows with its square, and intake would stand still."""
    (row,) = decode(spark, [failed(policy)])
    assert reason_of(row) == b"bad-retry"


def test_it_comes_back_to_its_topic_with_its_key_and_counts(spark):
    (row,) = decode(spark, [failed("5s,30s,5m", error=b"timeout")])
    assert (row["dialect"], row["topic"], row["key"], row["value"]) == (
        "headers",
        "orders",
        b"k",
        b"v",
    )
    assert row["due_ms"] == READ_MS + 5_000
    assert row["headers"] == [
        ("tenant", b"a"),
        (names.RETRY_OF, b"order-17@1780000000000"),
        (names.RETRY_ORIGINAL_TIMESTAMP, b"1780000000"),
        (names.RETRY_ATTEMPT, b"1"),
    ]
    assert row["id"].startswith(b"retry-")
    assert row["id"].endswith(b"-1")


def test_the_attempts_have_their_pauses_and_then_it_is_dead(spark):
    """Each is delivered with what makes the next one of the same series."""
    dues, delivered, ids = [], DELIVERED, set()
    for _ in range(3):
        (row,) = decode(spark, [failed("5s,30s,5m", delivered=delivered)])
        dues.append(row["due_ms"] - READ_MS)
        ids.add(row["id"])
        delivered = row["delivered"]
    assert dues == [5_000, 30_000, 300_000]
    assert len(ids) == 3
    (dead,) = decode(spark, [failed("5s,30s,5m", delivered=delivered, error=b"no such order")])
    assert (dead["dialect"], dead["topic"], dead["key"]) == ("rejected", "dead-letters", b"k")
    told = dict(dead["headers"])
    assert told[names.REJECTED] == b"no-attempts-left"
    assert told[names.ERROR] == told[names.EVENT_ERROR] == b"no such order"
    assert told[names.RETRY_ATTEMPT] == b"3"
    assert told[names.EVENT_ID] == b"order-17@1780000000000"
    assert told[names.REJECTED_DETAIL] == (
        b'expected at most 3 retries ("5s,30s,5m"), got a failure after 3'
    )
    again = alive_again(
        Arrived("dead-letters", 0, 0, 0, dead["key"], dead["value"], dead["headers"])
    )
    assert (again.topic, again.key, again.value) == ("orders", b"k", b"v")
    assert again.headers == [("tenant", b"a"), (names.EVENT_ID, b"order-17@1780000000000")]


def test_the_same_call_twice_has_one_id_and_others_have_others(spark):
    place = (names.RETRY_ORIGIN, b"orders/3/1234")
    other = [*DELIVERED[:-1], (names.DUE, b"1780000000001")]
    elsewhere = (names.TARGET_TOPIC, b"orders-of-group-b")
    nameless = [pair for pair in DELIVERED if pair[0] != names.ID]
    rows = decode(
        spark,
        [
            failed("5s"),
            failed("1m", error=b"again"),
            failed("5s", place),
            failed("5s", delivered=other),
            failed("5s", elsewhere),
            failed("5s", (names.RETRY_ATTEMPT, b"1"), place),
            failed("5s", place, delivered=nameless),
            failed("5s", place, delivered=nameless),
            failed("5s", delivered=nameless),
            failed("5s", delivered=nameless),
        ],
    )
    ids = [row["id"] for row in rows]
    assert ids[0] == ids[1] == ids[2]
    assert ids[6] == ids[7]
    assert len({*ids[2:]} - {ids[7]}) == 6, "what nothing identifies is never taken for the same"
    assert rows[4]["topic"] == "orders-of-group-b"
    assert reason_of(rows[5]) == b"no-attempts-left"


def test_an_expiry_is_kept_over_its_retries(spark):
    """What would come too late expires; it is not a bad record."""
    soon, late = ((names.EXPIRY, b"%d" % (READ_MS + ms)) for ms in (10_000, 1_000))
    rows = decode(
        spark, [failed("5s", soon), failed("5s", late), failed("5s", (names.EXPIRY, b"x"))]
    )
    assert [row["expires_ms"] for row in rows] == [READ_MS + 10_000, READ_MS + 1_000, None]
    assert [reason_of(row) for row in rows] == [None, None, b"bad-expiry"]


BAD = ["", " ", "5", "x", "5s,", ",5s", "5s;30s", "-5s", "5s,-1s", "1.5h3m", "5s\n", "exponential"]
BAD += ["exponential 1s..10m", "exponential 10m..1s x8", "exponential 1s..x x8", "none jitter 101%"]
BAD += [
    "exponential 1s..10m x1001",
    "5s jitter",
    "5s jitter 20",
    "jitter 20%",
    ",".join(["1s"] * 101),
]
BAD += ["5s jitter 1000%", "exponential 1s...10m x8", "9" * 4_000, "5s," * 2_000, "é", "5s,,5s"]
GOOD = ["5", "5s", "1.5", "0", "5s, 30s ,5m", "PT5S,P1D", "2h30m,1.5h", "none", "5s jitter 20%"]
GOOD += ["exponential 1s..10m x8", "exponential 0.5..PT10M30S x1000 jitter 100%", "5s jitter 0%"]
GOOD += [",".join(["1s"] * 100), "exponential 0..0 x3", "exponential 7ms..1h x40", "none jitter 5%"]
BAD.remove("5")


def test_policies_that_cannot_be_read_are_rejected_with_a_reason(spark):
    records = [failed(text) for text in BAD] + [failed(b"\xff\xfe"), failed("5s", value=None)]
    records.append(replace(failed("5s"), headers=[*DELIVERED, (names.RETRY, None)]))
    rows = decode(spark, records)
    assert [reason_of(row) for row in rows] == [b"bad-retry"] * len(records)
    for text in BAD:
        with pytest.raises(BadRequest, match="pauses"):
            Backoff.parse(text)


def test_a_journal_takes_no_retry_and_buckets_do(spark):
    journal = SETTINGS.model_copy(update={"inboxes": (Inbox(topic="schedules", journal=True),)})
    assert [reason_of(row) for row in decode(spark, [failed("5s")], journal)] == [b"bad-retry"]
    buckets = SETTINGS.model_copy(update={"pending": "buckets"})
    assert decode(spark, [failed("5s")], buckets)[0]["topic"] == "orders"


def test_headers_that_were_tampered_with_stop_nothing(spark):
    """Attempts that are no number count as none; everything else has a reason."""
    tampered = [
        [(names.RETRY_ATTEMPT, value)]
        for value in (b"x", b"-1", b"", None, b"9" * 10, b"\xff", b"1.5", b" 1")
    ]
    rows = decode(spark, [failed("5s", *headers) for headers in tampered])
    assert {dict(row["headers"])[names.RETRY_ATTEMPT] for row in rows} == {b"1"}
    no_target = [pair for pair in DELIVERED if pair[0] != names.DELIVERED_TO]
    bad = [
        (failed("5s", delivered=no_target), b"no-target"),
        (failed("5s", (names.DELIVERED_TO, b"a b"), delivered=no_target), b"bad-target"),
        (failed("5s", (names.DELIVERED_TO, b"\xff"), delivered=no_target), b"bad-target"),
        (failed("5s", (names.DELIVERED_TO, None), delivered=no_target), b"no-target"),
        (failed("5s", (names.RETRY_ATTEMPT, b"999999999")), b"no-attempts-left"),
        (failed("99999d"), b"too-far"),
        (failed("5s", (names.TARGET_PARTITION, b"x")), b"bad-target"),
        (failed("5s", ("h", b"x" * 1_000)), b"too-large"),
    ]
    assert [reason_of(row) for row in decode(spark, [one for one, _ in bad])] == [r for _, r in bad]
    keyless, huge = decode(
        spark,
        [failed("5s", key=None), failed("5s", (names.RETRY_OF, b"\xff" * 700))],
    )
    assert (keyless["key"], keyless["dialect"]) == (None, "headers")
    assert len(huge["id"]) < 50


SMALL = st.none() | st.binary(max_size=6) | st.sampled_from([b"1", b"2", b"7"])
KNOWN = (names.RETRY_OF, names.RETRY_ORIGIN, names.RETRY_ATTEMPT, names.RETRY_ORIGINAL_TIMESTAMP)
KNOWN += (names.ID, names.DUE, names.TARGET_KEY, "tenant", "scheduler-x", "sendlater-x")
HEADER = st.tuples(st.sampled_from(KNOWN), SMALL)
TO = st.sampled_from([(names.DELIVERED_TO, b"schedules"), (names.TARGET_TOPIC, b"others")])
FAILED = st.tuples(
    st.sampled_from(GOOD), st.lists(HEADER | TO, max_size=6), st.none() | st.binary(max_size=4)
)


@settings(
    max_examples=5, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(st.lists(FAILED, min_size=50, max_size=150))
def test_the_client_makes_the_same_schedule_as_intake(spark, cases):
    known = [(names.DELIVERED_TO, b"schedules")]
    records = [failed(policy, *known, delivered=more, key=key) for policy, more, key in cases]
    compared = 0
    for n, (row, record) in enumerate(zip(decode(spark, records), records, strict=True)):
        mine = [pair for pair in record.headers if pair[0] != names.RETRY]
        place = Arrived("schedules", 1, n, READ_MS, record.key, record.value, mine)
        policy = Backoff.parse(cases[n][0])
        try:
            made = come_again(place, policy=policy, now_ms=READ_MS)
        except NoAttemptsLeft:
            assert reason_of(row) == b"no-attempts-left", record
            continue
        # It adds where it has read the record; intake knows only what the record says.
        headers = [
            pair
            for pair in made.record.headers
            if pair != (names.RETRY_ORIGIN, b"schedules/1/%d" % n)
        ]
        assert (row["id"], row["due_ms"]) == (made.id, made.due_ms), record
        assert (row["topic"], row["key"]) == (made.record.topic, made.record.key), record
        assert row["headers"] == headers, record
        compared += 1
    assert compared


def test_records_that_nothing_tells_apart_are_not_taken_for_one(spark):
    """By a client and by header; what is there and empty tells nothing."""
    policy = Backoff.parse("5s")
    made = [come_again(Record(topic="t", value=b"v"), policy=policy, now_ms=1) for _ in range(3)]
    assert len({one.id for one in made}) == 3
    to = (names.TARGET_TOPIC, b"orders")
    empty = [
        [(names.RETRY_OF, b""), (names.RETRY_ORIGIN, b"")],
        [(names.RETRY_ORIGIN, None)],
        [(names.ID, b""), (names.DUE, b"7")],
        [(names.ID, b"x"), (names.DUE, b"")],
    ]
    records = [failed("5s", to, delivered=headers) for headers in empty for _ in range(2)]
    assert len({row["id"] for row in decode(spark, records)}) == len(records)
    for headers in empty:
        places = [Arrived("orders", 0, n, 0, None, b"v", headers) for n in range(2)]
        assert len({come_again(one, policy=policy, now_ms=1).id for one in places}) == 2


def test_headers_that_somebody_passed_on_are_of_another_record():
    """A consumer of `sms` has sent three records on to `orders`, with all headers."""
    passed_on = [*DELIVERED, (names.RETRY_OF, b"x@1"), (names.RETRY_ATTEMPT, b"7")]
    messages = [Arrived("others", 0, n, 0, b"k", b"v", passed_on) for n in range(3)]
    made = [come_again(one, policy=Backoff.parse("5s"), now_ms=1) for one in messages]
    assert {one.record.topic for one in made} == {"others"}
    assert len({one.id for one in made}) == 3
    assert {dict(one.record.headers)[names.RETRY_ATTEMPT] for one in made} == {b"1"}


def test_the_client_keeps_an_expiry_too():
    message = Arrived("orders", 3, 1234, 0, b"k", b"v", [*DELIVERED, (names.EXPIRY, b"99")])
    made = come_again(message, policy=Backoff.parse("5s"), now_ms=READ_MS)
    assert made.expiry == Expiry(99)
    assert (names.RETRY_ORIGIN, b"orders/3/1234") in made.record.headers
