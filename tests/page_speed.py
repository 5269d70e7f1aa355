"""How fast the page is with much pending: `make speed ARGS="--count 1000000"`."""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import httpx2
from pages import Installation, chromium, first_view_ms, weight_bytes
from playwright.sync_api import Browser
from servers import own_redis

from sendlater.config import Settings
from sendlater.server.process import HttpProcess

CALLS = 30
VIEWS = 5
WINDOW_MS = 2_500
"""Until a new window of Chromium has loaded its own parts, which take both cores meanwhile."""
ROUTES = {
    "timeline, all": "/v1/histogram?buckets=60",
    "timeline, a day": "/v1/histogram?buckets=60&due_to=%2B24h",
    "timeline, 500 buckets": "/v1/histogram?buckets=500",
    "numbers": "/v1/stats",
    "table": "/v1/schedules?limit=50",
    "table, last first": "/v1/schedules?limit=50&order=last",
    "table, one topic": "/v1/schedules?limit=50&topic=orders",
    "table, one caller": "/v1/schedules?limit=50&caller=shop",
    "page": "/",
}


def main() -> None:
    """Fill a Redis of its own, serve it, and measure from outside."""
    asked = argparse.ArgumentParser(prog="page_speed", description=__doc__)
    asked.add_argument("--count", type=int, default=1_000_000, help="pending schedules")
    count = asked.parse_args().count
    with own_redis(Path(tempfile.mkdtemp())) as redis, chromium() as browser:
        settings = Settings(redis=redis.url, space="speed", http_addr="127.0.0.1:0")
        process = HttpProcess(settings, redis_url=redis.url)
        filled_s = timed(lambda: Installation(process.url, redis.url, "speed", {}).fill(count))
        tell(f"{count:,} pending", f"filled in {filled_s:.1f} s")
        with httpx2.Client(base_url=process.url) as client:
            for name, path in ROUTES.items():
                server_time(client, name, path)
        views(browser, process.url)
        process.close()


def server_time(client: httpx2.Client, name: str, path: str) -> None:
    """From asking until the answer is there, on this machine; the first call is told apart."""
    times = [1_000 * timed(lambda: client.get(path).raise_for_status()) for _ in range(CALLS)]
    first, *rest = times
    tell(name, f"p50 {median(rest):.1f} ms, max {max(rest):.1f} ms, first {first:.1f} ms")


def views(browser: Browser, url: str) -> None:
    """The overview as somebody sees it who comes for the first time, and who comes back."""
    for visit in ("first view", "view again"):
        seen = []
        for _ in range(VIEWS):
            context = browser.new_context(base_url=url)
            page = context.new_page()
            page.wait_for_timeout(WINDOW_MS)
            page.goto("/")
            found = first_view_ms(page)
            weight = weight_bytes(page)
            if visit == "view again":
                page.reload()
                found = first_view_ms(page)
            seen.append(found | {"complete": max(found.values())})
            context.close()
        worst = {name: max(one[name] for one in seen) for name in seen[0]}
        told = ", ".join(
            f"{name} {median(one[name] for one in seen):.0f} (max {worst[name]:.0f})"
            for name in worst
        )
        tell(visit, f"ms: {told}; {weight / 1_000:.0f} KB")


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def tell(name: str, text: str) -> None:
    """A line."""
    print(f"{name:24} {text}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
