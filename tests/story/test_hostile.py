"""One bad message hurts nobody: hostile records among good ones, through one running service."""

import time
from dataclasses import dataclass

import pytest
from any_bytes import produce_bytes
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from installation import PAYLOAD_BYTES_MAX, SMALL_TOPIC_BYTES_MAX, Installation, now_ms
from ledger import Reader, create_topics
from servers import wait_until

from sendlater.dialects import names
from sendlater.dialects.deliver import leaving
from sendlater.model import Origin, Record, Schedule
from sendlater.spark.delivery.refusal import record_bytes

pytestmark = pytest.mark.story

GOOD_COUNT = 300
CROWD_COUNT = 200
ALL_S = 120.0
FOREVER_MS = str(2**63 - 1)
SOON = (names.DELAY, b"0")


@dataclass
class Hostile:
    """A record, and what must come of it: a reason, or how often it arrives on its target."""

    name: str
    key: bytes | None
    value: bytes | None
    headers: list
    expected: str | int
    inbox: str = ""
    target: str = ""
    timestamp: int = 0
    place: str = ""
    by_librdkafka: bool = False


@pytest.fixture(scope="module")
def here(kafka, redis_url, tmp_path_factory):
    here = Installation(kafka, redis_url, tmp_path_factory.mktemp("service"))
    here.kafka, here.compacted = kafka, f"compacted-{here.name}"
    create_topics(kafka, here.compacted, cleanup_policy="compact")
    here.strict = f"strict-{here.name}"
    strict = {"message_timestamp_type": "CreateTime", "message_timestamp_before_max_ms": "1"}
    create_topics(kafka, here.strict, **strict)
    for topic in (here.compacted, here.strict):
        here.readers[topic] = Reader(kafka, topic)
    here.producer = Producer({"bootstrap.servers": kafka, "message.max.bytes": 2_000_000})
    alter(
        kafka,
        here.other,
        **{
            "message.timestamp.type": "CreateTime",
            "message.timestamp.after.max.ms": FOREVER_MS,
            "message.timestamp.before.max.ms": FOREVER_MS,
        },
    )
    with here.service:
        here.service.start()
        for reader in here.readers.values():
            reader.__enter__()
        yield here
        for reader in here.readers.values():
            reader.__exit__()


def alter(kafka, topic, **config):
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.incremental_alter_configs([resource])[resource].result(30)


