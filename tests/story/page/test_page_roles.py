"""Who may do what, and that nobody else can."""

import re

import pytest
from page_hands import search, settings
from pages import opened
from playwright.sync_api import expect
from servers import wait_until

from sendlater.model import Record, Schedule

pytestmark = pytest.mark.story


def test_a_reader_looks_and_changes_nothing(browser, installation):
    with opened(browser, installation, "read") as page:
        expect(page.locator("#schedules tbody tr")).to_have_count(50)
        assert page.get_by_role("button", name="Cancel all").count() == 0
        expect(page.locator("#schedules tbody")).to_contain_text("(hidden)")
        page.goto("/schedule?id=emails-000000")
        expect(page.locator("#payload-part")).to_contain_text("hidden for this role")
        assert page.get_by_role("button", name="Cancel").count() == 0
        told = page.evaluate(
            "fetch('/v1/schedules/emails-000000', {method: 'DELETE'}).then(a => a.status)"
        )
        assert told == 403
        shown = page.evaluate("fetch('/v1/schedules/emails-000000').then(a => a.json())")
        assert not {"value", "headers", "key"} & shown.keys()


def test_the_page_brings_nobody_more_than_rest_would_tell(browser, installation):
    """The first answers are in its HTML."""
    with opened(browser, installation) as page:
        wait_until(lambda: '"value":' in page.goto("/").text(), "its answers come with it")
    with opened(browser, installation, "read") as page:
        wait_until(lambda: '"topic":"emails"' in page.goto("/").text(), "its answers come too")
        told = page.goto("/").text()
        assert not re.search('"(value|headers|key)":', told)
    context = browser.new_context(base_url=installation.url)
    answer = context.request.get("/", headers={"accept": "text/html"})
    assert answer.url.endswith("/sign-in")
    assert "emails" not in answer.text()
    context.close()


def test_a_writer_changes_one_and_not_many(browser, installation):
    with opened(browser, installation, "write") as page:
        expect(page.locator("#schedules tbody tr")).to_have_count(50)
        assert page.get_by_role("button", name="Cancel all").count() == 0
        page.goto("/schedule?id=emails-000000")
        expect(page.get_by_role("button", name="Cancel")).to_be_visible()


def test_only_a_known_token_signs_in(browser, installation):
    context = browser.new_context(base_url=installation.url)
    page = context.new_page()
    page.goto("/audit")
    page.get_by_label("Token").fill("guess")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("This token is not known.")
    page.get_by_label("Token").fill(installation.tokens["read"])
    page.get_by_role("button", name="Sign in").click()
    cookie = context.cookies()[0]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    settings(page).get_by_role("button", name="Sign out").click()
    page.goto("/")
    expect(page).to_have_url(re.compile("/sign-in$"))
    context.close()


@pytest.mark.parametrize("which", ["installation", "alone"])
def test_a_page_of_somebody_else_can_do_nothing(browser, which, request):
    """Neither with the cookie of who is signed in, nor where no token is asked for."""
    here = request.getfixturevalue(which)
    here.pending.put(Schedule(id=b"kept", due_ms=here.noon_ms, record=Record(topic="t", value=b"")))
    with opened(browser, here) as page:
        page.goto("/sign-in")  # no live numbers that would be asked for meanwhile
        other = page.context.new_page()
        other.route("http://elsewhere.test/", lambda route: route.fulfill(body="<h1>hello</h1>"))
        other.goto("http://elsewhere.test/")
        with other.expect_response(f"{here.url}/v1/schedules:cancel") as answer:
            other.evaluate(
                """url => {
                    const form = document.createElement('form');
                    form.method = 'POST';
                    form.action = url + '/v1/schedules:cancel';
                    document.body.append(form);
                    form.submit();
                }""",
                here.url,
            )
        refused = answer.value
        assert refused.status == 403 or refused.headers["location"] == "/sign-in"
        assert here.pending.get(b"kept") is not None


def test_no_script_but_ours_runs(browser, installation):
    """Ids and payloads are text, whatever is in them; the policy would stop them anyhow."""
    name = "</script><!--<script><img src=x onerror='window.hit=1'>"
    with installation.scheduler() as s:
        s.send_later("emails", name, id=name, delay=60_000, headers=[("<script>", b"x")])
    with opened(browser, installation) as page:
        policy = page.goto("/").headers["content-security-policy"]
        as_data = r"\u003c/script>\u003c!--\u003cscript>"
        wait_until(lambda: as_data in page.goto("/").text(), "its answers come with it")
        expect(page.get_by_role("link", name=name)).to_be_visible()
        assert "unsafe" not in policy
        assert "sha256" not in policy
        assert "http" not in policy
        assert re.match("default-src 'none'; script-src 'self'; ", policy)
        search(page, f'id:"{name}"')
        page.get_by_role("link", name=name).click()
        expect(page.locator("#one")).to_have_text(name)
        expect(page.locator("#payload")).to_contain_text(name)
        assert page.evaluate("window.hit") is None
