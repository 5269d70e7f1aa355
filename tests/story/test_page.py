"""An operator's day at the page, in a real browser, with 200,000 schedules pending."""

import json
import re
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright
from servers import ServiceProcess, tool, wait_until

from sendlater.api.access import new_token
from sendlater.client.scheduler import Scheduler
from sendlater.config import Settings
from sendlater.model import Record, Schedule
from sendlater.pending import Desk, Pending
from sendlater.pending.packing import pack

pytestmark = pytest.mark.story

COUNT = 200_000
HOUR_MS = 3_600_000
expect.set_options(timeout=30_000)


class Installation:
    """A service with REST and the page, its store, its tokens."""

    def __init__(self, url, redis_url, space, tokens):
        self.url, self.redis_url, self.tokens = url, redis_url, tokens
        self.settings = Settings(redis=redis_url, space=space)
        self.pending = Pending.open(redis_url, space=space, shards=2)
        self.desk = Desk(self.pending)
        self.noon_ms = (time.time_ns() // 1_000_000 // HOUR_MS + 24) * HOUR_MS

    def scheduler(self):
        """A client of the installation."""
        return Scheduler(self.settings, redis_url=self.redis_url)

    def fill(self):
        """Half an even stream over two days, half a spike within one minute, tomorrow."""
        rows = {shard.number: [] for shard in self.pending.shards}
        for n in range(COUNT):
            even = n % 2 == 0
            due_ms = self.noon_ms + (n * 400 if even else n % 60_000)
            topic = "emails" if even else "orders"
            headers = [("CALLER_SERVICE", b"shop")] if n % 10 == 0 else []
            one = Schedule(
                id=f"{topic}-{n:06}".encode(),
                due_ms=due_ms,
                record=Record(topic=topic, value=b'{"n": %d}' % n, headers=headers),
            )
            some = rows[self.pending.shard_of(one.id).number]
            some += (one.id, one.due_ms, pack(one))
            if len(some) >= 1_500:
                self.pending.shard_of(one.id).park(some)
                some.clear()
        for shard in self.pending.shards:
            shard.park(rows[shard.number])


@pytest.fixture(scope="module")
def installation(redis_url, tmp_path_factory):
    directory = tmp_path_factory.mktemp("page")
    tokens, lines = {}, []
    for role in ("read", "admin"):
        tokens[role], line = new_token(f"{role}er", role)
        lines.append(line)
    (directory / "tokens").write_text("\n".join(lines))
    service = ServiceProcess(
        directory,
        redis=redis_url,
        space="page",
        http_addr="127.0.0.1:0",
        http_tokens=directory / "tokens",
        http_payload_role="write",
        http_badge="staging",
    )
    with service.start():
        url = re.search(r"page and REST at (http\S+)", service.said()).group(1)
        made = Installation(url, redis_url, "page", tokens)
        made.fill()
        yield made


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=tool("chromium"), args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@contextmanager
def opened(browser, installation, role="admin", **more):
    """A signed-in browser window; nothing may be asked of another host, no script may fail."""
    context = browser.new_context(base_url=installation.url, **more)
    page = context.new_page()
    elsewhere, faults = [], []
    page.on(
        "request", lambda r: elsewhere.append(r.url) if elsewhere_of(r.url, installation) else 0
    )
    page.on("console", lambda m: faults.append(m.text) if is_fault(m) else None)
    page.on("pageerror", lambda e: faults.append(str(e)))
    page.goto("/")
    expect(page).to_have_url(re.compile("/sign-in$"))
    page.get_by_label("Token").fill(installation.tokens[role])
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#who")).to_be_visible()
    yield page
    context.close()
    assert not elsewhere
    assert not faults


def is_fault(message):
    """An answer of 403 or 404 is told there too, and asked for here."""
    return message.type == "error" and "status of 40" not in message.text


def elsewhere_of(url, installation):
    return not url.startswith((installation.url, "data:", "blob:"))


@pytest.fixture
def page(browser, installation):
    with opened(browser, installation) as page:
        yield page


def chart_ready(page):
    expect(page.locator("#chart[data-ready]")).to_be_attached(timeout=30_000)
    expect(page.locator("#chart-table tbody tr")).not_to_have_count(0)


def select_spike(page, installation):
    """Drag over the tallest bar: the spike is about half way to the last one of all."""
    chart_ready(page)
    box = page.locator("#chart .nsewdrag").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.4, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, middle, steps=5)
    page.mouse.up()


