"""Numbers of the page: what the store counts, over the last minutes."""

from sendlater.clock import FixedClock
from sendlater.server.live_statistics import Watch
from sendlater.store import Admin, Pending


def test_a_store_that_was_emptied_counts_from_the_beginning(redis_url, space):
    pending = Pending.open(redis_url, space=space, shards=1)
    admin, clock = Admin(pending), FixedClock(1_000_000)
    watch = Watch(admin, lag=dict, dead_topic="dead", clock=clock)

    def delivered(count):
        admin.tell({"late:5": count, "delivered:out": count}.items())
        clock.advance(10_000)
        watch.look()
        found = watch.stats()
        return found["late_ms"]["count"], found["late_hour_ms"]["count"]

    watch.look()
    assert delivered(7) == (7, 7)
    for key in pending.client.scan_iter(f"*{space}*"):
        pending.client.delete(key)
    assert delivered(3) == (0, 0), "since when, nobody knows"
    assert delivered(2) == (2, 2)


def test_a_service_that_is_starting_is_not_told_as_none(redis_url, space):
    """Until it is heard for the first time; that one was heard before does not count."""
    pending = Pending.open(redis_url, space=space, shards=1)
    admin, clock = Admin(pending), FixedClock(1_000_000)
    admin.note({"beat-ms": clock.now_ms() - 1_000})
    begun = Watch(admin, lag=dict, dead_topic="dead", clock=clock, starting=True)
    alone = Watch(admin, lag=dict, dead_topic="dead", clock=clock)
    clock.advance(15_000)
    found = begun.stats()
    assert found["starting"]
    assert found["why"] == ["The service is starting: nothing is delivered yet."]
    assert "No service is running" in alone.stats()["why"][0]
    admin.note({"beat-ms": clock.now_ms()})
    assert (begun.stats()["starting"], begun.stats()["why"]) == (False, [])
    clock.advance(15_000)
    assert "No service is running" in begun.stats()["why"][0]
