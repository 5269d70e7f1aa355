"""Select, then act on many, and take it back."""

import re

import pytest
from page_hands import drag, say_yes, search, settings, told, undo_last
from pages import HOUR_MS
from playwright.sync_api import expect
from servers import wait_until

pytestmark = pytest.mark.story


def test_dragging_over_the_timeline_filters_the_table(page):
    drag(page)
    expect(page.locator("#schedules tbody tr")).to_have_count(50)
    page.get_by_role("button", name="Clear selection").click()
    expect(page).not_to_have_url(re.compile("due_from="))


def test_a_span_says_how_many_are_in_it_until_it_is_dropped(page):
    """Also after a reload and in another range, where no bar begins with it; escape drops it."""
    drag(page)
    told_now = page.locator("#bulk-what")
    expect(told_now).to_have_text(re.compile(r"^[\d,]+ in the selected span$"))
    before = told_now.inner_text()
    page.goto(page.url + "&range=year")
    expect(told_now).to_have_text(before)
    expect(page.locator("#chart .brush")).to_be_attached()
    settings(page)
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile("due_from="))
    page.get_by_role("checkbox", name="select emails").first.check()
    expect(told_now).to_have_text("1 selected")
    page.keyboard.press("Escape")
    expect(told_now).to_have_text(before)
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("due_from="))
    expect(page.locator("#bulk")).to_be_hidden()
    expect(page.locator("#chart .brush")).not_to_be_attached()


def test_a_selection_is_shifted_after_a_dry_run_and_undone_from_the_audit_trail(page, installation):
    page.goto("/?id_prefix=orders-000")
    before = installation.pending.get(b"orders-000001").due_ms
    page.get_by_label("how long").fill("2h")
    page.get_by_role("button", name="Shift all by").click()
    expect(page.get_by_role("dialog")).to_contain_text("Shift 500 schedules by 2h?")
    expect(page.get_by_role("dialog")).to_contain_text("500 schedules will be due 2h later")
    page.get_by_role("button", name="Back").click()
    assert installation.pending.get(b"orders-000001").due_ms == before, "nothing before a yes"
    page.get_by_role("button", name="Shift all by").click()
    say_yes(page)
    told(page, "500 of 500 changed")
    assert installation.pending.get(b"orders-000001").due_ms == before + 2 * HOUR_MS
    page.get_by_role("link", name="Audit").click()
    first = page.locator("#audit tbody tr").first
    expect(first).to_contain_text("adminer")
    expect(first).to_contain_text("shift")
    expect(first).to_contain_text('"id_prefix":"orders-000"')
    undo_last(page)
    told(page, "500 of 500 undone")
    assert installation.pending.get(b"orders-000001").due_ms == before


def test_a_filter_that_is_typed_but_not_entered_changes_nothing(page, installation):
    """It may look as if what was typed were cancelled, and what is shown would be."""
    page.goto("/?id_prefix=orders-000")
    field = page.get_by_role("combobox")
    field.fill("id:orders-0001*")
    page.get_by_role("button", name="Cancel all").click()
    told(page, "What is typed in the filter is not what is shown")
    expect(page.get_by_role("dialog")).to_be_hidden()
    field.press("Enter")
    expect(page).to_have_url(re.compile("id_prefix=orders-0001"))
    page.get_by_role("button", name="Cancel all").click()
    expect(page.get_by_role("dialog")).to_contain_text("Cancel 50 schedules?")
    page.get_by_role("button", name="Back").click()
    assert installation.pending.get(b"orders-000101") is not None


def test_what_has_replaced_a_selected_one_stays(page, installation):
    """Whoever selected it has not seen what it is now."""
    installation.send("renewed-a", "renewed-b")
    with installation.scheduler() as s:
        for name in ("renewed-c", "renewed-d"):
            s.send_later("emails", "m", id=name, every="3h")
    page.goto("/?id_prefix=renewed-")
    page.get_by_role("checkbox", name="select all shown").check()
    expect(page.locator("#bulk-what")).to_have_text("4 selected")
    installation.send("renewed-b", "renewed-c", delay_s=9_000)
    assert page.request.patch("/v1/schedules/renewed-d", data={"delay": "2h"}).ok
    page.get_by_role("button", name="Cancel all").click()
    say_yes(page)
    told(page, "2 of 4 changed. 2 had been changed since they were selected.")
    left = [name for name in "abcd" if installation.pending.get(b"renewed-" + name.encode())]
    assert left == ["b", "c"], "what recurs is another version each time, and the same"
    expect(page.locator("#schedules tbody tr")).to_have_count(2)


