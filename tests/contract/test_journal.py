"""What stands in a journal: many records of one id, and the one that counts."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from dialects_spark import SCHEMA
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sendlater.clock import FixedClock
from sendlater.config import Inbox, Settings
from sendlater.dialects import names
from sendlater.spark.journal import torn as torn_room
from sendlater.spark.journal.standing import standing, undecided

START = datetime(2026, 1, 1, tzinfo=UTC)


class Log:
    """Two journals of two partitions; each record a second after the one before."""

    def __init__(self):
        self.rows = []
        self.ends = {}

    def add(self, id, value, *, topic="a", partition=0, done=None, copy_of=None, more=()):
        offset = self.ends.get((topic, partition), 0)
        self.ends[topic, partition] = offset + 1
        about = f"{topic}/{partition}/{done}".encode()
        headers = [("other", b"1")] + ([("sendlater-origin", about)] if done is not None else [])
        if copy_of is not None:
            headers.append(("sendlater-again", f"{topic}/{partition}/{copy_of}".encode()))
        headers += more
        at = START + timedelta(seconds=len(self.rows))
        self.rows.append((id, value, topic, partition, offset, at, headers))
        return offset

    def compact(self):
        """Keep the last record of each id in each partition."""
        last = {(row[0], *row[2:4]): row for row in self.rows}
        self.rows = [row for row in self.rows if last[row[0], *row[2:4]] is row]

    def standing(self, spark, *, tasks=2):
        frame = standing(spark.createDataFrame(self.rows, SCHEMA), tasks=tasks)
        rows = frame.collect()
        return {bytes(r.key): (bytes(r.value), r.topic, r.partition, r.offset) for r in rows}


def test_the_newest_record_of_an_id_stands(spark):
    log = Log()
    log.add(b"a", b"1")
    log.add(b"b", b"1")
    log.add(b"a", b"2")
    log.add(b"empty", b"")
    log.add(b"b", None)
    assert log.standing(spark) == {b"a": (b"2", "a", 0, 2), b"empty": (b"", "a", 0, 3)}


def test_a_tombstone_of_ours_is_about_one_version(spark):
    """A newer one, written while the older left, stands; also when the tombstone comes last."""
    log = Log()
    delivered = log.add(b"a", b"1")
    log.add(b"a", b"2")
    log.add(b"a", None, done=delivered)
    delivered = log.add(b"b", b"1")
    log.add(b"b", None, done=delivered)
    assert log.standing(spark) == {b"a": (b"2", "a", 0, 1)}


@pytest.mark.parametrize("compacted", [False, True])
def test_a_copy_counts_as_the_version_it_is_a_copy_of(spark, compacted):
    """Wherever it lies: what somebody wrote before the copy landed is the newest all the same."""
    log = Log()
    versions = {}
    for id in (b"stands", b"replaced", b"cancelled", b"delivered"):
        old = log.add(id, b"1")
        versions[id] = log.add(id, b"2")
        log.add(id, None, done=old)
    newest = log.add(b"replaced", b"3")
    log.add(b"cancelled", None)
    for id, version in versions.items():
        log.add(id, b"2", copy_of=version)
    log.add(b"delivered", None, done=versions[b"delivered"])
    # What the service writes when it has read these copies.
    log.add(b"replaced", b"3", copy_of=newest)
    if compacted:
        log.add(b"cancelled", None, done=versions[b"cancelled"])
        log.compact()
    assert log.standing(spark) == {
        b"stands": (b"2", "a", 0, versions[b"stands"]),
        b"replaced": (b"3", "a", 0, newest),
    }


def test_a_copy_that_names_no_earlier_place_of_its_partition_is_a_record_like_any_other(spark):
    log = Log()
    for id, told in ((b"a", b"a/1/0"), (b"b", b"b/0/0"), (b"c", b"a/0/99"), (b"d", b"nonsense")):
        log.add(id, b"1")
        at = log.add(id, b"2")
        log.rows[at][6].append(("sendlater-again", told))
        log.add(id, None, done=at - 1)
    assert {value for value, *_ in log.standing(spark).values()} == {b"2"}
    assert len(log.standing(spark)) == 4


def test_a_tombstone_is_about_the_copy_of_a_reschedule_that_it_was_delivered_for(spark):
    """The copy lands while its schedule leaves: the tombstone names what stood before it."""
    log = Log()

    def change(id, due_ms):
        due = [("sendlater-due-ms", b"%d" % due_ms), ("sendlater-change", b"01J")]
        return log.add(id, b"1", more=due)

    def tombstone(id, version, due_ms):
        log.add(id, None, done=version, more=[("sendlater-due", b"%d" % due_ms)])

    for id in (b"before", b"after", b"later", b"again"):
        at = log.add(id, b"1", more=[("sendlater-due-ms", b"5")])
        if id == b"after":
            tombstone(id, at, 7)
            change(id, 7)
            continue
        moved = change(id, 7)
        if id == b"later":  # it was delivered when it was due before, and scheduled again
            at = log.add(id, b"2", more=[("sendlater-due-ms", b"7")])
            tombstone(id, moved, 7)
        elif id == b"again":  # delivered before its next reschedule
            tombstone(id, at, 7)
            change(id, 8)
        else:
            tombstone(id, at, 7)
    assert {id: value for id, (value, *_) in log.standing(spark).items()} == {
        b"later": b"2",
        b"again": b"1",
    }


@pytest.mark.parametrize("ahead_s", [None, 5, 3_600])
@pytest.mark.parametrize("behind_s", [0, 86_400])
def test_a_tombstone_from_a_time_to_come_does_not_end_the_search_for_torn_ones(
    spark, monkeypatch, ahead_s, behind_s
):
    """A delivery of the last minute whose tombstone is alone; and a forged one far ahead."""

    def told(due_ms, version, target="t"):
        told = {names.ID: "a", names.DUE: f"{due_ms}", names.ORIGIN: f"a/0/{version}"}
        return [
            (name, text.encode()) for name, text in (told | {names.DELIVERED_TO: target}).items()
        ]

    now = START + timedelta(minutes=10)
    rows = [
        (b"a", None, "a", 0, n, now - timedelta(seconds=s), told(5, n))
        for n, s in ((1, 90), (2, 9))
    ]
    if ahead_s:
        rows.append((b"x", None, "a", 0, 3, now + timedelta(seconds=ahead_s), told(5, 3, "u")))
    monkeypatch.setattr(torn_room, "readable_topics", lambda *_: {"t"})
    there = spark.createDataFrame(
        [(b"b", 5, "a/0/9", "t", False)],
        "id binary, due_ms bigint, version string, topic string, deleted boolean",
    )
    monkeypatch.setattr(torn_room, "deliveries", lambda *_, **__: there)
    settings = Settings(bootstrap_servers="unused:1", inboxes=(Inbox(topic="a", journal=True),))
    clock = FixedClock(int(now.timestamp() * 1_000) - 1_000 * behind_s)
    topics = SimpleNamespace(silent=lambda _: set())
    read = spark.createDataFrame(rows, SCHEMA)
    found = torn_room.torn(spark, settings, topics, read, clock=clock)
    by_our_clock = behind_s and ahead_s == 3_600
    assert found == ([] if by_our_clock else [("a", 0, 2)])


def test_over_partitions_and_topics_the_latest_decides(spark):
    log = Log()
    log.add(b"moved", b"1", partition=1)
    log.add(b"moved", b"2", topic="b")
    log.add(b"gone", b"1", partition=1)
    delivered = log.add(b"gone", b"2", topic="b")
    log.add(b"gone", None, topic="b", done=delivered)
    assert log.standing(spark) == {b"moved": (b"2", "b", 0, 0)}


ASKS = [("sendlater-if", b"absent")]


def test_a_record_with_a_condition_counts_once_its_decision_is_behind_it(spark):
    log = Log()
    for id in (b"met", b"unmet", b"nothing", b"open", b"twice", b"newer", b"cancelled"):
        old = log.add(id, b"1") if id != b"nothing" else 0
        at = log.add(id, b"2", more=ASKS)
        if id in (b"met", b"unmet", b"twice"):
            log.add(id, b"1" if id == b"unmet" else b"2", copy_of=at)
        elif id == b"nothing":
            log.add(id, None, done=at)
        elif id == b"newer":
            new = log.add(id, b"3")
            log.add(id, None, done=old)
        elif id == b"cancelled":
            log.add(id, None)
        else:
            first_open = at
    second = log.add(b"twice", b"3", more=ASKS)
    elsewhere = log.add(b"met", b"4", partition=1, more=ASKS)
    stands = log.standing(spark)
    assert {id: value for id, (value, *_) in stands.items()} == {
        **dict.fromkeys((b"unmet", b"open"), b"1"),
        **dict.fromkeys((b"met", b"twice"), b"2"),
        b"newer": b"3",
    }
    assert stands[b"newer"][3] == new
    frame = spark.createDataFrame(log.rows, SCHEMA)
    assert undecided(frame) == {"a/0": [first_open, second], "a/1": [elsewhere]}
    late = [row for row in log.rows if row[0] != b"open" and row[2:4] == ("a", 0)]
    assert undecided(spark.createDataFrame(late, SCHEMA)) == {"a/0": [second]}
    done = [row for row in late if row[0] != b"twice"]
    assert undecided(spark.createDataFrame(done, SCHEMA)) == {}


def test_where_nobody_can_decide_a_condition_it_is_a_record_like_any_other(spark):
    """So that it is rejected."""
    log = Log()
    log.add(b"a", b"1")
    log.add(b"a", b"2", more=ASKS)
    found = standing(spark.createDataFrame(log.rows, SCHEMA), tasks=1, decided=False).collect()
    assert [bytes(row.value) for row in found] == [b"2"]


RECORDS = st.lists(
    st.tuples(st.sampled_from([b"x", b"y"]), st.sampled_from(["put", "cancel", "deliver", "copy"])),
    max_size=30,
)


@settings(
    max_examples=6,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(RECORDS, min_size=20, max_size=40), st.integers(1, 3))
def test_any_history_reduces_as_a_plain_loop_does(spark, histories, tasks):
    """Each history has ids of its own; a delivery's tombstone comes some records later."""
    log, expected = Log(), {}
    for number, history in enumerate(histories):
        due = []
        for name, step in history:
            id = b"%d-%s" % (number, name)
            if step == "put":
                at = log.add(id, b"v")
                expected[id] = (b"v", "a", 0, at)
            elif step == "cancel":
                log.add(id, None)
                expected.pop(id, None)
            elif step == "copy" and id in expected:
                log.add(id, b"v", copy_of=expected[id][3])
            elif id in expected:
                due.append((id, expected[id]))
            if len(due) > 2:
                deliver(log, expected, *due.pop(0))
        for one in due:
            deliver(log, expected, *one)
    if log.rows:
        assert log.standing(spark, tasks=tasks) == expected


def deliver(log, expected, id, version):
    log.add(id, None, done=version[3])
    if expected.get(id) == version:
        del expected[id]
