"""A store that was filled reads some records with a condition once more, and nothing else."""

from test_recurring_journal import Store

from sendlater.dialects import names
from sendlater.model import Origin, Record, Schedule
from sendlater.store.rebuild import JournalCopy


def asked(key, value, *more):
    headers = [(names.DUE_MS, b"5000"), (names.TARGET_TOPIC, b"t"), *more]
    return Record(topic="schedules", key=key, value=value, headers=headers if value else [])


def test_what_the_store_was_filled_with_does_not_count_as_new(spark, redis_url, space):
    """Its newer version may be on another partition: producers need not agree on one per key."""
    store = Store(spark, redis_url, space)
    elsewhere = Origin(topic="schedules", partition=2, position=8, timestamp_ms=9_000)
    newer = Record(topic="t", value=b"newer")
    for id in (b"replaced", b"cancelled"):
        store.hold(Schedule(id=id, due_ms=9_000, record=newer, origin=elsewhere))
    absent = (names.IF, b"absent")
    copy = JournalCopy(store.pending, owner=store.owner)
    copy.complete({"schedules/1": 5}, journals="s", undecided={"schedules/1": [0, 3]})

    store.read(
        asked(b"open", b"first", absent),
        asked(b"replaced", b"old"),
        asked(b"cancelled", None),
        asked(b"open", b"second", absent),
        asked(b"decided", b"v", absent),
        asked(b"after", b"v"),
        asked(b"after", None),
        asked(b"last", b"v"),
    )

    stands = {one.id: one.record.value for one in store.pending.list(count_max=9)}
    assert stands == {
        b"replaced": b"newer",
        b"cancelled": b"newer",
        b"open": b"first",
        b"last": b"v",
    }
    assert store.shard.seen() == {"schedules/1": 8}


def test_another_filling_ends_that(spark, redis_url, space):
    store = Store(spark, redis_url, space)
    copy = JournalCopy(store.pending, owner=store.owner)
    copy.complete({"schedules/1": 9}, journals="s", undecided={"schedules/1": [0]})
    copy.complete({"schedules/1": 0}, journals="t")
    store.read(asked(b"a", b"v"), asked(b"b", b"v"))
    assert {one.id for one in store.pending.list(count_max=9)} == {b"a", b"b"}
