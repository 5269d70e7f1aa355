"""The wishes of docs/cookbook.md, one after the other in one installation in memory."""

import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import sendlater
from sendlater.clock import FixedClock
from sendlater.config import Settings
from sendlater.model import Record
from sendlater.testing import Fake

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"
NOW_MS = 2_050_000_000_000
"""2034-12-17, a Sunday."""
DAY_MS = 86_400_000


class Kitchen(NamedTuple):
    """What the examples have done."""

    fake: Fake
    said: dict[str, dict[str, Any]]
    """By heading, the names of its example."""

    def late(self, id: str) -> int | None:
        """In how many milliseconds a pending schedule comes."""
        found = {one.id.decode(): one for one in self.fake.pending()}
        return found[id].due_ms - NOW_MS if id in found else None


@pytest.fixture(scope="module")
def kitchen() -> Kitchen:
    """Every example of the page has run, in its order."""
    made = Kitchen(Fake(clock=FixedClock(NOW_MS)), {})
    names: dict[str, Any] = {}
    for part in re.split(r"^## ", PAGE.read_text(), flags=re.M):
        heading = part.splitlines()[0]
        code = "\n".join(re.findall(r"^```python\n(.*?)^```", part, re.M | re.S))
        code = code.replace('Scheduler("redis://127.0.0.1:6379/0")', "Scheduler(fake_of_the_test)")
        names["fake_of_the_test"] = made.fake
        exec(compile(code, heading, "exec"), names)
        made.said[heading] = dict(names)
    return made


def test_there_are_twenty_wishes_and_each_has_an_example(kitchen: Kitchen) -> None:
    assert len(kitchen.said) >= 22
    assert "" not in kitchen.said


@pytest.mark.parametrize(
    ("id", "late_ms"),
    [
        ("call-ann", None),
        ("subscription-ann", 730 * DAY_MS),
        ("stand-up", DAY_MS // 12),
        ("parcel-9", 900_000),
        ("index-7", 30_000),
        ("alarm-pump-3", 300_000),
        ("digest-ann", 600_000),
        ("pay-17", 3_600_000),
        ("order-18-payment", None),
        ("mail-bob", None),
    ],
)
def test_when_it_comes(kitchen: Kitchen, id: str, late_ms: int | None) -> None:
    assert kitchen.late(id) == late_ms


def test_plans_come_at_their_times(kitchen: Kitchen) -> None:
    weekday, last_day = kitchen.late("daily-report"), kitchen.late("invoices")
    assert weekday is not None
    assert last_day is not None
    # Monday, 9:00 in Paris; the 31st, 6:00 in UTC.
    assert (NOW_MS + weekday) % DAY_MS == 8 * 3_600_000
    assert 0 < weekday <= DAY_MS
    assert (NOW_MS + last_day) == 2_051_157_600_000


def test_greetings_are_spread(kitchen: Kitchen) -> None:
    due = [one.due_ms for one in kitchen.fake.pending() if one.record.topic == "greetings"]
    assert len(due) == 1_000
    assert max(due) - min(due) < 600_000
    assert len(set(due)) > 900


def test_what_was_said(kitchen: Kitchen) -> None:
    said = kitchen.said
    assert said["Take it back"]["answer"] == "cancelled"
    assert said["Cancel everything of an order"]["gone"].cancelled == 3
    assert said["What comes in the next hour?"]["coming"] == ["parcel-9"]
    assert [
        one.value for one in said["Test it without waiting"]["fake"].delivered("reminders")
    ] == [b"in two years"]
    assert [one.value for one in kitchen.fake.delivered("mail")] == [b"hello"]


def test_the_limit_is_a_setting() -> None:
    (table,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.M | re.S)

    limits = Settings(**tomllib.loads(table)).limits

    assert (limits["sms"].per_second, limits["sms"].burst) == (50, 100)


def test_a_failed_message_comes_back(kitchen: Kitchen) -> None:
    retry = kitchen.said["Try again in five seconds, then in thirty, then give up"]

    def fail(_: object) -> None:
        raise ConnectionError("away")

    headers = [("retry-origin", b"orders/0/1")]
    failed = Record(topic="orders", value=b"17", key=b"k", headers=headers)
    retry["handle_or_retry"](failed, fail)

    (again,) = (one for one in kitchen.fake.pending() if one.record.topic == "orders")
    assert again.due_ms - NOW_MS == 5_000
    assert sendlater.Scheduler is retry["Scheduler"]