def test_a_change_that_meets_more_than_was_told_asks_again(page, installation):
    """Others come while one reads the question, and `due:<4h` moves with the time."""
    installation.send("more\n0", "more\n1")
    page.goto("/?id_prefix=more%0A")
    page.get_by_role("button", name="Cancel all").click()
    expect(page.get_by_role("dialog")).to_contain_text("Cancel 2 schedules?")
    installation.send("more\n2")
    wait_until(lambda: installation.pending.get(b"more\n2"), "it is pending")
    say_yes(page)
    expect(page.get_by_role("dialog")).to_contain_text("Cancel 3 schedules?")
    expect(page.get_by_role("dialog")).to_contain_text("Chosen: id:")
    say_yes(page)
    told(page, "3 of 3 changed")


def test_the_question_names_what_was_chosen_not_what_was_entered_meanwhile(page):
    asked = []
    page.goto("/?id_prefix=orders-0001")
    page.route("**/v1/schedules:cancel", lambda route: asked.append(route))
    page.get_by_role("button", name="Cancel all").click()
    wait_until(lambda: page.evaluate("1") and asked, "it asks how many")
    search(page, "id:emails-00*")
    expect(page).to_have_url(re.compile("id_prefix=emails-00"))
    asked[0].continue_()
    expect(page.get_by_role("dialog")).to_contain_text("Chosen: id:orders-0001*")
    page.get_by_role("button", name="Back").click()


def test_what_an_earlier_time_cannot_take_back_is_told(page):
    page.goto("/?id_prefix=orders-000")
    page.get_by_label("how long").fill("-2h")
    page.get_by_role("button", name="Shift all by").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("500 schedules will be due 2h earlier. What is due sooner")
    expect(dialog).to_contain_text("is delivered at once, and cannot be undone")
    page.get_by_role("button", name="Back").click()
    for nothing in ("0", "-0s", ""):
        page.get_by_label("how long").fill(nothing)
        page.get_by_role("button", name="Shift all by").click()
        told(page, "Expected how long to shift")


def test_many_of_one_caller_are_cancelled_and_come_back(page, installation):
    page.goto("/?id_prefix=emails-010&topic=emails&caller=shop")
    page.get_by_role("button", name="Cancel all").click()
    say_yes(page)
    told(page, "100 of 100 changed")
    assert installation.pending.get(b"emails-010000") is None
    assert installation.pending.get(b"emails-010002") is not None, "of nobody"
    undo_last(page)
    told(page, "100 of 100 undone")
    assert installation.pending.get(b"emails-010000") is not None


def test_a_spike_is_spread_over_an_hour(page, installation):
    page.goto("/?id_prefix=orders-010")
    page.get_by_label("how long").fill("0")
    page.get_by_role("button", name="Spread all over").click()
    told(page, "Expected how long to spread, such as 1h, got 0")
    page.get_by_label("how long").fill("1h")
    page.get_by_role("button", name="Spread all over").click()
    say_yes(page)
    told(page, "500 of 500 changed")
    due = [installation.pending.get(b"orders-010%03d" % n).due_ms for n in range(1, 1_000, 2)]
    assert 50 * 60_000 < max(due) - min(due) < HOUR_MS
    undo_last(page)
    told(page, "500 of 500 undone")


def test_what_is_delivered_now_is_gone_for_good(page, installation):
    installation.send("hasty-0", "hasty-1", "hasty-2")
    page.goto("/?id_prefix=hasty-")
    page.get_by_role("button", name="Deliver all now").click()
    expect(page.get_by_role("dialog")).to_contain_text("Deliver 3 schedules now?")
    say_yes(page)
    told(page, "3 of 3 changed")
    wait_until(lambda: installation.pending.get(b"hasty-0") is None, "it was delivered")
    page.goto("/audit")
    first = page.locator("#audit tbody tr").first
    expect(first).to_contain_text("deliver-now")
    assert first.get_by_role("button").count() == 0, "nothing brings it back"
