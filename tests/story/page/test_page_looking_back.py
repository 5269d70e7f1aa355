"""Deliveries, rejected records and dead letters, and sending them again."""

import re

import pytest
from page_hands import say_yes, told
from pages import BUSY_MS, HOUR_MS
from playwright.sync_api import expect
from servers import wait_until

from sendlater.dialects.names import EVENT_ERROR, EVENT_TYPE
from sendlater.model import Record, Schedule

pytestmark = pytest.mark.story


def test_a_delivery_is_found_in_the_history_and_sent_again(page, installation):
    with installation.scheduler() as s:
        s.send_later("emails", "m", id="sent-again", delay=0)

    def deliveries(topic):
        found = page.request.get("/v1/deliveries?search=emails&limit=1000").json()["items"]
        return [one["id"] for one in found if one["topic"] == topic]

    wait_until(lambda: "sent-again" in deliveries("emails"), "the lane told of it", timeout_s=90)
    page.goto("/history?search=sent-again")
    row = page.locator("#deliveries tbody tr")
    expect(row).to_have_count(1)
    row.get_by_role("checkbox").check()
    before = len(deliveries("emails"))
    page.get_by_role("button", name="Redrive selected").click()
    say_yes(page)
    told(page, "1 redriven")
    wait_until(lambda: len(deliveries("emails")) > before, "it was delivered again")


def test_a_selection_stays_when_an_older_question_is_answered_after_it(page, installation):
    with installation.scheduler() as s:
        s.send_later("emails", "m", id="kept", delay=0)
    page.goto("/history?search=kept")
    box = page.locator("#deliveries tbody tr").get_by_role("checkbox")
    expect(box).to_have_count(1, timeout=BUSY_MS)
    held = []
    page.route("**/v1/deliveries?*", lambda route: held.append(route))
    with page.expect_request("**/v1/deliveries?*", timeout=30_000):
        """The page asks again by itself, at the next numbers."""
    box.check()
    with page.expect_response("**/v1/deliveries?*") as answer:
        for route in held:
            route.continue_()
    answer.value.finished()
    page.evaluate("new Promise((done) => setTimeout(done))")
    expect(box).to_be_checked()


def test_a_rejected_record_is_found_with_its_reason_and_sent_again(page, installation):
    with installation.scheduler() as s:
        s.broker.send(Record(topic="schedules", key=b"bad", value=b"no time given"))
        s.broker.flush()

    def listed():
        return page.request.get("/v1/records?search=no+time").json()["items"]

    wait_until(listed, "it is on the rejected topic", timeout_s=90)
    page.goto("/rejected?search=no+time")
    row = page.locator("#records tbody tr").first
    expect(row).to_contain_text("no-time")
    row.get_by_role("checkbox").check()
    page.get_by_label("target topic").fill("mended")
    page.get_by_role("button", name="Redrive selected").click()
    say_yes(page)
    told(page, "1 redriven")

    def arrived():
        return any(one.topic == "mended" for one in installation.admin.recent(count_max=1_000))

    wait_until(arrived, "it was delivered to the topic given")
    page.goto("/")
    expect(page.locator("#vital-rejected b")).to_have_text("1")


def test_dead_letters_say_why_and_go_back_to_their_handlers(page, installation):
    """As handlers write them: what it was about, and why the last attempt failed."""
    headers = [(EVENT_TYPE, b"invoices"), (EVENT_ERROR, b"ValueError: no account")]
    now_ms = installation.noon_ms - 26 * HOUR_MS
    for n in range(3):
        record = Record(topic="dead-letters", value=b"%d" % n, headers=headers)
        installation.pending.put(Schedule(id=b"dead:%d" % n, due_ms=now_ms, record=record))
    ours = "/v1/records?topic=dead-letters&search=no+account"
    expect(page.locator("#vital-dead b")).to_have_text("3")
    wait_until(
        lambda: len(page.request.get(ours).json()["items"]) == 3,
        "they are on their topic",
    )
    page.get_by_role("link", name="Dead letters").click()
    page.get_by_role("searchbox").fill("no account")
    with page.expect_response("**/v1/records?*search=no*") as answer:
        page.keyboard.press("Enter")
    answer.value.finished()
    expect(page).to_have_url(re.compile("search=no"))
    page.evaluate("new Promise((done) => setTimeout(done))")
    rows = page.locator("#records tbody tr")
    expect(rows.filter(has_text="ValueError: no account")).to_have_count(3)
    expect(rows).to_have_count(3)
    page.get_by_label("all shown").check()
    page.get_by_role("button", name="Redrive selected").click()
    say_yes(page)
    told(page, "3 redriven")

    def back():
        deliveries = installation.admin.recent(count_max=1_000)
        return sum(one.topic == "invoices" for one in deliveries) == 3

    wait_until(back, "they are with their handlers")
