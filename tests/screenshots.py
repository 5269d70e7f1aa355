"""Pictures of the page for the documentation: `make screenshots`, of a service at work."""

import json
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from moving_picture import moving
from pages import Installation, chart_ready, chromium
from playwright.sync_api import Page, expect
from servers import ServiceProcess, own_redis, wait_until

from sendlater.config import Settings
from sendlater.dialects.names import EVENT_ERROR, EVENT_TYPE
from sendlater.model import Record, Schedule
from sendlater.server.process import HttpProcess

SIZE = {"width": 1440, "height": 1080}
SMALL = {"width": 1000, "height": 720}
HOUR_MS = 3_600_000
DAYS = 7
WEEK = 120_000
"""Schedules of the coming week."""
SPIKE = 30_000
"""Of a newsletter, Monday at nine."""
STEADY_PER_S = 20
BURST = 1_500
"""Due at one instant while the pictures are being prepared: a little later than the others."""
BURST_S = 120
STEADY_AFTER_S = 25
"""By then the store is filled."""
WARM_COUNT = 600
"""Delivered before the page is opened: what a new service delivers first is later than the rest."""
LIVE_S = 300
POINTS = 6
"""Of the last hour, before the pictures are taken: a minute and a half."""
TOPICS = {"reminders": 5, "invoices": 3, "orders.retry": 2, "emails": 4, "payments": 1}
BY_HOUR = (1, 1, 1, 1, 1, 2, 3, 5, 9, 12, 11, 9, 7, 8, 10, 10, 9, 8, 7, 6, 4, 3, 2, 1)


def coming(now_ms: int) -> Iterator[tuple[str, int]]:
    """Topic and due time of everything: a working week with days and nights, a spike on Monday, and
    what is delivered while somebody looks."""
    dice = random.Random(7)
    names, shares = list(TOPICS), list(TOPICS.values())
    hours = [now_ms // HOUR_MS + n for n in range(1, DAYS * 24)]
    weights = [BY_HOUR[hour % 24] for hour in hours]
    for hour in dice.choices(hours, weights, k=WEEK):
        yield dice.choices(names, shares)[0], hour * HOUR_MS + dice.randrange(HOUR_MS)
    today = datetime.fromtimestamp(now_ms / 1_000, UTC)
    monday = today + timedelta(days=(0 - today.weekday()) % 7 or 7)
    nine_ms = int(monday.replace(hour=9, minute=0, second=0, microsecond=0).timestamp() * 1_000)
    for n in range(SPIKE):
        yield "newsletter", nine_ms + n % 1_000
    began_ms = now_ms + STEADY_AFTER_S * 1_000
    for n in range(STEADY_PER_S * LIVE_S):
        yield dice.choices(names, shares)[0], began_ms + n * 1_000 // STEADY_PER_S
    for _ in range(BURST):
        yield "newsletter", now_ms + BURST_S * 1_000


def fill(here: Installation) -> None:
    """Straight into the store, and three dead letters."""
    now_ms = int(datetime.now(UTC).timestamp() * 1_000)
    here.park(_orders(now_ms))
    headers = [(EVENT_TYPE, b"invoices"), (EVENT_ERROR, b"ValueError: no account 4711")]
    record = Record(topic="dead-letters", value=b'{"customer": 4711}', headers=headers)
    here.pending.put(Schedule(id=b"dead:1", due_ms=now_ms, record=record))


def _orders(now_ms: int) -> Iterator[Schedule]:
    for n, (topic, due_ms) in enumerate(coming(now_ms)):
        value = json.dumps({"customer": 4_000 + n % 977, "amount": n % 250}).encode()
        record = Record(topic=topic, value=value, headers=[("CALLER_SERVICE", b"shop")])
        yield Schedule(id=f"{topic}-{n:06}".encode(), due_ms=due_ms, record=record)


def one_with_a_life(here: Installation, page: Page) -> None:
    """Sent, sent again with another amount, moved by somebody."""
    order = {
        "order": 4711,
        "customer": {"id": 1207, "name": "Ada"},
        "amount": 80,
        "currency": "EUR",
    }
    headers = [
        ("sendlater-delay", b"26h"),
        ("scheduler-target-topic", b"reminders"),
        ("CALLER_SERVICE", b"shop"),
        ("trace", b"9f3c21"),
    ]
    with here.scheduler() as scheduler:
        for amount in (80, 95):
            value = json.dumps({**order, "amount": amount}).encode()
            sent = Record(topic="schedules", key=b"order-4711", value=value, headers=headers)
            scheduler.broker.send(sent)
            scheduler.broker.flush()
            wait_until(lambda value=value: stands(here, value), "it is pending")
    page.request.patch(f"{here.url}/v1/schedules/order-4711", data={"delay": "30h"})


def stands(here: Installation, value: bytes) -> bool:
    """Whether this version is pending."""
    found = here.pending.get(b"order-4711")
    return found is not None and found.record.value == value


def pictures(page: Page, url: str, directory: Path) -> None:
    """Overview in both themes, timeline with a selection, one schedule, a phone."""
    page.goto(url)
    chart_ready(page)
    expect(page.get_by_role("heading", level=1)).to_contain_text("On time")
    expect(page.locator("#number-pending .line")).to_be_attached()
    page.screenshot(path=directory / "overview.png")
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=directory / "overview-dark.png")
    page.emulate_media(color_scheme="light")
    box = page.locator("#chart").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.3, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=5)
    page.mouse.up()
    expect(page).to_have_url(re.compile("due_from="))
    page.mouse.move(box["x"] + box["width"] * 0.4, middle)
    page.locator("#timeline").screenshot(path=directory / "timeline.png")
    page.goto(f"{url}/schedule?id=order-4711")
    page.locator("#versions .diff").wait_for()
    page.screenshot(
        path=directory / "detail.png", clip={"x": 0, "y": 0, "width": 1440, "height": 720}
    )
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(url)
    chart_ready(page)
    page.screenshot(path=directory / "phone.png")


