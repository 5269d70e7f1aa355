"""The page looks as it did: pictures of fixed numbers at a fixed time, compared with `looks/`.

Compared small, so that the smoothing of another machine does not count. `LOOKS=write` takes them
anew.
"""

import base64
import json
import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from pages import ASKING, chart_ready
from playwright.sync_api import expect

from sendlater.config import Settings
from sendlater.server.process import HttpProcess

pytestmark = pytest.mark.story
LOOKS = Path(__file__).parent / "looks"
DIFFERENT_SHARE_MAX = 0.03
NOW = datetime(2026, 12, 6, 10, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1_000)
HOUR_MS = 3_600_000
BARS = 96
VIEWS = {
    "wide-light": ({"width": 1280, "height": 1000}, "light"),
    "wide-dark": ({"width": 1280, "height": 1000}, "dark"),
    "phone-dark": ({"width": 360, "height": 1000}, "dark"),
}
COMPARE = """async ([one, other]) => {
  const CELL = 8, FAR = 24;
  const pixels = async (data) => {
    const image = await createImageBitmap(await (await fetch(data)).blob());
    const [width, height] = [Math.round(image.width / CELL), Math.round(image.height / CELL)];
    const canvas = new OffscreenCanvas(width, height).getContext('2d');
    canvas.imageSmoothingQuality = 'high';
    canvas.drawImage(image, 0, 0, width, height);
    return canvas.getImageData(0, 0, width, height).data;
  };
  const [a, b] = [await pixels(one), await pixels(other)];
  if (a.length !== b.length) return 1;
  let far = 0;
  for (let i = 0; i < a.length; i += 4)
    if (Math.max(...[0, 1, 2].map((n) => Math.abs(a[i + n] - b[i + n]))) > FAR) far += 1;
  return far / (a.length / 4);
}"""


def numbers():
    """What the server would answer, by path."""
    wave = [1 + (n * 7) % 5 + (8 if 6 <= n % 24 <= 17 else 0) for n in range(BARS)]
    emails, orders = [40 * n for n in wave], [25 * n for n in wave]
    orders[23] = 9_000
    edges = [NOW_MS + (n - 3) * HOUR_MS for n in range(BARS + 1)]
    items = [
        {
            "id": f"invoice-{n:04}",
            "topic": ("emails", "orders")[n % 2],
            "due_ms": NOW_MS + n * 400_000,
            "state": "pending",
            "partition": None,
            "value_bytes": 27 + n,
            "value": f'{{"customer": {1_200 + n}}}',
            "caller": "shop",
            "headers": [],
        }
        for n in range(50)
    ]
    lists = {
        "late_p99_ms": [30 + n % 9 + (400 if n == 90 else 0) for n in range(200)],
        "delivered_per_s": [2_000 + 40 * (n % 11) for n in range(200)],
        "pending": [120_000 - 90 * n for n in range(200)],
        "overdue": [0] * 200,
    }
    return {
        "stats": {
            "pending": 104_000,
            "claimed": 3,
            "overdue": 0,
            "oldest_overdue_ms": 0,
            "delivered": 7_204_118,
            "rejected": 0,
            "dead": 1,
            "due": {"1m": 800, "1h": 24_000, "1d": 90_000},
            "late_ms": {"p50": 7, "p99": 35},
            "late_hour_ms": {"p50": 7, "p99": 35, "window_s": 3_600, "count": 9},
            "delivered_per_s": 2_012,
            "intake_lag": {"schedules/0": 0},
            "redis": {"used_bytes": 90_000_000, "max_bytes": 0},
            "service_heard_ms": 300,
            "workers": {"intake": True, "lane-0": True, "lane-1": True},
            "canary_late_ms": None,
            "why": [],
        },
        "trend": {"at_ms": [NOW_MS - n * 15_000 for n in range(200, 0, -1)], **lists},
        "histogram": {
            "now_ms": NOW_MS,
            "edges_ms": edges,
            "counts": [a + b for a, b in zip(emails, orders, strict=True)],
            "topics": {"emails": emails, "orders": orders},
            "recurring": [n // 4 for n in emails],
            "held": [300 if 4 < n < 10 else 0 for n in range(BARS)],
            "sampled": False,
            "estimated": [False] * BARS,
            "before": 0,
            "last_due_ms": edges[-1],
            "overdue": 0,
            "drain_per_s": 50_000,
            "drain_measured": True,
            "late_ms": [2_000 if n == 23 else 0 for n in range(BARS)],
        },
        "schedules": {"items": items, "next_cursor": "more"},
    }


@pytest.fixture(scope="module")
def url(redis_url):
    settings = Settings(redis=redis_url, space="looks", http_addr="127.0.0.1:0")
    served = HttpProcess(settings, redis_url=redis_url)
    yield served.url
    served.close()


@pytest.fixture
def looking_at(browser, url):
    """Opens a view with the numbers above, at their time."""
    contexts = []

    def look(size, scheme):
        context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page.clock.set_fixed_time(NOW)
        page.route("**/v1/events", lambda _: None)  # never answered: nothing moves
        for name, answer in numbers().items():
            page.route(f"**/v1/{name}*", partial(fulfil, json.dumps(answer)))
        page.goto(url + ASKING)
        chart_ready(page)
        expect(page.get_by_role("heading", level=1)).to_have_text(
            "On time: p99 35 ms over the last hour"
        )
        expect(page.locator("#number-late .line")).to_be_attached()
        expect(page.locator("#schedules tbody tr")).to_have_count(50)
        return page

    yield look
    for context in contexts:
        context.close()


def fulfil(body, route):
    route.fulfill(body=body, content_type="application/json")


def data(png):
    return "data:image/png;base64," + base64.b64encode(png).decode()


def different_share(browser, one, other):
    """Of the cells of eight pixels, how many have another colour."""
    page = browser.new_page()
    share = page.evaluate(COMPARE, [data(one), data(other)])
    page.close()
    return share


@pytest.mark.parametrize("view", VIEWS)
def test_the_page_looks_as_it_did(browser, looking_at, view, tmp_path):
    page = looking_at(*VIEWS[view])
    seen, kept = page.screenshot(), LOOKS / f"{view}.png"
    if os.environ.get("LOOKS") == "write":
        kept.write_bytes(seen)
    (tmp_path / kept.name).write_bytes(seen)
    share = different_share(browser, seen, kept.read_bytes())
    assert share <= DIFFERENT_SHARE_MAX, f"{share:.1%} differs; it is {tmp_path / kept.name}"
    page.locator("#chart").evaluate("chart => { chart.hidden = true; }")
    assert different_share(browser, page.screenshot(), kept.read_bytes()) > DIFFERENT_SHARE_MAX
