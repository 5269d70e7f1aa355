"""REST on a real Redis: who may what, and how it is served."""

import json
import os
import re
import socket
import ssl
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx2
import psutil
import pytest
from rest_calls import refused, send, settings_for
from servers import COMMAND, tool, wait_until
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from sendlater import Scheduler
from sendlater.bench.rest import rest as load_rest
from sendlater.brokers.redis import open_topics
from sendlater.cli.serve import _http
from sendlater.client.rest_json import from_json
from sendlater.config import Settings
from sendlater.errors import BadRequest, BadSettings, SendlaterError, Unavailable
from sendlater.local.process import free_ports
from sendlater.model import Cancelled, Moved, Record, Target
from sendlater.server.app import make_app
from sendlater.server.auth import COOKIE, SESSION_S, new_token
from sendlater.server.problems import PROBLEM
from sendlater.server.process import HttpProcess
from sendlater.server.topic_records import Records
from sendlater.store import Admin, Pending

# --- who may what ---------------------------------------------------------------------------------


@pytest.fixture
def guarded(redis_url, space, tmp_path):
    """A client without a token, and a token for each role."""
    tokens, lines = {}, ["# who may what"]
    for role in ("read", "write", "admin"):
        tokens[role], line = new_token(f"{role}er", role)
        lines.append(line)
    file = tmp_path / "tokens"
    file.write_text("\n".join(lines))
    settings = settings_for(redis_url, space, http_tokens=file, http_payload_role="write")
    with TestClient(make_app(settings, redis_url=redis_url), base_url="http://127.0.0.1") as client:
        yield client, tokens, file


def test_each_role_may_what_those_before_it_may(guarded):
    client, tokens, _ = guarded
    asked = [
        ("read", "GET", "/v1/schedules"),
        ("read", "GET", "/v1/stats"),
        ("read", "GET", "/metrics"),
        ("write", "POST", "/v1/schedules"),
        ("write", "DELETE", "/v1/schedules/a"),
        ("write", "PATCH", "/v1/schedules/a"),
        ("admin", "POST", "/v1/schedules:cancel"),
        ("admin", "POST", "/v1/audit/x:undo"),
        ("admin", "POST", "/v1/records:redrive"),
    ]
    order = ["read", "write", "admin"]
    for needed, method, path in asked:
        refused(client.request(method, path), 401, "expected a known token")
        for role in order:
            headers = {"Authorization": f"Bearer {tokens[role]}"}
            status = client.request(method, path, headers=headers, content=b"{}").status_code
            allowed = order.index(role) >= order.index(needed)
            assert (status == 403) != allowed, (role, method, path, status)
            assert status != 401
    assert client.get("/healthz").status_code == 200
    wrong = {"Authorization": "Bearer wrong"}
    refused(client.get("/v1/stats", headers=wrong), 401, "known token")


def test_a_token_is_let_in_and_shut_out_by_its_line_alone(guarded):
    client, tokens, file = guarded
    headers = {"Authorization": f"Bearer {tokens['read']}"}
    assert client.get("/v1/stats", headers=headers).status_code == 200
    assert tokens["read"] not in file.read_text()
    file.write_text("")
    refused(client.get("/v1/stats", headers=headers), 401, "known token")


def test_a_wrong_line_locks_nobody_out(guarded):
    """The tokens read last stay valid until the file is right again, and the log says so."""
    client, tokens, file = guarded
    headers = {"Authorization": f"Bearer {tokens['read']}"}
    right = file.read_text()
    for wrong in (right + "\nann raed 1234", "\udcff", None):
        if wrong is None:
            file.unlink()
        else:
            file.write_text(wrong, errors="surrogateescape")
        with capture_logs() as logs:
            assert client.get("/v1/stats", headers=headers).status_code == 200, wrong
        assert [log["event"] for log in logs] == ["the tokens read last stay valid"], wrong
        refused(client.get("/v1/stats"), 401, "known token")
    token, line = new_token("new", "read")
    file.write_text(line)
    refused(client.get("/v1/stats", headers=headers), 401, "known token")
    new = {"Authorization": f"Bearer {token}"}
    assert client.get("/v1/stats", headers=new).status_code == 200


def test_a_sign_in_leads_to_the_view_that_was_asked_for(guarded):
    """Also after a wrong token; and to no page of others, whoever wrote the link."""
    client, tokens, _ = guarded
    view = "/?topic=orders&due_from=%2B1m&id_prefix=%C3%BC%20%26"

    def sign_in(address, token):
        asked = {"data": {"token": token}, "follow_redirects": False}
        return client.post(address, **asked).headers["location"]

    asked = client.get(view, headers={"Accept": "text/html"}, follow_redirects=False)
    form = asked.headers["location"]
    assert form.startswith("/sign-in?to=")
    again = sign_in(form, "wrong")
    assert "not known" in client.get(again).text
    assert sign_in(again, tokens["read"]) == view
    assert sign_in("/sign-in?to=/schedule?id=a", tokens["read"]) == "/schedule?id=a"
    for elsewhere in (
        "//elsewhere.test/",
        "https://elsewhere.test/",
        "http:/elsewhere.test/",
        "/%5celsewhere.test/",
        "/%09/elsewhere.test/",
        "javascript:alert(1)",
        "//[",
        "/v1/stats",
        "",
    ):
        assert sign_in(f"/sign-in?to={elsewhere}", tokens["read"]) == "/", elsewhere


