"""A service with a page, a page without a service, and a browser, for all files here."""

import re
import uuid

import pytest
from pages import Installation, chromium, opened
from servers import ServiceProcess

from sendlater.config import Settings
from sendlater.server.auth import new_token
from sendlater.server.process import HttpProcess


@pytest.fixture(scope="package")
def installation(redis_url, tmp_path_factory):
    """With 200,000 schedules pending; what a file adds, the next one finds."""
    directory = tmp_path_factory.mktemp("page")
    tokens, lines = {}, []
    for role in ("read", "write", "admin"):
        tokens[role], line = new_token(f"{role}er", role)
        lines.append(line)
    (directory / "tokens").write_text("\n".join(lines))
    service = ServiceProcess(
        directory,
        redis=redis_url,
        space="page",
        http_addr="127.0.0.1:0",
        http_tokens=directory / "tokens",
        http_payload_role="write",
        http_badge="staging",
    )
    with service.start():
        url = re.search(r"page and REST at (http\S+)", service.said()).group(1)
        made = Installation(url, redis_url, "page", tokens)
        made.fill()
        yield made


@pytest.fixture(scope="module")
def alone(redis_url):
    """REST and the page without a service, and without tokens."""
    space = f"alone{uuid.uuid4().hex[:8]}"
    settings = Settings(redis=redis_url, space=space, http_addr="127.0.0.1:0")
    served = HttpProcess(settings, redis_url=redis_url)
    yield Installation(served.url, redis_url, space, {})
    served.close()


@pytest.fixture(scope="package")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser, installation):
    with opened(browser, installation) as page:
        yield page