def moving_picture(page: Page, url: str) -> bytes:
    """Drag over Monday's spike, spread it over an hour, undo."""
    page.set_viewport_size(SMALL)
    page.goto(url)
    chart_ready(page)
    frames: list[tuple[bytes, int]] = []

    def shot(shown_ms: int) -> None:
        frames.append((page.screenshot(), shown_ms))

    shot(1_500)
    box = page.locator("#chart").bounding_box()
    spike = page.locator("#chart [data-topic=newsletter]").bounding_box()
    assert box is not None
    assert spike is not None
    page.mouse.move(spike["x"] - 40, box["y"] + 120)
    page.mouse.down()
    for step in range(4):
        page.mouse.move(spike["x"] - 40 + step * 24, box["y"] + 120)
        shot(120)
    page.mouse.up()
    expect(page.locator("#bulk")).to_be_visible()
    shot(1_200)
    page.get_by_role("button", name="Zoom to selection").click()
    expect(page.get_by_role("button", name="Zoom out")).to_be_visible()
    shot(1_200)
    page.get_by_role("button", name="Spread all over").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    shot(2_000)
    page.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("status")).to_contain_text("changed")
    expect(page.locator("#schedules[aria-busy]")).to_have_count(0)
    shot(2_000)
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("status")).to_contain_text("undone")
    expect(page.locator("#schedules[aria-busy]")).to_have_count(0)
    shot(1_500)
    return moving(frames)


def main(directory: Path) -> None:
    """Start a service, give it a week of work, wait a little, and look at it."""
    directory.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp())
    with own_redis(place) as redis, chromium() as browser:
        service = ServiceProcess(place, redis=redis.url, space="pictures")
        with service.start():
            here = Installation("", redis.url, "pictures", {})
            fill(here)
            wait_until(
                lambda: delivered(here) > WARM_COUNT, "the service is warm", timeout_s=LIVE_S
            )
            settings = Settings(
                redis=redis.url,
                space="pictures",
                http_addr="127.0.0.1:0",
                http_badge="production",
            )
            served = HttpProcess(settings, redis_url=redis.url)
            here.url = served.url
            page = browser.new_page(viewport=SIZE)
            one_with_a_life(here, page)

            def points() -> bool:
                found = page.request.get(f"{here.url}/v1/trend").json()["at_ms"]
                return len(found) >= POINTS

            wait_until(points, "there is something to see", timeout_s=LIVE_S)
            pictures(page, here.url, directory)
            (directory / "act.png").write_bytes(moving_picture(page, here.url))
            served.close()


def delivered(here: Installation) -> int:
    """How many have been delivered."""
    return sum(n for name, n in here.admin.tally().items() if name.startswith("delivered:"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
