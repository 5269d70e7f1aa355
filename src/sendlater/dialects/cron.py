"""Cron expressions in a time zone. No I/O but the machine's time zones.

Daylight saving: a time that does not exist is moved to the end of the gap, and a time that exists
twice counts once; where minute or hour begin with `*`, elapsed time counts instead.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from sendlater.errors import BadRequest
from sendlater.limits import CRON_CHARS_MAX

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MS = timedelta(milliseconds=1)
NO_TIME = timedelta()
HOUR = timedelta(hours=1)
_RANGES = " (a range goes up, and SUN is 0: not SAT-SUN but SAT,SUN or 6-7)"
DAY_MS = 86_400_000


@lru_cache(10_000)  # many schedules are due at nine, and come again at nine
def cron_after(cron: str, zone: str, after_ms: int) -> int | None:
    """The first instant of a cron expression after this one; None: there is none.

    Raises BadRequest if expression or zone cannot be read.
    """
    from cronsim import CronSim, CronSimError

    fields = len(cron.split())
    # With six fields cronsim reads seconds, and knows no daylight saving.
    if fields != 5 or len(cron) > CRON_CHARS_MAX:
        raise BadRequest(f"cron: expected five fields (0 9 * * MON-FRI), got {cron[:100]!r}")
    clock = zone_of(zone)
    try:
        after = (EPOCH + after_ms * MS).astimezone(clock)
        times = CronSim(cron, after)
        found = next(times, None) if _has_days(" ".join(cron.split()[2:])) else None
        # In an hour that comes twice, a fixed time counts once: the first. Compared as instants:
        # Python compares times of one zone by what the clock on the wall shows.
        while found is not None and (found - EPOCH) // MS <= after_ms:
            found = next(times, None)
        if found is not None:
            # cronsim jumps over the rest of an hour that a shift of the clock has cut, and over the
            # first part of the next one.
            for start in _beside_shift(after - HOUR, found):
                again = next(CronSim(cron, start), None)
                if again is not None and after_ms < (again - EPOCH) // MS < (found - EPOCH) // MS:
                    found = again
    except (CronSimError, AssertionError) as error:
        raise BadRequest(
            f"cron: expected minute, hour, day of month, month and day of week that can be, "
            f"got {cron[:100]!r}: {error}{_RANGES if '-' in cron else ''}"
        ) from None
    except (OverflowError, ValueError):  # after the year 9999
        return None
    return None if found is None else (found - EPOCH) // MS


@lru_cache(1_000)
def _has_days(days: str) -> bool:
    """Whether the last three fields of an expression ever meet. That they do not is known only
    after a search of fifty years, which takes as long as a thousand others: not each time."""
    from cronsim import CronSim

    return next(CronSim(f"0 0 {days}", EPOCH), None) is not None


def _beside_shift(low: datetime, high: datetime) -> Sequence[datetime]:
    """If the clock is shifted between these times of one zone: the last second before that, and
    before the next full hour."""
    if low.utcoffset() == high.utcoffset():
        return ()
    zone, first, last = low.tzinfo, int(low.timestamp()), int(high.timestamp())
    while last - first > 1:
        middle = (first + last) // 2
        same = datetime.fromtimestamp(middle, zone).utcoffset() == low.utcoffset()
        first, last = (middle, last) if same else (first, middle)
    shifted = datetime.fromtimestamp(last, zone)
    left_s = 3_600 - shifted.minute * 60 - shifted.second
    return [datetime.fromtimestamp(at, zone) for at in (first, last + left_s - 1)]


def clock_notes(times_ms: Sequence[int], zone: str) -> list[str | None]:
    """For each time in a row, what its clock has done since the one before it (for the first: in
    the day before it), or that the time exists twice; None: nothing."""
    clock, found = zone_of(zone), list[str | None]()
    for n, ms in enumerate(times_ms):
        before_ms = times_ms[n - 1] if n else max(0, ms - DAY_MS)
        try:
            before, at = ((EPOCH + one * MS).astimezone(clock) for one in (before_ms, ms))
        except (OverflowError, ValueError):  # after the year 9999
            found.append(None)
            continue
        by = _offset(at) - _offset(before)
        notes = [f"the clock was set {'forward' if by > NO_TIME else 'back'} by {abs(by)}"]
        notes = notes if by else []
        if _offset(at.replace(fold=0)) != _offset(at.replace(fold=1)):
            notes.append(f"{at:%H:%M} comes twice, this is the {'second' if at.fold else 'first'}")
        found.append("; ".join(notes) or None)
    return found


def _offset(at: datetime) -> timedelta:
    return at.utcoffset() or NO_TIME


@lru_cache(1_000)
def zone_of(name: str) -> tzinfo:
    """Raises BadRequest for a zone that this machine does not know."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise BadRequest(
            f"zone: expected a name of the IANA time zones (Europe/Paris), got {name[:100]!r}"
        ) from None
