"""One schedule: its content, its life, its plan."""

import asyncio
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from axe_playwright_python.sync_playwright import Axe
from page_hands import say_yes, told
from pages import BUSY_MS, opened
from playwright.sync_api import expect
from servers import wait_until

from sendlater import Context, Handlers, Topics
from sendlater.dialects import names
from sendlater.model import Record

pytestmark = pytest.mark.story


def test_a_schedule_is_shown_whole(page, installation):
    value = '{"a": [1, {"b": null}], "big": 9007199254740993, "text": "<i>", "a": [], "a": 1.0}'
    with installation.scheduler() as s:
        s.send_later("emails", value, id="whole", delay=7_200, key="k", headers=[("h", b"<b>")])
    page.goto("/schedule?id=whole")
    expect(page.locator("#state")).to_have_text("pending")
    for name in ("emails", "k"):
        expect(page.locator("#facts")).to_contain_text(name)
    tree = page.locator("#payload .tree")
    expect(tree).to_contain_text("b: null")
    expect(tree).to_contain_text("big: 9007199254740993")
    expect(tree).to_contain_text("{5}a: [2]0: 11: {1}b: nullbig")
    expect(tree).to_contain_text('text: "<i>"a: [0]a: 1.0')
    page.get_by_role("button", name="text", exact=True).click()
    expect(page.locator("#payload pre")).to_have_text(value)
    page.get_by_role("button", name="hex").click()
    expect(page.locator("#payload")).to_contain_text("7b 22 61 22")
    expect(page.locator("#size")).to_have_text(f"{len(value)} bytes")
    expect(page.locator("#headers")).to_contain_text("<b>")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.path().read_text() == value


def test_what_hides_or_turns_others_around_is_seen_everywhere(browser, alone):
    """In key, headers and payload as in ids; the lines of a text stay lines."""
    text, turned = "a\u202eb\u200b\tc\r\nd\x07", "k\u202e "
    with alone.scheduler() as s:
        some = {"key": turned, "headers": [("x\u200b", turned.encode())]}
        s.send_later("emails", text, id="hid", delay=7_200, **some)
        s.send_later("emails", json.dumps({turned: text}, ensure_ascii=False), id="tree", delay=60)
    with opened(browser, alone) as page:
        page.goto("/?id_prefix=hid&columns=key,payload")
        row = page.locator("#schedules tbody tr")
        expect(row).to_contain_text("k\\u202e␣")
        expect(row).to_contain_text("a\\u202eb\\u200b")
        page.goto("/schedule?id=hid")
        expect(page.locator("#facts")).to_contain_text("k\\u202e␣")
        expect(page.locator("#headers")).to_contain_text("x\\u200bk\\u202e␣")
        expect(page.locator("#payload pre")).to_have_text("a\\u202eb\\u200b\tc\nd\\u0007")
        page.goto("/schedule?id=tree")
        expect(page.locator("#payload .tree")).to_contain_text('k\\u202e␣: "a\\u202eb')


def test_a_schedule_is_changed_and_its_life_is_told(page, installation):
    with installation.scheduler() as s:
        s.send_later("emails", json.dumps({"n": 1}), id="one", delay=7_200)
    page.goto("/schedule?id=one")
    page.get_by_label("new time").fill("+3h")
    page.get_by_role("button", name="Move to").click()
    say_yes(page)
    told(page, "moved")
    expect(page.locator("#life li").filter(has_text="moved")).to_contain_text("by adminer")
    page.get_by_role("button", name="Deliver now").click()
    say_yes(page)
    wait_until(lambda: installation.pending.get(b"one") is None, "it was delivered")

    def delivered():
        return page.request.get("/v1/deliveries?search=one").json()["items"]

    wait_until(delivered, "the lane told of it")
    page.reload()
    expect(page.locator("#life")).to_contain_text(re.compile(r"claimed\s*late by \d"))
    produced = page.locator("#life li").filter(has_text="produced")
    expect(produced).to_contain_text(re.compile(r"at emails-\d+@\d+, late by \d"))
    expect(page.locator("#state")).to_have_text("delivered")
    expect(page.locator("#payload .tree")).to_contain_text("n: 1")


