"""The first view: on time or late, the numbers, and how soon it is there."""

import re

import pytest
from pages import ASKING, BUSY_MS, HOUR_MS, chart_ready, first_view_ms, opened, weight_bytes
from playwright.sync_api import expect
from servers import wait_until

from sendlater.model import Record, Schedule

pytestmark = pytest.mark.story


def test_the_overview_says_how_late_things_are_and_how_much_is_waiting(page, installation):
    """Lateness is the first number; the service has just delivered what was due at once."""
    with installation.scheduler() as s:
        for n in range(20):
            s.send_later("emails", f"m{n}", id=f"soon-{n}", delay=0.2)
    expect(page.get_by_role("heading", level=1)).to_have_text(
        re.compile(r"On time(: p99| again, .* p99 was) .* over the last "),
        timeout=BUSY_MS,
    )
    expect(page.locator("#numbers .card").first).to_have_id("number-late")
    expect(page.locator("#number-late b")).to_have_text(re.compile(r"\d m?s$"))
    expect(page.locator("#number-pending b")).to_have_text(re.compile(r"^200,\d{3}$"))
    expect(page.locator("#number-pending small")).to_contain_text(re.compile(r"[1-9].*\sin\s1\sd"))
    expect(page.locator("#number-overdue b")).to_have_text("0")
    expect(page.locator("#number-overdue small")).to_have_text("nothing is late")
    expect(page.locator("#vital-rejected b")).to_have_text(re.compile(r"^\d$"))
    expect(page.locator("#vital-redis b")).to_contain_text("MiB")
    expect(page.locator("#vital-broker b")).to_have_text("answers")
    expect(page.locator("#vital-lag b")).to_have_text("0")
    expect(page.locator("#vital-queries b")).to_have_text("3 of 3")
    expect(page.locator("#why li")).to_have_count(0)
    expect(page.locator("#badge")).to_have_text("staging")


def test_it_says_in_a_sentence_why_something_is_late(browser, alone):
    """Nobody delivers here; what is overdue is a red bar left of now."""
    now_ms = alone.noon_ms - 25 * HOUR_MS
    for n, due_ms in enumerate((now_ms, now_ms + 48 * HOUR_MS)):
        record = Record(topic="emails", value=b"v")
        alone.pending.put(Schedule(id=b"%d" % n, due_ms=due_ms, record=record))
    with opened(browser, alone) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text(
            "No service has run on this store yet: nothing is delivered."
        )
        expect(page.locator("#number-overdue b")).to_have_text("1")
        expect(page.locator("#number-overdue small")).to_contain_text(" h")
        expect(page.locator("#vital-queries")).to_have_class(re.compile("bad"))
        chart_ready(page)
        expect(page.locator("#chart .bar.overdue")).to_be_attached()
        expect(page.locator("#legend")).to_contain_text("1 overdue")
        expect(page.locator("#chart-table tbody tr").first).to_contain_text("overdue")
        page.goto("/?zoom_from=2036-01-01T00:00:00Z&zoom_to=2036-01-02T00:00:00Z")
        expect(page.locator("#chart rect.bar.overdue")).to_be_attached()


def first_line_says(told, alone, browser, **known):
    """When a service runs, nothing is overdue, and this is known."""

    def answer(route):
        stats = {**route.fetch().json(), "overdue": 0, "service_heard_ms": 9, **known}
        route.fulfill(json=stats)

    with opened(browser, alone) as page:
        page.route("**/v1/events", lambda _: None)
        page.route("**/v1/stats", answer)
        page.goto(ASKING)
        expect(page.get_by_role("heading", level=1)).to_have_text(told)


@pytest.mark.parametrize(
    ("late", "told"),
    [
        ({"p99": None, "window_s": 8}, "Ready: what was due before is not known yet"),
        ({"p99": None, "window_s": 75}, "Ready: nothing has been due in the last minute"),
        ({"p99": 35, "window_s": 8}, "On time: p99 35 ms over the last 8 s"),
        (
            {"p99": 294_000, "window_s": 540},
            "On time again, nothing is overdue; p99 was 4.9 min over the last 9 min",
        ),
    ],
)
def test_the_first_line_says_no_more_than_is_known(alone, browser, late, told):
    """A process that has just started has counted nothing yet."""

    first_line_says(told, alone, browser, late_hour_ms=late)


def test_the_first_line_says_that_a_part_of_the_service_has_ended(alone, browser):
    """Also where what was delivered before was on time."""
    why = ["5 wait for the limit of sms.", "The lanes have ended."]

    late = {"p99": 35, "window_s": 99}
    ended = {"late_hour_ms": late, "workers": {"lanes": False}, "why": why}
    first_line_says(why[1], alone, browser, **ended)


def test_the_first_answers_come_with_the_page(browser, installation):
    """A view with an address of its own asks for them."""
    with opened(browser, installation) as page:
        asked = []
        page.on("request", lambda one: asked.append(one.url.removeprefix(installation.url)))

        def v1(address):
            asked.clear()
            page.goto(address)
            chart_ready(page)
            expect(page.locator("#schedules tbody tr")).to_have_count(50)
            expect(page.locator("#number-pending b")).to_have_text(re.compile(r"^\d"))
            return {path.partition("?")[0] for path in asked if path.startswith("/v1/")}

        wait_until(lambda: v1("/") == {"/v1/events"}, "nothing is late, so nothing more is asked")
        named = {f"/v1/{name}" for name in ("events", "stats", "trend", "schedules", "histogram")}
        assert v1("/?topic=orders") == named
        topics = page.locator("#schedules tbody .col-topic")
        assert set(topics.all_inner_texts()) == {"orders"}


WEIGHT_BYTES_MAX = 250_000


def test_the_first_view_is_there_soon_and_light(page):
    """`make speed` measures the time; here it is only known to be no accident."""
    seen = first_view_ms(page)
    assert max(seen["numbers"], seen["table"], seen["timeline"]) < 10_000, (
        "this machine may be busy"
    )
    page.goto("/")
    chart_ready(page)
    whole = weight_bytes(page)
    assert 50_000 < whole < WEIGHT_BYTES_MAX
    page.reload()
    chart_ready(page)
    sent = page.evaluate(
        """performance.getEntriesByType('resource')
            .filter(r => r.name.includes('/static/')).map(r => r.transferSize)"""
    )
    assert sent
    assert sum(sent) == 0, "kept by the browser"
