"""Whatever bytes a record has: it is decoded, parked, shown and sent, and hurts nobody."""

import base64
import uuid
from collections import Counter

from dialects_inputs import SMALL, SOON, TARGET, hostile_envelopes, hostile_schedules
from dialects_model import COLUMNS, SETTINGS
from dialects_spark import frame_of
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rest_calls import settings_for
from starlette.testclient import TestClient

from sendlater.config import Inbox
from sendlater.dialects import delivered_stages, names, stages
from sendlater.dialects.deliver import leaving
from sendlater.model import Record
from sendlater.server.app import make_app
from sendlater.spark.arrow_rows import to_arrow, unpack_columns
from sendlater.spark.intake.park_task import ParkTask
from sendlater.spark.journal.fill_tasks import FillTask
from sendlater.spark.journal.standing import standing
from sendlater.spark.plans import RECURS
from sendlater.store import Batch, Pending
from sendlater.store.codec import unpack

SHARDS = SETTINGS.shards
JOURNAL = SETTINGS.model_copy(
    update={
        "inboxes": (*SETTINGS.inboxes, Inbox(topic="journal", journal=True)),
        "history_topic": "history",
    }
)
OURS = [value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)]
VERSIONS = [b"journal/1/0", b"journal/1/3", b"/1/2", b"//", b"a/b/c", b"journal/1/" + b"9" * 19]
NASTY = [
    b"",
    b"\xff",
    b"\x00",
    b"\xf0\x9f",
    b"|",
    b"a|5",
    b"-1",
    b"9" * 400,
    b"{}",
    b"\xed\xa0\x80",
]
BYTES = st.one_of(SMALL, st.none(), st.sampled_from(NASTY + VERSIONS), st.binary(max_size=600))
NAMES = st.sampled_from([*OURS, *OURS, "", "a", "\ufffd", "\x00"]) | st.text(max_size=3)
HEADERS = st.lists(st.tuples(NAMES, BYTES), max_size=8)
PLANNED = [(names.EVERY, b"1s"), (names.CRON, b"absent"), (names.RETRY, b"1s"), SOON]
ENDS = [[TARGET, when, (names.OWN, own)] for when in PLANNED for own in (None, b"x")]
"""Nothing is behind what says that all behind it is the record's own."""
KEYS = BYTES | st.sampled_from([b"a", b"b", b"a/b", b"\n", b" "])
RECORDS = st.builds(
    lambda topic, key, value, headers, more: Record(
        topic=topic, key=key, value=value, headers=headers + more
    ),
    st.sampled_from(["schedules", "envelopes", "journal", "journal"]),
    KEYS,
    BYTES | st.just(b'{"topic":"t","message":"a","countdown":1}'),
    HEADERS,
    st.sampled_from([[], [TARGET], [SOON, TARGET], [SOON, TARGET], *ENDS]),
)


def decoded(frame):
    """What leaves Spark for Python's sink, as it leaves."""
    for stage in stages(JOURNAL):
        frame = frame.selectExpr(*stage)
    assert frame.columns == COLUMNS
    return frame.toArrow().sort_by("origin_position").to_batches()


def parked(redis_url, batches):
    """A space with everything in it that these batches of decoded rows ask for."""
    space = f"t{uuid.uuid4().hex[:12]}"
    pending = Pending.open(redis_url, space=space, shards=SHARDS)
    owner = pending.fence()
    task = ParkTask(pending, owner, True, frozenset(JOURNAL.journals))
    for batch in batches:
        places = zip(batch["origin_topic"], batch["origin_partition"], strict=True)
        for topic, partition in dict.fromkeys(places):
            if topic.is_valid:
                task._mark(f"{topic}/{partition}", 0)
        task.park(batch)
    task.flush()
    return pending, owner


def claimed(pending, owner):
    """Everything, as a lane claims it, whenever it is due."""
    batch = Batch(0, pending.open_lane(0, owner=owner), 2**53)
    rows = []
    for shard in pending.shards:
        while (got := shard.claim(batch, owner=owner, now_ms=2**53, count_max=1_000)).ids:
            rows += zip(got.ids, got.packed, strict=True)
    return rows


def shown(redis_url, pending):
    """REST lists every schedule and gives each; ids by what they are in bytes."""
    app = make_app(settings_for(redis_url, pending.space, shards=SHARDS), redis_url=redis_url)
    found = Counter()
    with TestClient(app, base_url="http://127.0.0.1") as api:
        cursor = None
        while True:
            more = {"cursor": cursor} if cursor else {}
            page = api.get("/v1/schedules", params={"limit": 50, **more})
            assert page.status_code == 200, page.text
            for item in page.json()["items"]:
                raw = item.get("id_base64")
                found[base64.b64decode(raw) if raw else item["id"].encode()] += 1
            cursor = page.json()["next_cursor"]
            if cursor is None:
                return found


def test_a_tombstone_about_a_rejected_record_takes_both_ids_back(spark, redis_url):
    """The record waited under its place; before its target refused it, under its own id."""
    journal = JOURNAL.journals[0]
    done = [(names.ID, b"%s-1-0" % journal.encode()), (names.ORIGIN, f"{journal}/1/0".encode())]
    records = [
        Record(topic=journal, key=b"key", value=b"no time", headers=[]),
        Record(topic=journal, key=b"other", value=b"no time", headers=[]),
        Record(topic=journal, key=b"key", value=None, headers=done),
    ]
    pending, owner = parked(redis_url, decoded(frame_of(spark, records)))
    assert [id for id, _ in claimed(pending, owner)] == [f"{journal}-1-1".encode()]


