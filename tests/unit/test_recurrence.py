"""Plans of recurring schedules: daylight saving, no drift, and what cannot be meant."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import example, given
from hypothesis import strategies as st

from sendlater.dialects import names
from sendlater.dialects.cron import clock_notes, cron_after
from sendlater.dialects.recurrence import (
    Plan,
    extra_occurrence,
    make_plan,
    read_headers,
    read_text,
    step,
)
from sendlater.errors import BadRequest
from sendlater.limits import ID_BYTES_MAX, JITTER_MS_MAX, MISSED_COUNT_MAX, MISSED_LATE_MS_MAX
from sendlater.model import DUE_MS_MAX, PAUSED_MS, Expiry, Record, Schedule
from sendlater.operations.arguments import plan_send

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
ZONES = ("UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1_000)


def shown(at_ms: int, zone: str) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, ZoneInfo(zone)).isoformat(timespec="minutes")


def times(cron: str, zone: str, after: str, count: int) -> list[str]:
    plan = make_plan(now_ms=ms(after), cron=cron, zone=zone)
    found = [plan.planned_ms]
    while len(found) < count:
        then = plan.next_after(found[-1])
        assert then is not None
        found.append(then)
    return [shown(one, zone) for one in found]


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        # A time in the gap runs at its end.
        (
            "30 2 * * *",
            "Europe/Paris",
            "2027-03-27T00:00+01:00",
            ["2027-03-27T02:30+01:00", "2027-03-28T03:00+02:00", "2027-03-29T02:30+02:00"],
        ),
        (
            "30 2 * * *",
            "America/New_York",
            "2027-03-13T00:00-05:00",
            ["2027-03-13T02:30-05:00", "2027-03-14T03:00-04:00", "2027-03-15T02:30-04:00"],
        ),
        (
            "15 2 * * *",
            "Australia/Lord_Howe",
            "2027-10-02T00:00+10:30",
            ["2027-10-02T02:15+10:30", "2027-10-03T02:30+11:00", "2027-10-04T02:15+11:00"],
        ),
        # Two times in one gap are one.
        (
            "0,30 2 * * *",
            "Europe/Paris",
            "2027-03-27T12:00+01:00",
            ["2027-03-28T03:00+02:00", "2027-03-29T02:00+02:00"],
        ),
        # An hour that comes twice counts once: the first.
        (
            "30 2 * * *",
            "Europe/Paris",
            "2027-10-30T12:00+02:00",
            ["2027-10-31T02:30+02:00", "2027-11-01T02:30+01:00"],
        ),
        (
            "30 1 * * *",
            "America/New_York",
            "2027-11-06T12:00-04:00",
            ["2027-11-07T01:30-04:00", "2027-11-08T01:30-05:00"],
        ),
        (
            "45 1 * * *",
            "Australia/Lord_Howe",
            "2027-04-03T12:00+11:00",
            ["2027-04-04T01:45+11:00", "2027-04-05T01:45+10:30"],
        ),
        # Asked within the second of the two: that has been.
        (
            "45 2 * * *",
            "Europe/Paris",
            "2027-10-31T02:30+01:00",
            ["2027-11-01T02:45+01:00"],
        ),
        # Where a field of the time begins with a star, elapsed time counts.
        (
            "30 * * * *",
            "Europe/Paris",
            "2027-10-31T01:45+02:00",
            ["2027-10-31T02:30+02:00", "2027-10-31T02:30+01:00", "2027-10-31T03:30+01:00"],
        ),
        (
            "*/20 * * * *",
            "America/New_York",
            "2027-03-14T01:30-05:00",
            ["2027-03-14T01:40-05:00", "2027-03-14T03:00-04:00", "2027-03-14T03:20-04:00"],
        ),
        # Also where the clock is shifted by half an hour.
        (
            "30 * * * *",
            "Australia/Lord_Howe",
            "2027-10-03T00:45+10:30",
            ["2027-10-03T01:30+10:30", "2027-10-03T02:30+11:00", "2027-10-03T03:30+11:00"],
        ),
        (
            "45 * * * *",
            "Australia/Lord_Howe",
            "2027-04-04T01:00+11:00",
            ["2027-04-04T01:45+11:00", "2027-04-04T01:45+10:30", "2027-04-04T02:45+10:30"],
        ),
        # Nine o'clock stays nine o'clock.
        (
            "0 9 * * MON-FRI",
            "Europe/Paris",
            "2027-03-26T09:00+01:00",
            ["2027-03-29T09:00+02:00", "2027-03-30T09:00+02:00"],
        ),
    ],
)
def test_daylight_saving(cron: str, zone: str, after: str, expected: list[str]) -> None:
    assert times(cron, zone, after, len(expected)) == expected


crons = st.builds(
    "{} {} {} {} {}".format,
    st.sampled_from(["0", "30", "*", "*/15", "5,50"]),
    st.sampled_from(["*", "1", "2", "0-3", "*/6", "23"]),
    st.sampled_from(["*", "1", "31", "L"]),
    st.sampled_from(["*", "3", "10", "2-4"]),
    st.sampled_from(["*", "SUN", "MON-FRI"]),
)
SHIFTS = ("2027-03-28T01", "2027-10-31T01", "2027-03-14T07", "2027-11-07T06", "2027-04-03T15")
instants = st.one_of(
    st.integers(ms("2026-01-01T00:00Z"), ms("2031-01-01T00:00Z")),
    # Often near a shift of one of the zones.
    st.builds(
        lambda shift, by: ms(f"{shift}:00Z") + by,
        st.sampled_from((*SHIFTS, "2027-10-02T15")),
        st.integers(-3 * HOUR, 3 * HOUR),
    ),
)


@given(crons, st.sampled_from(ZONES), instants)
def test_cron_goes_forward_from_any_instant(cron: str, zone: str, now_ms: int) -> None:
    plan = make_plan(now_ms=now_ms, cron=cron, zone=zone)
    at_ms = now_ms
    for _ in range(5):
        then = plan.next_after(at_ms)
        assert then is not None
        assert then > at_ms
        assert plan.next_after(then - 1) == then, "the same from anywhere before it"
        at_ms = then


MINUTES = {"*": range(60), "*/15": range(0, 60, 15), "*/20": range(0, 60, 20), "30": [30]}
HOURS = {"*": range(24), "2": [2], "1-3": [1, 2, 3]}
WITH_STARS = [(minute, hour) for minute in MINUTES for hour in HOURS if "*" in minute + hour]


@given(instants, st.sampled_from(ZONES), st.sampled_from(WITH_STARS))
@example(ms("2027-10-02T15:00Z"), "Australia/Lord_Howe", ("30", "*"))
@example(ms("2027-04-03T13:30Z"), "Australia/Lord_Howe", ("*/20", "2"))
@example(ms("2027-04-03T15:15Z"), "Australia/Lord_Howe", ("*/20", "2"))
@example(ms("2027-04-03T15:35Z"), "Australia/Lord_Howe", ("*/15", "2"))
@example(ms("2027-10-02T15:15Z"), "Australia/Lord_Howe", ("*/20", "2"))
@example(ms("2027-04-03T13:09Z"), "Pacific/Chatham", ("*/15", "2"))
def test_a_star_is_every_real_hour(now_ms: int, zone: str, times: tuple[str, str]) -> None:
    """Against a walk over the minutes of the clock on the wall."""
    minutes, hours = times
    at = datetime.fromtimestamp(now_ms // MINUTE * 60, UTC)
    expected = []
    while len(expected) < 3:
        at += timedelta(minutes=1)
        wall = at.astimezone(ZoneInfo(zone))
        if wall.minute in MINUTES[minutes] and wall.hour in HOURS[hours]:
            expected.append(int(at.timestamp() * 1_000))
    plan, found = make_plan(now_ms=now_ms, cron=f"{minutes} {hours} * * *", zone=zone), [now_ms]
    for _ in range(3):
        found.append(plan.next_after(found[-1]) or 0)
    assert found[1:] == expected


spans = st.integers(SECOND, 400 * 24 * HOUR)


@given(spans, instants, st.integers(0, 10**12))
def test_an_interval_never_drifts(every_ms: int, start_ms: int, late_ms: int) -> None:
    plan = make_plan(now_ms=start_ms, every_ms=every_ms)
    assert plan.planned_ms == start_ms + every_ms
    then = plan.next_after(start_ms + late_ms)
    assert then is not None
    assert (then - plan.planned_ms) % every_ms == 0
    assert then > start_ms + late_ms or then == plan.planned_ms
    assert then - every_ms <= max(start_ms + late_ms, plan.planned_ms)


@given(spans, instants, st.integers(0, 10**9), st.sampled_from(["one", "all", "none"]), st.data())
def test_steps_go_forward_on_the_grid(
    every_ms: int, start_ms: int, late_ms: int, missed: str, data: st.DataObject
) -> None:
    jitter_ms = data.draw(st.integers(0, min(every_ms, JITTER_MS_MAX)))
    plan = make_plan(now_ms=start_ms, every_ms=every_ms, missed=missed, jitter_ms=jitter_ms)
    for _ in range(4):
        due_ms = plan.due_ms(b"i")
        assert plan.planned_ms <= due_ms <= plan.planned_ms + max(0, jitter_ms - 1)
        delivers, after = step(plan, b"i", due_ms=due_ms, now_ms=due_ms + late_ms)
        assert delivers == (missed != "none" or late_ms <= MISSED_LATE_MS_MAX)
        assert after is not None
        assert after.planned_ms > plan.planned_ms
        assert (after.planned_ms - start_ms) % every_ms == 0
        assert read_text(after.text) == after
        if missed != "all":
            assert after.due_ms(b"i") > due_ms + late_ms
        plan = after


def test_a_start_is_the_first_time_of_an_interval() -> None:
    plan = make_plan(now_ms=0, every_ms=HOUR, start_ms=10_000_000)
    assert plan.planned_ms == 10_000_000
    past = make_plan(now_ms=10_000_001, every_ms=HOUR, start_ms=10_000_000)
    assert past.planned_ms == 10_000_000 + HOUR


def test_a_cron_expression_may_begin_at_its_start() -> None:
    nine = ms("2027-06-01T09:00Z")
    assert make_plan(now_ms=0, cron="0 9 * * *", start_ms=nine).planned_ms == nine
    assert make_plan(now_ms=nine, cron="0 9 * * *").planned_ms == nine + 24 * HOUR


def test_a_plan_ends_by_count_or_by_its_end() -> None:
    plan = make_plan(now_ms=0, every_ms=HOUR, count=2)
    _, last = step(plan, b"i", due_ms=HOUR, now_ms=HOUR)
    assert last is not None
    assert last.left == 1
    assert step(last, b"i", due_ms=2 * HOUR, now_ms=2 * HOUR) == (True, None)
    plan = make_plan(now_ms=0, every_ms=HOUR, end_ms=2 * HOUR)
    assert plan.next_after(HOUR) == 2 * HOUR
    assert plan.next_after(2 * HOUR) is None


def test_what_is_not_delivered_does_not_count() -> None:
    plan = make_plan(now_ms=0, every_ms=HOUR, count=2, missed="none")
    delivers, after = step(plan, b"i", due_ms=HOUR, now_ms=5 * HOUR + 1)
    assert (delivers, after) == (False, plan.at(6 * HOUR))


def test_all_missed_ones_are_made_up_for_up_to_a_bound() -> None:
    now_ms = 10 * MISSED_COUNT_MAX * MINUTE
    plan: Plan | None = make_plan(now_ms=0, every_ms=MINUTE, missed="all")
    delivered = []
    while plan is not None and plan.planned_ms <= now_ms:
        delivered.append(plan.planned_ms)
        _, plan = step(plan, b"i", due_ms=plan.planned_ms, now_ms=now_ms)
    assert delivered == [n * MINUTE for n in range(1, MISSED_COUNT_MAX + 2)]
    assert plan is not None
    assert plan.planned_ms == now_ms + MINUTE


@given(spans, instants, st.integers(0, 10**12), st.booleans())
def test_a_plan_resumes_at_its_first_time_after_now(
    every_ms: int, start_ms: int, later_ms: int, counted: bool
) -> None:
    plan = make_plan(now_ms=start_ms, every_ms=every_ms, count=3 if counted else None)
    paused = plan.pause()
    assert paused.due_ms(b"i") == PAUSED_MS
    assert read_text(paused.text) == paused
    now_ms = start_ms + later_ms
    then = paused.resume(now_ms)
    assert then is not None
    assert not then.paused
    assert then.left == plan.left
    assert then.planned_ms == plan.next_after(max(now_ms, plan.planned_ms - 1))
    assert then.planned_ms > now_ms
    assert (then.planned_ms, then.changes) > (paused.planned_ms, paused.changes)
    _, after = step(then, b"i", due_ms=then.planned_ms, now_ms=then.planned_ms)
    assert after is not None
    assert after.changes == 0


def test_a_plan_does_not_resume_before_its_start_nor_after_its_end() -> None:
    plan = make_plan(now_ms=0, every_ms=HOUR, start_ms=5 * HOUR, end_ms=7 * HOUR)
    assert plan.pause().resume(HOUR) == plan.at(5 * HOUR, changes=2)
    assert plan.pause().resume(7 * HOUR) is None
    cron = make_plan(now_ms=0, cron="0 9 * * *", start_ms=ms("2030-01-01T00:00Z"))
    resumed = cron.pause().resume(HOUR)
    assert resumed is not None
    assert resumed.planned_ms == cron.planned_ms


@given(instants, st.integers(-(10**9), 10**9))
def test_an_occurrence_beside_the_plan_has_an_id_of_its_own(start_ms: int, off_ms: int) -> None:
    plan = make_plan(now_ms=start_ms, every_ms=MINUTE)
    record = Record(topic="t", value=b"v", headers=[("h", b"1")])
    whole = Schedule(id=b"i", due_ms=0, record=record, plan=plan.text, expiry=Expiry(5))
    for now_ms in (max(0, plan.planned_ms + off_ms), plan.planned_ms + MINUTE):
        extra = extra_occurrence(whole, now_ms=now_ms)
        planned_ms = int(extra.id.removeprefix(b"i@"))
        assert planned_ms - now_ms in (0, 1)
        assert (planned_ms - plan.planned_ms) % MINUTE
        assert (extra.due_ms, extra.plan, extra.expiry) == (now_ms, "", None)
        assert extra.record.headers == [("h", b"1"), (names.SCHEDULE, b"i")]


def test_jitter_is_stable_and_differs() -> None:
    plan = make_plan(now_ms=0, every_ms=HOUR, jitter_ms=10 * MINUTE)
    assert plan.due_ms(b"a") == plan.due_ms(b"a")
    assert len({plan.due_ms(b"%d" % n) for n in range(20)}) > 10


@pytest.mark.parametrize("missed", ["one", "all"])
def test_a_plan_stays_readable_where_its_times_are_closer_than_its_jitter(missed: str) -> None:
    """The first gap is a day, the next one an hour; or a day has 23 hours."""
    for cron, jitter_ms in (("0 9,10 * * *", 20 * HOUR), ("30 1 * * *", 24 * HOUR)):
        plan = make_plan(
            now_ms=ms("2027-03-26T09:30+01:00"),
            cron=cron,
            zone="Europe/Paris",
            jitter_ms=jitter_ms,
            missed=missed,
        )
        for _ in range(20):
            due_ms = plan.due_ms(b"i")
            _, after = step(read_text(plan.text), b"i", due_ms=due_ms, now_ms=due_ms)
            assert after is not None
            assert after.planned_ms > plan.planned_ms
            plan = after


def test_the_headers_of_a_record_are_read() -> None:
    told = {
        names.CRON: b"0  9 * * MON-FRI",
        names.ZONE: b"Europe/Paris",
        names.START: b"2027-03-27T00:00:00+01:00",
        names.END: b"2028-01-01T00:00:00Z",
        names.COUNT: b"3",
        names.JITTER: b"5m",
        names.MISSED: b"all",
    }
    assert read_headers(told, now_ms=0) == Plan(
        cron="0 9 * * MON-FRI",
        zone="Europe/Paris",
        end_ms=ms("2028-01-01T00:00Z"),
        left=3,
        jitter_ms=5 * MINUTE,
        missed="all",
        planned_ms=ms("2027-03-29T07:00Z"),
    )
    assert read_headers({names.EVERY: b"15m"}, now_ms=5).planned_ms == 15 * MINUTE + 5


@pytest.mark.parametrize(
    ("told", "about"),
    [
        ({}, "one of every and cron, got neither"),
        ({names.EVERY: b"1h", names.CRON: b"0 9 * * *"}, "one of every and cron, got both"),
        ({names.EVERY: b"soon"}, names.EVERY),
        ({names.EVERY: None}, names.EVERY),
        ({names.EVERY: b"999ms"}, "at least 1 s"),
        ({names.EVERY: b"0"}, "at least 1 s"),
        ({names.EVERY: b"1h", names.ZONE: b"Europe/Paris"}, "zone"),
        ({names.EVERY: b"1h", names.JITTER: b"61m"}, "jitter"),
        ({names.EVERY: b"1h", names.COUNT: b"0"}, "count"),
        ({names.EVERY: b"1h", names.COUNT: b"-1"}, names.COUNT),
        ({names.EVERY: b"1h", names.MISSED: b"some"}, "missed"),
        ({names.EVERY: b"1h", names.START: b"tomorrow"}, names.START),
        ({names.EVERY: b"1h", names.END: b"1970-01-01T00:30:00Z"}, "got an end at 1970-01"),
        ({names.CRON: b"0 9 * *"}, "five fields"),
        ({names.CRON: b"0 0 9 * * *"}, "five fields"),
        ({names.CRON: b"@daily"}, "five fields"),
        ({names.CRON: b"60 9 * * *"}, "minute"),
        ({names.CRON: b"0 0 30 2 *"}, "day-of-month"),
        ({names.CRON: b"0 9 * * SAT-SUN"}, "not SAT-SUN but SAT,SUN"),
        ({names.CRON: b"\xff * * * *"}, "minute"),
        ({names.CRON: b"*" * 201}, "five fields"),
        ({names.CRON: b"0 9 * * *", names.ZONE: b"Europe/Nowhere"}, "zone: .*IANA.*Europe/Nowhere"),
        ({names.CRON: b"0 9 * * *", names.ZONE: b"../../etc/passwd"}, "zone: expected"),
        ({names.CRON: b"0 9 * * *", names.ZONE: b"Europe"}, "zone: expected"),
        ({names.CRON: b"0 9 * * *", names.ZONE: b"\x00"}, "zone: expected"),
        ({names.CRON: b"0 9 * * *", names.ZONE: b"x" * 5_000}, "zone: expected"),
        ({names.CRON: b"* * * * *", names.JITTER: b"2m"}, "jitter"),
    ],
)
def test_what_cannot_be_meant_is_told(told: dict[str, bytes | None], about: str) -> None:
    with pytest.raises(BadRequest, match=about):
        read_headers(told, now_ms=0)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"planned_ms": 1}',
        b'{"planned_ms": 1, "every_ms": 0}',
        b'{"planned_ms": -1, "every_ms": 1000}',
        b'{"planned_ms": 1, "every_ms": 1000, "cron": "* * * * *"}',
        b'{"planned_ms": 1, "every_ms": 1000, "left": 0}',
        b'{"planned_ms": 1, "every_ms": 1000, "left": -1}',
        b'{"planned_ms": 1, "every_ms": 1000, "jitter_ms": 9007199254740993}',
        b'{"planned_ms": 1, "every_ms": 1000, "jitter_ms": 86400001}',
        b'{"planned_ms": 1, "every_ms": 1000, "overdue": -1}',
        b'{"planned_ms": 1, "every_ms": 1000, "overdue": 1001}',
        b'{"planned_ms": 1, "every_ms": 1000, "paused": 1}',
        b'{"planned_ms": 1, "every_ms": 1000, "changes": -1}',
        b'{"planned_ms": 1, "every_ms": 1000, "else": 1}',
        b'{"planned_ms": 1, "cron": "1"}',
    ],
)
def test_no_text_breaks_the_reader(text: bytes) -> None:
    with pytest.raises(BadRequest):
        read_text(text)


@given(st.binary(max_size=60), st.text(max_size=20))
def test_arbitrary_bytes_are_a_plan_or_told(some: bytes, zone: str) -> None:
    for told in (
        {names.CRON: some},
        {names.EVERY: some},
        {names.CRON: b"0 9 * * *", names.ZONE: zone.encode(errors="replace")},
    ):
        with suppress(BadRequest):
            assert 0 < read_headers(told, now_ms=0).planned_ms <= DUE_MS_MAX


def test_the_words_of_the_client() -> None:
    sent = plan_send("t", "v", now_ms=1_000, every=timedelta(minutes=15), count=3, id="i")
    assert sent.due_ms == 901_000
    assert read_text(sent.plan) == Plan(every_ms=900_000, left=3, planned_ms=901_000)


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": 5},
        {"at": "2030-01-31T12:00:00Z"},
        {"spread": 5},
        {"expires": "2030-01-31T12:00:00Z"},
        {"count": 1.5},
        {"count": True},
        {"cron": "0 9 * * *"},
        {"zone": 5},
        {"id": "x" * (ID_BYTES_MAX - 16)},
    ],
)
def test_the_client_refuses_at_once(wrong: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        plan_send("t", "v", now_ms=0, **{"every": "15m", **wrong})  # type: ignore[arg-type]


def test_an_unknown_word_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="evry"):
        plan_send("t", "v", now_ms=0, delay=1, evry="15m")  # type: ignore[call-arg]


def test_what_never_comes_is_searched_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search takes tens of milliseconds, of all whose records the same task reads."""
    searched, search = [], CronSim.advance

    def counted(times: CronSim) -> None:
        searched.append(times)
        search(times)

    monkeypatch.setattr(CronSim, "advance", counted)
    for minute in range(50):
        for zone in ZONES:
            with pytest.raises(BadRequest, match="expected a plan with an occurrence, got none"):
                make_plan(now_ms=minute, cron=f"{minute} 0 */31 2 MON#2", zone=zone)
    assert len(searched) == 1
    for bad in ("60 0 */31 2 MON#2", "0 24 */31 2 MON#2"):
        with pytest.raises(BadRequest, match="that can be, got"):
            make_plan(now_ms=0, cron=bad)


