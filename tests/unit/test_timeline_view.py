"""What the timeline shows: bars between round instants, and the range in which most is due."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sendlater.operations.arguments import DATETIME_MS_MAX
from sendlater.server.timeline_view import round_edges, shown, usual_range

DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000


@given(
    from_ms=st.integers(0, DATETIME_MS_MAX),
    length_ms=st.integers(1, DATETIME_MS_MAX),
    bars=st.integers(1, 500),
)
def test_bars_hold_the_whole_span_and_are_not_too_many(from_ms, length_ms, bars):
    edges = round_edges(from_ms, from_ms + length_ms, bars=bars)
    assert edges[0] <= from_ms
    assert edges[-1] >= from_ms + length_ms
    assert 2 <= len(edges) <= bars + 2
    assert len({high - low for low, high in pairwise(edges)}) == 1


@given(from_ms=st.integers(NOW_MS, 2 * NOW_MS), later_ms=st.integers(0, 10_000))
def test_a_moment_later_the_bars_are_the_same(from_ms, later_ms):
    before = round_edges(from_ms, from_ms + DAY_MS, bars=100)
    after = round_edges(from_ms + later_ms, from_ms + later_ms + DAY_MS, bars=100)
    assert set(before) & set(after) >= set(before[1:-1])


def test_weeks_begin_on_mondays():
    edges = round_edges(NOW_MS, NOW_MS + 365 * DAY_MS, bars=60)
    assert all((at // DAY_MS + 3) % 7 == 0 for at in edges), "1970-01-01 was a Thursday"


def test_the_first_range_is_the_one_in_which_most_is_due():
    def usual(most, last):
        return usual_range(now_ms=NOW_MS, most_ms=NOW_MS + most, last_ms=NOW_MS + last)

    assert usual(3_000, 400 * DAY_MS) == "minute"
    assert usual(2 * DAY_MS, 400 * DAY_MS) == "week"
    assert usual(2 * DAY_MS, 3 * DAY_MS) == "all", "a week would end behind the last one"
    assert usual(900 * DAY_MS, 900 * DAY_MS) == "all"
    assert usual_range(now_ms=NOW_MS, most_ms=None, last_ms=None) == "all"


def test_what_is_shown_has_a_place_for_the_overdue_and_ends_with_the_last_year():
    assert shown("day", now_ms=NOW_MS, last_ms=None) == (NOW_MS - 2_592_000, NOW_MS + 87_264_000)
    assert shown("all", now_ms=NOW_MS, last_ms=2**52) == (0, DATETIME_MS_MAX)
    assert shown("all", now_ms=NOW_MS, last_ms=None) == (NOW_MS - 1_800, NOW_MS + 60_600)
