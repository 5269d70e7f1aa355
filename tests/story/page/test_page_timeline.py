"""The timeline of the future: what it shows, zoom, and what will be late."""

import random
import re
import time

import pytest
from page_hands import address_of, chart_says, drag, settings, span_drawn_ms, topics_drawn
from pages import ASKING, HOUR_MS, chart_ready, opened, script
from playwright.sync_api import expect
from servers import wait_until

from sendlater.model import Record, Schedule

pytestmark = pytest.mark.story


def test_the_timeline_shows_the_future_by_topic_and_can_be_zoomed(page):
    chart_ready(page)
    assert {"emails", "orders"} <= set(topics_drawn(page))
    expect(page.locator("#chart-table tbody")).to_contain_text(re.compile(r"orders (≈ )?\d"))
    expect(page.locator("#spike")).to_contain_text("as assumed until it is measured")
    drag(page)
    page.get_by_role("button", name="Zoom to selection").click()
    expect(page.get_by_role("button", name="Zoom out")).to_be_visible()

    wait_until(lambda: span_drawn_ms(page) < 30 * HOUR_MS, "it is zoomed in")
    page.get_by_label("logarithmic").check()
    chart_says(page, re.compile("^10$"))
    page.reload()
    chart_ready(page)
    expect(page.get_by_label("logarithmic")).to_be_checked()
    page.get_by_role("button", name="year", exact=True).click()
    expect(page.get_by_role("button", name="Zoom out")).to_be_hidden()
    wait_until(lambda: span_drawn_ms(page) > 48 * HOUR_MS, "it shows all")


def test_the_chart_is_there_however_fast_the_answer_came(page):
    """A page's clock begins at zero, as if somebody were at work in the chart."""
    page.add_init_script("performance.now = () => 10")
    page.route("**/v1/events", lambda _: None)  # nothing draws it again
    page.reload()
    chart_ready(page)
    expect(page.locator("#chart .bar")).not_to_have_count(0)


def test_each_spike_is_told_how_late_it_will_be(page):
    """Predicted from the drain rate, which is drawn too; here the rate is made small."""

    def slow(route):
        answer = route.fetch()
        told = answer.json()
        top = told["counts"].index(max(told["counts"]))
        told["late_ms"][top], told["drain_per_s"] = 260_000, 0.05
        route.fulfill(response=answer, json=told)

    page.route("**/v1/histogram*", slow)
    page.goto(ASKING)
    chart_ready(page)
    expect(page.locator("#chart text.late")).to_have_text("late 4.3 min")
    expect(page.locator("#spike")).to_contain_text("will be up to 4.3 min late")
    chart_says(page, "drains at")


def test_a_burst_is_as_late_in_every_range(alone, browser):
    """However wide a bar is: what is due at one instant is not spread over it."""
    now_ms = time.time_ns() // 1_000_000
    burst = (_at(b"%06d" % n, now_ms + 30 * HOUR_MS) for n in range(110_000))
    alone.park(burst)
    alone.park([_at(b"in years", now_ms + 9_000 * 24 * HOUR_MS)])
    with opened(browser, alone) as page:
        for name in ("week", "month", "all"):
            page.get_by_role("button", name=name, exact=True).click()
            expect(page.locator("#chart text.late")).to_have_text("late 2.2 s")
        page.goto("/")
        chart_ready(page)
        week = page.get_by_role("button", name="week", exact=True)
        expect(week).to_have_attribute("aria-pressed", "true")


def _at(schedule_id, due_ms):
    return Schedule(id=schedule_id, due_ms=due_ms, record=Record(topic="t", value=b"v"))


TOPICS = """async ([script, apart, answers]) => {
    const { topTopics } = await import(`${script}?${apart}`);
    return answers.map(([sums, held]) => {
        const topics = Object.fromEntries(Object.entries(sums).map(([name, n]) => [name, [n]]));
        const told = topTopics({ topics, counts: [1], sampled: true }, 'week', held);
        return Object.fromEntries(told.map(([name, , colour]) => [name, colour]));
    });
}"""


