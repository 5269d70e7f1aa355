"""Everything by keys alone."""

import re

import pytest
from page_hands import focused, told
from pages import chart_ready
from playwright.sync_api import expect
from servers import wait_until

pytestmark = pytest.mark.story


def test_everything_can_be_done_without_a_mouse(page, installation):
    """From the first key to a change that is not made after all; and a span of the timeline."""
    chart_ready(page)
    page.get_by_role("button", name="Live", exact=True).press("Enter")
    page.keyboard.press("Shift+Tab")
    page.evaluate("document.activeElement.blur()")
    seen = []
    while "search" not in seen and len(seen) < 60:
        page.keyboard.press("Tab")
        seen.append(focused(page))
    assert {"live", "log", "chart", "search"} <= set(seen)
    page.get_by_text("The chart as a table").press("Enter")
    page.locator("#chart-table tbody button").first.press("Enter")
    expect(page).to_have_url(re.compile("due_from=.*due_to="))
    cancel = page.get_by_role("button", name="Cancel all")
    cancel.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.evaluate("document.querySelector('#ask').contains(document.activeElement)")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(cancel).to_be_focused()
    assert installation.pending.get(b"emails-000000") is not None


def test_a_schedule_is_cancelled_and_brought_back_by_keys_alone(page, installation):
    with installation.scheduler() as s:
        for n in range(3):
            s.send_later("emails", "m", id=f"keyed-{n}", delay=7_200 + n)
    wait_until(lambda: installation.pending.get(b"keyed-2"), "all are pending")
    rows = _search(page, "id:keyed-*")
    _down_to_the_second(page, rows)
    page.keyboard.press(" ")
    expect(rows.nth(1)).to_have_attribute("aria-selected", "true")
    expect(page.locator("#bulk-what")).to_have_text("1 selected")
    page.keyboard.press("c")
    expect(page.get_by_role("dialog")).to_contain_text("1 schedule will not be delivered")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    told(page, "1 of 1 changed")
    assert installation.pending.get(b"keyed-1") is None
    assert installation.pending.get(b"keyed-0") is not None
    expect(rows).to_have_count(2)
    expect(page.locator("#schedules tbody tr:focus")).to_have_attribute("data-id", "keyed-2")
    page.keyboard.press("u")
    told(page, "1 of 1 undone")
    assert installation.pending.get(b"keyed-1") is not None
    expect(page.locator("#schedules tbody tr:focus")).to_have_count(1)


def test_what_has_the_focus_is_not_under_the_bar(page):
    """The bar with the actions lies over the page's lower end."""
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto("/?topic=orders")
    bar = page.locator("#bulk")
    expect(bar).to_be_visible()
    page.keyboard.press("/")
    field = page.get_by_role("combobox")
    expect(field).to_be_focused()
    wait_until(lambda: _bottom(field) <= bar.bounding_box()["y"], "the field is above the bar")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    row = page.locator("#schedules tbody tr:focus")
    wait_until(lambda: _bottom(row) <= bar.bounding_box()["y"], "the row is above the bar")


def test_rows_that_come_later_leave_the_focus_where_it_is(page, installation):
    """A search asks until the table is full: somebody may be in its first rows by then."""
    rows, rest = _second_of_three(page, installation, "early")
    _nothing_more(page, rest)
    expect(rows.nth(1)).to_be_focused()


def test_rows_that_come_behind_a_question_leave_the_table_where_it_is(page, installation):
    rows, rest = _second_of_three(page, installation, "asked")
    page.keyboard.press(" ")
    page.keyboard.press("c")
    expect(page.get_by_role("dialog")).to_contain_text("1 schedule will not be delivered")
    _nothing_more(page, rest)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    told(page, "1 of 1 changed")
    expect(rows).to_have_count(2)
    expect(page.locator("#schedules tbody tr:focus")).to_have_attribute("data-id", "asked-2")


def _second_of_three(page, installation, name):
    """Search for three and go to the second; the rest of the answer is held, in a list."""
    with installation.scheduler() as s:
        for n in range(3):
            s.send_later("emails", "m", id=f"{name}-{n}", delay=7_200 + n)
    wait_until(lambda: installation.pending.get(f"{name}-2".encode()), "all are pending")
    rest = []

    def in_two(route):
        if rest:
            route.continue_()
        elif "cursor=rest" in route.request.url:
            rest.append(route)
        else:
            answer = route.fetch()
            route.fulfill(response=answer, json={**answer.json(), "next_cursor": "rest"})

    page.route(re.compile(rf"/v1/schedules\?.*id_prefix={name}-"), in_two)
    with page.expect_request(lambda request: "cursor=rest" in request.url):
        rows = _search(page, f"id:{name}-*")
    _down_to_the_second(page, rows)
    expect(rows.nth(1)).to_be_focused()
    return rows, rest


def _nothing_more(page, rest):
    rest[0].fulfill(json={"items": [], "next_cursor": None})
    expect(page.locator("#schedules")).not_to_have_attribute("aria-busy", "true")


def _search(page, text):
    page.keyboard.press("/")
    page.keyboard.type(text)
    page.keyboard.press("Enter")
    return page.locator("#schedules tbody tr")


def _down_to_the_second(page, rows):
    expect(rows).to_have_count(3)
    page.evaluate("document.activeElement.blur()")
    for _ in range(2):
        page.keyboard.press("ArrowDown")


def _bottom(place):
    box = place.bounding_box()
    return box["y"] + box["height"]
