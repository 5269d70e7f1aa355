"""Nobody is shut out: what axe-core finds, in both themes, on three widths."""

from itertools import product

import pytest
from axe_playwright_python.sync_playwright import Axe
from page_hands import settings
from pages import chart_ready
from playwright.sync_api import expect
from servers import wait_until

from sendlater.dialects.names import EVENT_ERROR
from sendlater.model import Record

pytestmark = pytest.mark.story


VIEWS = {
    "/": "#chart-table tbody tr",
    "/schedule?id=emails-000000": "#life li",
    "/history": "#deliveries tbody tr",
    "/rejected": "#records tbody tr",
    "/dead": "#records tbody tr",
    "/records?topic=emails": "#records tbody tr",
    "/running": "#services tbody tr",
    "/audit": "#audit tbody tr",
    "/docs": "h2",
    "/no-such-page": "h1",
    "/sign-in": "button",
}


SIZES = (
    {"width": 1280, "height": 900},
    {"width": 360, "height": 800},
    {"width": 2560, "height": 1400},
)


def put_something_everywhere(page, installation):
    """A delivery, rejected and dead records, a change."""
    headers = [("sendlater-rejected", b"no-time"), (EVENT_ERROR, b"ValueError")]
    with installation.scheduler() as s:
        s.send_later("emails", "m", id="seen", delay=0)
        for topic in ("rejected", "dead-letters"):
            s.broker.send(Record(topic=topic, value=b"v", headers=headers))
    page.request.patch("/v1/schedules/emails-000000", data={"delay": "30h"})
    wait_until(
        lambda: page.request.get("/v1/deliveries").json()["items"], "one is told", timeout_s=90
    )


def test_nobody_is_shut_out(page, installation):
    """What axe-core finds: nothing, in every view, light and dark, on three widths."""
    put_something_everywhere(page, installation)
    found = []
    for path, there in VIEWS.items():
        page.goto(path)
        expect(page.locator(there).first).to_be_attached()
        if path == "/":
            chart_ready(page)
            page.get_by_text("The chart as a table").click()
        for theme, size in product(("light", "dark"), SIZES):
            page.emulate_media(color_scheme=theme)
            page.set_viewport_size(size)
            result = Axe().run(page)
            if result.violations_count:
                found.append(f"{path} {theme} {size['width']}: {result.generate_report()}")
            wide = page.evaluate("document.documentElement.scrollWidth")
            if wide > size["width"]:
                found.append(f"{path}: {wide} pixels wide on a screen of {size['width']}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_opens_shuts_nobody_out(page, theme):
    """Menus, suggestions, the bar of actions, the question before a deed, the help."""
    page.emulate_media(color_scheme=theme)

    def clean():
        result = Axe().run(page)
        assert not result.violations_count, result.generate_report()

    page.goto("/?id_prefix=emails-00")
    chart_ready(page)
    settings(page)
    clean()
    page.keyboard.press("Escape")
    page.get_by_role("combobox").press_sequentially(" d")
    expect(page.locator("#suggestions [role=option]")).to_have_count(1)
    clean()
    for _ in ("suggestions", "what is typed"):
        page.keyboard.press("Escape")
    page.get_by_role("button", name="Cancel all").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    clean()
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("search")
    clean()