def test_everything_known_to_hurt_is_parked_shown_and_sent(spark, redis_url):
    """Once per id that stands, byte for byte."""
    check(spark, redis_url, [*hostile_schedules(), *hostile_envelopes()])


@settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(RECORDS, min_size=100, max_size=300))
def test_any_bytes_are_parked_shown_and_sent(spark, redis_url, records):
    check(spark, redis_url, records)


def check(spark, redis_url, records):
    batches = decoded(frame_of(spark, records))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert len(rows) == len(records)
    pending, owner = parked(redis_url, batches)
    last = {row["id"]: row for row in rows}
    # Between two inboxes nothing says which of an id's records is the newer.
    inboxes = Counter(i for i, _ in {(row["id"], row["origin_topic"]) for row in rows})
    stands = {i for i, row in last.items() if inboxes[i] == 1 and row["due_ms"] is not None}
    shown_ids = shown(redis_url, pending)
    found = set(shown_ids)
    assert not {i for i in stands if found.isdisjoint(waits_under(last[i]))}
    assert set(shown_ids.values()) <= {1}
    # A recurring one never leaves as it is: a lane makes its occurrence of it.
    once = [row for row in claimed(pending, owner) if not unpack(*row).plan]
    compare_with_spark(spark, once)


def waits_under(row):
    """Ids that a decoded row may have in the store: a plan that cannot be meant is rejected only
    there, under its place."""
    place = f"{row['origin_topic']}-{row['origin_partition']}-{row['origin_position']}".encode()
    return {row["id"], place} if (row["change"] or "").startswith(RECURS) else {row["id"]}


def compare_with_spark(spark, rows):
    """What Python says will leave is what Spark sends, header by header."""
    import pyarrow as pa

    frame = to_arrow([i for i, _ in rows], unpack_columns([packed for _, packed in rows]))
    frame = spark.createDataFrame(pa.Table.from_batches([frame]))
    for stage in delivered_stages(JOURNAL):
        frame = frame.selectExpr(*stage)

    def bare(topic, partition, key, value, headers):
        def raw(content):
            return None if content is None else bytes(content)

        return topic, partition, raw(key), raw(value), tuple((n, raw(v)) for n, v in headers)

    sent = Counter(bare(*row) for row in frame.collect())
    expected = Counter()
    for row in rows:
        schedule = unpack(*row)
        copies = ("journal", "history") if schedule.origin.topic == "journal" else ()
        for leaves in leaving(schedule, copies):
            partition = leaves.partition
            if leaves.topic == "journal" and leaves.value is None:
                partition = 1
            record = (leaves.topic, partition, leaves.key, leaves.value, leaves.headers)
            expected[bare(*record)] += 1
    assert sent == expected


def test_what_stands_in_a_journal_of_any_bytes_is_planted(spark, redis_url, space):
    records = [
        Record(topic="journal", key=key, value=value, headers=[SOON, TARGET, (name, content)])
        for key in (b"a", b"\xff", b"a/b", None)
        for value in (None, b"v")
        for name in (names.CHANGE, names.ORIGIN, names.COPIED, "")
        for content in (*NASTY, *VERSIONS, None)
    ]
    found = standing(frame_of(spark, records), tasks=1)
    pending = Pending.open(redis_url, space=space, shards=SHARDS)
    fill_task = FillTask(redis_url=redis_url, space=space, shards=SHARDS, owner=pending.fence())
    counts = [c for batch in fill_task(iter(decoded(found))) for c in batch.to_pydict()["count"]]
    assert sum(counts) == len(claimed(pending, pending.owner())) == 3


def test_a_version_that_is_none_cancels_as_any_null_value(spark, redis_url):
    """Redis must not look for it for ever, either."""
    good = Record(topic="journal", key=b"a", value=b"v", headers=[SOON, TARGET])
    for version, stands in (
        (b"/1/2", False),
        (b"x", False),
        (b"journal/1/0", False),
        (b"\xff", False),
    ):
        gone = Record(topic="journal", key=b"a", value=None, headers=[(names.ORIGIN, version)])
        pending, owner = parked(redis_url, decoded(frame_of(spark, [good, gone])))
        assert bool(claimed(pending, owner)) is stands


def test_a_plan_with_nothing_behind_it_is_read(spark, redis_url):
    """It has no headers of its own."""
    journal = JOURNAL.journals[0]
    records = [
        Record(topic=journal, key=b"%d" % number, value=b"v", headers=headers)
        for number, headers in enumerate(ENDS)
    ]
    pending, _ = parked(redis_url, decoded(frame_of(spark, records)))
    found = {pending.get(b"%d" % n) is not None for n, one in enumerate(ENDS) if one[1][1] == b"1s"}
    assert pending.counts()["parked"] == len(ENDS)
    assert found == {True, False}, "plans are there, retries on a journal are rejected"
    pending.close()