def test_the_page_of_a_schedule_follows_it(page, installation):
    installation.send("followed", delay_s=20)
    page.goto("/schedule?id=followed")
    expect(page.locator("#state")).to_have_text("pending")
    expect(page.locator("#state")).to_have_text("delivered", timeout=BUSY_MS)
    expect(page.locator("#life li").filter(has_text="produced")).to_have_count(1)


def test_what_has_replaced_it_since_it_was_shown_stays(browser, alone):
    alone.send("replaced")
    with opened(browser, alone) as page:
        page.goto("/schedule?id=replaced")
        before = page.locator("#facts time").inner_text()
        for button in ("Cancel", "Deliver now", "Move to"):
            page.get_by_role("button", name=button).click()
            alone.send("replaced", delay_s=9_000)
            say_yes(page)
            told(page, "the schedule has changed since")
            expect(page.locator("#facts time")).not_to_have_text(before)
            before = page.locator("#facts time").inner_text()
        page.get_by_role("button", name="Cancel").click()
        say_yes(page)
        told(page, "Cancel: cancelled.")


def test_what_recurs_is_meant_as_a_whole_but_not_what_has_replaced_it(browser, alone):
    with alone.scheduler() as s:
        s.send_later("emails", "m", id="again", every="1h")
    with opened(browser, alone) as page:
        page.goto("/schedule?id=again")
        for button in ("Cancel", "Deliver now", "Pause", "Trigger"):
            page.get_by_role("button", name=button).click()
            with alone.scheduler() as s:
                s.send_later("emails", "m", id="again", every=f"{len(button)}h")
            say_yes(page)
            told(page, "the schedule has changed since")
            expect(page.locator("#plan")).to_contain_text(f"every {len(button)} h")
        page.get_by_role("button", name="Cancel").click()
        assert page.request.patch("/v1/schedules/again", data={"delay": "50m"}).ok
        say_yes(page)
        told(page, "Cancel: cancelled.")


@pytest.mark.parametrize("name", [".", ".."])
def test_an_id_that_no_path_can_carry_is_seen_and_cancelled(browser, alone, name):
    alone.send(name)
    with opened(browser, alone) as page:
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.locator("#state")).to_have_text("pending")
        page.get_by_role("button", name="Cancel").click()
        say_yes(page)
        told(page, "Cancel: cancelled.")
        expect(page.locator("#state")).to_have_text("cancelled")
        expect(page.locator("#facts")).to_contain_text(re.compile("ago.*bylocal$"))
        expect(page.locator("#facts")).not_to_contain_text("neither pending")


def test_the_life_tells_of_a_change_of_many(browser, alone):
    alone.send("group-0", "group-1", "group-2")
    with opened(browser, alone) as page:
        page.request.post("/v1/schedules:reschedule", data={"id_prefix": "group-", "shift": "1h"})
        page.request.post("/v1/schedules:cancel", data={"id_prefix": "group-"})
        page.goto("/schedule?id=group-1")
        expect(page.locator("#state")).to_have_text("cancelled")
        life = page.locator("#life li")
        expect(life).to_have_count(2)
        expect(life.nth(0)).to_contain_text("movedby local, with 2 more")
        expect(life.nth(1)).to_contain_text("cancelledby local, with 2 more")
        cancelled = page.request.get("/v1/audit").json()["items"][0]
        page.request.post(f"/v1/audit/{cancelled['id']}:undo")
        page.reload()
        expect(life).to_have_count(4)
        expect(life.nth(2)).to_contain_text("undoneby local, with 2 more")
        expect(page.locator("#state")).to_have_text("pending")


