"""The page where nothing has been sent yet, and where the server goes away."""

import os
import re
import signal
from contextlib import ExitStack

import psutil
import pytest
from axe_playwright_python.sync_playwright import Axe
from pages import BUSY_MS, Installation, opened
from playwright.sync_api import expect
from servers import ServiceProcess, own_redis, wait_until

from sendlater.config import Settings
from sendlater.server.auth import new_token
from sendlater.server.process import HttpProcess

pytestmark = pytest.mark.story


def test_a_first_message_is_sent_by_a_button_and_seen_to_arrive(browser, redis_url, tmp_path):
    service = ServiceProcess(tmp_path, redis=redis_url, space="first", http_addr="127.0.0.1:0")
    with service.start():
        url = re.search(r"page and REST at (http\S+)", service.said()).group(1)
        with opened(browser, Installation(url, redis_url, "first", {})) as page:
            first = page.locator("#first-start")
            expect(first).to_be_visible()
            for language in ("Shell", "Python", "JavaScript", "Java", "Go"):
                page.get_by_role("button", name=language, exact=True).click()
                expect(page.locator("#sample")).to_contain_text(f"{url}/v1/schedules")
            for topic in ("orders", "hello"):
                page.get_by_role("textbox", name="to topic").fill(topic)
                expect(page.locator("#sample")).to_contain_text(f'"{topic}"')
            result = Axe().run(page)
            assert not result.violations_count, result.generate_report()
            page.get_by_role("button", name="Send one due in 10 s").click()
            expect(page.locator("#first-told")).to_contain_text("due in")
            expect(page.locator("#number-pending b")).to_have_text("1")
            expect(page.locator("#first-nothing")).to_be_hidden()
            expect(page.locator("#first-told")).to_contain_text(
                re.compile(r"Arrived on hello, [\d.]+ m?s after its due time"),
                timeout=BUSY_MS,
            )
            page.get_by_role("button", name="Python", exact=True).click()
            exec(page.locator("#sample").inner_text(), {})
            assert page.request.get("/v1/stats").json()["pending"] == 1
            page.get_by_role("link", name="See its life").click()
            expect(page.locator("#state")).to_have_text("delivered")


def test_a_server_that_hangs_is_told_too(browser, redis_url):
    """No connection ends then: it only says nothing any more."""
    settings = Settings(redis=redis_url, space="hangs", http_addr="127.0.0.1:0")
    before = psutil.Process().children()
    served = HttpProcess(settings, redis_url=redis_url, starting=True)
    (process,) = (one for one in psutil.Process().children() if one not in before)
    page = browser.new_page()
    page.goto(served.url)
    live, lost = page.locator("#live"), page.get_by_role("alert")
    expect(live).to_have_text("Live")
    expect(page.locator("#number-pending b")).to_have_text("0")
    expect(page.locator("#headline.warn")).to_have_text(
        "The service is starting: nothing is delivered yet."
    )
    process.send_signal(signal.SIGSTOP)
    try:
        expect(lost).to_contain_text("The connection is lost")
        expect(live).to_have_text("Not connected")
    finally:
        process.send_signal(signal.SIGCONT)
    expect(lost).to_be_hidden()
    expect(live).to_have_text("Live")
    page.close()
    served.close()


def test_a_lost_connection_is_told_and_mended_by_itself(browser, redis_url):
    settings = Settings(redis=redis_url, space="away", http_addr="127.0.0.1:0")
    served = HttpProcess(settings, redis_url=redis_url)
    page = browser.new_page()
    page.goto(served.url)
    lost = page.get_by_role("alert")
    expect(page.locator("#number-pending b")).to_have_text("0")
    served.close()
    expect(lost).to_contain_text("The connection is lost")
    Installation(served.url, redis_url, "away", {}).send("meanwhile")
    address = served.url.removeprefix("http://")
    again = HttpProcess(
        Settings(redis=redis_url, space="away", http_addr=address), redis_url=redis_url
    )
    expect(lost).to_be_hidden()
    expect(page.locator("#number-pending b")).to_have_text("1")
    expect(page.get_by_role("link", name="meanwhile")).to_be_visible()
    page.close()
    again.close()


def test_a_store_that_is_away_is_told_and_the_page_fills_when_it_is_back(browser, tmp_path):
    """What the page brings with it is missing then; nothing of it is needed."""
    with own_redis(tmp_path) as server, ExitStack() as ending:
        settings = Settings(redis=server.url, space="store", http_addr="127.0.0.1:0")
        served = HttpProcess(settings, redis_url=server.url)
        ending.callback(served.close)
        Installation(served.url, server.url, "store", {}).send("meanwhile")
        killed = server.pid
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: not psutil.pid_exists(killed), "the store is gone")

        page = browser.new_page()
        page.goto(served.url)
        expect(page.locator("#headline.bad")).to_contain_text("Redis")
        expect(page.locator("#vital-redis.bad")).to_contain_text("no answer")
        server.start()
        expect(page.locator("#vital-redis.bad")).to_have_count(0)
        expect(page.locator("#number-pending b")).to_have_text("1")
        expect(page.get_by_role("link", name="meanwhile")).to_be_visible()
        expect(page.locator("#chart-table tbody")).to_contain_text("emails")
        expect(page.locator("#toast")).to_be_hidden()
        page.close()


def test_a_session_that_ended_leads_to_the_sign_in_and_back_to_the_view(
    browser, redis_url, tmp_path
):
    """A server that starts anew knows no session; nor does one after twelve hours."""
    token, line = new_token("reader", "read")
    (tmp_path / "tokens").write_text(line)

    def serve(address):
        settings = Settings(
            redis=redis_url, space="ended", http_addr=address, http_tokens=tmp_path / "tokens"
        )
        return HttpProcess(settings, redis_url=redis_url)

    def sign_in():
        expect(page.get_by_label("Token")).to_be_focused()
        page.keyboard.type(token)
        page.keyboard.press("Enter")
        expect(page.locator("#number-pending b")).to_have_text("0")
        assert page.url == view

    served = serve("127.0.0.1:0")
    view = f"{served.url}/?topic=orders&due_from=%2B1m"
    page = browser.new_page()
    page.goto(view)
    sign_in()
    served.close()
    again = serve(served.url.removeprefix("http://"))
    expect(page.get_by_role("alert")).to_contain_text("Your session has ended")
    sign_in()
    page.close()
    again.close()