def headers_records(here):
    """Records in dialect `headers`: name, key, value, headers, what becomes of them."""
    to, inbox = (names.TARGET_TOPIC, here.target.encode()), here.inbox

    def asks(name, *headers, expected=1, key=None, value=b"v", target=None, **more):
        where = (names.TARGET_TOPIC, (target or here.target).encode())
        key = f"h-{name}".encode() if key is None else key
        all_headers = [SOON, where, *headers]
        return Hostile(
            name, key, value, all_headers, expected, inbox, target or here.target, **more
        )

    for text in (b"99", b"2", b"", b"-1", b"9" * 5_000, b"\xff", None, b"1.0", b"0x1"):
        yield asks(f"partition {text!r:.20}", (names.TARGET_PARTITION, text), expected="bad-target")
    yield asks("many headers", ("h", b"x" * 20_000), target=here.small, expected="too-large")
    yield asks("no room", value=b"x" * 9_900, target=here.small, expected="too-large")
    room = fitting_value(here)
    yield asks("exact", key=b"h-exact", value=room, target=here.small)
    yield asks("1 more", key=b"h-above", value=room + b"x", target=here.small, expected="too-large")
    yield asks("null key", target=here.compacted, expected="no-key")
    yield asks("old at once", target=here.strict, expected="refused")
    yield asks("empty key", (names.TARGET_KEY, b""), target=here.compacted)
    yield asks("internal", target="__consumer_offsets", expected="not-authorised")
    for change in (b"\xff", b"a|b", None, b"", b"x" * 100_00, b"\xf0\x9f"):
        yield asks(f"change {change!r:.20}", (names.CHANGE, change))
    for topic in (b"", b".", b"..", b"a b", b"x" * 250, b"\xff", None, b"a/b", b"a\x00b"):
        expected = "bad-target" if topic else "no-target"
        headers = [SOON, (names.TARGET_TOPIC, topic)]
        yield Hostile(f"target {topic!r:.20}", b"h-t", b"v", headers, expected, inbox)
    yield asks("249 characters", target="x" * 249, expected="unknown-topic")
    for time_header in (
        (names.EPOCH, b"9" * 5_000),
        (names.AT, b"\x00"),
        (names.DELAY, b"\xff\xfe"),
        (names.DUE_MS, b"-1"),
        (names.DELAY, b"1" * 40_000),
        (names.DELAY, b".1a" * 10_000),
        (names.DELAY, None),
    ):
        name = f"time {time_header!r:.60}"
        yield Hostile(name, b"h-time", b"v", [time_header, to], "bad-time", inbox)
    yield asks("ten thousand headers", *[("h", b"v")] * 10_000)
    yield asks("empty names", ("", b"1"), ("", None), ("", b"1"))
    spoofed = [(name, b"\xff") for name in vars(names).values() if isinstance(name, str)][:-6]
    kinds = dict.fromkeys(names.EXPIRIES, "bad-expiry")
    kinds |= dict.fromkeys(names.PLANS, "bad-plan")
    kinds |= {names.RETRY: "bad-retry", names.SPREAD: "bad-time", names.IF: "bad-condition"}
    for name, expected in kinds.items():
        for text in (b"\xff", b"", None, b"-1s", b"9" * 5_000 + b"x"):
            yield asks(f"{name} {text!r:.20}", (name, text), expected=expected)
    extra = [(names.PLAN, names.EXTRA), (names.DUE_MS, b"5"), to]
    for name, key in (("extra of nobody", b"?@x"), ("extra of none", b"@x")):
        yield Hostile(name, key, b"v", extra, "bad-plan", inbox)
    for text in (b" " * 300_000, b"exponential " + b"." * 300_000):
        yield asks(f"long retry {text!r:.14}", (names.RETRY, text), expected="bad-retry")
    for text in (b"\xff", b"a b", b"x" * 65, b"9" * 5_000, b",".join(b"%d" % n for n in range(9))):
        yield asks(f"tags {text!r:.20}", (names.TAGS, text), expected="bad-tags")
    ours = [*names.TIMES, *kinds, names.TAGS]
    ours += [names.TARGET_TOPIC, names.TARGET_PARTITION, names.TARGET_KEY]
    yield asks("all our names", *[h for h in spoofed if h[0] not in ours])
    yield asks(
        "told already",
        (names.REJECTED, b"no-time"),
        (names.REJECTED_DETAIL, None),
        (names.REJECTED_ID, b"x"),
        target="nowhere",
        expected="unknown-topic",
    )
    yield asks("large key", key=b"k" * 900_000, expected="id-too-long")
    yield asks("large", value=b"x" * 1_048_000, expected="too-large")
    yield asks("null id", key=b"", expected="no-id")
    yield asks("blank id", key=b" \t\r\n", expected="no-id")
    for key in (b"h-\x00", b"h-\n", b"h-a|b", b"h-a/b", b"h-\xff\xfe", b"h-" + b"\xf0" * 510):
        yield asks(f"id {key!r:.20}", key=key)
    names_of_bytes = [(b"\xff\xfe", b"1"), (b"a\x00b", b"2"), (b"\xed\xa0\x80", b"3")]
    yield asks(
        "foreign names",
        *names_of_bytes,
        value=b"foreign names",
        by_librdkafka=True,
        expected="bad-headers",
    )
    every = [(name, b"\xff") for name in names.CONTROL]
    yield Hostile("a null that comes again", b"h-null", None, every, "bad-retry", inbox)
    others = [header for header in every if header[0] != names.RETRY]
    yield Hostile("a null with a condition", b"h-null", None, others, "bad-condition", inbox)
    others = [header for header in others if header[0] != names.IF]
    yield Hostile("tombstone", b"h-\x00nobody", None, others, 0, inbox)


