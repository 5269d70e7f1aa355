"""REST under fire: clients that say nothing, too little, too much or nonsense hurt nobody else."""

import json
import random
import re
import socket
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from urllib.parse import urlsplit

import httpx2
import pytest
from hostile_requests import hostile_request
from rest_calls import settings_for
from servers import wait_until
from starlette.testclient import TestClient

from sendlater.limits import BODY_BYTES_MAX, CONNECTIONS_COUNT_MAX, HEAD_BYTES_MAX
from sendlater.server import connections
from sendlater.server.app import make_app
from sendlater.server.auth import new_token
from sendlater.server.process import HttpProcess, server

REQUESTS_COUNT = 2_000
CLIENTS_COUNT = 8
ANSWER_S = 60.0
"""A request without an answer after this time hangs."""
HEALTH_RATIO_MAX = 500
"""Health under fire, median, against health at rest; a hung one would take ten thousands."""


@contextmanager
def dialled(port, sent=b""):
    """A socket that has sent some bytes."""
    with closing(socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)) as line:
        line.sendall(sent)
        yield line


def answered(line):
    """The status of an answer; None for a connection that was closed without one."""
    said = b""
    with suppress(ConnectionError):
        while not (found := re.search(rb"HTTP/1\.[01] ([2-5]\d\d) ", said)):
            more = line.recv(4_096)
            if not more:
                return None
            said += more
        return int(found[1])
    return None


@pytest.fixture
def process(redis_url, space):
    served = HttpProcess(settings_for(redis_url, space), redis_url=redis_url)
    yield served
    served.close()


@pytest.fixture
def hurried(redis_url, space, monkeypatch):
    """A server with very little patience, in this process; and its port."""
    monkeypatch.setattr(connections, "LOOK_S", 0.02)
    monkeypatch.setattr(connections, "HEAD_S_MAX", 0.3)
    monkeypatch.setattr(connections, "STALL_S_MAX", 0.3)
    settings = settings_for(redis_url, space)
    serving = server(settings, make_app(settings, redis_url=redis_url))
    thread = threading.Thread(target=serving.run)
    thread.start()
    wait_until(lambda: serving.started, "it serves")
    yield serving, serving.servers[0].sockets[0].getsockname()[1]
    serving.should_exit = True
    thread.join()


SILENT = (
    b"GET /he",
    b"",
    b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nt",
)


def test_silent_connections_keep_nobody_out(process):
    """Each new connection takes the place of the one that has been silent the longest."""
    port = urlsplit(process.url).port
    with ExitStack() as held:
        silent = [
            held.enter_context(dialled(port, SILENT[n % len(SILENT)]))
            for n in range(CONNECTIONS_COUNT_MAX + 20)
        ]
        for _ in range(3):
            assert httpx2.get(f"{process.url}/healthz", timeout=ANSWER_S).status_code == 200
        assert answered(silent[1]) is None
        silent[-1].sendall(b"althz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answered(silent[-1]) == 200, "the last of them are still there"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /healthz HT",
        b"POST /v1/schedules HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
        b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n{",
    ],
)
def test_who_does_not_go_on_is_hung_up_on(hurried, sent):
    _, port = hurried
    with dialled(port, sent) as line:
        assert answered(line) is None


ANSWERS = 200
"""Together larger than what sockets buffer."""


def test_who_does_not_take_the_answer_is_hung_up_on(hurried):
    serving, port = hurried
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    before = serving.server_state.total_requests
    with dialled(port, asked * ANSWERS):
        wait_until(lambda: serving.server_state.total_requests > before, "it has answered one")
        wait_until(lambda: not serving.server_state.connections, "it has hung up")


def test_a_body_that_is_too_large_is_refused_before_it_is_read(process):
    """The sign-in needs no token: what it reads, everybody can make it read."""
    port = urlsplit(process.url).port
    post = b"POST %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n"
    length = b"Content-Length: %d"
    for path, head in (
        (b"/sign-in", length % BODY_BYTES_MAX),
        (b"/sign-in", b"Transfer-Encoding: chunked\r\n\r\nffff\r\n" + b"x" * 2_000),
        (b"/v1/schedules", length % (BODY_BYTES_MAX + 1)),
    ):
        with dialled(port, post % (path, head)) as line:
            assert answered(line) == 413, head[:40]
    with dialled(port, b"GET / HTTP/1.1\r\n" + b"a: %s\r\n" % (b"b" * HEAD_BYTES_MAX)) as line:
        assert answered(line) == 400


