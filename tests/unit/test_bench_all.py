"""The table of all loads: what a result becomes, and where it is written."""

import shutil
from pathlib import Path

import pytest

from sendlater.bench.all import DOORS, DOORS_HEAD, HEAD, LOADS, row, table, write
from sendlater.bench.ledger import Ledger

ROOT = Path(__file__).parents[2]
RESULT = {
    "late_ms": {"p50": 5.0, "p90": 8.5, "p99": 40.0, "p999": 99.0, "max": 1234.0},
    "delivered_per_s": 72_345,
    "intake_ms": {"p50": 140.2, "p99": None},
    "redis_bytes_per_schedule": 416.3,
    "early": 0,
    "duplicated": 0,
    "lost": 0,
    "cpu_s": 12.5,
}


@pytest.fixture
def checkout(tmp_path):
    """The pages that are written to, as they are."""
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/measurements.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_a_result_becomes_a_row_with_a_cell_for_each_head():
    cells = row("steady 5/s", RESULT)

    assert len(cells) == len(HEAD)
    assert cells[:7] == ["steady 5/s", "5", "8.5", "40", "99", "1,234", "72,345"]
    assert cells[8] == "", "what was not measured is left out"
    assert table(("a", "b"), [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_a_load_on_rest_has_a_table_of_its_own(checkout):
    (name,) = DOORS
    result = {"answer_ms": RESULT["late_ms"], "answered_per_s": 1_500, "cpu_s": 20.5}
    assert row(name, result) == [name, "5", "8.5", "40", "99", "1,234", "1,500", "20.5"]
    write(checkout, {name: row(name, result)}, machine="A machine.")
    write(checkout, {}, machine="A machine.")
    assert (checkout / "docs" / "measurements.md").read_text().count(f"| {name} | 5 |") == 1


def test_rows_measured_in_pieces_come_together_in_their_order(checkout):
    first, second = list(LOADS)[:2]
    write(checkout, {second: row(second, RESULT)}, machine="A machine.")
    write(checkout, {first: row(first, RESULT | {"cpu_s": None})}, machine="A machine.")
    write(checkout, {}, machine="A machine.")
    page = (checkout / "docs" / "measurements.md").read_text()

    assert page.index(f"| {first} |") < page.index(f"| {second} |")
    assert page.count("A machine.") == 1
    written = page.partition("<!-- measured")[2].partition("<!-- /measured")[0]
    widths = {line.count("|") for line in written.splitlines() if "|" in line}
    assert widths == {len(HEAD) + 1, len(DOORS_HEAD) + 1}
    short = f"| {first} | 5 | 40 | 99 | 1,234 | 72,345 |"
    readme = (checkout / "README.md").read_text()
    assert short in readme
    assert "## Read on" in readme, "what stands after the marks stays"


def test_a_row_measured_again_is_replaced(checkout):
    name = next(iter(LOADS))
    write(checkout, {name: row(name, RESULT)}, machine="A machine.")
    write(checkout, {name: row(name, RESULT | {"cpu_s": 99.0})}, machine="A machine.")
    page = (checkout / "docs" / "measurements.md").read_text()

    assert page.count(f"| {name} |") == 1
    assert "| 99 |\n" in page


def test_a_ledger_is_complete_when_each_has_come_however_often_some_came():
    ledger = Ledger(due_ms=[10, 10, 20])
    ledger.arrived([(0, 11), (0, 12), (2, 21)])
    assert not ledger.complete
    ledger.arrived([(1, 13)])
    assert ledger.complete
    balance = ledger.account()
    assert (balance["lost"], balance["duplicated"], balance["early"]) == (0, 1, 0)