def test_a_cookie_of_another_local_program_ends_no_session(guarded):
    """Browsers send a cookie to every port of a host, and two of one name if their paths differ."""
    client, tokens, _ = guarded

    def signed_in(port):
        host = {"Host": f"localhost:{port}"}
        asked = {"data": {"token": tokens["read"]}, "follow_redirects": False}
        told = client.post("/sign-in", headers=host, **asked).headers["set-cookie"]
        client.cookies.clear()
        return told.partition(";")[0]

    ours, others = signed_in(8080), signed_in(8081)
    assert ours.partition("=")[0] != others.partition("=")[0]
    foreign = ours.partition("=")[0] + "=of-another-program"
    for cookies in (f"{ours}; {foreign}", f"{foreign}; {ours}", f"{others}; {ours}"):
        headers = {"Host": "localhost:8080", "Cookie": cookies}
        assert client.get("/v1/stats", headers=headers).status_code == 200, cookies
    headers = {"Host": "localhost:8080", "Cookie": foreign}
    assert client.get("/v1/stats", headers=headers).status_code == 401


def test_a_session_ends_with_its_time_its_token_or_a_changed_letter(guarded, monkeypatch):
    client, tokens, file = guarded
    signed = client.post("/sign-in", data={"token": tokens["read"]}, follow_redirects=False)
    about = signed.headers["set-cookie"]
    assert re.fullmatch(
        f"{COOKIE}=[^;]+; HttpOnly; Max-Age={SESSION_S}; Path=/; SameSite=strict", about
    )
    value = about.partition(";")[0]
    client.cookies.clear()

    def status(cookie, after_s=0):
        now_s = time.time()
        with monkeypatch.context() as then:
            then.setattr(time, "time", lambda: now_s + after_s)
            return client.get("/v1/stats", headers={"Cookie": cookie}).status_code

    assert status(value) == status(value, after_s=SESSION_S - 60) == 200
    # Browsers send the cookies of every port of a host, and other programs put JSON into theirs.
    assert status(f'other={{"a": [1]}}; {value}; b[c]=d') == 200
    assert status(value, after_s=SESSION_S + 1) == 401
    changed = value[:40] + ("0" if value[40] != "0" else "1") + value[41:]
    for wrong in (changed, value[:-2], f"{COOKIE}=", f"{COOKIE}=..", f"{COOKIE}=\xfc.1.2", COOKIE):
        assert status(wrong.encode("latin-1")) == 401, wrong
    file.write_text("")
    assert status(value) == 401


def test_payloads_are_shown_from_a_role_on(guarded):
    client, tokens, _ = guarded
    writer = {"Authorization": f"Bearer {tokens['write']}"}
    reader = {"Authorization": f"Bearer {tokens['read']}"}
    body = {"topic": "t", "value": "secret", "key": "k", "id": "a", "delay": "1h"}
    assert client.post("/v1/schedules", json=body, headers=writer).status_code == 201
    assert client.get("/v1/schedules/a", headers=writer).json()["value"] == "secret"
    for path in ("/v1/schedules/a", "/v1/schedules"):
        assert "secret" not in client.get(path, headers=reader).text
    refused(client.get("/v1/records?search=s", headers=reader), 403, "shown payloads")


def test_records_of_other_topics_of_the_cluster_are_for_admins(guarded, redis_url, space):
    """Our service can usually read every topic; a token that may only read must not."""
    client, tokens, _ = guarded
    topics_ours = ["schedules", "rejected", "dead-letters", "a-target"]
    with open_topics(redis_url, settings_for(redis_url, space)) as topics:
        for name in (*topics_ours, "payroll"):
            topics.create(name, 1)
            topics.produce(Record(topic=name, value=b"v"))
    pending = Pending.open(redis_url, space=space, shards=2)
    pending.shards[1].mark("targets", {"a-target": str(Target(100, 1))})

    def status(role, path, topic):
        headers = {"Authorization": f"Bearer {tokens[role]}"}
        return client.get(f"{path}topic={topic}", headers=headers).status_code

    for path in ("/v1/records?", "/v1/records:follow?from_start=true&"):
        for role in ("read", "write", "admin"):
            assert {status(role, path, topic) for topic in topics_ours} == {200}
        assert status("read", path, "payroll") == status("write", path, "payroll") == 403
        assert status("admin", path, "payroll") == 200
        assert status("read", path, "not-there") == 403, "not even whether it exists"
    settings = settings_for(redis_url, space, http_topics=("payroll",))
    assert Records(settings, Admin(pending), redis_url=redis_url).is_ours("payroll")


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
    ],
)
def test_a_page_of_another_site_can_do_nothing(api, headers):
    """Nobody asks for a token here: what a browser says of where it comes from must do."""
    send(api, id="a", delay="1h")
    refused(api.delete("/v1/schedules/a", headers=headers), 403, "expected")
    assert api.get("/v1/schedules/a").status_code == 200
    assert api.delete("/v1/schedules/a", headers={"Sec-Fetch-Site": "same-origin"}).json()


