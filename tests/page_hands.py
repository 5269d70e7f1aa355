"""What somebody does at the page, and sees there: for its tests."""

import re

from pages import chart_ready
from playwright.sync_api import expect


def drag(page, *, start=0.4, end=0.7):
    """Drag over a part of the chart, told in shares of its width."""
    chart_ready(page)
    box = page.locator("#chart").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * start, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, middle, steps=5)
    page.mouse.up()
    expect(page).to_have_url(re.compile("due_from=.*due_to="))


def address_of(page, name):
    return page.evaluate(f"new URLSearchParams(location.search).get('{name}')")


def settings(page):
    """The menu of the visitor, open."""
    menu = page.locator("#settings")
    if menu.get_attribute("open") is None:
        menu.locator("summary").click()
    return menu


def search(page, text):
    page.get_by_role("combobox").fill(text)
    page.keyboard.press("Enter")


def say_yes(page):
    page.get_by_role("button", name="Do it").click()


def told(page, text):
    expect(page.get_by_role("status")).to_contain_text(text)


def undo_last(page):
    page.goto("/audit")
    page.locator("#audit tbody tr").first.get_by_role("button", name=re.compile("Undo")).click()
    say_yes(page)


def topics_drawn(page):
    """The topics that have a colour in the chart."""
    return page.evaluate(
        "[...document.querySelectorAll('#chart [data-topic]')].map(e => e.dataset.topic)"
    )


def chart_says(page, text):
    expect(page.locator("#chart svg text").filter(has_text=text)).not_to_have_count(0)


def span_drawn_ms(page):
    """How much time the chart as a table covers."""
    times = page.locator("#chart-table tbody time").evaluate_all(
        "all => all.map(one => Number(one.dataset.ms))"
    )
    return max(times) - min(times)


def focused(page):
    return page.evaluate("document.activeElement.id || document.activeElement.name")
