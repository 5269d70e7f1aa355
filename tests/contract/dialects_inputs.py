"""Hostile inbox records: a table of everything known to hurt, and a generator of more."""

import json

from hypothesis import strategies as st

from sendlater.dialects import names
from sendlater.model import Record

TARGET = (names.TARGET_TOPIC, b"t")
SOON = (names.DUE_MS, b"1780000001000")
HOSTILE = ["", " ", "9" * 400, "9" * 39, "9223372036854775807", "9223372036854775808", "1e999"]
HOSTILE += ["NaN", "Infinity", "٣", "-1", "-0", "+5", " 5", "5 ", "5\n", "0x10", "1_000", "null"]
HOSTILE += ["5", "1.5", "0.0001", "99999999999", "100000000000", "1780000000", "1780000000000"]
HOSTILE += ["0" * 30 + "5", "." * 5000, "1" * 40 + "." + "1" * 40, "0." + "0" * 17 + "1"]
HOSTILE += ["P1DT2H3.5S", "P2W", "P1Y", "P1M", "P", "PT", "P1DT", "P1.5DT2H", "P1W2D", "p1d"]
HOSTILE += ["2h30m", "1.5h", "250ms", "1d", "30m2h", "1h1h", "1.5h3m", "5M", "3m5ms", "1.1h"]
HOSTILE += ["9999999999ms", "99999999999w", "P" + "9" * 40 + "W", "1.5h\n", "2h 30m", "5µs"]
HOSTILE += ["2026-06-01T00:00:00Z", "2026-06-01t00:00:00.0001z", "2026-06-01T00:00:00"]
HOSTILE += ["2026-06-01T00:00:00.123456789+05:30", "2026-02-30T00:00:00Z", "2026-06-01"]
HOSTILE += ["2026-06-01T24:00:00Z", "2026-06-01T00:00:60Z", "2026-06-01T00:00:00+18:30"]
HOSTILE += ["2026-06-01T00:00:00.999999Z", "2026-06-01T00:00:00.9999991Z", "9999-12-31T23:59:59Z"]
HOSTILE += ["0000-01-01T00:00:00Z", "1969-12-31T23:59:59.9Z", "2026-06-01T00:00:00-17:59"]
HOSTILE += ["2026-06-01 00:00:00Z", "2026-06-01T00:00:00.Z", "2026-06-01T00:00:00+0530"]


def schedule(*headers, key=b"id", value=b"v"):
    return Record(topic="schedules", key=key, value=value, headers=list(headers))


def envelope(value, **more):
    return Record(topic="envelopes", value=value, **more)


CONDITIONS = ["absent", "earlier", "later", "version=0123456789abcdef", "version=" + "x" * 64]
CONDITIONS += ["version=" + "x" * 65, "version=", "Absent", "absent ", "absent|later", "if absent"]


TAGS = [b"order-17", b"order-17,mail", b" a , b,a ", b"a,,b", b",a", b"a,", b"", None, b"x" * 64]
TAGS += [b"x" * 65, b"a b", b"a\n", b"\xff", "ü".encode(), b"*", b"a\x00", b"._:/@=+-", b" "]
TAGS += [b",".join(b"%d" % n for n in range(8)), b",".join(b"%d" % n for n in range(9))]
TAGS += [b",".join(b"%d" % n + b"x" * 63 for n in range(8)), b"a," * 5_000 + b"a", b"a\tb"]


MEDDLING = [
    [],
    [(names.IF, b"version=abc"), (names.SPREAD, b"1h"), (names.EXPIRES_AFTER, b"1")],
    [(names.TARGET_TOPIC, b"elsewhere"), (names.TARGET_KEY, b"k"), (names.DUE_MS, b"1")],
    [(names.RETRY, b"5s"), (names.ERROR, b"why"), (names.RETRY_ATTEMPT, b"3")],
    [(names.OWN, None), (names.COPIED, b"schedules/1/9"), (names.AGAIN, b"journal/1/0")],
    [(names.ORIGIN, b"journal/1/1"), (names.CHANGE, b"abc"), (names.ID, b"x"), ("a", b"b")],
    [(names.TAGS, b"a,b"), (names.TARGET_PARTITION, b"1"), (names.EXPIRES, b"friday")],
]
"""Headers behind those of a record that could change what becomes of it."""


