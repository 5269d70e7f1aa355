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
