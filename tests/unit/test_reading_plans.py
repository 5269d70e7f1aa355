"""Plans on their way into the store: whatever a record has in its headers, none stops intake."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sendlater.dialects import names
from sendlater.dialects.recurrence import make_plan
from sendlater.model import DUE_MS_MAX
from sendlater.spark.plans import AGAIN, RECURS, Parked, PlanReader

STAMP_MS = 1_780_000_000_000
PLAN = make_plan(now_ms=0, every_ms=60_000).text.encode()
OURS = sorted(
    value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)
)
ODD = [None, b"", b"\xff", b"\x00", b"?", b"a", b"extra", b"5", b"-1", b"9" * 400, b"1h", PLAN]
ODD += [b"0 9 * * *", b"2030-01-31T12:00:00Z", b"s/0/1", b"{}", b"\xed\xa0\x80"]
KEYS = [b"?@x", b"a@5", b"a", b"@", b"\xff", b"x" * 512]
EXTRA = [(names.PLAN, names.EXTRA), (names.DUE_MS, b"5")]


def read(
    key: bytes, headers: list[tuple[str, bytes | None]], change: str = RECURS, **settings: bool
) -> Parked:
    told = [{"key": name, "value": value} for name, value in headers] or None
    row = ("t", None, None, b"v", told, "headers", None, None, None, "s", 0, 7, STAMP_MS)
    return PlanReader(**settings).read(key, change, row)


def reason(found: Parked) -> tuple[str | None, str]:
    told = {one["key"]: one["value"] for one in found.row[4]}
    return (told[names.REJECTED].decode(), told[names.REJECTED_DETAIL].decode())


@given(
    st.sampled_from(KEYS) | st.binary(min_size=1, max_size=20),
    st.lists(st.tuples(st.sampled_from(OURS), st.sampled_from(ODD) | st.binary(max_size=9))),
    st.sampled_from([RECURS, f"{RECURS}c1", f"{RECURS}{AGAIN}s/0/5"]),
    st.booleans(),
    st.booleans(),
)
@example(b"?@x", EXTRA, RECURS, False, False)
@example(b"?@x", [*EXTRA, (names.SCHEDULE, None)], RECURS, True, False)
@example(b"@x", [*EXTRA, (names.SCHEDULE, b"")], RECURS, False, False)
def test_no_header_stops_the_reader(
    key: bytes, headers: list[tuple[str, bytes | None]], change: str, keep: bool, expiry: bool
) -> None:
    found = read(key, headers, change, keep_input_headers=keep, ce_expirytime=expiry)
    assert 0 <= found.due_ms <= DUE_MS_MAX or found.plan
    assert found.row[-4:] == ("s", 0, 7, STAMP_MS)


@pytest.mark.parametrize("of", [[], [(names.SCHEDULE, None)], [(names.SCHEDULE, b"")]])
@pytest.mark.parametrize("key", [b"?@x", b"@x"])
def test_an_occurrence_of_nothing_is_rejected(
    key: bytes, of: list[tuple[str, bytes | None]]
) -> None:
    found = read(key, [*EXTRA, *of])
    expected = "expected an occurrence with its schedule and its due time"
    assert (found.id, reason(found)) == (b"s-0-7", ("bad-plan", expected))
    assert read(b"?@x", [*EXTRA, (names.SCHEDULE, b"?")]).id == b"?@x"


@pytest.mark.parametrize("taken", [False, True])
def test_the_expiry_of_cloud_events_is_no_expiry_of_what_recurs(taken: bool) -> None:
    """As `sendlater-expires`, which is refused: all later occurrences would expire."""
    headers = [(names.EVERY, b"1h"), (names.CE_EXPIRYTIME, b"2030-01-31T12:00:00Z")]
    found = read(b"a", headers, ce_expirytime=taken)
    if taken:
        assert reason(found)[0] == "bad-plan"
        assert "without ce_expirytime" in reason(found)[1]
    else:
        assert found.plan
        assert found.row[4] == [{"key": names.CE_EXPIRYTIME, "value": headers[1][1]}]
