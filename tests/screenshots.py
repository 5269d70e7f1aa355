"""Pictures of the page for the documentation: `make screenshots`, of a service at work."""

import asyncio
import json
import random
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
from moving_picture import moving
from pages import Installation, chart_ready, chromium
from playwright.sync_api import Page, expect
from servers import ServiceProcess, own_redis, wait_until

from sendlater import Dead, Handlers
from sendlater.config import Settings
from sendlater.dialects.recurrence import make_plan
from sendlater.model import Record, Schedule
from sendlater.server.process import HttpProcess

SIZE = {"width": 1440, "height": 1080}
SMALL = {"width": 1000, "height": 720}
HOUR_MS = 3_600_000
DAYS = 9
WEEK = 120_000
"""Schedules of the coming days."""
RECURRING = 6_000
SPIKE = 30_000
"""Of a newsletter, Monday at nine."""
STEADY_PER_S = 20
BURST = 500
"""Due at one instant, every two minutes: a little later than the others."""
BURST_S = 120
STEADY_AFTER_S = 25
"""By then the store is filled."""
WARM_COUNT = 600
"""Delivered before the page is opened: what a new service delivers first is later than the rest."""
LIVE_S = 900
POINTS = 8
"""Of the last hour, before the pictures are taken: two minutes."""
P99_MS_MAX = 300
"""The pictures show an installation on time: on a busy machine, they wait for it."""
TRIES = 5
FAULTY = 4_037
"""A customer whose invoices fail."""
TOPICS = {"reminders": 5, "invoices": 3, "orders.retry": 2, "emails": 4, "payments": 1}
BY_HOUR = (1, 1, 1, 1, 1, 2, 3, 5, 9, 12, 11, 9, 7, 8, 10, 10, 9, 8, 7, 6, 4, 3, 2, 1)


def coming(now_ms: int) -> Iterator[tuple[str, int]]:
    """Topic and due time of everything: days and nights, a spike on Monday, and what is delivered
    while somebody looks."""
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
    for n in range(BURST * (LIVE_S // BURST_S)):
        yield "reminders", now_ms + (1 + n // BURST) * BURST_S * 1_000


def fill(here: Installation) -> None:
    """Straight into the store."""
    now_ms = int(datetime.now(UTC).timestamp() * 1_000)
    here.park(_orders(now_ms))
    here.park(_reports(now_ms))


def _reports(now_ms: int) -> Iterator[Schedule]:
    dice = random.Random(8)
    for n in range(RECURRING):
        id = f"report-{n:04}".encode()
        plan = make_plan(now_ms=now_ms, every_ms=dice.randrange(HOUR_MS, DAYS * 24 * HOUR_MS))
        record = Record(topic="reports", value=b"{}")
        yield Schedule(id=id, due_ms=plan.due_ms(id), record=record, plan=plan.text)


@contextmanager
def handlers(here: Installation) -> Iterator[None]:
    """A worker that handles what is delivered, and cannot handle the invoices of one customer."""
    app = Handlers(here.settings, redis_url=here.redis_url, group="billing")

    async def handle(event: dict[str, int]) -> None:
        if event["customer"] == FAULTY:
            raise Dead(f"no account {FAULTY}")
        if event["customer"] % 50 == 0:
            raise ValueError("the provider does not answer")

    for topic in ("invoices", "payments", "orders.retry"):
        app.on(topic, parallelism=4, retry="30s,2m")(handle)

    async def work() -> None:
        async with app:
            await asyncio.to_thread(over.wait)

    over = threading.Event()
    worker = threading.Thread(target=lambda: asyncio.run(work()))
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()


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
            wait_until(lambda value=value: stands(here, value), "it is pending", timeout_s=LIVE_S)
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
    page.goto(f"{url}/running")
    expect(page.locator("#services tbody tr")).to_contain_text(["active", "stands by"])
    expect(page.locator("#handlers tbody tr")).to_have_count(3)
    page.screenshot(
        path=directory / "running.png", clip={"x": 0, "y": 0, "width": 1440, "height": 720}
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


def calm(settings: Settings) -> HttpProcess:
    """REST, started again until what it has seen was on time."""
    for _ in range(TRIES):
        served = HttpProcess(settings, redis_url=settings.redis.get_secret_value())
        with httpx2.Client(base_url=served.url) as client:

            def seen(client: httpx2.Client = client) -> bool:
                return len(client.get("/v1/trend").json()["at_ms"]) >= POINTS

            wait_until(seen, "there is something to see", timeout_s=LIVE_S)
            late_ms = client.get("/v1/stats").json()["late_hour_ms"]["p99"]
        if late_ms is not None and late_ms <= P99_MS_MAX:
            return served
        served.close()
    raise AssertionError(f"never on time: {late_ms} ms; other programs may keep this machine busy")


def main(directory: Path) -> None:
    """Start a service and one that stands by, give them days of work and a worker, wait until all
    is calm, and look at it."""
    directory.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp())
    with own_redis(place) as redis, chromium() as browser:
        known = {"redis": redis.url, "space": "pictures"}
        limits = {"sms": {"per_second": 50, "burst": 100}}
        told = known | {"limits": json.dumps(limits)}
        other = place / "other"
        other.mkdir()
        service = ServiceProcess(place, **told)
        standby = ServiceProcess(other, **told, stand_by=True)
        with service.start(), standby.start(wait=False):
            here = Installation("", redis.url, "pictures", {})
            fill(here)
            with handlers(here):
                wait_until(
                    lambda: delivered(here) > WARM_COUNT, "the service is warm", timeout_s=LIVE_S
                )
                settings = Settings(
                    **known, http_addr="127.0.0.1:0", http_badge="production", limits=limits
                )
                page = browser.new_page(viewport=SIZE)
                first = HttpProcess(settings, redis_url=redis.url)
                here.url = first.url
                one_with_a_life(here, page)
                first.close()
                served = calm(settings)
                pictures(page, served.url, directory)
                (directory / "act.png").write_bytes(moving_picture(page, served.url))
                served.close()


def delivered(here: Installation) -> int:
    """How many have been delivered."""
    return sum(n for name, n in here.admin.tally().items() if name.startswith("delivered:"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