def test_an_open_door_without_tokens_is_refused(redis_url, space):
    settings = Settings(redis=redis_url, space=space, http_addr="0.0.0.0:0")
    with pytest.raises(BadSettings, match="reached from other machines: expected http_tokens"):
        make_app(settings, redis_url=redis_url)


def test_the_docs_page_needs_nothing_from_elsewhere(api):
    page = api.get("/docs")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "https://" not in page.text.replace("https://datatracker", "")
    for path in api.get("/openapi.json").json()["paths"]:
        assert path in page.text


def test_the_command_line_reaches_it_by_its_address(redis_url, space, tmp_path):
    token, line = new_token("me", "admin")
    (tmp_path / "tokens").write_text(line)
    (tmp_path / "token").write_text(token)
    settings = settings_for(redis_url, space, http_tokens=tmp_path / "tokens")
    process = HttpProcess(settings, redis_url=redis_url)

    def run(*words, plain=False):
        away = ["--url", process.url, "--token-file", str(tmp_path / "token")]
        away += [] if plain else ["--json"]
        environment = {k: v for k, v in os.environ.items() if "SENDLATER" not in k}
        done = subprocess.run(
            [COMMAND, *words, *away], env=environment, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(x) for x in done.stdout.splitlines() if x.startswith(b"{")]

    try:
        run("send", "orders", "v", "--delay", "1h", "--id", "a", "--key", "k")
        assert [one["id"] for one in run("list")] == ["a"]
        assert run("get", "a")[0]["key"] == "k"
        ahead = [COMMAND, f"--url={process.url}", "--token-file", tmp_path / "token", "get", "a"]
        assert b"orders" in subprocess.run(ahead, capture_output=True, check=True).stdout
        assert run("stats")[0]["pending"] == 1
        assert run("cancel", "a") == [{"a": "cancelled"}]
        event = [("event-type", b"remind"), ("event-error", b"no")]
        with open_topics(redis_url, settings) as topics:
            topics.create("rejected", 1)
            topics.produce(Record(topic="dead-letters", value=b"e", headers=event))
            topics.produce(
                Record(topic="rejected", value=b"v", headers=[("sendlater-rejected", b"no-time")])
            )
        (dead,) = run("dead", "list")
        assert (dead["value"], dead["headers"][0]) == ("e", ["event-type", "remind"])
        (followed,) = run("tail", "dead-letters", "--from-start", "--count", "1", plain=True)
        assert followed == dead
        run("dead", "redrive", dead["place"], plain=True)
        assert run("list")[0]["topic"] == "remind"
        assert run("rejected", "list")[0]["headers"] == [["sendlater-rejected", "no-time"]]
    finally:
        process.close()


def test_a_load_is_accounted_for_and_taken_back(http_installation):
    (url,), _, _ = http_installation
    told = load_rest(url, token=None, rate=200, seconds=1, warm_up_s=0.2, connections=4)
    assert told["posted"] == told["taken_back"] > 100
    assert (told["refused"], told["unanswered"]) == ({}, 0)
    assert 0 < told["answer_ms"]["p50"] <= told["answer_ms"]["max"]
    assert httpx2.get(f"{url}/v1/schedules?id_prefix=bench-").json()["items"] == []
    with pytest.raises(Unavailable):
        load_rest("http://127.0.0.1:1", token=None, rate=1, seconds=1, warm_up_s=0, connections=1)


def test_the_commands_of_the_documentation_do_what_it_says(redis_url, space):
    text = (Path(__file__).parents[2] / "docs" / "rest.md").read_text()
    commands = re.search(r"```sh\n(.*?)```", text, re.DOTALL).group(1)
    process = HttpProcess(settings_for(redis_url, space), redis_url=redis_url)
    try:
        done = subprocess.run(
            [tool("bash"), "-e", "-c", commands.replace("localhost:8080", process.url)],
            capture_output=True,
            timeout=60,
            check=True,
        )
    finally:
        process.close()
    said = done.stdout.decode()
    assert [said.count(f'"answer":"{word}"') for word in ("moved", "cancelled")] == [2, 1], said


