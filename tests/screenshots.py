"""Pictures of the page for the documentation: `make screenshots`."""

import sys
import tempfile
from pathlib import Path

from pages import Installation, chart_ready, chromium
from servers import own_redis

from sendlater.config import Settings
from sendlater.server.process import HttpProcess

WIDTH, HEIGHT = 1280, 900


def main(directory: Path) -> None:
    """Fill a store, serve it, and look at it."""
    directory.mkdir(parents=True, exist_ok=True)
    with own_redis(Path(tempfile.mkdtemp())) as redis, chromium() as browser:
        settings = Settings(
            redis=redis.url, space="pictures", http_addr="127.0.0.1:0", http_badge="staging"
        )
        process = HttpProcess(settings, redis_url=redis.url)
        Installation(process.url, redis.url, "pictures", {}).fill()
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(process.url)
        chart_ready(page)
        page.screenshot(path=directory / "overview.png")
        page.locator("#chart").screenshot(path=directory / "timeline.png")
        page.goto(f"{process.url}/schedule?id=emails-000000")
        page.locator("#payload .tree").wait_for()
        page.screenshot(path=directory / "detail.png")
        process.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