def test_a_topic_keeps_its_colour_and_its_place_in_the_legend(alone, browser):
    """Fifteen of them, nine of nearly equal size, in numbers from samples."""
    chance = random.Random(7)

    def answer(**more):
        near = {f"near-{n}": chance.randint(700, 1_300) for n in range(9)}
        rare = {f"rare-{n}": chance.randint(1, 3) for n in range(5) if chance.random() < 0.7}
        return {"most": 90_000, **near, **rare, **more}

    with opened(browser, alone) as page:
        topics = script(page, "topics")
        sixty = [[answer(), False] for _ in range(60)]
        first = page.evaluate(TOPICS, [topics, "one", sixty])
        own = {name: colour for name, colour in first[0].items() if not name.endswith("others")}
        assert (len(own), len(set(own.values()))) == (7, 7)
        for told in first:
            assert own.items() <= told.items()
        page.reload()
        late = [[answer(risen=9_000), n < 20] for n in range(40)]
        again = page.evaluate(TOPICS, [topics, "two", [[answer(), False], *late]])
        for told in again[:21]:
            assert own.items() <= told.items(), "also after a reload, and under the pointer"
        assert "risen" in again[-1]
        assert len(own.items() & again[-1].items()) == 6, "the others keep their colours"


def test_what_is_dragged_over_is_what_is_selected_in_every_time_zone(browser, installation):
    """The chart shows local time where one wants it; the address stays in UTC."""
    seen = []
    with opened(browser, installation, timezone_id="Asia/Tokyo") as page:
        for times in ("utc", "local"):
            page.goto("/")
            settings(page).get_by_label("Times").select_option(times)
            drag(page, start=0.2, end=0.8)
            seen.append([address_of(page, name) for name in ("due_from", "due_to")])
            expect(page.locator("#schedules tbody tr")).to_have_count(50)
    for utc, local in zip(*seen, strict=True):
        assert utc[:13] == local[:13], "the same hour"


def zoom_by_wheel(page):
    chart_ready(page)
    before = span_drawn_ms(page)
    box = page.locator("#chart").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
    page.mouse.wheel(0, -800)
    expect(page).to_have_url(re.compile("zoom_from="))
    wait_until(lambda: span_drawn_ms(page) < before / 2, "it is closer")


def test_the_chart_is_zoomed_by_the_wheel_and_moved_by_keys(page):
    zoom_by_wheel(page)
    page.locator("#chart").press("0")
    expect(page).not_to_have_url(re.compile("zoom_from="))
    page.locator("#chart").press("ArrowRight")
    expect(page).to_have_url(re.compile("zoom_from="))


def test_numbers_that_come_while_one_zooms_do_not_undo_it(page):
    """They draw the chart anew each second; a busy browser tells late that the wheel stands."""
    page.add_init_script(
        """const soon = window.setTimeout;
        window.setTimeout = (work, ms, ...more) => soon(work, ms === 150 ? 3000 : ms, ...more);"""
    )
    page.reload()
    zoom_by_wheel(page)


@pytest.mark.parametrize("width", [360, 1280])
def test_a_long_topic_widens_neither_the_legend_nor_the_suggestions(browser, alone, width):
    record = Record(topic="m" * 249, value=b"v")
    alone.pending.put(Schedule(id=b"long", due_ms=alone.noon_ms, record=record))
    with opened(browser, alone, viewport={"width": width, "height": 800}) as page:
        chart_ready(page)
        expect(page.locator("#legend button").filter(has_text="m" * 249)).to_be_visible()
        page.get_by_role("combobox").press_sequentially("topic:")
        expect(page.locator("#suggestions [role=option]").first).to_be_visible()
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(wide) == 0


def test_the_chart_is_moved_by_dragging_its_axis(page):
    """Over the bars, the same hand selects."""
    chart_ready(page)
    page.locator("#chart").press("+")
    expect(page).to_have_url(re.compile("zoom_from="))
    before = [address_of(page, name) for name in ("zoom_from", "zoom_to")]
    box = page.locator("#chart").bounding_box()
    axis = box["y"] + box["height"] - 4
    page.mouse.move(box["x"] + box["width"] * 0.6, axis)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.4, axis, steps=5)
    page.mouse.up()
    wait_until(lambda: address_of(page, "zoom_from") > before[0], "it has moved")
    assert address_of(page, "zoom_to") > before[1]
    expect(page).not_to_have_url(re.compile("due_from="))