def test_what_has_expired_says_so_and_links_to_its_dead_letter(browser, alone):
    """As a lane writes it."""
    headers = [
        (names.REJECTED, b"expired"),
        (names.REJECTED_DETAIL, b"until noon"),
        (names.REJECTED_ID, b"too old"),
        (names.REJECTED_TARGET, b"emails"),
    ]
    with Topics(alone.redis_url, space=alone.settings.space) as topics:
        topics.create("dead-letters", 1)
        topics.produce(Record(topic="dead-letters", value=b"{}", headers=headers))
    with opened(browser, alone) as page:
        page.goto("/schedule?id=too+old")
        expect(page.locator("#state")).to_have_text("expired")
        expect(page.locator("#facts")).to_contain_text("until noon")
        expect(page.locator("#life li")).to_have_count(1)
        expect(page.locator("#life li")).to_contain_text("expired: until noon")
        page.locator("#life").get_by_role("link").click()
        expect(page.locator("#records tr[aria-current]")).to_contain_text("expired")


def test_a_recurring_schedule_shows_its_plan_and_its_next_times(browser, alone):
    """Around the spring night in Paris; an interval knows no daylight saving."""
    with alone.scheduler() as s:
        paris = {"zone": "Europe/Paris", "start": "2035-03-24T00:00:00Z"}
        s.send_later("reports", "m", id="nightly", cron="30 2 * * *", **paris)
        s.send_later("polls", "m", id="poll", every="63m", count=3)
        s.send_later("polls", "m", id="once", delay=7_200)
    with opened(browser, alone) as page:
        page.goto("/schedule?id=nightly")
        times = page.locator("#next li")
        expect(times).to_have_count(10)
        expect(page.locator("#plan")).to_contain_text(re.compile("30 2 .* Europe/Paris"))
        expect(page.locator("#plan")).to_contain_text("without end")
        expect(times.nth(0)).to_contain_text("2035-03-24 01:30:00.000Z")
        expect(times.nth(1)).to_contain_text("2035-03-25 03:00:00+02:00 Europe/Paris")
        expect(times.nth(1)).to_contain_text("the clock was set forward by 1:00:00")
        expect(page.locator("#next .note")).to_have_count(1)
        result = Axe().run(page)
        assert not result.violations_count, result.generate_report()
        page.goto("/schedule?id=poll")
        expect(times).to_have_count(3)
        expect(page.locator("#plan")).to_contain_text("every 1 h 3 min")
        expect(page.locator("#plan dd").nth(1)).to_have_text("3")
        expect(page.locator("#next .note")).to_have_count(0)
        page.goto("/schedule?id=once")
        expect(page.locator("#state")).to_have_text("pending")
        expect(page.locator("#plan-part")).to_be_hidden()
        expect(page.get_by_role("button", name="Pause")).to_have_count(0)


def test_a_recurring_schedule_is_paused_triggered_and_resumed(browser, alone):
    """While it is paused, one more can be sent."""

    def press(label, answer):
        page.get_by_role("button", name=label, exact=True).click()
        say_yes(page)
        told(page, f"{label}: {answer}.")

    with alone.scheduler() as s:
        s.send_later("rounds", "m", id="round", every="2h")
    with opened(browser, alone) as page:
        page.goto("/schedule?id=round")
        press("Pause", "paused")
        expect(page.locator("#plan")).to_contain_text("nothing is delivered until it is resumed")
        expect(page.locator("#facts")).to_contain_text("when it is resumed")
        expect(page.get_by_role("button", name="Deliver now")).to_have_count(0)
        expect(page.locator("#next li")).to_have_count(0)
        press("Trigger", "triggered")
        result = Axe().run(page)
        assert not result.violations_count, result.generate_report()
        page.goto("/?topic=rounds")
        expect(page.locator("#schedules tbody")).to_contain_text("paused")
        page.goto("/schedule?id=round")
        press("Resume", "resumed")
        expect(page.locator("#next li")).to_have_count(10)
        for verb in ("paused", "triggered", "resumed"):
            expect(page.locator("#life")).to_contain_text(verb)