def test_a_rare_day_comes() -> None:
    """The longest gap of all is forty years: the 29 of February of a weekday, around 2100."""
    cron = "0 0 */28 2 MON#5"
    assert cron_after(cron, "UTC", ms("2072-03-01T00:00Z")) == ms("2112-02-29T00:00Z")


def test_a_zone_that_is_unknown_is_named() -> None:
    with pytest.raises(BadRequest, match=r"zone: expected .*, got 'Paris'"):
        plan_send("t", "v", now_ms=0, cron="0 9 * * *", zone="Paris")


@pytest.mark.parametrize(
    ("cron", "zone", "after", "notes"),
    [
        ("0 9 * * *", "Europe/Paris", "2035-03-24T00:00Z", [None, "forward by 1:00:00", None]),
        ("30 2 * * *", "Europe/Paris", "2035-03-25T00:00Z", ["forward by 1:00:00", None, None]),
        ("30 2 * * *", "Europe/Paris", "2035-10-27T23:00Z", ["the first", "back by 1:00:00", None]),
        (
            "0 2 * * *",
            "Australia/Lord_Howe",
            "2035-10-06T00:00Z",
            ["forward by 0:30:00", None, None],
        ),
        ("0 9 * * *", "UTC", "2035-03-24T00:00Z", [None] * 3),
    ],
)
def test_what_daylight_saving_touches_is_told(
    cron: str, zone: str, after: str, notes: list[str | None]
) -> None:
    found = [make_plan(now_ms=ms(after), cron=cron, zone=zone).planned_ms]
    while len(found) < 3:
        found.append(make_plan(now_ms=found[-1], cron=cron, zone=zone).planned_ms)
    told = clock_notes(found, zone)
    for note, said in zip(notes, told, strict=True):
        assert (note is None) == (said is None), told
        assert note is None or note in (said or ""), told


def test_an_hour_that_comes_twice_is_told_both_times() -> None:
    first = ms("2035-10-28T02:30+02:00")
    told = clock_notes([first - HOUR, first, first + HOUR], "Europe/Paris")
    assert told[0] is None
    assert told[1] == "02:30 comes twice, this is the first"
    assert told[2] == "the clock was set back by 1:00:00; 02:30 comes twice, this is the second"
    assert clock_notes([DUE_MS_MAX], "Europe/Paris") == [None]
