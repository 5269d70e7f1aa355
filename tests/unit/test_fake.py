"""The fake that users test with: its page's examples, its clock, and what it refuses."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sendlater import (
    Backoff,
    BadRequest,
    BadTime,
    Handlers,
    Record,
    Scheduler,
    StoreUnavailable,
    Unavailable,
)
from sendlater.clock import SystemClock
from sendlater.testing import Fake
from sendlater.testing import fake as fakes

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_the_examples_of_the_page_pass_as_a_user_would_run_them(tmp_path):
    """With the plugin found as pytest finds it, in a process of its own. A handler and its test are
    short."""
    lines = {}
    for code in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        name = re.match(r"# (\w+\.py)\n", code)[1]
        if name != "test_end_to_end.py":  # in tests/story
            (tmp_path / name).write_text(code)
            lines[name] = sum(bool(line.strip()) for line in code.splitlines()[1:])
    assert lines["billing.py"] + lines["test_billing.py"] < 30
    assert len(list(tmp_path.iterdir())) == 3
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_time_stands_still_until_it_is_moved(sendlater_fake):
    with sendlater_fake.scheduler() as scheduler:
        scheduler.send_later("t", b"late", delay="2s", id="b")
        scheduler.send_later("t", b"soon", delay="1s", id="a")
        scheduler.send_later("t", b"now", delay=0)
        began_ms = scheduler.now_ms()
        assert [r.value for r in sendlater_fake.delivered("t")] == [b"now"]
        assert [one.id for one in sendlater_fake.pending()] == [b"a", b"b"]
        sendlater_fake.advance("1h")
        assert scheduler.now_ms() == began_ms + 3_600_000
    soon, late = sendlater_fake.delivered("t")[1:]
    assert (soon.value, late.value) == (b"soon", b"late")
    assert (soon.timestamp_ms, late.timestamp_ms) == (began_ms + 1_000, began_ms + 2_000)
    assert (late.header("sendlater-id"), late.position) == (b"b", 2)
    with pytest.raises(BadTime):
        sendlater_fake.advance(-1)


def test_retries_come_at_their_own_times_and_the_dead_are_told(sendlater_fake):
    app = Handlers("redis://127.0.0.1:1/0")
    attempts = []

    @app.on("fail", retry=Backoff(min_s=10, factor=2, retries=2))
    def fail(event):
        attempts.append(sendlater_fake.clock.now_ms())
        raise ValueError("not today")

    async def story():
        began_ms = sendlater_fake.clock.now_ms()
        async with sendlater_fake.handling(app):
            sent = await fail.enqueue("x")
            await sendlater_fake.run("1h")
            assert [at - sent.due_ms for at in attempts] == [0, 10_000, 30_000]
            (dead,) = sendlater_fake.delivered("dead-letters")
            assert dead.header("event-error") == b"ValueError: not today"
            assert dead.timestamp_ms == began_ms + 30_000
        with pytest.raises(Unavailable):  # it is its own again
            await app.start()

    asyncio.run(story())


def test_handlers_that_are_too_slow_are_told(sendlater_fake, monkeypatch):
    monkeypatch.setattr(fakes, "HANDLED_S", 0.05)
    app = Handlers(sendlater_fake, drain_s=0)

    @app.on("stuck")
    async def stuck(event):
        await asyncio.Event().wait()

    async def story():
        async with app:
            await stuck.enqueue(1)
            with pytest.raises(TimeoutError, match="not handled within"):
                await sendlater_fake.run()
        # What was not done waits for the next reader.
        assert sendlater_fake.open_reader("stuck", group="handlers.stuck").unread() == 1

    asyncio.run(story())


def test_what_a_fake_cannot_be_is_refused(sendlater_fake):
    with pytest.raises(BadRequest, match="settings, got nonsense"):
        Fake(nonsense=1)
    with pytest.raises(BadRequest, match="a clock that can be moved"):
        Fake(clock=SystemClock()).advance(1)
    with pytest.raises(BadRequest, match="alone"):
        Scheduler(sendlater_fake, space="s")
    with Scheduler(Fake(max_payload_bytes=10)) as scheduler, pytest.raises(BadRequest):
        scheduler.send_later("t", b"x" * 11, delay=1)
    app = Handlers(sendlater_fake)
    asyncio.run(app.enqueue("t", 1))
    with pytest.raises(BadRequest, match="not connected"), app.instead(Fake()):
        pass


def test_an_outage_reaches_every_call(sendlater_fake):
    with sendlater_fake.scheduler() as scheduler:
        with sendlater_fake.away("no Redis"):
            for call in (
                lambda: scheduler.send_later("t", b"1", delay=1),
                lambda: scheduler.cancel("a"),
                lambda: scheduler.get("a"),
                scheduler.list,
                scheduler.flush,
                sendlater_fake.scheduler,
            ):
                with pytest.raises(StoreUnavailable, match="no Redis"):
                    call()
        scheduler.send_later("t", b"1", delay=0)
    sendlater_fake.produce(Record(topic="t", value=b"2"))
    assert [record.value for record in sendlater_fake.delivered("t")] == [b"1", b"2"]
