"""The points of the last hour that the page draws."""

from sendlater.server.last_hour import HOUR_MS, POINT_MS, LastHour


def tally(delivered: int, *, late: dict[str, int]) -> dict[str, int]:
    return {"delivered:emails": delivered, **{f"late:{edge}": n for edge, n in late.items()}}


def test_a_point_tells_what_has_happened_since_the_one_before() -> None:
    hour = LastHour()
    hour.add(0, tally(100, late={"5": 100}), pending=7, overdue=0)
    hour.add(15_000, tally(400, late={"5": 100, "1000": 300}), pending=5, overdue=2)
    hour.add(30_000, tally(400, late={"5": 100, "1000": 300}), pending=5, overdue=0)
    told = hour.trend()
    assert told["at_ms"] == [15_000, 30_000]
    assert told["delivered_per_s"] == [20.0, 0.0]
    assert told["pending"] == [5, 5]
    assert told["overdue"] == [2, 0]
    assert told["late_p99_ms"][0] > 500, "the first hundred were before"
    assert told["late_p99_ms"][1] is None, "nothing was delivered"


def test_the_lateness_of_the_hour_is_that_of_the_points_kept() -> None:
    hour = LastHour()
    hour.add(0, tally(0, late={}), pending=0, overdue=0)
    for n in range(1, HOUR_MS // POINT_MS + 2):
        hour.add(n * POINT_MS, tally(9, late={"3600000": 9}), pending=0, overdue=0)
    told = hour.late_ms(tally(19, late={"3600000": 9, "5": 10}), now_ms=2 * POINT_MS + HOUR_MS)
    assert told["count"] == 10, "the nine very late ones are more than an hour ago"
    assert told["p99"] <= 5
    assert len(hour.trend()["at_ms"]) == HOUR_MS // POINT_MS


def test_a_store_that_went_back_is_no_negative_rate() -> None:
    hour = LastHour()
    hour.add(0, tally(1_000, late={"5": 1_000}), pending=0, overdue=0)
    hour.add(15_000, tally(10, late={"5": 10}), pending=0, overdue=0)
    assert hour.trend()["delivered_per_s"] == [0]
    assert hour.trend()["late_p99_ms"] == [None]
    assert LastHour().late_ms({}, now_ms=0)["p99"] is None


def test_points_are_a_quarter_of_a_minute_apart() -> None:
    hour = LastHour()
    assert hour.due(0)
    hour.add(0, {}, pending=0, overdue=0)
    assert not hour.due(POINT_MS - 1)
    assert hour.due(POINT_MS)
