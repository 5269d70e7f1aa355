"""Plain records: decoded in Python, they are what Spark SQL makes of them."""

from dataclasses import replace

import pytest
from dialects_inputs import SCHEDULES, SOON, TARGET, hostile_schedules, schedule
from dialects_model import READ_MS, SETTINGS
from dialects_spark import decode
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sendlater.config import Inbox
from sendlater.dialects import encode_headers, names
from sendlater.dialects.plain import OTHERS, PlainRules
from sendlater.limits import PLAIN_BYTES_MAX, TIMESTAMP_SPAN_MS_MAX
from sendlater.model import Record

JOURNAL = SETTINGS.model_copy(update={"inboxes": (Inbox(topic="schedules", journal=True),)})
LATER = [
    *(b"%d" % (READ_MS + ms) for ms in (0, 1, 500, 3_660 * 86_400_000, 3_660 * 86_400_000 + 1)),
    *(b"0" * 45 + b"5", b"9" * 5_000, b"99999999999", b"100000000000"),
    *(b"%d" % (READ_MS - 1), b"0", b"00017", b"007", b"1" * 16, b"1" * 17, b"1780000001"),
    *(b"5", b"0.25", b"PT2H3.5S", b"2h30m", b"250ms", b"3660d", b"3661d", b"", b"x", b"\xff", None),
    *(b"1." + b"0" * places + b"1" for places in (15, 17, 18)),
    *(b"P0." + b"0" * 18 + b"1W", b"1.0000000000000000001m", b"0.0010000000000000000004"),
]
TIMES = st.builds(
    lambda names, values: list(zip(names, values, strict=False)),
    st.lists(st.sampled_from(names.TIMES), min_size=1, max_size=2)
    | st.sampled_from([[names.DUE_MS], [names.DELAY], [names.EPOCH]]),
    st.lists(st.sampled_from(LATER), min_size=2, max_size=2),
)
MORE = st.lists(
    st.tuples(
        st.sampled_from([names.TARGET_KEY, "a", "b", "traceparent", "ä"])
        | st.sampled_from(sorted(OTHERS)),
        st.none() | st.binary(max_size=5),
    ),
    max_size=2,
)
TARGETS = [TARGET, TARGET, *((names.TARGET_TOPIC, t) for t in (b".", b"..", b"a.b", b"a b", b""))]
NEARLY_PLAIN = st.builds(
    lambda key, value, target, times, more, order: schedule(
        *order.sample([target, *times, *more], 1 + len(times) + len(more)), key=key, value=value
    ),
    st.binary(min_size=1, max_size=4) | st.just(b"x" * 512),
    st.binary(max_size=4) | st.just(b"v" * 400),
    st.sampled_from(TARGETS),
    TIMES,
    MORE,
    st.randoms(use_true_random=False),
)


def test_both_know_which_inboxes_add_few_headers():
    few = Inbox(topic="few", added_headers="few")
    chosen = SETTINGS.model_copy(update={"inboxes": (few, *SETTINGS.inboxes)})
    assert PlainRules.of(chosen).few == ("few",)
    assert PlainRules.of(SETTINGS).few == ()


def read(record: Record, chosen):
    return PlainRules.of(chosen).read(
        record.topic, record.key, record.value, READ_MS, record.headers
    )


def agree(spark, records, chosen=SETTINGS):
    """How many of the records are plain; those are the same in both ways."""
    count = 0
    for record, row in zip(records, decode(spark, records, chosen), strict=True):
        if (plain := read(record, chosen)) is None:
            continue
        due_ms, target, key, flat = plain
        headers = None if flat is None else list(zip(flat[::2], flat[1::2], strict=True))
        told = [due_ms, target, None, key, record.value, headers, "headers"]
        names_told = ("due_ms", "topic", "partition", "key", "value", "headers", "dialect")
        assert [row[name] for name in names_told] == told, record
        assert row["id"] == record.key
        rest = ("expires_ms", "expires_after_ms", "tags", "change")
        assert [row[name] for name in rest] == [None] * len(rest), record
        count += 1
    return count


def test_what_is_hostile_is_not_plain_or_the_same(spark):
    records = list(hostile_schedules())
    assert agree(spark, records) > 20
    assert agree(spark, records, JOURNAL) > 20


@pytest.mark.parametrize(
    "more", [{}, {"past": "reject"}, {"ce_expirytime": True, "max_delay_days": 5_000_000}]
)
@settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(NEARLY_PLAIN, min_size=200, max_size=400), st.lists(SCHEDULES, max_size=100))
def test_random_records_are_not_plain_or_the_same(spark, more, nearly, others):
    chosen = SETTINGS.model_copy(update=more)
    assert agree(spark, nearly + others, chosen) > 0


def test_most_records_are_plain():
    """Those that our client writes, and those of others; with user's headers too."""
    record = Record(topic="t", key=b"k", value=b"v", headers=[("a", b"1")])
    for told in ({"due_ms": READ_MS + 1}, {"delay_ms": 1_500}):
        assert read(encode_headers(record, inbox="schedules", id=b"id", **told), SETTINGS)
    for times in (SOON, (names.DELAY, b"5s"), (names.EPOCH, b"1780000001")):
        for more in ([], [(names.TARGET_KEY, b"k")], [("content-type", b"x"), ("a", None)]):
            assert read(schedule(times, TARGET, *more), SETTINGS)


def test_what_is_not_certain_is_left_to_spark():
    good = schedule(SOON, TARGET)
    doubled = replace(good, headers=[SOON, SOON, TARGET])
    unknown = replace(good, topic="elsewhere")
    large = replace(good, value=b"x" * (PLAIN_BYTES_MAX + 1))
    for one in (doubled, unknown, large, replace(good, value=None), replace(good, key=None)):
        assert read(one, SETTINGS.model_copy(update={"max_payload_bytes": 1 << 30})) is None
    kept = SETTINGS.model_copy(update={"keep_input_headers": True})
    assert read(good, SETTINGS)
    assert read(good, kept) is None


@pytest.mark.parametrize("timestamp_ms", [-1, TIMESTAMP_SPAN_MS_MAX + 1, 2**63 - 1])
def test_a_timestamp_that_spark_would_change_is_left_to_it(timestamp_ms):
    due = (names.DUE_MS, b"%d" % READ_MS)
    told = ("schedules", b"id", b"v", timestamp_ms, [due, TARGET])
    assert PlainRules.of(SETTINGS).read(*told) is None


def test_rules_travel_as_text():
    rules = PlainRules.of(JOURNAL)
    assert PlainRules.of_text(rules.text()) == rules
    assert rules.topics == ("schedules",)
