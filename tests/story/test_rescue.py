"""A target that changes its mind: what its broker refuses at the last moment hurts nobody else."""

import pytest
from confluent_kafka.admin import AdminClient
from installation import Installation, now_ms
from ledger import Reader, create_topics, set_config
from servers import wait_until

pytestmark = pytest.mark.story


@pytest.fixture(scope="module")
def here(kafka, redis_url, tmp_path_factory):
    installation = Installation(kafka, redis_url, tmp_path_factory.mktemp("rescue"))
    with installation.service.start():
        for reader in installation.readers.values():
            reader.__enter__()
        yield installation
        for reader in installation.readers.values():
            reader.__exit__()


def test_what_a_target_takes_no_more_is_rejected_and_no_lane_ends(here, kafka):
    """The task is tried again: it looks up what has arrived, and what its targets take now."""
    odd = f"odd-{here.name}"
    create_topics(kafka, odd)
    here.schedule(b"first", key=b"first", target=odd, headers=[("scheduler-target-key", b"k")])
    rejected = here.readers[here.rejected]
    with Reader(kafka, odd) as reader:
        wait_until(lambda: reader.messages, "the target is known and good", timeout_s=60)
    due_ms = now_ms() + 8_000
    for n in range(20):
        here.schedule(b"%d" % n, key=b"good-%d" % n, when=("sendlater-due-ms", str(due_ms + n)))
    # Without a target key: from now on the topic takes none of those.
    here.schedule(b"bad", key=b"bad", target=odd, when=("sendlater-due-ms", str(due_ms + 5)))
    set_config(kafka, odd, "cleanup.policy", "compact")

    def refused():
        return [m for m in rejected.messages if m.value() == b"bad"]

    [message] = wait_until(refused, "the culprit is on the rejected topic", timeout_s=60)
    assert dict(message.headers())["sendlater-rejected"] == b"no-key"
    for n in range(20):
        here.arrival(b"good-%d" % n)
    assert [len(here.arrivals(here.target, b"good-%d" % n)) for n in range(20)] == [1] * 20
    assert len(refused()) == 1
    assert "query failed" not in here.service.said()
    assert "Traceback" not in here.service.said()


def test_a_target_with_too_few_replicas_in_sync_delays_only_its_own(here, kafka):
    """Its broker would take nothing for as long as it lasts; then it is delivered, once."""
    short = f"short-{here.name}"
    create_topics(kafka, short)
    set_config(kafka, short, "min.insync.replicas", "2")
    due_ms = now_ms() + 3_000
    here.schedule(b"patient", key=b"patient", target=short, when=("sendlater-due-ms", str(due_ms)))
    for n in range(20):
        when = ("sendlater-due-ms", str(due_ms + n))
        here.schedule(b"beside-%d" % n, key=b"beside-%d" % n, when=when)
    for n in range(20):
        here.arrival(b"beside-%d" % n)
    waits = "a target takes nothing now: its messages wait"
    wait_until(lambda: waits in here.service.said(), "the log tells who waits and why")
    with Reader(kafka, short) as reader:
        assert not reader.messages
        set_config(kafka, short, "min.insync.replicas", "1")
        wait_until(lambda: reader.messages, "it arrives", timeout_s=60)
        assert [message.value() for message in reader.messages] == [b"patient"]
    assert not [m for m in here.readers[here.rejected].messages if m.value() == b"patient"]


def test_a_target_deleted_under_load_is_left_alone_and_the_rest_goes_on(here, kafka):
    """A producer would wait for it for half a minute, and everybody else with it."""
    doomed, admin = f"doomed-{here.name}", AdminClient({"bootstrap.servers": kafka})
    create_topics(kafka, doomed)
    begin_ms, names = now_ms() + 3_000, [b"beside-doomed-%d" % n for n in range(600)]
    with Reader(kafka, doomed) as reader:
        for n, name in enumerate(names):
            when = ("sendlater-due-ms", str(begin_ms + 10 * n))
            here.schedule(name, key=name, when=when)
            here.schedule(name, key=b"doomed-%d" % n, target=doomed, when=when)
        wait_until(lambda: len(reader.messages) > 50, "it is delivered to", timeout_s=60)
        admin.delete_topics([doomed])[doomed].result(30)
        arrived = len(reader.messages)
    told = "a topic was deleted or takes nothing: its lane starts again"
    wait_until(lambda: told in here.service.said(), "the log tells that lanes were blocked")
    for name in names:
        here.arrival(name)
    assert [len(here.arrivals(here.target, name)) for name in names] == [1] * len(names)
    assert "Expiring" not in here.service.said(), "nobody waited until a producer gave up"

    def refused():
        return {m.value() for m in here.readers[here.rejected].messages} & set(names)

    # What was on its way when the topic went may be with it.
    wait_until(lambda: len(refused()) > (600 - arrived) // 2, "the rest is rejected", timeout_s=90)


def test_a_target_created_again_with_fewer_partitions_gets_all_of_its_messages(here, kafka):
    shrunk = f"shrunk-{here.name}"
    create_topics(kafka, shrunk, partitions=4)
    here.schedule(b"first", key=b"to-first", target=shrunk)
    with Reader(kafka, shrunk) as reader:
        wait_until(lambda: reader.messages, "the target is known", timeout_s=60)
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.delete_topics([shrunk]).values():
        future.result(30)
    wait_until(lambda: shrunk not in admin.list_topics(timeout=10).topics, "it is gone")
    create_topics(kafka, shrunk, partitions=1)
    for n in range(40):
        keyed = [("scheduler-target-key", b"%d" % n)]
        here.schedule(b"%d" % n, key=b"shrunk-%d" % n, target=shrunk, headers=keyed)
        here.schedule(b"near-%d" % n, key=b"near-%d" % n)
    for n in range(40):
        here.arrival(b"near-%d" % n)
    with Reader(kafka, shrunk) as reader:

        def arrived():
            return {message.value() for message in reader.messages} >= {
                b"%d" % n for n in range(40)
            }

        wait_until(arrived, "each arrives at what is left", timeout_s=120)
