"""The table: pages, filters, selection."""

import re

import pytest
from page_hands import say_yes, search, told
from pages import COUNT, chart_ready, opened, script
from playwright.sync_api import expect

pytestmark = pytest.mark.story


def test_the_table_has_pages_and_filters_that_live_in_the_address(page):
    search(page, "id:orders-*")
    expect(page).to_have_url(re.compile("id_prefix=orders-"))
    rows = page.locator("#schedules tbody tr")
    expect(rows.first).to_contain_text("orders-")
    first = rows.first.inner_text()
    page.get_by_role("button", name="Next page").click()
    expect(page).to_have_url(re.compile("cursor="))
    expect(rows.first).not_to_have_text(first)
    address = page.url
    page.goto("/")
    page.goto(address)
    expect(page.get_by_role("combobox")).to_have_value("id:orders-*")
    page.go_back()
    page.goto("/?caller=shop&topic=emails&due_from=%2B1d&due_to=%2B3d")
    expect(rows).to_have_count(50)
    expect(rows.filter(has_text="shop")).to_have_count(50)


def test_the_table_is_sorted_by_due_time_either_way(page):
    rows = page.locator("#schedules tbody tr")
    expect(rows).to_have_count(50)
    soonest = rows.first.inner_text()
    page.get_by_role("columnheader", name="due").get_by_role("button").click()
    expect(page).to_have_url(re.compile("order=last"))
    expect(rows.first).to_contain_text(f"emails-{COUNT - 2}")
    page.get_by_role("button", name="Next page").click()
    expect(rows.first).to_contain_text(f"emails-{COUNT - 2 - 2 * 50}")
    page.get_by_role("columnheader", name="due").get_by_role("button").click()
    expect(rows.first).to_have_text(soonest, use_inner_text=True)


def test_what_is_selected_stays_selected_on_other_pages(page):
    page.goto("/?id_prefix=orders-02")
    rows = page.locator("#schedules tbody tr")
    rows.first.get_by_role("checkbox").check()
    first = rows.first.get_attribute("data-id")
    page.get_by_role("button", name="Next page").click()
    expect(rows.first).not_to_have_attribute("data-id", first)
    rows.nth(1).get_by_role("checkbox").check()
    expect(page.locator("#bulk-what")).to_have_text("2 selected")
    page.get_by_role("button", name="First page").click()
    expect(rows.first.get_by_role("checkbox")).to_be_checked()


def test_a_filter_is_completed_and_what_is_none_is_told(page):
    chart_ready(page)
    field = page.get_by_role("combobox")
    field.press_sequentially("top")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(field).to_have_value("topic:")
    page.get_by_role("option", name="topic:orders").click()
    field.press_sequentially("due:<3d")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"topic=orders&due_to=%2B3d"))
    expect(page.locator("#schedules tbody")).not_to_contain_text("emails-")
    search(page, "colour:red")
    told(page, "Expected id:, topic:, tag:, caller:, due: or state:, got colour:red")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("due:<", "Expected a time after due:"),
        ("topic:emails due:>", "Expected a time after due:"),
        ("topic:a topic:b", "Expected topic: once, got a and b"),
        ("due:<1h due:<2h", "Expected due: once"),
        ("due:<banana", "Expected a time after due:, such as 2h"),
        ("due:2026-13-01T00:00:00Z..", "got 2026-13-01T00:00:00Z"),
        ("due:2h..1h", "Expected due: from sooner to later, got 2h and 1h"),
        ("constructor:x", "due: or state:, got constructor:x"),
    ],
)
def test_half_a_filter_is_none(page, text, expected):
    """What was typed is not shortened to what can be read: it may be followed by *Cancel all*."""
    chart_ready(page)
    search(page, text)
    told(page, expected)
    assert page.evaluate("location.search") == ""


def test_rows_of_another_filter_do_not_stay(page):
    """What the server cannot read shows no row, and nothing can be done with it."""
    expect(page.locator("#schedules tbody tr")).to_have_count(50)
    page.goto("/?due_from=%2Bnonsense")
    expect(page.locator("#schedules tbody tr.none")).to_contain_text("expected a duration")
    expect(page.locator("#bulk")).to_be_hidden()


