"""What a worker is told to run, how it tells its health, and where a client finds its server."""

import json
import sys
import urllib.error
import urllib.request

import pytest

from sendlater import BadRequest, BadSettings, Handlers, Scheduler, Unavailable
from sendlater.cli.worker import loaded
from sendlater.client.health_server import HealthServer
from sendlater.config import load


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of a user, in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "shop.py").write_text(
        "from sendlater import Handlers\napp = Handlers('redis://127.0.0.1:1/0')\nother = 5\n"
    )
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    yield
    sys.modules.pop("shop", None)


def test_a_worker_finds_its_handlers_without_any_server(module):
    assert isinstance(loaded("shop:app"), Handlers)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("shop", "expected package.module:app, got 'shop'"),
        ("nobody:app", "there is no module 'nobody' here"),
        ("shop.inner:app", "there is no module 'shop.inner' here"),
        ("shop:other", "expected Handlers, got int"),
        ("shop:nothing", "expected Handlers, got NoneType"),
    ],
)
def test_a_target_that_is_none_is_told(module, target, told):
    with pytest.raises(BadRequest, match=told):
        loaded(target)


def test_an_import_that_fails_inside_is_shown_as_it_is(module):
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        loaded("broken:app")


def ask(server, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_health_and_metrics_of_a_worker():
    app = Handlers("redis://127.0.0.1:1/0")
    app.health = lambda: troubles
    troubles = {}
    server = HealthServer(":0", app)
    try:
        assert server._server.server_address[0] == "127.0.0.1", "others take a host"
        assert ask(server, "/healthz") == (200, json.dumps({"troubles": {}}))
        troubles = {"bill": "cannot read: away"}
        assert ask(server, "/healthz") == (503, json.dumps({"troubles": troubles}))
        assert "sendlater_handler_events" in ask(server, "/metrics")[1]
        with pytest.raises(BadSettings, match="health: cannot listen"):
            HealthServer(f"127.0.0.1:{server.port}", app)
    finally:
        server.close()
    with pytest.raises(BadSettings, match="health: expected host:port"):
        HealthServer("localhost", app)


def test_a_client_is_told_its_server_by_the_environment(monkeypatch, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret\n")
    monkeypatch.setenv("SENDLATER_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("SENDLATER_TOKEN_FILE", str(token))
    with Scheduler() as scheduler:
        client = scheduler.remote._client
        assert str(client.base_url) == "http://127.0.0.1:1"
        assert client.headers["Authorization"] == "Bearer secret"
    with Scheduler("http://127.0.0.1:2", token="mine") as scheduler:
        assert str(scheduler.remote._client.base_url) == "http://127.0.0.1:2"
        assert scheduler.remote._client.headers["Authorization"] == "Bearer mine"
    load()  # they are no settings, and no typos of settings
    monkeypatch.setenv("SENDLATER_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(BadSettings, match="SENDLATER_TOKEN_FILE: cannot read"):
        Scheduler()


def test_certificates_that_cannot_be_read_are_told(tmp_path):
    (tmp_path / "ca.pem").write_text("no certificate")
    for name in ("ca.pem", "none.pem"):
        with pytest.raises(BadSettings, match=r"expected certificates \(PEM\)"):
            Scheduler("https://127.0.0.1:1", ca_file=tmp_path / name)
    with pytest.raises(BadSettings, match="token and ca_file"):
        Scheduler("redis://127.0.0.1:1/0", ca_file=tmp_path / "ca.pem")


def test_handlers_read_topics_whatever_address_clients_have(monkeypatch, tmp_path):
    monkeypatch.setenv("SENDLATER_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("SENDLATER_DATA_DIR", str(tmp_path))
    with pytest.raises(Unavailable, match="no Redis is configured"):
        _ = Handlers().scheduler