def test_with_a_certificate_it_is_https(redis_url, space, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    request = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([tool("openssl"), *request.split(), *names], check=True, capture_output=True)
    settings = settings_for(redis_url, space, http_cert=cert, http_key=key)
    process = HttpProcess(settings, redis_url=redis_url)
    try:
        assert process.url.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(cert))
        assert httpx2.get(f"{process.url}/healthz", verify=trusting).text == "ok\n"
    finally:
        process.close()


def test_it_is_started_again_when_it_is_killed_and_ends_with_the_service(redis_url, space):
    """At the same address; the log says so once, and it knows that the service still starts."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    settings = settings_for(redis_url, space).model_copy(update={"http_addr": address})

    def child(before):
        (one,) = set(psutil.Process().children()) - before
        return one

    def answers():
        with suppress(httpx2.HTTPError):
            return httpx2.get(f"http://{address}/healthz").text == "ok\n"

    before = set(psutil.Process().children())
    with capture_logs() as logs:
        with _http(settings, redis_url, threading.Event(), waits=False):
            assert answers()
            child(before).kill()
            wait_until(answers, "REST is there again")
            told = httpx2.get(f"http://{address}/v1/stats").json()
            assert told["starting"], "its service is not ready yet"
            last = child(before)
        assert not last.is_running()
    told = [(one["event"], one["query"], one.get("cause")) for one in logs]
    assert told == [
        ("query failed", "REST", "its process ended, status -9"),
        ("query started again", "REST", None),
    ]


def test_on_one_host_it_waits_for_the_address_that_the_last_service_still_has(redis_url, space):
    with socket.create_server(("127.0.0.1", 0)) as last:
        address = f"127.0.0.1:{last.getsockname()[1]}"
        settings = settings_for(redis_url, space).model_copy(update={"http_addr": address})
        alone = _http(settings, redis_url, threading.Event(), waits=False)
        with pytest.raises(SendlaterError, match="REST could not start"), alone:
            pass
        beside = _http(settings, redis_url, threading.Event(), waits=True)
        beside.__enter__()

    def answers():
        with suppress(httpx2.HTTPError):
            return httpx2.get(f"http://{address}/healthz").text == "ok\n"

    try:
        wait_until(answers, "REST has its address")
    finally:
        beside.__exit__(None, None, None)


def test_it_ends_with_its_parent_however_that_ends(redis_url, space):
    """The parent holds the other end of its input; nothing else keeps it alive."""
    process = HttpProcess(settings_for(redis_url, space), redis_url=redis_url)
    child = psutil.Process(process._process.pid)
    process._process.stdin.close()
    wait_until(lambda: process._process.poll() is not None, "the child has ended")
    assert not child.is_running()


def test_ids_that_no_path_carries_are_told_by_the_client_too(http_installation):
    """`.` and `..` would be steps of the path, and an id need not be text."""
    (url,), _, _ = http_installation
    with Scheduler(url) as scheduler:
        for name in (".", "..", "a/../b"):
            scheduler.send_later("out", b"v", delay="1h", id=name)
            assert scheduler.get(name).id == name
            assert scheduler.reschedule(name, delay="2h") is Moved.MOVED
            assert scheduler.cancel(name) is Cancelled.CANCELLED
            assert scheduler.get(name) is None
            assert scheduler.cancel(name) is Cancelled.UNKNOWN


def test_an_id_that_is_no_text_comes_as_it_is():
    told = {"id": "\ufffd", "id_base64": "/w==", "due_ms": 1, "topic": "t", "value": "v"}
    assert from_json(told).id == b"\xff"


def test_a_wrong_address_is_an_error_and_not_an_answer(http_installation):
    (url,), _, _ = http_installation
    with Scheduler(f"{url}/v1") as scheduler:
        for ask in (scheduler.get, scheduler.cancel):
            with pytest.raises(BadRequest, match="404"):
                ask("x")


def test_text_that_is_not_utf8_is_refused_with_a_reason(http_installation):
    (url,), _, _ = http_installation
    with httpx2.Client(base_url=url) as client:
        for value in (b'"\xfc"', b'{"a": "\xfc"}', b'"\\ud800"'):
            line = b'{"topic": "out", "delay": "1h", "value": %s}' % value
            one = client.post(
                "/v1/schedules", content=line, headers={"content-type": "application/json"}
            )
            assert (one.status_code, one.headers["content-type"]) == (400, PROBLEM)
            good = b'{"topic": "out", "delay": "1h", "value": "good"}'
            many = client.post(
                "/v1/schedules",
                content=line + b"\n" + good,
                headers={"content-type": "application/x-ndjson"},
            ).json()
            assert (many["accepted"], [one["line"] for one in many["refused"]]) == (1, [1])