def hostile_schedules():
    for name in names.TIMES:
        yield from (schedule((name, text.encode()), TARGET) for text in HOSTILE)
        yield from (schedule((name, value), TARGET) for value in (None, b"\xff\xfe", b"5\x00"))
    for name in names.EXPIRIES:
        yield from (schedule(SOON, TARGET, (name, text.encode())) for text in HOSTILE)
        yield from (
            schedule(SOON, TARGET, (name, value)) for value in (None, b"\xff\xfe", b"5\x00")
        )
        yield schedule(SOON, TARGET, (name, b"1780000001000"), (name, b"x"))
    for more in ((names.CHANGE, b"c1"), (names.RETRY_ATTEMPT, b"1")):
        for at in (b"1960-01-01T00:00:00Z", b"1969-12-31T23:59:59Z", b"1970-01-01T00:00:00Z"):
            yield schedule(SOON, TARGET, (names.EXPIRES, at), more)
    yield from (schedule(SOON, TARGET, (names.SPREAD, text.encode())) for text in HOSTILE)
    yield from (schedule(SOON, TARGET, (names.SPREAD, value)) for value in (None, b"\xff\xfe"))
    yield from (schedule(SOON, TARGET, (names.SPREAD, b"1h"), key=b"%d" % n) for n in range(50))
    yield schedule(SOON, TARGET, (names.SPREAD, b"1h"), (names.EXPIRES, b"1780000001000"))
    yield schedule((names.AT, b"x"), TARGET, (names.SPREAD, b"1h"))
    for text in (*CONDITIONS, *HOSTILE):
        yield schedule(SOON, TARGET, (names.IF, text.encode()))
    for value in (None, b"", b"\xff", b"absent\xff", b"absent\n", b"version=\xc3\xa9"):
        yield schedule(SOON, TARGET, (names.IF, value), (names.CHANGE, b"c1"))
    yield schedule(SOON, TARGET, (names.IF, b"later"), (names.IF, b"x"), (names.CHANGE, b"c1"))
    yield schedule(SOON, (names.IF, b"absent"))
    yield schedule(SOON, TARGET, (names.IF, b"absent"), value=None)
    yield schedule(SOON, TARGET, (names.IF, b"absent"), key=None)
    for text in TAGS:
        yield schedule(SOON, TARGET, (names.TAGS, text), (names.TAGS, b"second"))
        yield schedule(SOON, (names.TAGS, text), key=b"k", value=None)
    for at in (b"1780000000999", b"1780000001000", b"9007199254740991", b"9007199254740992"):
        yield schedule(SOON, TARGET, (names.EXPIRES, at), (names.EXPIRES_AFTER, b"x"))
    for key in (None, b"", b" \t\r\n\v\f", b"\xff\xfe", b"x" * 512, b"x" * 513, "é ".encode()):
        yield schedule(SOON, TARGET, key=key)
        yield schedule(key=key, value=None)
    for topic in (None, b"", b".", b"..", b"a b", b"t\n", b"x" * 249, b"x" * 250, b"\xff", b"a/b"):
        yield schedule(SOON, (names.TARGET_TOPIC, topic), TARGET)
    for number in (None, b"", b"0", b"7", b"-1", b"2147483647", b"2147483648", b"9" * 99, b"1.0"):
        yield schedule(SOON, TARGET, (names.TARGET_PARTITION, number))
    for key in (None, b"", b"\xff"):
        yield schedule(SOON, TARGET, (names.TARGET_KEY, key), (names.TARGET_KEY, b"second"))
    yield schedule(TARGET)
    yield schedule(value=b"")
    yield schedule(SOON, TARGET, value=b"")
    yield schedule(SOON, TARGET, value=b"x" * 1_000)
    yield schedule(SOON, TARGET, ("h", b"x" * 1_000))
    yield schedule(SOON, (names.EPOCH, b"nonsense"), TARGET, ("Scheduler-Epoch", b"kept"))
    yield schedule((names.EPOCH, b"1780000001"), (names.EPOCH, b"x"), TARGET)
    yield schedule((names.ID, b"old"), SOON, ("a", b"\xff"), ("a", None), TARGET, ("", b""))
    yield schedule(SOON, TARGET, (names.DUE, b"1"), ("scheduler-key", b"kept"))
    yield schedule(SOON, TARGET, ("x", None), value=None)