def test_escape_brings_back_what_the_field_stands_for(page):
    page.goto("/?topic=emails")
    field = page.get_by_role("combobox")
    expect(field).to_have_value("topic:emails")
    field.fill("id:other")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(field).to_have_value("topic:emails")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("id:inv*", {"id_prefix": "inv"}),
        ('id:"a \\"b\\" \\\\ *"', {"id_prefix": 'a "b" \\ *'}),
        ('id:"a\\u202eb\\u2423␣"', {"id_prefix": "a\u202eb␣ "}),
        ('id:"a b\\\\n"', {"id_prefix": "a b\\n"}),
        ('topic:t tag:"\\u00a0" caller:a\\u202eb', None),
        ("id:dead:1*", {"id_prefix": "dead:1"}),
        ("topic:emails caller:shop state:claimed", None),
        ("topic:emails tag:order-17", None),
        ("due:<2h", {"due_to": "+2h"}),
        ("due:>1h30m", {"due_from": "+1h30m"}),
        ("due:1h..2h", {"due_from": "+1h", "due_to": "+2h"}),
        ("due:2026-12-01T08:00:00Z..2026-12-02T08:00:00+01:00", None),
    ],
)
def test_a_filter_is_written_as_it_was_read(page, text, address):
    """The field fills the address, and the address the field."""
    read, written = page.evaluate(
        """async ([script, text]) => {
            const { read, write } = await import(script);
            return [read(text), write(read(text))];
        }""",
        [script(page, "search"), text],
    )
    assert address is None or read == address
    assert written == text


def test_an_id_is_found_as_it_is_shown(browser, alone):
    """What nobody could see or type is shown as its number."""
    names = ["bell\x07one", "bell\x07two", "bell-three", " ends ", "␣ends␣", "bell\\u0007four"]
    alone.send(*names)
    with opened(browser, alone) as page:
        rows = page.locator("#schedules tbody tr")
        expect(rows).to_have_count(len(names))
        shown = [
            (one.get_attribute("data-id"), one.get_by_role("link").inner_text())
            for one in rows.all()
        ]
        assert sorted(name for name, _ in shown) == sorted(names)
        assert ("bell\x07one", "bell\\u0007one") in shown
        for name, text in shown:
            search(page, f'id:"{text}"')
            expect(rows).to_have_count(1)
            expect(rows).to_have_attribute("data-id", name)
        search(page, 'id:"bell\\u0007"')
        expect(rows).to_have_count(2)
        page.get_by_role("button", name="Cancel all").click()
        say_yes(page)
        told(page, "2 of 2 changed")
        page.goto("/audit")
        expect(page.locator("#audit tbody tr").first).to_contain_text("bell\\u0007")


def test_the_head_of_the_table_stays_in_sight(page):
    page.set_viewport_size({"width": 1280, "height": 1000})
    rows = page.locator("#schedules tbody tr")
    expect(rows).to_have_count(50)
    rows.last.scroll_into_view_if_needed()
    expect(rows.last).to_be_in_viewport()
    head = page.get_by_role("columnheader", name="due")
    expect(head).to_be_in_viewport()
    assert head.bounding_box()["y"] < rows.last.bounding_box()["y"]


@pytest.mark.parametrize("address", ["/", "/?topic=nothing"])
def test_the_table_is_lines_on_a_narrow_screen(page, address):
    """Nothing of it is cut; what its head can do stays."""
    page.set_viewport_size({"width": 360, "height": 800})
    page.goto(address)
    cells = page.locator("#schedules tbody tr").first.locator("td")
    expect(cells).to_have_count(1 if "nothing" in address else 4)
    wide = "place => place.scrollWidth - place.clientWidth"
    assert page.locator("#rows").evaluate(wide) == 0
    tops = [
        one["y"] for one in cells.evaluate_all("all => all.map(a => a.getBoundingClientRect())")
    ]
    assert tops == sorted(set(tops)), "each cell is a line of its own"
    page.locator("#sort").click()
    expect(page).to_have_url(re.compile("order=last"))