def test_the_overview_says_how_late_things_are_and_how_much_is_waiting(page, installation):
    """Lateness is the first number; the service has just delivered what was due at once."""
    with installation.scheduler() as s:
        for n in range(20):
            s.send_later("emails", f"m{n}", id=f"soon-{n}", delay=0.2)
    expect(page.locator("#tile-late b")).not_to_contain_text("-")
    expect(page.locator("#tile-pending b")).to_have_text("200,000")
    expect(page.locator("#tile-lanes b")).to_have_text("3 of 3")
    expect(page.locator("#badge")).to_have_text("staging")


def test_the_timeline_shows_the_future_and_dragging_over_it_filters_the_table(page, installation):
    select_spike(page, installation)
    expect(page).to_have_url(re.compile("due_from=.*due_to="))
    expect(page.locator("#schedules tbody tr")).to_have_count(50)
    expect(page.locator("#chart-table tbody")).to_contain_text(re.compile(r"orders \d"))
    page.get_by_role("button", name="Clear selection").click()
    expect(page).not_to_have_url(re.compile("due_from="))


def test_a_selection_is_shifted_after_a_dry_run_and_undone_from_the_audit_trail(page, installation):
    page.goto("/?id_prefix=orders-00")
    before = installation.desk.pending.get(b"orders-000001").due_ms
    page.get_by_label("how long").fill("2h")
    page.get_by_role("button", name="Shift all by").click()
    expect(page.get_by_role("dialog")).to_contain_text("5,000 schedules")
    page.get_by_role("button", name="Back").click()
    assert installation.pending.get(b"orders-000001").due_ms == before, "nothing before a yes"
    page.get_by_role("button", name="Shift all by").click()
    page.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("status")).to_contain_text("5,000 of 5,000 changed")
    assert installation.pending.get(b"orders-000001").due_ms == before + 2 * HOUR_MS
    page.get_by_role("link", name="Audit").click()
    first = page.locator("#audit tbody tr").first
    expect(first).to_contain_text("adminer")
    expect(first).to_contain_text("shift")
    first.get_by_role("button", name=re.compile("Undo")).click()
    page.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("status")).to_contain_text("5,000 of 5,000 undone")
    assert installation.pending.get(b"orders-000001").due_ms == before


def test_many_are_cancelled_and_come_back(page, installation):
    page.goto("/?id_prefix=emails-01&topic=emails")
    page.get_by_role("button", name="Cancel all").click()
    page.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("status")).to_contain_text("5,000 of 5,000 changed")
    assert installation.pending.get(b"emails-010000") is None
    page.goto("/audit")
    page.locator("#audit tbody tr").first.get_by_role("button", name=re.compile("Undo")).click()
    page.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("status")).to_contain_text("5,000 of 5,000 undone")
    assert installation.pending.get(b"emails-010000") is not None


def test_the_table_has_pages_and_filters_that_live_in_the_address(page, installation):
    page.get_by_label("id begins with").fill("orders-")
    page.get_by_label("caller").fill("")
    page.get_by_role("button", name="Filter", exact=True).click()
    expect(page).to_have_url(re.compile("id_prefix=orders-"))
    first = page.locator("#schedules tbody tr").first.inner_text()
    page.get_by_role("button", name="Next page").click()
    expect(page).to_have_url(re.compile("cursor="))
    expect(page.locator("#schedules tbody tr").first).not_to_have_text(first)
    address = page.url
    page.goto("/")
    page.goto(address)
    expect(page.get_by_label("id begins with")).to_have_value("orders-")
    page.go_back()
    page.goto("/?caller=shop&topic=emails")
    expect(page.locator("#schedules tbody tr").first).to_contain_text("shop")