MESSAGES = [r'"a"', r'""', r'"\u00e9\n\"\\"', r'"\ud83d\ude00"', r'"\ud800"', r'"\\ud800"', "null"]
MESSAGES += ["1.10", "12345678901234567890123", "1e400", "-0", "0.1E-5", "true", "[]", "[ 1 , -2 ]"]
MESSAGES += ['{"a": {"b": [1.10, 1e400, null, "1.10"]}, "c": "é"}', '{"a": "5, -6: 7"}', "01", "1."]
MESSAGES += ["-", "NaN", "'a'", "{1: 2}", "1 2", "truefalse", "[1,]", '"\t"', '"a', "tru", "+1"]
MESSAGES += [r'"\\"', r'{"\\": "\"1\"", "k1": 1}', '"<1>"', '{"message": 1, "topic": 2}', "1-2"]
ENVELOPES = ["", " ", "null", "5", "[]", "{}", "{", '{"topic":"t"}', '"x"', "{} {}", "}", "{},{}"]
ENVELOPES += ['{"message":"a","countdown":1}', '{"topic":"t","message":"a"}', "\ufeff{}"]
ENVELOPES += ['{"topic":"t","message":"a","countdown":1} x', '{"topic":"t","message":"a"}]']
ENVELOPES += ['{"topic":"t","message":"a","countdown":1}}', '{"topic":"t","message":"a"},{"a":1}']
ENVELOPES += [' {"countdown" : 1 ,"topic":"t", "x":{"topic":"u"}, "message":"a"}\n ']
ENVELOPES += [
    '{"topic":null,"message":"a","countdown":1}',
    '{"topic":5,"message":"a","countdown":1}',
]
ENVELOPES += ['{"topic":"t","message":"a","message":"b","countdown":1}', "{'topic':'t'}"]
ENVELOPES += [
    '{"topic":"","message":"a","countdown":1}',
    '{"topic":"t","message":"a","countdown":null}',
]
ENVELOPES += [
    '{"topic":"a b","message":"a","countdown":1}',
    '{"Topic":"t","message":"a","countdown":1}',
]
COUNTDOWNS = ["0", "120", "1.5", "0.0001", "1e3", "1.5E-2", "1e999", "-1", '"5"', '"1.5"', '"x"']
COUNTDOWNS += ['""', '" 5"', "[1]", "true", "9" * 39, "1e-300", '"NaN"', '"٣"', "{}", "1e300", "-0"]


def hostile_envelopes():
    for text in MESSAGES:
        yield envelope(f'{{"topic": "t", "message": {text}, "countdown": 1}}'.encode())
    for text in COUNTDOWNS:
        yield envelope(f'{{"topic":"t","message":"a","countdown":{text}}}'.encode())
    yield from (envelope(text.encode()) for text in ENVELOPES)
    good = b'{"topic":"t","message":"a","countdown":1}'
    headers = [("CALLER_SERVICE", b"me"), ("a", None), (names.ID, b"old"), (names.EPOCH, b"1")]
    yield envelope(good, key=b"\xff", headers=headers)
    yield from (envelope(good, headers=[(names.TAGS, text), ("a", b"b")]) for text in TAGS)
    yield envelope(good, key=b"")
    yield envelope(None)
    yield envelope(good.replace(b'"a"', b'"\xff"'))
    yield envelope(good.replace(b'"a"', b'"' + b"x" * 1_000 + b'"'))


SMALL = st.binary(max_size=12)
TIMES = st.one_of(
    st.sampled_from(HOSTILE).map(str.encode),
    st.integers(-10, 2 * 10**12).map(lambda n: b"%d" % n),
    st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,20})?(d|h|m|s|ms)?", fullmatch=True).map(str.encode),
    st.from_regex(r"P([0-9.]{1,3}D)?(T([0-9]H)?([0-9.]{1,3}S)?)?", fullmatch=True).map(str.encode),
    SMALL,
    st.none(),
)
CONTROL = [name for name in names.CONTROL if name not in (names.RETRY, *names.PLANS)]
"""Without those of test_retries.py and test_recurring_intake.py."""
HEADER = st.one_of(
    st.tuples(st.sampled_from((*names.TIMES, *names.EXPIRIES, names.SPREAD)), TIMES),
    st.tuples(st.sampled_from([*CONTROL, "a", "b", "Ä"]), st.none() | SMALL),
    st.tuples(st.just(names.IF), st.sampled_from(CONDITIONS).map(str.encode)),
    st.tuples(st.just(names.TAGS), st.sampled_from(TAGS)),
    st.just(TARGET),
)
SCHEDULES = st.builds(
    lambda key, value, headers, target: schedule(*headers, *target, key=key, value=value),
    st.just(b"id") | SMALL.map(b"k".__add__) | SMALL,
    SMALL.map(b"v".__add__) | SMALL | st.none(),
    st.lists(HEADER, max_size=6),
    st.sampled_from([[], [TARGET], [SOON, TARGET], [SOON, TARGET]]),
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
ENVELOPED = st.builds(
    lambda parts, ascii_only, cut, key: envelope(
        json.dumps(parts, ensure_ascii=ascii_only).encode("utf-8", "replace")[: cut or None],
        key=key,
    ),
    st.fixed_dictionaries(
        {"message": JSON},
        optional={"topic": st.just("t") | JSON, "countdown": st.floats(0, 1e6) | JSON, "x": JSON},
    ),
    st.booleans(),
    st.sampled_from([0, 0, 0, 0, -1, -2]),
    st.none() | SMALL,
)
