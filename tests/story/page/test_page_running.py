"""Who is at work, what waits for limits, and what comes again."""

import asyncio
import re
import threading

import pytest
from axe_playwright_python.sync_playwright import Axe
from pages import Installation, chart_ready, opened
from playwright.sync_api import expect

from sendlater import Handlers, Topics
from sendlater.config import Settings
from sendlater.model import Record, Schedule
from sendlater.server.process import HttpProcess
from sendlater.store import Batch
from sendlater.store.lease import Lease

pytestmark = pytest.mark.story
LIMITS = {"sms": {"per_second": 0.5}, "mail": {"per_second": 1_500}}


@pytest.fixture(scope="module")
def limited(redis_url):
    """Seven wait for a limit, one comes every 15 minutes."""
    settings = Settings(redis=redis_url, space="limited", http_addr="127.0.0.1:0", limits=LIMITS)
    served = HttpProcess(settings, redis_url=redis_url)
    one = Installation(served.url, redis_url, "limited", {})
    one.park(
        Schedule(
            id=b"%d" % n,
            due_ms=1,
            record=Record(topic="sms", value=b"v", headers=[("CALLER_SERVICE", b"shop")]),
        )
        for n in range(7)
    )
    owner = one.pending.fence()
    batch = Batch(0, one.pending.open_lane(0, owner=owner), end_ms=9, number=1)
    for shard in one.pending.shards:
        no_token = ["sms", "2000", "1000", "0", "0", "0"]
        shard.claim(batch, owner=owner, now_ms=9, count_max=99, limits=no_token)
    with one.scheduler() as s:
        s.send_later("polls", "m", id="poll", every="15m")
    yield one
    served.close()


def nothing_found(page):
    result = Axe().run(page)
    assert not result.violations_count, result.generate_report()


def test_limits_say_what_waits_for_them(browser, limited):
    """Of each topic with a limit; and the table tells when something comes again."""
    with opened(browser, limited) as page:
        expect(page.locator("#vital-limits b")).to_have_text("7")
        page.get_by_role("link", name="Running").click()
        rows = page.locator("#limits tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.nth(0)).to_contain_text(re.compile(r"^mail1,5000"))
        expect(rows.nth(1)).to_contain_text(re.compile(r"^sms0\.5714\.0 sshop 7"))
        nothing_found(page)
        page.goto("/?columns=topic,again")
        expect(page.locator("#schedules tbody")).to_contain_text("every 15 min")


def test_the_chart_tells_apart_what_is_held_and_what_recurs(browser, limited):
    """What limits hold is drawn where they will let it go: one every two seconds."""
    with opened(browser, limited) as page:
        chart_ready(page)
        expect(page.locator("#chart .bar.held")).to_be_attached()
        expect(page.locator("#chart .bar.recurring")).to_be_attached()
        expect(page.locator("#legend")).to_contain_text(re.compile("recurring7 held by limits$"))
        table = page.locator("#chart-table tbody")
        expect(table).to_contain_text("held by limits until then")
        expect(table).to_contain_text("polls 1, 1 recurring")
        told = page.request.get("/v1/histogram?due_to=%2B20s&buckets=4").json()
        assert sum(told["held"]) == 7
        assert max(told["held"]) == 3, "of five seconds"


def test_who_is_active_who_stands_by_and_who_has_handed_over(browser, limited):
    first, second, third = (
        Lease(limited.redis_url, space="limited", holder=f"{name}-1", lease_ms=60_000)
        for name in ("host-a-4711", "host-b-4712", "host-c-4713")
    )
    with opened(browser, limited) as page:
        page.goto("/running")
        rows = page.locator("#services tbody tr")
        expect(rows).to_contain_text(["nobody is active"])
        assert first.acquire()
        expect(rows).to_contain_text([re.compile("host-a-4711active.* ago")])
        first.release()
        assert second.acquire()
        assert not third.acquire()
        expect(rows).to_contain_text(
            ["host-b-4712active", "host-c-4713stands by", "host-a-4711handed over"]
        )
        nothing_found(page)
        second.release()


def test_handlers_tell_what_they_do_by_event_type(browser, limited):
    """A worker as users run it; what it told is gone when it ends."""
    app = Handlers(limited.settings, redis_url=limited.redis_url, group="billing")
    release = threading.Event()

    @app.on("orders.reminder", retry="1h")
    def remind(event):
        if event == "bad":
            raise ValueError(event)
        release.wait(60)

    def work():
        async def run():
            async with app:
                await asyncio.to_thread(release.wait, 60)

        asyncio.run(run())

    with Topics(limited.redis_url, space="limited") as topics:
        topics.create("orders.reminder", 1)
        for value in (b'"bad"', b'"slow"', b'"slow"', b"no JSON"):
            topics.produce(Record(topic="orders.reminder", value=value))
    worker = threading.Thread(target=work)
    worker.start()
    try:
        with opened(browser, limited) as page:
            page.goto("/running")
            row = page.locator("#handlers tbody tr")
            numbers = ["orders.reminder", "billing", "1", "2", "1", "0", "1", "0"]
            expect(row.locator("td")).to_have_text([*numbers, re.compile("ms$")])
            nothing_found(page)
            release.set()
            worker.join()
            expect(row).to_have_text("No worker handles events.")
    finally:
        release.set()
        worker.join()
