"""The page in a real browser, and much that is pending: for tests, measurements and pictures."""

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any

from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Request,
    expect,
    sync_playwright,
)
from servers import tool

from sendlater.client.scheduler import Scheduler
from sendlater.config import Settings
from sendlater.model import Record, Schedule
from sendlater.store import Admin, Pending
from sendlater.store.codec import pack

COUNT = 200_000
HOUR_MS = 3_600_000
PARKED_AT_ONCE = 500
TIMEOUT_MS = 30_000
BUSY_MS = 90_000
"""Deliveries may take this long on a machine that runs much else."""
ASKING = "/?log="
"""The overview as by itself; but with anything in its address it asks for all it shows, so that a
test can answer."""
ANSWERS = re.compile("status of (40|412|422)")
"""What a browser tells of answers that some tests ask for: 400, 403, 404, 412 and 422."""
expect.set_options(timeout=TIMEOUT_MS)


class Installation:
    """REST and the page, their store, their tokens."""

    def __init__(self, url: str, redis_url: str, space: str, tokens: dict[str, str]) -> None:
        self.url, self.redis_url, self.tokens = url, redis_url, tokens
        self.sessions: dict[str, Any] = {}
        self.settings = Settings(redis=redis_url, space=space)
        self.pending = Pending.open(redis_url, space=space, shards=self.settings.shards)
        self.admin = Admin(self.pending)
        self.noon_ms = (time.time_ns() // 1_000_000 // HOUR_MS + 24) * HOUR_MS

    def scheduler(self) -> Scheduler:
        """A client of the installation."""
        return Scheduler(self.settings, redis_url=self.redis_url)

    def send(self, *ids: str, delay_s: float = 7_200) -> None:
        """A message for `emails` under each of these ids, due in two hours."""
        with self.scheduler() as scheduler:
            for name in ids:
                scheduler.send_later("emails", "m", id=name, delay=delay_s)

    def fill(self, count: int = COUNT) -> None:
        """Half an even stream over two days, half a spike within one minute, tomorrow; every tenth
        has a caller."""
        self.park(self._stream_and_spike(count))

    def _stream_and_spike(self, count: int) -> Iterator[Schedule]:
        step_ms = 2 * 48 * HOUR_MS // count
        for n in range(count):
            even = n % 2 == 0
            topic = "emails" if even else "orders"
            headers = [("CALLER_SERVICE", b"shop")] if n % 10 == 0 else []
            yield Schedule(
                id=f"{topic}-{n:06}".encode(),
                due_ms=self.noon_ms + (n // 2 * step_ms if even else n % 60_000),
                record=Record(topic=topic, value=b'{"n": %d}' % n, headers=headers),
            )

    def park(self, schedules: Iterable[Schedule]) -> None:
        """Straight into the store: seconds for a hundred thousand."""
        rows: dict[int, list[object]] = {shard.number: [] for shard in self.pending.shards}
        for one in schedules:
            shard = self.pending.shard_of(one.id)
            some = rows[shard.number]
            some += (one.id, one.due_ms, pack(one))
            if len(some) >= 3 * PARKED_AT_ONCE:
                shard.park(some)
                some.clear()
        for shard in self.pending.shards:
            shard.park(rows[shard.number])


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=tool("chromium"), args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Browser, installation: Installation, role: str = "admin", **more: Any
) -> Iterator[Page]:
    """A signed-in browser window; nothing may be asked of another host, no script may fail, and
    nothing be refused by the content security policy."""
    session = installation.sessions.get(role)
    context = browser.new_context(base_url=installation.url, storage_state=session, **more)
    page = context.new_page()
    elsewhere: list[str] = []
    faults: list[str] = []

    def asked(request: Request) -> None:
        if not request.url.startswith((installation.url, "data:", "blob:")):
            elsewhere.append(request.url)

    def told(message: ConsoleMessage) -> None:
        if message.type == "error" and not ANSWERS.search(message.text):
            faults.append(message.text)

    page.on("request", asked)
    page.on("console", told)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto("/")
    if installation.tokens and session is None:
        expect(page).to_have_url(re.compile("/sign-in$"))
        page.get_by_label("Token").fill(installation.tokens[role])
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#who")).to_be_visible()
        installation.sessions[role] = context.storage_state()
    expect(page.locator("#who")).to_be_visible()
    yield page
    context.close()
    assert not elsewhere
    assert not faults


def script(page: Page, name: str) -> str:
    """The address at which one of the page's scripts is by itself, for tests that import it."""
    file = resources.files("sendlater.server.page") / "static" / f"{name}.js"
    page.route(
        f"**/{name}.js*",
        lambda route: route.fulfill(body=file.read_bytes(), content_type="text/javascript"),
    )
    shared = page.locator("link[href$='/shared.js']").get_attribute("href")
    assert shared is not None
    return shared.replace("shared.js", f"{name}.js")


def chart_ready(page: Page) -> None:
    """Until the timeline is drawn."""
    expect(page.locator("#chart[data-ready]")).to_be_attached()
    expect(page.locator("#chart-table tbody tr")).not_to_have_count(0)


MARKS = """() => {
  const at = (name) => performance.getEntriesByName(name)[0]?.startTime;
  return { answered: performance.getEntriesByType("navigation")[0].responseEnd,
    painted: at("first-contentful-paint"), numbers: at("numbers-shown"),
    table: at("table-shown"), timeline: at("timeline-drawn") };
}"""


def weight_bytes(page: Page) -> int:
    """Everything that the page has loaded, unpacked."""
    found: int = page.evaluate(
        """() => [...performance.getEntriesByType('navigation'),
            ...performance.getEntriesByType('resource')]
            .reduce((sum, one) => sum + one.decodedBodySize, 0)"""
    )
    return found


def first_view_ms(page: Page) -> dict[str, float]:
    """Milliseconds from asking for the overview until it was painted, numbers were there, rows,
    and the timeline was drawn."""
    chart_ready(page)
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
    found: dict[str, float] = page.evaluate(MARKS)
    return found