def test_a_schedule_is_shown_whole_and_changed(page, installation):
    with installation.scheduler() as s:
        s.send_later("emails", json.dumps({"a": [1, {"b": None}]}), id="one", delay=7_200, key="k")
    page.goto("/schedule?id=one")
    expect(page.locator("#facts")).to_contain_text("pending")
    expect(page.locator("#payload .tree")).to_contain_text("b: null")
    page.get_by_role("button", name="hex").click()
    expect(page.locator("#payload")).to_contain_text("7b 22 61 22")
    page.get_by_label("new time").fill("+3h")
    page.get_by_role("button", name="Move to").click()
    page.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("status")).to_contain_text("moved")
    expect(page.locator("#life")).to_contain_text("reschedule by adminer")
    page.get_by_role("button", name="Deliver now").click()
    page.get_by_role("button", name="Do it").click()
    wait_until(lambda: installation.pending.get(b"one") is None, "it was delivered")

    def delivered():
        return page.request.get("/v1/deliveries?search=one").json()["items"]

    wait_until(delivered, "the lane told of it")
    page.reload()
    expect(page.locator("#life")).to_contain_text("produced to emails")
    page.goto("/history?search=one")
    expect(page.locator("#deliveries tbody tr").first).to_contain_text("emails")


def test_a_rejected_record_is_found_with_its_reason_and_sent_again(page, installation):
    with installation.scheduler() as s:
        s.broker.send(Record(topic="schedules", key=b"bad", value=b"no time given"))
        s.broker.flush()
    wait_until(lambda: installation.pending.counts()["rejected"], "it was rejected")

    def listed():
        return page.request.get("/v1/records?search=no+time").json()["items"]

    wait_until(listed, "it is on the rejected topic")
    page.goto("/rejected?search=no+time")
    row = page.locator("#records tbody tr").first
    expect(row).to_contain_text("no-time")
    row.get_by_role("checkbox").check()
    page.get_by_label("target topic").fill("mended")
    page.get_by_role("button", name="Redrive selected").click()
    page.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("status")).to_contain_text("1 redriven")

    def arrived():
        return any(one.topic == "mended" for one in installation.desk.recent(count_max=1_000))

    wait_until(arrived, "it was delivered to the topic given")


def test_numbers_live_until_paused(page, installation):
    shown = page.locator("#tile-pending b")
    expect(shown).not_to_have_text("")
    page.get_by_role("button", name="Live", exact=True).click()
    expect(page.get_by_role("button", name="Paused")).to_be_visible()
    page.get_by_role("button", name="Paused").click()
    with page.expect_request("**/v1/events"):
        page.reload()


def test_times_and_theme_are_as_one_likes(page):
    cell = page.locator("#schedules tbody time").first
    expect(cell).to_contain_text("Z")
    page.get_by_label("Times").select_option("relative")
    expect(cell).to_contain_text("in ")
    page.get_by_label("Theme").select_option("dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_label("Theme").select_option("light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_a_reader_looks_and_changes_nothing(browser, installation):
    with opened(browser, installation, "read") as page:
        expect(page.locator("#schedules tbody tr")).to_have_count(50)
        assert page.get_by_role("button", name="Cancel all").count() == 0
        page.goto("/schedule?id=emails-000000")
        expect(page.locator("#payload-part")).to_contain_text("hidden for this role")
        assert page.get_by_role("button", name="Cancel").count() == 0
        told = page.evaluate(
            "fetch('/v1/schedules/emails-000000', {method: 'DELETE'}).then(a => a.status)"
        )
        assert told == 403


def test_it_can_be_read_on_a_phone_and_used_without_a_mouse(browser, installation):
    phone = {"width": 390, "height": 800}
    with opened(browser, installation, viewport=phone) as page:
        chart_ready(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        seen = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            seen.add(page.evaluate("document.activeElement.id || document.activeElement.name"))
        assert {"live", "times", "theme", "log", "id_prefix"} <= seen


FAULTS = (Path(__file__).parent / "faults.js").read_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nobody_is_shut_out(browser, installation, theme):
    """Names for what can be used, contrast of 4.5, one heading, labels: WCAG 2.1 AA, by machine."""
    with opened(browser, installation, color_scheme=theme) as page:
        for path in ("/", "/schedule?id=emails-000000", "/history", "/rejected", "/audit", "/docs"):
            page.goto(path)
            expect(page.locator("h1")).to_be_attached()
            if path == "/":
                chart_ready(page)
            assert page.evaluate(FAULTS) == [], path


def test_the_first_view_is_there_soon(page, installation):
    page.goto("/")
    page.reload()
    first_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    assert first_ms < 5_000, "1.5 s on a quiet machine; this one may be busy"