def test_bodies_that_would_fill_the_memory_are_refused(api, monkeypatch):
    monkeypatch.setattr("sendlater.server.app.BODIES_BYTES_MAX", 100)
    body = {"topic": "t", "value": "v" * 100, "delay": 60}
    assert api.post("/v1/schedules", json=body).status_code == 503
    assert api.post("/v1/schedules", json={**body, "value": "v"}).status_code == 201


def test_nothing_large_is_left_to_the_first_who_asks(api, monkeypatch):
    """Requests share one thread: while it makes the OpenAPI document, nobody is answered."""

    def late(**_):
        raise AssertionError("made while requests wait")

    monkeypatch.setattr("sendlater.server.openapi.get_openapi", late)
    refused_method = api.request("BREW", "/v1/schedules")
    assert (refused_method.status_code, refused_method.headers["allow"]) == (405, "GET, POST")
    assert api.get("/openapi.json").status_code == 200


def test_what_is_not_there_is_told_to_a_browser_that_has_not_signed_in(redis_url, space, tmp_path):
    """Below a path that needs no token, nobody needs to have said who they are."""
    (tmp_path / "tokens").write_text(new_token("me", "admin")[1])
    settings = settings_for(redis_url, space, http_tokens=tmp_path / "tokens")
    browser = TestClient(make_app(settings, redis_url=redis_url), headers={"accept": "text/html"})
    for path in ("/static/nothing.js", "/healthz/nothing", "/sign-in/nothing"):
        assert browser.get(path).status_code == 404, path


def test_two_thousand_hostile_requests_hurt_nobody(redis_url, space, tmp_path, capfd):
    """No 500, no hang, no traceback, and who asks for health is answered all the time."""
    token, line = new_token("me", "admin")
    (tmp_path / "tokens").write_text(line)
    settings = settings_for(redis_url, space, http_tokens=tmp_path / "tokens")
    served = HttpProcess(settings, redis_url=redis_url)
    port, over = urlsplit(served.url).port, threading.Event()
    client = httpx2.Client(
        base_url=served.url, headers={"Authorization": f"Bearer {token}"}, timeout=ANSWER_S
    )

    def health():
        began_s = time.monotonic()
        with dialled(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") as line:
            assert answered(line) == 200
        return time.monotonic() - began_s

    def watched():
        taken = []
        while not over.is_set():
            taken.append(health())
        return taken

    def attack(seed):
        request = hostile_request(random.Random(seed), token=token)
        with dialled(port) as line:
            try:
                for piece in request.pieces:
                    line.sendall(piece)
                if request.ends:
                    line.shutdown(socket.SHUT_WR)
                return request, answered(line) if request.complete or request.ends else None
            except TimeoutError:
                return request, "hangs"
            except OSError:  # hung up on before everything was sent
                return request, None

    try:
        at_rest_s = statistics.median(health() for _ in range(50))
        with ThreadPoolExecutor(CLIENTS_COUNT + 1) as threads:
            watch = threads.submit(watched)
            done = list(threads.map(attack, range(REQUESTS_COUNT)))
            over.set()
            under_fire_s = watch.result()
        wrong = [(one.pieces, status) for one, status in done if status in ("hangs", 500, 502)]
        assert wrong == []
        assert sum(status is not None for _, status in done) > REQUESTS_COUNT // 2
        assert statistics.median(under_fire_s) < HEALTH_RATIO_MAX * at_rest_s
        body = {"topic": "t", "value": "v", "delay": "1h", "id": "after"}
        assert client.post("/v1/schedules", json=body).status_code == 201
        assert json.loads(client.get("/v1/schedules/after").text)["topic"] == "t"
        assert served.isActive
    finally:
        over.set()
        client.close()
        served.close()
    assert "Traceback" not in capfd.readouterr().err