def test_of_many_what_is_paused_stays_and_the_question_says_so(browser, alone):
    with alone.scheduler() as s:
        s.send_later("shifts", "m", id="shift", delay=18_000)
        s.send_later("shifts", "m", id="shifts", every="2h")
        assert s.pause("shifts")
    with opened(browser, alone) as page:
        page.goto("/?topic=shifts")
        page.get_by_label("how long").fill("1h")
        page.get_by_role("button", name="Shift all by").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Shift 1 schedule by 1h?")
        expect(dialog).to_contain_text("1 more is paused and stays as it is.")
        say_yes(page)
        told(page, "1 of 2 changed. 1 paused.")


def test_a_retry_says_which_attempt_it_is_and_what_failed_first(page, installation):
    """As a consumer produces it that could not handle what it got."""
    headers = [
        ("sendlater-retry", b"2h,3h"),
        ("scheduler-target-topic", b"emails"),
        ("sendlater-id", b"first-one"),
        ("sendlater-due", b"1796112000000"),
        ("retry-attempt", b"1"),
    ]
    with installation.scheduler() as s:
        s.broker.send(Record(topic="schedules", value=b"again and again", headers=headers))
        s.broker.flush()

    def its():
        items = page.request.get("/v1/schedules?topic=emails&due_to=%2B4h").json()["items"]
        return [one["id"] for one in items if one.get("value") == "again and again"]

    (schedule_id,) = wait_until(its, "intake has read it")
    page.goto(f"/schedule?id={schedule_id}")
    expect(page.locator("#facts")).to_contain_text("attempt3, first failed as first-one, all")
    expect(page.locator("#life li").last).to_contain_text("will be due, attempt 3")
    page.get_by_role("link", name="all attempts").click()
    expect(page).to_have_url(re.compile("/records.topic=emails&search=first-one"))


def test_the_life_of_an_event_that_failed_twice_does_not_contradict_itself(page, installation):
    """Both attempts have one id; each has its own record, and a link to what failed first."""
    app = Handlers(installation.settings, redis_url=installation.redis_url, group="twice")
    done = threading.Event()

    @app.on("orders.twice", retry="1ms,1ms")
    def twice(event, context: Context):
        if context.attempt < 3:
            raise ValueError(event)
        done.set()

    async def run():
        async with app:
            await app.enqueue("orders.twice", "e", id="r56")
            assert await asyncio.to_thread(done.wait, 60)

    with Topics(installation.redis_url, space="page") as topics:
        topics.create("orders.twice", 1)
        # As when intake is behind: what enqueues withdraws the next attempt, if there is one.
        topics.produce(Record(topic="schedules", key=b"retry:orders.twice:r56", value=None))
    with ThreadPoolExecutor() as pool:  # playwright has a loop in this thread
        pool.submit(asyncio.run, run()).result()

    def delivered():
        return (
            len(page.request.get("/v1/deliveries?id=retry:orders.twice:r56").json()["items"]) == 2
        )

    wait_until(delivered, "the lane told of both")
    page.goto("/schedule?id=retry:orders.twice:r56")
    expect(page.locator("#life b").first).to_have_text("cancelled, if there was one")
    produced = page.locator("#life li").filter(has_text="produced")
    expect(produced).to_have_count(2)
    expect(produced.nth(0)).to_contain_text("attempt 2")
    expect(produced.nth(1)).to_contain_text("attempt 3")
    places = produced.get_by_role("link").all_inner_texts()
    assert len(set(places)) == 2, places
    expect(page.locator("#facts")).to_contain_text("first failed as event:orders.twice:r56, all")
    page.get_by_role("link", name="event:orders.twice:r56").click()
    expect(page.locator("#state")).to_have_text("delivered")
