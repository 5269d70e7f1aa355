"""Live, until it is paused or nobody looks; times and theme as one likes."""

import re

import pytest
from page_hands import settings
from pages import opened
from playwright.sync_api import expect
from servers import wait_until

pytestmark = pytest.mark.story
HIDE = """on => {
    Object.defineProperty(document, 'hidden', {value: on, configurable: true});
    document.dispatchEvent(new Event('visibilitychange'));
}"""


def test_numbers_live_until_paused(page, installation):
    shown = page.locator("#number-pending b")

    def pending():
        return f"{page.request.get('/v1/stats').json()['pending']:,}"

    expect(shown).to_have_text(pending())
    page.get_by_role("button", name="Live", exact=True).click()
    before = shown.inner_text()
    installation.send("while-paused")
    wait_until(lambda: pending() != before, "the store has one more")
    expect(shown).to_have_text(before)
    with page.expect_request("**/v1/events"):
        page.get_by_role("button", name="Paused").click()
    expect(shown).to_have_text(pending())


def test_rows_stay_when_somebody_goes_to_them_while_they_are_asked_for(page):
    """The table asks again by itself; its answer comes when a row has the focus."""
    rows = page.locator("#schedules tbody tr")
    expect(rows.first).to_be_visible()
    held = []
    page.mouse.move(0, 0)
    page.route("**/v1/schedules?*", lambda route: held.append(route))
    wait_until(lambda: page.evaluate("1") and held, "it asks")
    page.keyboard.press("ArrowDown")
    focused = page.locator("#schedules tbody tr:focus")
    place = focused.get_attribute("data-id")
    with page.expect_response("**/v1/schedules?*"):
        held[0].continue_()
    expect(page.locator("#schedules")).not_to_have_attribute("aria-busy", "true")
    expect(focused).to_have_attribute("data-id", place)


def test_times_and_theme_are_as_one_likes(browser, installation):
    with opened(browser, installation, timezone_id="Asia/Tokyo") as page:
        cell = page.locator("#schedules tbody time").first
        expect(cell).to_contain_text(re.compile(r"Z$"))
        utc_hour, rest = int(cell.inner_text()[11:13]), cell.inner_text()[13:23]
        expect(page.locator("#schedules tbody .away").first).to_have_text(re.compile("^in "))
        settings(page).get_by_label("Times").select_option("local")
        expect(cell).to_contain_text(f" {(utc_hour + 9) % 24:02}{rest}")
        page.get_by_label("Theme").select_option("dark")
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.get_by_label("Theme").select_option("light")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_nothing_is_asked_while_nobody_looks(page):
    """The browser tells the page that its tab is hidden; then it is not asked for numbers."""
    page.clock.install()
    page.reload()
    expect(page.locator("#number-pending b")).to_have_text(re.compile(r"\d"))
    asked = []
    with page.expect_event("requestfailed", lambda request: "/v1/events" in request.url):
        page.evaluate(HIDE, True)
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(60_000)
    assert not asked
    with page.expect_request("**/v1/events"):
        page.evaluate(HIDE, False)


@pytest.mark.parametrize(
    "path", ["/", "/records?topic=emails", "/running", "/audit", "/history", "/schedule?id=x"]
)
def test_a_page_that_is_opened_in_the_background_asks_for_nothing(page, path):
    page.add_init_script(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true})"
    )
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path)
    assert [url for url in asked if "/static/" in url], "its scripts have run"
    assert not [url for url in asked if "/v1/" in url]
    with page.expect_request(re.compile("/v1/")):
        page.evaluate(HIDE, False)