def fitting_value(here):
    """The largest value that the small topic takes of one record of ours."""
    origin = Origin(topic=here.inbox, partition=0, position=0, timestamp_ms=now_ms())
    record = Record(topic=here.small, value=b"x" * 9_000)
    empty = Schedule(
        id=b"h-exact", due_ms=now_ms(), record=record, origin=origin, dialect="headers"
    )
    left = SMALL_TOPIC_BYTES_MAX - record_bytes(leaving(empty)[0])
    return b"x" * (9_000 + left)


def timed_records(here):
    """The producer says when they were written."""
    to = (names.TARGET_TOPIC, here.target.encode())
    for timestamp in (-1, 1, 8 * 10**15):
        name, key = f"written at {timestamp}", f"h-at-{timestamp}".encode()
        headers = [(names.DUE_MS, b"1"), to]
        yield Hostile(name, key, b"v", headers, 1, here.other, here.target, timestamp)


def envelopes(here):
    """Records in dialect `envelope`."""
    topic = here.target.encode()

    def around(message, countdown=b"0"):
        return b'{"topic":"%s","message":%s,"countdown":%s}' % (topic, message, countdown)

    texts = {
        "deep lists": (around(b"[" * 5_000 + b"]" * 5_000), "bad-envelope"),
        "deep objects": (around(b'{"a":' * 5_000 + b"1" + b"}" * 5_000), "bad-envelope"),
        "open lists": (b"[" * 40_000, "bad-envelope"),
        "digits": (around(b"9" * 40_000), 1),
        "more digits": (around(b"9" * 1_000_000), "too-large"),
        "digits to wait": (around(b"1", b"9" * 40_000), "bad-time"),
        "escape": (around(b'"\\x"'), "bad-envelope"),
        "lone surrogate": (around(b'"\\ud800"'), "bad-envelope"),
        "no UTF-8": (around(b'"\xff"'), "bad-envelope"),
        "NUL": (around(b'"\\u0000"'), 1),
        "twice": (around(b'"a","message":"b"'), 1),
        "endless": (around(b'"a"', b"1e999"), "too-far"),
        "long name": (b'{"%s":1}' % (b"n" * 40_000), "bad-envelope"),
        "nothing": (b"", "bad-envelope"),
        "null": (None, "bad-envelope"),
    }
    for name, (value, expected) in texts.items():
        yield Hostile(name, None, value, [], expected, here.envelopes, here.target)


def send(here, hostile):
    """On its inbox; where it lies there is told by the broker."""

    def written(error, message):
        assert error is None, (hostile.name, error)
        hostile.place = f"{message.topic()}/{message.partition()}/{message.offset()}"

    if hostile.by_librdkafka:
        parts = {"key": hostile.key, "value": hostile.value, "headers": hostile.headers}
        produce_bytes(here.kafka, hostile.inbox, **parts)
        partition, offset, _ = here.place(hostile.inbox, hostile.value)
        hostile.place = f"{hostile.inbox}/{partition}/{offset}"
        return
    here.producer.produce(
        hostile.inbox,
        key=hostile.key,
        value=hostile.value,
        headers=hostile.headers,
        timestamp=hostile.timestamp,
        on_delivery=written,
    )
    here.producer.poll(0)


def rejections(here):
    """Reasons by the place of the record on its inbox."""
    found = {}
    for message in list(here.readers[here.rejected].messages):
        told = dict(message.headers())
        found.setdefault(told[names.ORIGIN].decode(), []).append(told[names.REJECTED].decode())
    return found


def arrivals(here, hostile):
    schedule_id = (
        hostile.place.replace("/", "-").encode() if "env" in hostile.inbox else hostile.key
    )
    return here.arrivals(hostile.target, schedule_id)


