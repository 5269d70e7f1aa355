"""The chaos tool: its book notices every broken promise, and a short run of it balances."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from book import Book, Fault
from load import plan

pytestmark = pytest.mark.chaos

RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(random.random()))
"""The same in both processes of a run: they must name their tests alike."""
SEED = str(random.Random(RUN).randrange(10**6))
"""New each time; the test's name and the result tell it."""


class Record:
    """A record of the target topic, as the client library shows it."""

    def __init__(self, offset, value, *, at_ms, name="a"):
        due_ms = json.loads(value)[2]
        self._offset, self._value, self._at_ms = offset, value, at_ms
        self._key = name.encode()
        self._headers = [("sendlater-id", self._key), ("sendlater-due", b"%d" % due_ms)]

    def partition(self):
        return 0

    def offset(self):
        return self._offset

    def key(self):
        return self._key

    def value(self):
        return self._value

    def headers(self):
        return self._headers

    def timestamp(self):
        return 0, self._at_ms


def book_of(*versions, arrived=(), acked_after_ms=1):
    """A book with one id: `versions` are (sent_ms, due_ms), `arrived` (version, at_ms)."""
    book = Book(margin_ms=8_000)
    for sent_ms, due_ms in versions:
        version = book.write("a", due_ms, now_ms=sent_ms)
        version.acked_ms = sent_ms + acked_after_ms
    written = book.stories["a"].versions
    book.arrived(
        Record(offset, book.payload("a", written[number]), at_ms=at_ms)
        for offset, (number, at_ms) in enumerate(arrived)
    )
    return book


def broken(book, *faults, journal=True):
    """The names of the promises that were broken to somebody."""
    return {name for name, ids in book.judge(faults, journal=journal).items() if ids}


def test_what_arrived_once_and_in_time_is_in_order():
    assert not broken(book_of((0, 20_000), arrived=[(0, 20_000)]))


def test_what_is_lost_early_or_doubled_is_noticed():
    assert broken(book_of((0, 20_000))) == {"lost"}
    assert broken(book_of((0, 20_000), arrived=[(0, 19_999)])) == {"early"}
    assert broken(book_of((0, 20_000), arrived=[(0, 20_000), (0, 21_000)])) == {"doubled"}


def test_an_older_version_that_arrives_is_noticed():
    replaced = book_of((0, 20_000), (9_000, 30_000), arrived=[(0, 20_000), (1, 30_000)])
    assert broken(replaced) == {"wrong version"}
    cancelled = book_of((0, 20_000), (9_000, None), arrived=[(0, 20_000)])
    assert broken(cancelled) == {"fired though cancelled"}


def test_what_came_after_the_longest_hold_is_told_apart():
    """Deliveries wait for a stuck intake, but not longer than hold_ms_max."""
    book = book_of((0, 20_000), (9_000, None), arrived=[(0, 60_000)])
    for let_go_ms, names in (
        ([59_000], {"held too long"}),
        ([40_000, 49_000], {"held too long"}),
        ([40_000], {"fired though cancelled"}),
        ([63_000], {"fired though cancelled"}),
    ):
        judged = book.judge((), journal=True, let_go_ms=let_go_ms)
        assert {name for name, ids in judged.items() if ids} == names


@pytest.mark.parametrize(("sent_ms", "acked_after_ms"), [(12_001, 1), (9_000, 6_001)])
def test_a_change_that_may_have_come_too_late_is_excused(sent_ms, acked_after_ms):
    late = book_of(
        (0, 20_000), (sent_ms, None), arrived=[(0, 20_000)], acked_after_ms=acked_after_ms
    )
    assert not broken(late)
    # Whoever is late is not lost: the newer version must arrive all the same.
    late = book_of(
        (0, 20_000), (sent_ms, 40_000), arrived=[(0, 20_000)], acked_after_ms=acked_after_ms
    )
    assert broken(late) == {"lost"}


def test_without_a_journal_a_double_needs_a_fault_near_by():
    book = book_of((0, 20_000), arrived=[(0, 20_000), (0, 32_000)])
    near = Fault(kind="kill", began_ms=24_000, ended_ms=30_000)
    far = Fault(kind="kill", began_ms=26_000, ended_ms=30_000)
    assert broken(book, near, journal=False) == {"doubled in flight"}
    assert broken(book, far, journal=False) == {"doubled"}
    assert broken(book, near) == {"doubled"}


def test_a_record_that_was_read_twice_arrived_once():
    book = book_of((0, 20_000), arrived=[(0, 20_000)])
    again = Record(0, book.payload("a", book.stories["a"].newest), at_ms=20_000)
    book.arrived([again])
    assert not broken(book)


def test_what_nobody_sent_is_a_stranger():
    book = book_of((0, 20_000))
    book.arrived([Record(0, b'["b", 0, 20000]', at_ms=20_000, name="b")])
    book.arrived([Record(1, b'["a", 0, 20001]', at_ms=20_001)])
    book.arrived([Record(2, b'["a", 0, 20000]', at_ms=20_000, name="b")])
    assert len(book.strangers) == 3


def test_a_plan_depends_on_its_seed_alone_and_keeps_the_margin():
    asked = {"count": 5_000, "rate": 120.0, "ahead_s": 60.0, "margin_s": 8.0, "herd": 100}
    steps = plan("7", **asked)
    assert steps == plan("7", **asked)
    assert steps != plan("8", **asked)
    due_s, changed, cancelled = {}, set(), set()
    for step in steps:
        if step.name in due_s:
            changed.add(step.name)
            before_s = due_s[step.name]
            assert before_s is None or step.at_s <= before_s - 8.0
        due_s[step.name] = step.due_s
        assert step.due_s is None or step.at_s + 6.0 <= step.due_s <= step.at_s + 120.0
    cancelled = {name for name, at_s in due_s.items() if at_s is None}
    assert len(due_s) == 5_100
    assert 0.03 < len(cancelled) / 5_000 < 0.06
    assert 0.06 < len(changed - cancelled) / 5_000 < 0.10


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [SEED])
def test_a_minute_of_faults_of_all_kinds_breaks_no_promise(seed, tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, str(Path(__file__).parent / "run.py"), "--seed", seed),
            *("--count", "1000", "--rate", "25", "--ahead", "30", "--scratch", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    sys.stderr.write(done.stderr)
    assert done.returncode == 0, done.stderr[-20_000:]
    assert json.loads(done.stdout)["lost"] == 0
