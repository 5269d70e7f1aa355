"""Which time the timeline shows: its ranges, its first view, and bars between round instants."""

from sendlater.operations.arguments import DATETIME_MS_MAX

_S, _MIN, _H, _D = 1_000, 60_000, 3_600_000, 86_400_000
_WEEK = 7 * _D
_MONDAY_MS = 4 * _D
"""Weeks begin on Mondays; 1970 began on a Thursday."""
STEPS_MS = (
    *(100, 200, 500, _S, 2 * _S, 5 * _S, 10 * _S, 15 * _S, 30 * _S),
    *(_MIN, 2 * _MIN, 5 * _MIN, 10 * _MIN, 15 * _MIN, 30 * _MIN),
    *(_H, 2 * _H, 3 * _H, 6 * _H, 12 * _H, _D, 2 * _D),
    *(_WEEK, 2 * _WEEK, 4 * _WEEK, 13 * _WEEK, 52 * _WEEK, 520 * _WEEK),
)
"""Lengths of bars that people think in. Longer ones are whole days."""
RANGES_MS = {
    "minute": _MIN,
    "hour": _H,
    "day": _D,
    "week": _WEEK,
    "month": 30 * _D,
    "year": 365 * _D,
    "all": 0,
}
"""Lengths to choose from; all ends with the last due time."""
ALL_MS_MIN = _MIN
PAST_SHARE, NEXT_SHARE = 0.03, 1.01
"""Shares of the length that are shown before and after now: there is a place for the overdue."""
FIRST_BARS = 120
"""Most bars of the first view, where it is wide enough."""


def round_edges(from_ms: int, to_ms: int, *, bars: int) -> list[int]:
    """Edges of at most `bars` bars (and one, as the first begins earlier) that are round instants:
    while time goes on, bars keep their place and only numbers change.

    >>> round_edges(1_250, 3_900, bars=3)
    [1000, 2000, 3000, 4000]
    """
    length_ms = to_ms - from_ms
    fitting = (step for step in STEPS_MS if length_ms <= step * bars)
    step_ms = next(fitting, -(-length_ms // (bars * _D)) * _D)
    shift_ms = 0 if step_ms % _WEEK else _MONDAY_MS
    first_ms = max(0, (from_ms - shift_ms) // step_ms * step_ms + shift_ms)
    count = max(1, -(-(to_ms - first_ms) // step_ms))
    return [first_ms + n * step_ms for n in range(count + 1)]


def usual_range(*, now_ms: int, most_ms: int | None, last_ms: int | None) -> str:
    """The shortest range in which most is due: a few schedules of years to come must not make the
    coming days one bar. `most_ms`: by when it is."""
    if most_ms is None or last_ms is None:
        return "all"
    fitting = ((name, ms) for name, ms in RANGES_MS.items() if ms >= most_ms - now_ms)
    name, length_ms = next(fitting, ("all", 0))
    return name if now_ms + length_ms < last_ms else "all"


def shown(name: str, *, now_ms: int, last_ms: int | None) -> tuple[int, int]:
    """From when to when a range shows, in milliseconds since 1970."""
    length_ms = RANGES_MS[name] or max(ALL_MS_MIN, (last_ms or 0) - now_ms)
    from_ms, to_ms = now_ms - PAST_SHARE * length_ms, now_ms + NEXT_SHARE * length_ms
    return max(0, round(from_ms)), min(round(to_ms), DATETIME_MS_MAX)