def test_hostile_records_hurt_nobody(here):
    hostile = [*headers_records(here), *timed_records(here), *envelopes(here)]
    assert len({one.name for one in hostile}) == len(hostile) > 60
    due_ms = {}
    for n in range(GOOD_COUNT):
        if n % 4 == 0 and n // 4 < len(hostile):
            send(here, hostile[n // 4])
        name = b"good-%d" % n
        due_ms[name] = now_ms() + 3_000 + 10 * n
        when = (names.DUE_MS, b"%d" % due_ms[name])
        to = (names.TARGET_TOPIC, here.target.encode())
        here.producer.produce(here.inbox, key=name, value=b"good", headers=[when, to])
    assert here.producer.flush(30) == 0
    assert all(one.place for one in hostile[: GOOD_COUNT // 4])
    for one in hostile[GOOD_COUNT // 4 :]:
        send(here, one)
    assert here.producer.flush(30) == 0

    def settled(one):
        if isinstance(one.expected, str):
            return rejections(here).get(one.place)
        return not one.expected or len(arrivals(here, one)) >= one.expected

    late_ms = [here.arrival(name).timestamp()[1] - due for name, due in due_ms.items()]
    assert min(late_ms) >= 0
    assert max(late_ms) < 10_000
    deadline = time.monotonic() + ALL_S
    for one in hostile:
        left_s = max(1.0, deadline - time.monotonic())
        wait_until(lambda one=one: settled(one), f"{one.name}: {one.expected}", timeout_s=left_s)
    # Something good after them all: nothing else can be under way.
    here.schedule(key=b"after")
    here.arrival(b"after")
    told = rejections(here)
    for one in hostile:
        if isinstance(one.expected, str):
            assert told.pop(one.place) == [one.expected], one.name
        elif one.expected:
            assert len(arrivals(here, one)) == one.expected, one.name
    assert not told
    assert '"level": "error"' not in here.service.said()


def test_a_crowd_of_small_records_does_not_choke_a_topic_with_a_small_limit(here):
    """Together they are many times what its batches may hold."""
    due = (names.DUE_MS, str(now_ms() + 3_000).encode())
    ids = [b"crowd-%d" % n for n in range(CROWD_COUNT)]
    to = (names.TARGET_TOPIC, here.small.encode())
    for name in ids:
        here.producer.produce(here.inbox, key=name, value=b"x" * 500, headers=[due, to])
    assert here.producer.flush(30) == 0

    for name in ids:
        here.arrival(name, topic=here.small)
    assert [len(here.arrivals(here.small, name)) for name in ids] == [1] * CROWD_COUNT


@pytest.mark.parametrize("timestamp", [2**62, 1_780_000_000_000_000_000, -(2**62)])
def test_what_spark_could_not_read_is_refused_by_the_broker(here, timestamp):
    """One such record would stop intake for good: nanoseconds, for example."""
    failed = []
    here.producer.produce(
        here.other, b"v", timestamp=timestamp, on_delivery=lambda error, _: failed.append(error)
    )
    assert here.producer.flush(30) == 0
    assert failed[0].code() == KafkaError.INVALID_TIMESTAMP


def test_what_was_cut_says_so(here):
    """The rejected topic takes a mebibyte; a record of about that grows when it is rejected."""
    here.put(here.inbox, b"y" * 1_048_300, key=b"cut", headers=[("h", b"1")])

    def told():
        return [m for m in here.readers[here.rejected].messages if m.key() == b"cut"]

    (message,) = wait_until(told, "it is rejected")
    detail = dict(message.headers())[names.REJECTED_DETAIL].decode()
    assert message.value() == b"y" * 1_024
    assert detail.endswith(
        "left out: the value after byte 1024 of 1048300 and 1 headers of 2 bytes"
    )


assert PAYLOAD_BYTES_MAX < 900_000
