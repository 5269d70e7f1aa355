"""What a broker would refuse is known before it is sent, and what is refused always fits."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendlater.dialects import names
from sendlater.dialects.deliver import leaving, split_rejected
from sendlater.dialects.rejected import rejected_schedule
from sendlater.limits import (
    ADDED_BYTES_MAX,
    ID_BYTES_MAX,
    REJECTED_BYTES_MAX,
    REJECTED_VALUE_BYTES_MAX,
)
from sendlater.model import DUE_MS_MAX, Origin, Reason, Record, Schedule, Target
from sendlater.spark.delivery.refusal import record_bytes, refusal, rejected
from sendlater.store.codec import pack

ORIGIN = Origin(topic="in", partition=1, position=2, timestamp_ms=1_234)
ROOMY = Target(record_bytes_max=1_000_000, partitions=4)
BAD = Target(record_bytes_max=REJECTED_BYTES_MAX, partitions=1)

CONTENT = st.one_of(
    st.none(),
    st.binary(max_size=200),
    st.sampled_from([0, 63, 64, 8_191, 8_192, 20_000, 1_048_576]).map(bytes),
)
NAMES = st.text(max_size=5) | st.sampled_from([1, 64, 300, 9_000]).map(lambda n: "h" * n)
HEADERS = st.lists(st.tuples(NAMES, CONTENT), max_size=4)
ORIGINS = st.none() | st.builds(
    Origin,
    topic=st.sampled_from(["j", "t" * 249]),
    partition=st.sampled_from([0, 2**31 - 1]),
    position=st.sampled_from([0, 2**63 - 1]),
    timestamp_ms=st.sampled_from([-(2**62), -1, 0, 2**62]),
)
SCHEDULES = st.builds(
    lambda id, due_ms, origin, dialect, **record: Schedule(
        id=id, due_ms=due_ms, origin=origin, dialect=dialect, record=Record(**record), version="v"
    ),
    id=st.binary(min_size=1, max_size=ID_BYTES_MAX),
    due_ms=st.sampled_from([0, DUE_MS_MAX]),
    origin=ORIGINS,
    dialect=st.sampled_from(["", "headers", "envelope"]),
    topic=st.sampled_from(["out", "t" * 249, "\U0001f600" * 5_000]),
    key=CONTENT,
    value=CONTENT,
    headers=HEADERS,
    partition=st.none() | st.integers(0, 2**31 - 1),
)


def schedule(**record):
    record = {"topic": "out", "key": b"k", "value": b"v", **record}
    return Schedule(
        id=b"i", due_ms=5, record=Record(**record), origin=ORIGIN, dialect="headers", version="v"
    )


def varint(number):
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    return bytes([*out, zigzag])


def batch(record):
    """A record batch as KIP-98 lays it out, with empty checksums and times."""

    def sized(content):
        return varint(-1) if content is None else varint(len(content)) + content

    headers = b"".join(sized(name.encode()) + sized(value) for name, value in record.headers)
    content = b"\0" + varint(0) + varint(0) + sized(record.key) + sized(record.value)
    content += varint(len(record.headers)) + headers
    return bytes(8 + 4 + 4 + 1 + 4 + 2 + 4 + 8 + 8 + 8 + 2 + 4 + 4) + varint(len(content)) + content


@given(CONTENT, CONTENT, HEADERS)
def test_the_size_of_a_record_is_what_a_broker_counts(key, value, headers):
    record = Record(topic="t", key=key, value=value, headers=headers)
    assert record_bytes(record) == len(batch(record))


@given(SCHEDULES)
def test_a_glance_at_a_packed_row_never_takes_it_for_smaller_than_it_is(schedule):
    """What lane tasks look at instead of measuring every row."""
    glance = len(pack(schedule)) + 3 * len(schedule.id) + ADDED_BYTES_MAX
    copies = ("j", "history") if schedule.origin else ()
    assert all(record_bytes(record) <= glance for record in leaving(schedule, copies))


@pytest.mark.parametrize(
    ("record", "target", "reason", "told"),
    [
        ({"partition": 4}, ROOMY, Reason.BAD_TARGET, "a partition below 4, got 4"),
        ({"partition": 3}, ROOMY, None, ""),
        ({"key": None}, replace(ROOMY, compacted=True), Reason.NO_KEY, "a key, as it is compacted"),
        ({"key": b""}, replace(ROOMY, compacted=True), None, ""),
        ({"key": None}, ROOMY, None, ""),
        ({"headers": [("h", b"x" * 1_000_000)]}, ROOMY, Reason.TOO_LARGE, "at most 1000000 bytes"),
        ({}, Reason.NOT_AUTHORISED, Reason.NOT_AUTHORISED, "the broker says not-authorised"),
    ],
)
def test_a_refusal_says_what_was_expected_and_what_came(record, target, reason, told):
    refused = refusal(schedule(**record), {"out": target}.get)
    if reason is None:
        assert refused is None
    else:
        assert refused[0] is reason
        assert "'out'" in refused[1]
        assert told in refused[1]


def test_headers_as_delivered_count_to_the_byte():
    one = schedule(headers=[("h", b"x" * 100)])
    (sent,) = leaving(one)
    size = record_bytes(sent)
    assert [name for name, _ in sent.headers][-1] == names.DUE
    assert refusal(one, {"out": Target(size, 1)}.get) is None
    assert refusal(one, {"out": Target(size - 1, 1)}.get)[0] is Reason.TOO_LARGE


@pytest.mark.parametrize("small", ["in", "history"])
def test_copies_of_what_a_journal_delivers_count_too(small):
    known = {
        "out": ROOMY,
        "in": replace(ROOMY, copies=("in", "history")),
        "history": ROOMY,
    }
    assert refusal(schedule(), known.get) is None
    known[small] = replace(known[small], record_bytes_max=100)
    assert f"'{small}'" in refusal(schedule(), known.get)[1]


def test_of_a_topic_that_is_unknown_only_copies_pass():
    known = {"out": ROOMY, "in": Target(1_000_000, 1, copies=("in", "gone"))}
    assert refusal(schedule(), known.get) is None


def test_a_target_survives_being_written_down():
    for target in (ROOMY, Target(1, 2, compacted=True, copies=("a", "b"))):
        assert Target.parse(str(target).encode()) == target


# ---- what is refused ---------------------------------------------------------------------------


@given(SCHEDULES, st.sampled_from([BAD, ROOMY, replace(BAD, compacted=True)]))
def test_every_rejected_record_fits_and_is_rejected_once(schedule, topic):
    known = {"bad": topic, "j": Target(REJECTED_BYTES_MAX, 1, compacted=True, copies=("j",))}
    told = rejected(schedule, (Reason.TOO_LARGE, "x" * 9_000), known.get, rejected_topic="bad")
    assert told is not None
    assert all(record_bytes(r) <= known[r.topic].record_bytes_max for r in leaving(told))
    assert told.record.topic == "bad"
    # Refused by a topic that has shrunk, and again: it never grows, and nothing is added.
    small = {**known, "bad": replace(BAD, compacted=True)}
    again = rejected(told, (Reason.TOO_LARGE, ""), small.get, rejected_topic="bad")
    assert again.id == told.id
    assert [name for name, _ in again.record.headers].count(names.REJECTED) <= 1 + [
        name for name, _ in schedule.record.headers
    ].count(names.REJECTED)
    assert rejected(again, (Reason.TOO_LARGE, ""), small.get, rejected_topic="bad") == again


def test_what_fits_is_rejected_whole():
    one = schedule(value=b"x" * 5_000, headers=[("h", b"1")])
    told = rejected(one, (Reason.TOO_LARGE, "why"), {"bad": ROOMY}.get, rejected_topic="bad")
    assert told == rejected_schedule(one, Reason.TOO_LARGE, "why", topic="bad")
    assert (told.record.value, told.record.headers[0]) == (one.record.value, ("h", b"1"))


def test_what_does_not_fit_says_what_was_left_out():
    one = schedule(value=b"x" * 9_000, headers=[("h", b"1"), ("i", b"22")])
    told = rejected(one, (Reason.TOO_LARGE, "why"), {"bad": BAD}.get, rejected_topic="bad")
    headers = dict(told.record.headers)
    assert told.record.value == b"x" * REJECTED_VALUE_BYTES_MAX
    assert told.record.key == b"k"
    assert headers[names.REJECTED_DETAIL].decode() == (
        "why; left out: the value after byte 1024 of 9000 and 2 headers of 5 bytes"
    )
    assert split_rejected(told.record.headers)[0] == []
    assert headers[names.ORIGIN] == b"in/1/2"


def test_a_key_that_is_too_large_or_missing_gives_way_to_the_id():
    for key, said in ((b"k" * 9_000, "a key of 9000 bytes"), (None, "no key")):
        topic = replace(BAD, compacted=key is None)
        told = rejected(
            schedule(key=key), (Reason.NO_KEY, "why"), {"bad": topic}.get, rejected_topic="bad"
        )
        assert told.record.key == told.id == b"in-1-2"
        detail = dict(told.record.headers)[names.REJECTED_DETAIL].decode()
        assert detail == f"why; in place of {said} is the id"


def test_a_topic_that_takes_nothing_gets_nothing():
    """Then the row waits, instead of going round."""
    tiny = {"bad": Target(100, 1)}
    assert rejected(schedule(), (Reason.NO_KEY, ""), tiny.get, rejected_topic="bad") is None
    gone = {"bad": Reason.UNKNOWN_TOPIC}
    assert rejected(schedule(), (Reason.NO_KEY, ""), gone.get, rejected_topic="bad") is None


def test_what_was_never_on_an_inbox_is_rejected_under_an_id_of_its_own():
    put = replace(schedule(), origin=None, id=b"x" * 5_000)
    told = rejected(put, (Reason.UNKNOWN_TOPIC, "why"), {"bad": BAD}.get, rejected_topic="bad")
    assert told.id.startswith(b"rejected-v-xxx")
    assert len(told.id) < 600
    assert names.ORIGIN not in dict(told.record.headers)
    assert told.record.headers[-1] == (names.REJECTED_ID, b"x" * ID_BYTES_MAX)
